"""`slimformer families`: where each kind of model keeps its widths, and what of it may be cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit
from slimformer.files.content import FileKind

if TYPE_CHECKING:
    from slimformer.inspect.proofs import Proof
    from slimformer.models.family import Family


def _is_family(path: Path) -> bool:
    from slimformer.errors import UnknownArchitecture
    from slimformer.models.families import read_family

    try:
        read_family(path)
    except UnknownArchitecture:
        return False
    return True


FAMILY = FileKind("a family", _is_family)
families = typer.Typer(
    name="families", help="Kinds of models: what is known of each, and what can be found out.", no_args_is_help=True
)


@families.command("ls", epilog="Example: slimformer families ls")
@opt.grouped
def families_ls(seed: opt.NoSeed = 0, shown: opt.Shown = opt.SHOWN) -> None:
    """List the families that come with the package, with the types of models each describes."""
    from slimformer.models.families import FAMILIES

    families_by_name = {family.name: family for family in FAMILIES.values()}

    def tables() -> None:
        for name, family in sorted(families_by_name.items()):
            typer.echo(f"{name:12} {', '.join(family.model_types)}: {family.summary}")

    emit({name: _facts(family) for name, family in sorted(families_by_name.items())}, shown, tables)


@families.command("show", epilog="Example: slimformer families show llama > mine.yaml")
@opt.grouped
def families_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a family, a type of models, or a path")],
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Print a family: copy it, change it, and give its path to --family."""
    from slimformer.models.families import family_yaml, named_family

    family = named_family(name)
    emit(family.to_json(), shown, lambda: typer.echo(family_yaml(family), nl=False))


def _facts(family: Family) -> dict[str, Any]:
    return {"model_types": list(family.model_types), "summary": family.summary}


@families.command("check", epilog="Example: slimformer families check family.yaml ./my-model")
@opt.grouped
def families_check(
    name: Annotated[str, typer.Argument(metavar="FAMILY", help="a family, a type of models, or a path")],
    model: opt.Model,
    seed: opt.NoSeed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Prove on MODEL that a family says the truth: rows reach their unit alone, copies go without a trace, a folder
    comes back."""
    from slimformer.models.families import named_family

    family = named_family(name)
    inputs.require_model(model, opening)

    from slimformer.errors import UnknownArchitecture
    from slimformer.inspect.proofs import prove, require_dense
    from slimformer.models.families import bring_family
    from slimformer.models.load import load_model

    loaded = load_model(model, opening.resolve(), supported=False)
    require_dense(loaded.model, loaded.name)
    bring_family(loaded.model.config, family)
    proofs = prove(loaded.model)

    def tables() -> None:
        for proof in proofs:
            typer.echo(_line(proof))

    emit({"family": family.name, "proofs": [proof.to_json() for proof in proofs]}, shown, tables)
    if wrong := [proof for proof in proofs if not proof.holds]:
        raise UnknownArchitecture(f"{name} does not hold for {loaded.name}: {_line(wrong[0])}")


@families.command("discover", epilog="Example: slimformer families discover ./my-model --out family.yaml")
@opt.grouped
def families_discover(
    model: opt.Model,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="write the family here, for --family")],
    force: opt.Force = False,
    seed: opt.NoSeed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Find out what of a model can be cut, though nobody wrote its type down: each part is proved on the model itself,
    and what is not proved is written down with the reason."""
    from slimformer.checkpoint.atomic import require_free_file, writing_file

    inputs.require_model(model, opening)
    require_free_file(out, force, FAMILY)

    from slimformer.inspect.discovery import discover, discovery_note
    from slimformer.models.families import family_yaml
    from slimformer.models.load import load_model

    loaded = load_model(model, opening.resolve(), supported=False)
    discovery = discover(loaded.model)
    refused = "".join(f"# not offered: {reason}\n" for reason in discovery.refused)
    with writing_file(out, force=force, kind=FAMILY) as file:
        file.write_text(family_yaml(discovery.family) + refused, encoding="utf-8")
    facts = {
        "family": discovery.family.to_json(), "proofs": [proof.to_json() for proof in discovery.proofs],
        "refused": list(discovery.refused), "out": str(out),
    }  # fmt: skip

    def tables() -> None:
        typer.echo(discovery_note(loaded.model.config.model_type, discovery))
        for proof in discovery.proofs:
            typer.echo(_line(proof))
        typer.echo(f"written to {out}; use it with --family {out}")

    emit(facts, shown, tables)


def _line(proof: Proof) -> str:
    where = f"{proof.stack} {proof.part}".strip()
    return f"{where:12} {proof.law:7} {'holds' if proof.holds else f'does not hold: {proof.seen}'}"
