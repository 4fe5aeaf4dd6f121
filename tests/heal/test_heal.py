"""Healing helps or changes nothing, whatever is trained; zeros stay, and a killed run goes on to the same weights."""

import sys
from pathlib import Path

import pytest
import torch

from families import tiny, tiny_batches, tiny_plan
from slimformer.heal.distil import last_checkpoint
from slimformer.heal.heal import Student, Text, heal
from slimformer.heal.held_out import HeldOut, mean_share, score
from slimformer.heal.remembered import Remembered
from slimformer.heal.settings import HealSettings
from slimformer.heal.trained import keep_part
from slimformer.heal.work import Work

SPANS = (1, 1, 1)


def student(model_type="llama", head=None):
    dense = tiny(model_type, head)
    return Student(tiny_plan(dense, 0.5)[1], dense, SPANS)


def text(dense, n=4):
    return Text(tiny_batches(dense, n), HeldOut({"own": tiny_batches(dense, 2, seed=9)}))


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def settings(**more):
    return HealSettings(**{"tokens": 6000, "phases": "global", "rate": 1e-3, **more})


@pytest.mark.parametrize(
    ("model_type", "head"), [("llama", "causal"), ("bert", "bare"), ("bert", "answer"), ("vit", "classify")]
)
def test_outputs_come_nearer_to_the_dense_ones(model_type, head, tmp_path):
    each = student(model_type, head)
    dense = weights(each.dense)
    few = {"tokens": 400, "rate": 1e-4} if model_type == "vit" else {}  # images
    done = heal(each, text(each.dense), settings(**few), Work(tmp_path))
    assert done.kept and done.after["own"] < done.before["own"]
    assert same(dense, weights(each.dense)), "the teacher does not learn"
    assert not any(p.grad is not None for p in each.small.parameters()) and not each.small.training


@pytest.mark.parametrize("train", ["lora", "norms"])
def test_few_parameters_help_too_and_leave_an_ordinary_model(train, tmp_path):
    each = student()
    before = weights(each.small)
    done = heal(each, text(each.dense), settings(train=train, rate=3e-3), Work(tmp_path))
    after = weights(each.small)
    assert done.kept and before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all((before[name].ndim == 1) == (train == "norms") for name in changed)
    assert not any("lora" in type(module).__module__ for module in each.small.modules())


@pytest.mark.parametrize("train", ["all", "lora"])
def test_what_cannot_help_gives_back_the_same_bits(train, tmp_path):
    each = student()
    before = weights(each.small)
    done = heal(each, text(each.dense), settings(train=train, rate=1e3, tokens=1500), Work(tmp_path))
    assert not done.kept and done.after == done.before
    assert same(before, weights(each.small))


def test_a_twin_has_nothing_to_learn(tmp_path):
    dense = tiny("llama")
    each = Student(tiny("llama"), dense, SPANS)
    done = heal(each, text(dense), settings(phases="both"), Work(tmp_path))
    assert not done.kept and same(weights(dense), weights(each.small))


def test_zeros_stay_where_they_were(tmp_path):
    each = student()
    name = "model.layers.1.mlp.down_proj.weight"
    with torch.no_grad():
        matrix = each.small.get_parameter(name)
        matrix.masked_fill_(matrix.abs() < matrix.abs().median(), 0.0)
    zeros = each.small.get_parameter(name) == 0
    done = heal(each, text(each.dense), settings(phases="both"), Work(tmp_path))
    assert done.kept and torch.equal(each.small.get_parameter(name) == 0, zeros)


def test_weights_are_judged_as_they_are_stored(tmp_path):
    each = student()
    narrow = Student(each.small.bfloat16().float(), each.dense, SPANS, torch.bfloat16)
    heal(narrow, text(each.dense), settings(), Work(tmp_path))
    assert all(torch.equal(p, p.bfloat16().float()) for p in narrow.small.model.layers.parameters())


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    distil = sys.modules["slimformer.heal.distil"]  # `slimformer.heal` is the function of that name
    monkeypatch.setattr(distil, "WORTH_TRIALS", 10)
    monkeypatch.setattr(distil, "TRIAL", 0.2)

    class Kill(Exception):
        pass

    def kill(stage, done, total):
        if stage == "heal" and done == 7:
            raise Kill

    found = []
    for killed in ("never", "between checkpoints", "while one is removed"):
        folder, each = tmp_path / killed, student()
        folder.mkdir()
        how = settings(phases="both", rate=None, tokens=4000)
        if killed != "never":
            with pytest.raises(Kill):
                heal(each, text(each.dense), how, Work(folder), kill)
            assert not same(found[0], weights(each.small))
            each = student()
        if killed == "while one is removed":
            max(folder.rglob("trained.safetensors"), key=lambda file: file.stat().st_mtime).unlink()
        assert heal(each, text(each.dense), how, Work(folder)).kept
        found.append(weights(each.small))
    assert same(*found[:2]) and same(*found[1:])


def test_a_checkpoint_with_a_flipped_bit_in_any_of_its_files_is_not_gone_on_from(tmp_path):
    class Kill(Exception):
        pass

    def kill(stage, done, total):
        if stage == "heal" and done == 7:
            raise Kill

    each = student()
    with pytest.raises(Kill):
        heal(each, text(each.dense), settings(tokens=4000), Work(tmp_path), kill)
    place = Work(tmp_path).trainer
    newest = last_checkpoint(place)
    assert newest is not None
    files = [path for path in Path(newest).iterdir() if path.stat().st_size]
    assert {"trainer_state.json", "optimizer.pt", "trained.safetensors"} <= {path.name for path in files}
    for path in files:
        good = path.read_bytes()
        spoilt = bytearray(good)
        spoilt[len(spoilt) // 2] ^= 1
        path.write_bytes(spoilt)
        assert last_checkpoint(place) != newest, path.name
        path.write_bytes(good)
    assert last_checkpoint(place) == newest


def test_the_random_numbers_of_the_caller_are_left_alone(tmp_path):
    each = student()
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    heal(each, text(each.dense), settings(tokens=600), Work(tmp_path))
    assert torch.equal(wanted, torch.rand(4))


def test_a_gain_on_one_text_does_not_pay_for_a_loss_on_another():
    assert score({"own": 0.5, "broad": 0.9}, {"own": 1.0, "broad": 1.0}) == pytest.approx(0.7)
    assert score({"own": 0.1, "broad": 1.1}, {"own": 1.0, "broad": 1.0}) == float("inf")
    assert score({"own": float("nan")}, {"own": 1.0}) == mean_share({"own": float("nan")}, {"own": 1.0}) == float("inf")
    assert mean_share({"own": 0.1, "broad": 1.1}, {"own": 1.0, "broad": 1.0}) == pytest.approx(0.6)


@pytest.mark.parametrize(("limit", "kept"), [(2.0, 1.0), (0.6, 0.5), (0.3, 0.25), (0.1, 0.0)])
def test_as_much_of_the_way_is_kept_as_leaves_no_text_worse(limit, kept):
    weight = torch.nn.Parameter(torch.full((3,), 2.0))
    before = {"w": torch.ones(3)}

    def measure():
        way = float(weight.detach()[0]) - 1
        return 1 - way if way <= limit else float("inf")

    assert keep_part({"w": weight}, before, measure) == (kept, 1.0 - kept)
    assert torch.equal(weight.detach(), torch.full((3,), 1 + kept))


def test_less_of_the_way_is_kept_where_the_end_is_worse():
    weight = torch.nn.Parameter(torch.full((3,), 2.0))
    found = keep_part({"w": weight}, {"w": torch.ones(3)}, lambda: abs(float(weight.detach()[0]) - 1.5) + 0.1)
    assert found == (0.5, 0.1)
    same = torch.nn.Parameter(torch.full((3,), 2.0))
    assert keep_part({"w": same}, {"w": torch.ones(3)}, lambda: float("nan")) == (0.0, 1.0)


def test_what_the_teacher_said_is_kept_and_the_teacher_not_asked_again(tmp_path):
    each = student()
    fit, asked = text(each.dense), []
    handle = each.dense.lm_head.register_forward_hook(lambda *_: asked.append(1))
    done = heal(each, fit, settings(tokens=None, epochs=4, top=16), Work(tmp_path))
    handle.remove()
    looks = sum(len(part) for part in fit.held_out.parts.values())
    files = sorted(Work(tmp_path).teacher.iterdir())
    assert done.kept and len(files) == len(fit.fit)
    assert (len(asked) - len(fit.fit)) % looks == 0, "once for a batch, and whenever the held-out text is looked at"
    files[0].write_bytes(b"spoilt")
    known = Remembered(Work(tmp_path).teacher, 16).of(0, each.dense, dict(fit.fit[0].inputs))
    assert known[0].shape[1] == 16 and bool((known[0][:, 0] >= known[0][:, 1]).all())
