"""The runner: what has ended is not run again, what changed is refused, tables are right, models load."""

from __future__ import annotations

import csv
import json
import signal
import statistics

import pytest
import torch
import transformers

from experiments import (
    BERT,
    DIGITS,
    LONG,
    VIT,
    experiment,
    image_folder,
    kill_after_first_state,
    lasting,
    start,
    text_file,
)
from slimformer.errors import ExperimentChanged
from slimformer.lab.estimate import Estimate, estimate, hours
from slimformer.lab.feed import open_feed
from slimformer.lab.folder import LabFolder, alone
from slimformer.lab.grid import expand
from slimformer.lab.same_data import require_same_data
from slimformer.lab.settings import Experiment, load_experiment
from slimformer.lab.table import cells, summarise
from slimformer.lab.train import train
from slimformer.report.track import run_of
from terminal import done, refused

QUICK = ("--no-estimate", "-q")


def results(folder):
    return {file.stem: json.loads(file.read_text()) for file in sorted((folder / "runs").glob("*.json"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two variants and three seeds, run by two workers."""
    place = tmp_path_factory.mktemp("lab")
    published = {"source": "somebody", "rows": {"a": {"accuracy": 98.5}}}
    path = experiment(place, variants={"a": {}, "b": {"hidden_size": 8}}, seeds=[0, 1, 2], published=published)
    said = done("lab", "run", path, "--out", place / "out", "--workers", 2)
    return path, place / "out", said


def test_every_run_leaves_a_file_and_the_hours_are_told_first(finished):
    _, out, said = finished
    assert sorted(results(out)) == [f"{name}-seed-{seed}" for name in "ab" for seed in range(3)]
    assert "hours with 2 workers" in said.err and not list(out.rglob("*.partial*"))
    assert not list((out / "runs").glob("*.safetensors")), "states are gone when runs have ended"


def test_workers_change_no_bit(finished, tmp_path):
    path, out, _ = finished
    done("lab", "run", path, "--out", tmp_path / "one", *QUICK)
    assert {k: lasting(v) for k, v in results(tmp_path / "one").items()} == {
        k: lasting(v) for k, v in results(out).items()
    }


def test_the_table_has_the_means_and_deviations_of_the_runs(finished):
    _, out, _ = finished
    rows = json.loads((out / "table.json").read_text())["rows"]
    losses = [results(out)[f"b-seed-{seed}"]["validation"]["loss"] for seed in range(3)]
    found = rows[1]["validation"]["loss"]
    mean = sum(losses) / 3
    assert found["mean"] == pytest.approx(mean)
    assert found["std"] == pytest.approx((sum((x - mean) ** 2 for x in losses) / 2) ** 0.5)
    assert f"{mean:.4f} ± {statistics.stdev(losses):.4f}" in (out / "table.md").read_text()
    assert rows[0]["q"] == pytest.approx(200 * 10 / rows[0]["parameters"])
    (first, second) = csv.DictReader((out / "table.csv").open())
    assert float(second["validation_loss_mean"]) == found["mean"] and first["published_accuracy"] == "98.5"
    assert (out / "figures" / "curves-digits.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / "figures" / "parameters-digits.png").stat().st_size > 5_000


def test_above_the_table_stand_the_data_and_their_amount(finished):
    _, out, said = finished
    sizes = results(out)["a-seed-0"]["data"]
    line = f"measured on digits: {sizes['validation']:,} examples held out for validation"
    assert line in " ".join(said.out.split()) and line in (out / "table.md").read_text()
    assert "95 % interval of up to ±" in json.loads((out / "table.json").read_text())["data"][0]


def test_what_has_ended_is_not_run_again_and_the_table_can_be_made_anew(finished):
    path, out, _ = finished
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    table = (out / "table.md").read_text()
    (out / "table.md").unlink()
    assert json.loads(done("lab", "run", path, "--out", out, "--json").out)["rows"]
    assert {file: file.stat().st_mtime_ns for file in (out / "runs").iterdir()} == before
    assert json.loads(done("lab", "table", out, "--json").out)["name"] == "tiny"
    assert (out / "table.md").read_text() == table


def test_changed_settings_are_refused_and_run_again_with_force(tmp_path):
    out = tmp_path / "out"
    done("lab", "run", experiment(tmp_path), "--out", out, *QUICK)
    changed = experiment(tmp_path, optimiser={"lr": 0.002})
    line = refused("lab", "run", changed, "--out", out, *QUICK)
    assert "optimiser.lr was 0.001 and is 0.002" in line and "--force" in line
    done("lab", "run", changed, "--out", out, *QUICK, "--force")
    (found,) = results(out).values()
    assert found["settings"]["optimiser"]["lr"] == 0.002
    done("lab", "run", experiment(tmp_path, optimiser={"lr": 0.002}, seeds=[0, 1]), "--out", out, *QUICK)
    assert len(results(out)) == 2, "more runs are no change"
    done("lab", "run", experiment(tmp_path, optimiser={"lr": 0.002}), "--out", out, *QUICK)
    assert json.loads((out / "table.json").read_text())["rows"][0]["seeds"] == [0], "the table is that of the file"


def test_changed_data_are_refused_and_run_again_with_force(tmp_path):
    """Same path, other files: of a run that has ended, and of one that was stopped."""
    image_folder(tmp_path / "x", ("train", "val"))
    out, data = tmp_path / "out", {"d": {"source": "images", "path": "x", "image_size": 8}}
    path = experiment(tmp_path, datasets=data, batch_size=4)
    done("lab", "run", path, "--out", out, *QUICK)
    (tmp_path / "x" / "train" / "dark" / "0.png").unlink()
    line = refused("lab", "run", path, "--out", out, *QUICK)
    assert "d, seed 0: the train part had 12 examples and has 11" in line and "--force" in line and "--anew" in line
    done("lab", "run", path, "--out", out, *QUICK, "--force")
    assert results(out)["d-seed-0"]["data"]["train"] == 11
    done("lab", "run", path, "--out", out, *QUICK)
    (tmp_path / "x").rename(tmp_path / "gone")
    done("lab", "run", path, "--out", out, *QUICK)
    assert len(results(out)) == 1, "what has ended needs no data"


def test_a_state_is_of_its_data(tmp_path):
    image_folder(tmp_path / "x", ("train", "val"))
    data = {"d": {"source": "images", "path": "x", "image_size": 8}}
    (run,) = expand(load_experiment(experiment(tmp_path, datasets=data, batch_size=4)), tmp_path)
    folder = LabFolder(tmp_path / "out")
    state = folder.state_file(run)

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, open_feed(run, tmp_path), state, every=0, tell=stop)
    require_same_data(folder, [run])
    (tmp_path / "x" / "train" / "dark" / "0.png").write_bytes((tmp_path / "x/train/dark/1.png").read_bytes())
    with pytest.raises(ExperimentChanged, match="d, seed 0: the data have changed since it stopped"):
        require_same_data(folder, [run])
    steps = []
    train(run, open_feed(run, tmp_path), state, tell=lambda done, total: steps.append(done))
    assert steps[0] == 1, "and is not gone on from"


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "exists already" in refused("lab", "run", experiment(tmp_path), "--out", tmp_path / "out", *QUICK)
    assert "no lab.json" in refused("lab", "table", tmp_path / "out")
    assert "there is no tracker" in refused("lab", "run", experiment(tmp_path), "--track", "paper")


def test_two_runners_do_not_share_a_folder(tmp_path):
    path, out = experiment(tmp_path), tmp_path / "out"
    done("lab", "run", path, "--out", out, *QUICK)
    with alone(LabFolder(out)):
        assert "is at work" in refused("lab", "run", path, "--out", out, *QUICK)


def test_the_estimate_counts_steps_and_spreads_runs(tmp_path):
    runs = expand(load_experiment(experiment(tmp_path, steps=None, epochs=3, seeds=[0, 1])), tmp_path)
    (line,) = estimate(runs, tmp_path, lambda *_: None)
    assert line.steps == 3 * (200 // 16) and line.runs == 2
    assert line.seconds > line.steps * line.step_seconds > 0
    lines = [Estimate("a", 3, 1, 1, 1.0, 3600.0), Estimate("b", 1, 1, 1, 1.0, 7200.0)]
    assert (hours(lines, 1), hours(lines, 2), hours(lines, 9)) == (5.0, 3.0, 2.0)
    said = json.loads(done("lab", "run", tmp_path / "experiment.yaml", "--dry-run", "--json").out)
    assert said["rows"][0]["parameters"] == line.parameters and said["hours"] > 0


def test_models_load_like_any_other(tmp_path):
    images = {"digits": {**DIGITS["datasets"]["digits"], "channels": 3}}
    done("lab", "run", experiment(tmp_path, datasets=images, save_models=True), "--out", tmp_path / "a", *QUICK)
    place = str(tmp_path / "a" / "models" / "digits-seed-0")
    pipe = transformers.pipeline("image-classification", model=place)
    from PIL import Image

    said = pipe(Image.new("L", (20, 20), 77))
    assert {each["label"] for each in said} <= set(map(str, range(10)))
    texts = {"t": {"source": "text", "path": str(text_file(tmp_path / "a.tsv")), "vocabulary": 100, "max_length": 12}}
    path = experiment(tmp_path, task="masked-lm", datasets=texts, model=BERT, save_models=True)
    done("lab", "run", path, "--out", tmp_path / "b", *QUICK)
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "b" / "models" / "t-seed-0"))
    assert len(fill("a fine [MASK] film")) == 5
    assert fill.tokenizer.model_max_length == 12


@pytest.mark.slow  # three processes that import the package
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_nothing_half_and_no_process(number, tmp_path):
    path = experiment(tmp_path, **{**LONG, "steps": 100_000, "evaluate_every": 50_000})
    process = start("lab", "run", path, "--out", tmp_path / "out", "--workers", 2, "--no-estimate", "-q")
    kill_after_first_state(process, tmp_path / "out", number)
    assert process.returncode == 128 + number
    assert not list((tmp_path / "out").rglob("*.partial*"))
    assert not results(tmp_path / "out")


def test_trackers_get_settings_curve_and_end(finished):
    _, out, _ = finished
    run = run_of("lab", results(out)["a-seed-1"])
    assert run.settings["model/hidden_size"] == VIT["hidden_size"] and run.settings["seed"] == 1
    assert [at["step"] for at in run.by_block] == [3, 6]
    assert run.numbers["validation/loss"] == results(out)["a-seed-1"]["validation"]["loss"]
    assert str(out.parent) not in json.dumps(vars(run))


def test_a_row_of_diverged_runs_says_so():
    whole = {"row": "x", "labels": {"dataset": "d"}, "seed": 0, "note": "", "parameters": 5, "q": 1.0, "steps": 3,
             "cpu_seconds": 1.0, "train": {"loss": 1.0}, "validation": {"loss": 2.0}}  # fmt: skip
    lost = {**whole, "seed": 1, "note": "the loss was nan"}
    (entry,) = summarise([whole, lost], Experiment.model_validate(DIGITS), ["x"])
    assert entry["seeds"] == [0] and entry["validation"]["loss"] == {"mean": 2.0, "std": None}
    assert "2.0000 (1 diverged)" in cells([entry])[1][0]


def test_a_table_of_nothing_but_diverged_runs_says_so():
    lost = {"row": "x", "labels": {"dataset": "d"}, "seed": 0, "note": "the loss was nan", "parameters": 5, "q": 1.0,
            "steps": 3, "cpu_seconds": 1.0}  # fmt: skip
    header, (line,) = cells(summarise([lost], Experiment.model_validate(DIGITS), ["x"]))
    assert line[header.index("validation loss")] == "diverged"


def test_names_are_shown_as_they_are_and_kept_out_of_markup_tables_and_paths(tmp_path):
    data = {"owner/name": DIGITS["datasets"]["digits"]}
    path = experiment(tmp_path, datasets=data, variants={"[/x]": {}, "a|b [red]": {}}, steps=1, evaluate_every=1)
    said = done("lab", "run", path, "--out", tmp_path / "out")
    assert "[/x]" in said.out and "[/x]" in said.err and "[red]" in said.out
    assert r"| a\|b [red] | 1 |" in (tmp_path / "out" / "table.md").read_text()
    names = sorted(file.name for file in (tmp_path / "out" / "figures").iterdir())
    assert names == ["curves-owner-name.png", "parameters-owner-name.png"]


def test_threads_are_given_back(tmp_path):
    before = torch.get_num_threads()
    done("lab", "run", experiment(tmp_path, steps=1, evaluate_every=1), "--out", tmp_path / "out", *QUICK)
    assert torch.get_num_threads() == before
