"""What the documents promise: links lead somewhere, commands parse, code compiles, every field and family is named."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from slimformer.calibrate.store import Provenance
from slimformer.calibrate.tasks import TASKS
from slimformer.cli.app import app
from slimformer.decompose import METHODS, Curve
from slimformer.evaluate.report import Footprint, Report
from slimformer.models import FAMILIES
from slimformer.plan import Edit, Plan
from slimformer.recipe import Recipe
from slimformer.recipes import names
from slimformer.steps import STEPS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(slimformer [^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# Put together from parts, so that this file does not hold what it looks for.
FORBIDDEN_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("pythonhosted", "org"), ("pypi", "python", "org"), ("anaconda", "org"), ("npmjs", "com"),
        ("download", "pytorch", "org"), ("huggingface", "co"), ("hf-mirror", "com"), ("drive", "google", "com"),
    )
]  # fmt: skip


def identified(paths):
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(ROOT)) for path in paths])


def blocks(path: Path, *languages: str) -> list[str]:
    """The code blocks of a document in these languages ("" for none)."""
    return [code for language, code in FENCED.findall(path.read_text(encoding="utf-8")) if language in languages]


def prose(path: Path) -> str:
    return FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The names headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def shell_lines() -> list[tuple[str, str]]:
    """Every command line of slimformer in a code block, with the document it stands in."""
    found = []
    for path in DOCUMENTS:
        for code in blocks(path, "", "sh", "bash", "shell"):
            lines = code.replace("\\\n", " ").splitlines()
            found += [(str(path.relative_to(ROOT)), line) for line in lines if line.startswith("slimformer ")]
    return found


def command_named(words: list[str]):
    """The command the words begin with, and the words after its name."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"there is no command {' '.join(words[:1])!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def tracked_files() -> list[Path]:
    """The files git knows, or would know; all files of a copy without git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]


@identified(DOCUMENTS)
def test_every_link_leads_somewhere(path):
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in anchors(there), f"{target}: {there.name} has no heading {anchor!r}"


@pytest.mark.parametrize(("document", "line"), shell_lines())
def test_every_command_line_parses(document, line):
    words = shlex.split(line, comments=True)[1:]
    redirected = [i for i, word in enumerate(words) if word in {">", "|"}]
    command, rest = command_named(words[: redirected[0]] if redirected else words)
    command.make_context(command.name, rest)  # raises for an unknown option, a missing argument, a wrong type


@identified(DOCUMENTS)
def test_commands_in_running_text_have_options_that_exist(path):
    for found in INLINE.findall(prose(path)):
        command, rest = command_named(shlex.split(found)[1:])
        known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
        asked = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert asked <= known, f"`{found}`: there is no {', '.join(sorted(asked - known))}"


def test_the_documents_show_every_command():
    shown = {" ".join(shlex.split(line)[1:]).split(" ")[0] for _, line in shell_lines()}
    assert set(typer.main.get_command(app).commands) <= shown


@identified(DOCUMENTS)
def test_python_in_documents_compiles(path):
    for code in blocks(path, "python"):
        compile(code, str(path), "exec")


@identified(EXAMPLES)
def test_examples_are_short_and_say_what_they_show(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert compile(text, str(path), "exec").co_consts[0].strip(), "an example starts with what it shows"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 160


@pytest.mark.parametrize("kind", [Recipe, Plan, Edit, Report, Footprint, Provenance, Curve], ids=lambda k: k.__name__)
def test_every_field_of_every_file_is_explained(kind):
    known = [field.name for field in dataclasses.fields(kind)]
    said = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")))
    assert set(known) <= said, f"docs/formats.md does not explain {', '.join(sorted(set(known) - said))}"


def test_every_step_and_setting_is_explained():
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    for name, step in STEPS.items():
        _, found, table = text.partition(f"**`{name}`**: ")
        assert found, f"docs/formats.md does not explain the step {name}; run `python benchmarks/render.py`"
        said = set(re.findall(r"^\| `(\w+)` \|", table.split("**`")[0], re.MULTILINE))
        assert step.model_fields.keys() - {"name"} <= said, f"{name}: run `python benchmarks/render.py`"


def test_the_walk_of_compress_names_functions_that_are_there():
    """docs/design.md: at most twenty hops from the shell to the folder, each a file and a function in it."""
    rows = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)
    assert 10 < len(rows) <= 20
    for file, function in rows:
        text = (ROOT / "src" / "slimformer" / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*def {function}\(", text, re.MULTILINE), f"{file} has no {function}"


@identified(DOCUMENTS)
def test_files_of_the_package_that_are_named_are_there(path):
    """`steps/cut.py` and the like, below the package or the repository; not what only used to be so."""
    if path.name == "CHANGELOG.md":
        return
    for name in re.findall(r"`(\w+/[\w/]*\w+\.py)`", prose(path)):
        places = [ROOT / name, ROOT / "src" / "slimformer" / name, path.parent / name]
        assert any(place.exists() for place in places) or name.endswith("phi.py"), f"there is no {name}"


def test_every_family_method_recipe_and_data_set_is_named():
    readme, which, data = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("README.md", "docs/which-recipe.md", "docs/calibration-data.md")
    )
    assert all(f"`{model_type}`" in readme for model_type in FAMILIES)
    assert all((ROOT / "docs" / "methods" / f"{method}.md").is_file() for method in METHODS)
    assert all(f"`{name}`" in which for name in names())
    assert all(f"`{name}`" in data for name in TASKS)


@identified(DOCUMENTS)
def test_nobody_is_told_to_ignore_mismatched_sizes(path):
    """It draws weights at random. Only two pages name it: one says never to use it, one lists what was refused."""
    text = path.read_text(encoding="utf-8")
    warned = "Never use `ignore_mismatched_sizes`" in text or "## Refused" in text
    assert "ignore_mismatched_sizes" not in text or (warned and "ignore_mismatched_sizes=True" not in text)


def test_no_registry_or_download_host_is_named():
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        named = [host for host in FORBIDDEN_HOSTS if host in text]
        assert not named, f"{path.relative_to(ROOT)} names {', '.join(named)}"
