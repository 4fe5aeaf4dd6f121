"""`slimformer heal`: win back what cutting lost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import show_result
from slimformer.cli.terminal import showing_progress
from slimformer.errors import UnknownRecipe

Teacher = Annotated[str, typer.Option(metavar="MODEL", help="the dense model it came from, to learn from")]
Minutes = Annotated[
    float | None, typer.Option(min=0.01, metavar="N", help="how long to learn", show_default="10, without --tokens")
]
Seen = Annotated[int | None, typer.Option("--tokens", min=1, metavar="N", help="or: tokens to learn from")]
Epochs = Annotated[int | None, typer.Option(min=1, metavar="N", help="or: passes over the text")]
Phases = Annotated[str, typer.Option(metavar="NAME", help="local: block by block; global: all at once; or both")]
Train = Annotated[str, typer.Option(metavar="NAME", help="all of the blocks, lora (needs peft), or norms and biases")]
Rate = Annotated[
    float | None, typer.Option(metavar="X", help="learning rate of the global phase", show_default="found")
]


@opt.grouped
def heal(
    folder: opt.Small,
    out_folder: opt.OutFolder,
    teacher: Teacher,
    minutes: Minutes = None,
    tokens: Seen = None,
    epochs: Epochs = None,
    phases: Phases = "both",
    train: Train = "all",
    rate: Rate = None,
    settings: opt.Setting = None,
    data: opt.DataOption = None,
    only_data: opt.OnlyData = False,
    columns: opt.Columns = "",
    samples: opt.Samples = None,
    seq_len: opt.SeqLen = None,
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    timing: opt.Timing = False,
    verify: opt.Verify = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Let a cut model learn from the dense one, on text without labels; never worse than before.

    What does not help on held-out text is taken back. A killed run goes on: give the same command again. Needs the
    extra `heal`.
    """
    name = inputs.joined(data)
    inputs.require_place(out_folder, force, folder, teacher, *inputs.parts_of(name))
    inputs.require_models(folder, teacher, opening)
    inputs.require_data(name)
    asked: dict[str, Any] = {"minutes": minutes, "tokens": tokens, "epochs": epochs, "rate": rate} | {
        "phases": phases, "train": train
    }  # fmt: skip
    for key, value in inputs.settings_in(settings or []).items():
        step, _, field = key.partition(".")
        if step != "heal":
            raise UnknownRecipe(f"--set {key}: this command has the step heal alone; give heal.KEY=VALUE")
        asked[field] = value

    from slimformer.compress import heal as learn
    from slimformer.recipe import recipe_of

    recipe_of("heal", "", {"heal": asked}).steps[0].require_complete()
    dense, small = inputs.load_pair(folder, teacher, opening)
    with showing_progress(hidden=shown.hidden) as progress:
        result = learn(
            small, name, teacher=dense, out=out_folder, progress=progress, only_data=only_data, samples=samples,
            columns=opt.column_names(columns), seq_len=seq_len, seed=seed, timing=timing, force=force, verify=verify,
            **asked,
        )  # fmt: skip
    show_result(result.report, out_folder, shown)
