"""The package as others get it: a wheel, built, installed in an environment of its own, run outside the repository."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from conftest import skip_or_fail
from terminal import save_tiny, write_texts

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "slimformer"
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: object, where: Path) -> str:
    child = subprocess.run(list(map(str, command)), cwd=where, env=ALONE, capture_output=True, text=True)
    assert child.returncode == 0, f"{command}: {child.stdout[-2000:]}{child.stderr[-2000:]}"
    return child.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        skip_or_fail("hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    child = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    (built,) = folder.glob("slimformer-*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, which borrows torch and the like from this one, and nothing else:
    files in a borrowed folder that put this repository on the path are not read."""
    root = tmp_path_factory.mktemp("elsewhere")
    venv.create(root / "env", with_pip=False)
    bin = root / "env" / ("Scripts" if os.name == "nt" else "bin")
    (packages,) = (root / "env").rglob("site-packages")
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    run(sys.executable, "-m", "pip", "--python", bin / "python", "install", "-q", "--no-deps", "--no-index", wheel,
        where=root)  # fmt: skip
    return bin


def test_everything_the_package_reads_is_in_the_wheel(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    kept = {path for path in SRC.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    missing = {f"slimformer/{path.relative_to(SRC).as_posix()}" for path in kept} - inside
    assert not missing
    kinds = {Path(name).suffix for name in inside if name.startswith("slimformer/")}
    assert {".py", ".yaml", ".html"} <= kinds and "slimformer/py.typed" in inside
    assert not [name for name in inside if not re.match(r"slimformer(/|-[\d.]+\.dist-info/)", name)]


def test_what_the_package_says_of_itself(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    said = email.message_from_string(archive.read(name).decode())
    assert said["Name"] == "slimformer" and said["Author"] == "The slimformer contributors"
    assert said["License-Expression"] == "Apache-2.0" and said["Requires-Python"] == ">=3.11"
    extras = set(said.get_all("Provides-Extra") or ())
    assert {"onnx", "gguf", "heal", "quant", "vision", "eval", "plots"} <= extras
    text = said.get_payload()
    assert isinstance(text, str) and text.startswith("# slimformer")
    dead = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", target)]
    assert not dead, "links to files lead nowhere outside the repository"
    (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "slimformer = slimformer.cli.app:main" in archive.read(points).decode()


def hook() -> ModuleType:
    if importlib.util.find_spec("hatchling") is None:
        skip_or_fail("hatchling is not installed")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_become_absolute_where_the_repository_has_a_place():
    outside = hook().outside
    text = "[a](docs/x.md#y), ![p](docs/p.png), [h](#h), [w](https://example.org/z)"
    home = "https://example.org/us/it/"
    assert outside(text, home, "1.2") == (
        "[a](https://example.org/us/it/blob/v1.2/docs/x.md#y), ![p](https://example.org/us/it/raw/v1.2/docs/p.png), "
        "[h](#h), [w](https://example.org/z)"
    )
    assert outside(text, "", "1.2") == "a, , [h](#h), [w](https://example.org/z)"
    assert hook().urls("", "1.2") == {} and hook().urls(home, "1.2")["Issues"] == "https://example.org/us/it/issues"


@pytest.mark.slow
def test_the_installed_program_works_outside_the_repository(elsewhere, tmp_path):
    program, python = elsewhere / "slimformer", elsewhere / "python"
    save_tiny(tmp_path / "llama", "llama")
    write_texts(tmp_path / "text.txt")
    place = run(python, "-c", "import slimformer; print(slimformer.__file__)", where=tmp_path)
    assert Path(place.strip()).is_relative_to(elsewhere.parent)
    assert "compress" in run(program, "--help", where=tmp_path)
    assert re.match(r"slimformer \d", run(program, "--version", where=tmp_path))
    assert "balanced" in run(program, "recipes", "ls", where=tmp_path)
    assert "llama" in run(program, "families", "ls", where=tmp_path)
    assert "llama" in run(program, "inspect", "llama", where=tmp_path)
    made = run(program, "compress", "llama", "--macs", "0.6", "--data", "text.txt", "--tokens", "600", "--no-timing",
               "--out", "smaller", where=tmp_path)  # fmt: skip
    assert "saved in smaller" in made
    assert {"model.safetensors", "report.html", "README.md"} <= {path.name for path in (tmp_path / "smaller").iterdir()}
    opened = "import slimformer; print(type(slimformer.load('smaller')).__name__)"
    assert run(python, "-c", opened, where=tmp_path).strip() == "LlamaForCausalLM"
