"""Experiment files: what they expand to, and what is wrong with them in one line."""

from __future__ import annotations

import pytest

from experiments import DIGITS, VIT, experiment
from slimformer.errors import BadExperiment
from slimformer.lab.grid import expand, slug
from slimformer.lab.model import build, require_known
from slimformer.lab.settings import load_experiment
from terminal import refused


def runs_of(tmp_path, **changes):
    return expand(load_experiment(experiment(tmp_path, **changes)), tmp_path)


def test_the_grid_is_the_product_of_everything(tmp_path):
    runs = runs_of(
        tmp_path,
        variants={"a": {"num_attention_heads": 1}, "b": {"optimiser.lr": 0.1, "epochs": 2, "seeds": [7]}},
        grid={"num_hidden_layers": [1, 2, 3], "batch_size": [8, 16]},
        titles={"num_hidden_layers": "layers"},
        seeds=[0, 1],
    )
    assert len(runs) == 3 * 2 * (2 + 1) and len({slug(run.name) for run in runs}) == len(runs)
    last = runs[-1]
    assert last.row == "b, layers 3, batch_size 16" and last.seed == 7
    assert (last.model["num_hidden_layers"], last.batch_size) == (3, 16)
    assert (last.optimiser.lr, last.epochs, last.steps) == (0.1, 2, None)
    assert runs[0].optimiser.lr == 1e-3 and runs[0].steps == 6 and runs[0].model["num_attention_heads"] == 1


def test_settings_of_a_data_set_hold_on_it_alone_and_variants_win(tmp_path):
    first = {**DIGITS["datasets"]["digits"], "set": {"patch_size": 2, "hidden_size": 8}}
    runs = runs_of(
        tmp_path,
        datasets={"one": first, "two": DIGITS["datasets"]["digits"]},
        variants={"v": {"hidden_size": 32, "data.train_examples": 9}},
    )
    assert [run.model["patch_size"] for run in runs] == [2, VIT["patch_size"]]
    assert all(run.model["hidden_size"] == 32 and run.data.train_examples == 9 for run in runs)
    assert [run.row for run in runs] == ["one, v", "two, v"]


def test_the_digest_follows_what_decides_the_result(tmp_path):
    (one,) = runs_of(tmp_path)
    (same,) = runs_of(tmp_path, checkpoint_every=3, summary="other words")
    (other,) = runs_of(tmp_path, optimiser={"lr": 0.002})
    assert one.digest() == same.digest() != other.digest()


def test_paths_start_at_the_file(tmp_path):
    (run,) = runs_of(tmp_path, datasets={"x": {"source": "mnist", "path": "there/../data"}})
    assert run.data.path == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epoch": 3}, "epoch: there is no such field"),
        ({"optimiser": {"rate": 1}}, "optimiser.rate: there is no such field; fields here: name, lr"),
        ({"datasets": {"d": {"source": "digits", "pth": "x"}}}, "datasets.d.pth: there is no such field"),
        ({"task": "image"}, "task: "),
        ({"epochs": 1}, "give either epochs or steps"),
        ({"model": {"hidden_size": 3}}, "no model_type"),
        ({"model": {**VIT, "num_hiden_layers": 2}}, "no field 'num_hiden_layers'; did you mean num_hidden_layers"),
        ({"model": {"model_type": "vitt"}}, "no model_type 'vitt'"),
        ({"grid": {"hidden_size": []}}, "has no values"),
        ({"grid": {"nowhere.lr": [1]}}, "there is no part 'nowhere'"),
        ({"variants": {"a b": {}, "a-b": {}}}, "two runs would be called"),
        ({"variants": {"a": {"batch_size": 0}}}, "batch_size"),
        ({"published": {"source": "x", "rows": {"nobody": {"accuracy": 1}}}}, "there is no row 'nobody'"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [2**70]}, "seed: "),
        ({"steps": None, "epochs": float("inf")}, "epochs: "),
        ({"variants": {"a": {"optimiser": 5}}}, "a: optimiser is 5; give its fields"),
        ({"variants": {"a": {"augmentation": None}}}, "a: augmentation is None; give its fields"),
        ({"datasets": {"d": {"source": "mnist", "path": "nowhere"}}}, "there are no data at"),
        ({"datasets": {"d": {"source": "builtin"}}}, "has no images"),
    ],
)
def test_what_is_wrong_is_one_line(changes, words, tmp_path):
    line = refused("lab", "run", experiment(tmp_path, **changes), "--out", tmp_path / "out", "--dry-run")
    assert words in line
    assert not (tmp_path / "out").exists()


MINIMAL = {
    "model_type": "minimal",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"patch_size": 0}, "not a multiple of patch_size 0"),
        ({"patch_size": 5}, "image_size 8 is not a multiple of patch_size 5"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"mlp_ratio": -1}, "mlp_ratio is -1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_labels": 5}, "num_labels is 5 and the data have 10 classes"),
        ({"num_channels": 3}, "the first steps failed"),
        ({"image_size": 28}, "the first steps failed"),
        ({"qk": "foo"}, "symmetric-skew"),
        ({"hidden_act": "foo"}, "KeyError: 'foo'"),
        ({"positions": 3}, "has no field 'positions'"),
        ({"to_dict": 3}, "has no field 'to_dict'"),
        ({"model_type": ["a"]}, "no model_type"),
    ],
)
def test_models_that_cannot_be_are_one_line(changes, words, tmp_path):
    path = experiment(tmp_path, model={**MINIMAL, **changes}, variants={"mine": {}})
    line = refused("lab", "run", path, "--out", tmp_path / "out", "--dry-run")
    assert words in line
    assert "mine: " in line or "no field" in line or "no model_type" in line
    assert not (tmp_path / "out").exists()


def test_layers_are_counted_from_nothing():
    facts = {"image_size": 8, "num_channels": 1, "id2label": {0: "a", 1: "b"}, "label2id": {}}
    with pytest.raises(BadExperiment, match="num_hidden_layers is -1"):
        build("image-classes", {**VIT, "num_hidden_layers": -1}, facts)


def test_files_that_are_no_experiments(tmp_path):
    (tmp_path / "a.yaml").write_text("[1, 2")
    (tmp_path / "b.yaml").write_text("just words")
    for name, words in (("a", "not valid YAML"), ("b", "holds no fields"), ("c", "cannot be read")):
        assert words in refused("lab", "run", tmp_path / f"{name}.yaml")


def test_models_are_built_from_fields_and_facts():
    facts = {"image_size": 8, "num_channels": 1, "id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {}}
    model = build("image-classes", VIT, facts)
    assert model.config.num_labels == 3 and model.config.image_size == 8
    assert build("image-classes", {**VIT, "image_size": 16}, facts).config.image_size == 16
    require_known({"model_type": "gpt2", "hidden_size": 8, "n_embd": 8, "attn_implementation": "eager"})
    with pytest.raises(BadExperiment, match="can be built"):
        build("image-classes", {**VIT, "hidden_act": "nonsense"}, facts)
