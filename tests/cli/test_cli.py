"""What a user types and what comes back: the same by every route, one object for a program, help that teaches."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import slimformer as package
from slimformer.calibrate import gather
from slimformer.calibrate.documents import Document
from terminal import BRIEF, PROGRESS, compress, done, refused, slimformer, texts

COMMANDS = [
    ["inspect"],
    ["calibrate"],
    ["plan"],
    ["apply"],
    ["compress"],
    ["eval"],
    ["cascade"],
    ["bench"],
    ["recipes", "ls"],
    ["recipes", "show"],
]


pytestmark = pytest.mark.usefixtures("trusting")


def same_weights(a, b):
    one, other = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def alike_weights(a, b):
    one, other = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


@pytest.mark.parametrize(
    ("recipe", "format"), [("balanced", "ragged"), ("balanced", "plain"), ("stat", "ragged"), ("uniform", "ragged")]
)
def test_plan_and_apply_give_the_bits_of_compress(recipe, format, stats, shelf, tmp_path):
    how = ("--recipe", recipe, "--format", format)
    done(*compress(shelf / "llama", shelf, tmp_path / "one", "-q", "--no-refine", *how))
    done("plan", stats, "--macs", 0.6, "--out", tmp_path / "plan.json", "-q", *how)
    done("apply", stats, tmp_path / "plan.json", "--out", tmp_path / "other", "-q")
    if recipe == "balanced":
        assert same_weights(tmp_path / "one", tmp_path / "other")
    else:  # `calibrate` has taken moments of neurons with their inputs: wider products, which may be rounded otherwise
        assert alike_weights(tmp_path / "one", tmp_path / "other")
    one, other = (json.loads(file.read_text()) for file in (tmp_path / "one" / "plan.json", tmp_path / "plan.json"))
    harm, known = one.pop("predicted_kl"), other.pop("predicted_kl")
    assert one == other and harm == (known if recipe == "balanced" else None)  # what goes by no probes makes none


@pytest.mark.parametrize("how", [("--macs", 0.6), ("--params", 0.7), ("--macs", 0.8, "--format", "plain")])
def test_cut_gives_the_bits_of_compress_without_refinement(how, stats, shelf, tmp_path):
    brief = ("--data", shelf / "text.txt", *BRIEF, "-q")
    done("compress", shelf / "llama", *how, "--no-refine", "--out", tmp_path / "one", *brief)
    said = done("cut", stats, *how, "--out", tmp_path / "other").out
    assert said.index("calibrated on") < said.index("kept in each block") < said.index("of the block MACs")
    assert same_weights(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "plan.json").read_text() == (tmp_path / "other" / "plan.json").read_text()


def test_refinement_changes_the_weights_and_says_what_it_did(shelf, tmp_path):
    done(*compress(shelf / "llama", shelf, tmp_path / "plain", "-q", "--no-refine"))
    found = json.loads(done(*compress(shelf / "llama", shelf, tmp_path / "refined", "--json")).out)
    assert not same_weights(tmp_path / "plain", tmp_path / "refined")
    assert all(each["after"] <= each["before"] for each in found["correction"])
    assert {each["site"] for each in found["correction"]} >= {"blocks.0.attn.heads", "final norm"}


def test_the_front_has_rising_budgets_and_falling_harm(stats, tmp_path):
    found = json.loads(done("frontier", stats, "--out", tmp_path / "front.json", "--json").out)
    assert json.loads((tmp_path / "front.json").read_text()) == found
    macs = [point["macs"] for point in found["points"]]
    harm = [point["predicted_kl"] for point in found["points"]]
    assert macs == sorted(macs, reverse=True)
    assert macs[0] == 1
    assert harm == sorted(harm)
    assert harm[0] == pytest.approx(0, abs=1e-12)


def test_a_sweep_measures_the_models_cut_would_make(stats, shelf):
    found = json.loads(
        done("sweep", stats, "--data", shelf / "text.txt", "--tokens", 600, "--macs", "0.9,0.6", "--json").out
    )
    assert [point["budget"] for point in found["points"]] == [0.9, 0.6]
    metrics = [metric for point in found["points"] for metric in point["metrics"]]
    assert all(metric["small"] is not None and metric["low"] is not None for metric in metrics)
    shown = done("sweep", stats, "--data", shelf / "text.txt", "--tokens", 600, "--macs", 0.6).out
    assert shown.startswith("measured on text.txt: ")
    assert f"{metrics[-1]['low']:+.2g}" in shown and f"{metrics[-1]['high']:+.2g}" in shown


def test_what_is_planned_or_cut_says_what_it_costs_and_what_harm_is_predicted(stats, plan, shelf, tmp_path):
    harm = json.loads(plan.read_text())["predicted_kl"]
    shown = [
        done("plan", stats, "--macs", 0.6, "--out", tmp_path / "plan.json").out,
        done("apply", stats, plan, "--out", tmp_path / "applied").out,
        done("cut", stats, "--macs", 0.6, "--out", tmp_path / "cut").out,
    ]
    assert all(f"predicted harm at the outputs: KL {harm:.4g} nats" in text for text in shown)
    dry = ("compress", shelf / "llama", "--macs", 0.6, "--dry-run")
    for text in (*shown, done(*dry).out):
        lines = {line.split("│")[1].strip() for line in text.splitlines() if line.count("│") > 4}
        assert lines >= {"parameters", "weights"} and any(name.startswith("block MACs") for name in lines)
    assert "predicted harm: not known without data" in done(*dry).out
    sizes = json.loads(done(*dry, "--json").out)["sizes"]
    assert sizes["small"]["bytes"] < sizes["dense"]["bytes"]


def test_plans_name_the_text_they_rest_on(stats, shelf, tmp_path):
    for line in (("frontier", stats, "--macs", 0.6), ("plan", stats, "--macs", 0.6, "--out", tmp_path / "plan.json")):
        assert done(*line).out.startswith("calibrated on text.txt; not measured\n")
    asked = ("--data", shelf / "text.txt", "--sequences", 2, "--lengths", 8)
    assert "measured on text.txt: 2 sequences" in done("attention", shelf / "llama", *asked).out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "one budget is needed"),
        (("--macs", 0.5, "--params", 0.5), "one budget is needed"),
        (("--params", "half"), "--params 'half' is not a number"),
        (("--latency", 1.5), "give a number above 0, up to 1\n"),
        (("--max-kl", 0.1, "--macs", 0.5), "one budget is needed"),
        (("--max-kl", 0), "--max-kl 0 is no bound on a divergence; give nats above 0"),
        (("--max-kl", 1e-4), "documents to certify on"),
        (("--max-kl", 1e-4), "give more data: a larger --tokens, a smaller --seq-len"),
    ],
)
def test_budgets_that_cannot_be(options, said, shelf, tmp_path):
    line = refused("compress", shelf / "llama", *options, "--data", shelf / "text.txt", *BRIEF, "--out", tmp_path / "x")
    assert said in line


def test_the_precision_of_calibration_is_that_of_the_plan(shelf, tmp_path):
    precise = ("--dtype", "float64", "-q")
    data = ("--data", shelf / "text.txt", "--tokens", 600)
    done(*compress(shelf / "gpt2", shelf, tmp_path / "one", "--no-refine", *precise))
    done("calibrate", shelf / "gpt2", *data, "--out", tmp_path / "stats", *precise)
    done("plan", tmp_path / "stats", "--macs", 0.6, "--out", tmp_path / "plan.json", "-q")
    done("apply", tmp_path / "stats", tmp_path / "plan.json", "--out", tmp_path / "other", "-q")
    assert same_weights(tmp_path / "one", tmp_path / "other")
    assert load_file(tmp_path / "one" / "model.safetensors")["transformer.wte.weight"].dtype == torch.float32


def test_statistics_made_in_half_precision_on_an_accelerator_are_planned_from_on_a_cpu(stats, tmp_path):
    shutil.copytree(stats, tmp_path / "stats")
    found = json.loads((stats / "stats.json").read_text())
    (tmp_path / "stats" / "slimformer.json").unlink()  # as if the change were meant
    (tmp_path / "stats" / "stats.json").write_text(json.dumps({**found, "dtype": "bfloat16"}))
    done("plan", tmp_path / "stats", "--macs", 0.6, "--out", tmp_path / "plan.json", "-q")
    done("apply", tmp_path / "stats", tmp_path / "plan.json", "--out", tmp_path / "small", "-q")


def test_the_images_calibrated_on_are_known_by_any_name_of_their_folder(shelf, tmp_path):
    done("compress", shelf / "vit", "--macs", 0.6, "--data", shelf / "images", "--no-timing", "--out", tmp_path / "x")
    with contextlib.chdir(shelf):
        again = done("eval", tmp_path / "x", "--against", "vit", "--data", "images", "--no-timing", "--json")
    assert "only the part held out then is used" in json.loads(again.out)["warnings"][0]


def test_data_that_were_calibrated_on_are_evaluated_on_what_was_held_out(stats, plan, shelf, tmp_path):
    done("apply", stats, plan, "--out", tmp_path / "small", "-q")
    data = json.loads((tmp_path / "small" / "report.json").read_text())["data"]
    assert data["hash"] == json.loads((stats / "stats.json").read_text())["data_hash"]
    assert data["seed"] == 0

    def compare(*more):
        return ("eval", tmp_path / "small", "--against", shelf / "llama", "--no-timing", "--json", *more)

    same = json.loads(done(*compare("--data", shelf / "text.txt", "--tokens", 600)).out)
    assert same["data"]["tokens"]["report"] == data["tokens"]["report"]
    assert "only the part held out then is used" in same["warnings"][0]
    fresh = json.loads(done(*compare("--data", shelf / "table.tsv", "--tokens", 600)).out)
    assert fresh["data"]["tokens"]["report"] > 3 * data["tokens"]["report"]
    assert not fresh["warnings"]
    for again in (("--data", shelf / "text.txt", "--samples", 40), ("--data", "text.txt,table.tsv")):
        with contextlib.chdir(shelf):  # the same file by another name
            part = json.loads(done(*compare("--tokens", 600, *again)).out)
        assert "perhaps on some of these" in part["warnings"][0]
    assert "calibrated on these data with --seed 0" in refused(*compare("--data", shelf / "text.txt", "--seed", 1))


def test_a_named_data_set_is_calibrated_on_one_part_and_evaluated_on_another(shelf, tmp_path, monkeypatch):
    parts = {"calibration": texts(80, seed=2), "evaluation": texts(80, seed=3)}
    asked = []

    def read_data(_source, *, split, **_options):
        asked.append(split)
        return [Document(text) for text in parts[split]]

    monkeypatch.setattr(gather, "read_data", read_data)
    done(*compress(shelf / "llama", shelf, tmp_path / "x", "--data", "wikitext2", "-q"))
    again = done("eval", tmp_path / "x", "--against", shelf / "llama", "--data", "wikitext2", *BRIEF, "--json")
    assert asked == ["calibration", "evaluation"]
    assert json.loads(again.out)["warnings"] == []


def test_what_compress_and_eval_measure_is_the_same(shelf, tmp_path):
    made = json.loads(done(*compress(shelf / "llama", shelf, tmp_path / "x", "--json")).out)
    again = done("eval", tmp_path / "x", "--against", shelf / "llama", "--data", shelf / "text.txt", *BRIEF, "--json")
    assert json.loads(again.out)["metrics"] == made["metrics"]


def test_models_that_are_no_relatives_are_not_compared(stats, plan, shelf, tmp_path):
    done("apply", stats, plan, "--out", tmp_path / "small", "-q")
    line = refused("eval", tmp_path / "small", "--against", shelf / "gpt2", "--data", shelf / "text.txt")
    assert "is a LlamaForCausalLM" in line
    assert "give the model it came from with --against" in line
    assert "holds no config.json" in refused("eval", stats, "--against", shelf / "llama")


@pytest.mark.parametrize("text", ["{", "[]", '{"data": 5}'])
def test_a_report_that_says_nothing_is_no_obstacle(text, stats, plan, shelf, tmp_path):
    done("apply", stats, plan, "--out", tmp_path / "small", "-q")
    (tmp_path / "small" / "slimformer.json").unlink()  # as if the change were meant
    (tmp_path / "small" / "report.json").write_text(text)
    done("eval", tmp_path / "small", "--against", shelf / "llama", "--data", shelf / "text.txt", *BRIEF, "-q")


def commands(shelf, stats, plan, folder):
    return [
        ["inspect", shelf / "llama"],
        ["calibrate", shelf / "llama", "--data", shelf / "text.txt", "--tokens", 600, "--out", folder / "stats"],
        ["plan", stats, "--macs", 0.7, "--out", folder / "plan.json"],
        ["apply", stats, plan, "--out", folder / "applied"],
        compress(shelf / "llama", shelf, folder / "small"),
        ["compress", shelf / "llama", "--macs", 0.7, "--dry-run"],
        ["eval", folder / "small", "--against", shelf / "llama", "--data", shelf / "text.txt", *BRIEF],
        ["cut", stats, "--macs", 0.7, "--out", folder / "cut"],
        ["frontier", stats, "--out", folder / "front.json"],
        ["sweep", stats, "--data", shelf / "text.txt", "--tokens", 600, "--macs", "0.8"],
        ["cascade", stats, "--data", shelf / "text.txt", "--tokens", 600, "--out", folder / "cascade"],
        ["recipes", "ls"],
        ["recipes", "show", "stat"],
    ]


def test_every_command_prints_one_json_object(shelf, stats, plan, tmp_path):
    for command in commands(shelf, stats, plan, tmp_path):
        said = done(*command, "--json", "--seed", 0)
        assert isinstance(json.loads(said.out), dict), command
        assert said.out.count("\n") == 1
        assert said.err == ""


def test_every_command_can_be_quiet(shelf, stats, plan, tmp_path):
    for command in commands(shelf, stats, plan, tmp_path):
        said = done(*command, "--quiet")
        assert said.out == said.err == "", command


def test_every_command_says_something(shelf, stats, plan, tmp_path):
    for command in commands(shelf, stats, plan, tmp_path):
        assert done(*command).out.strip(), command


def test_numbers_json_cannot_say_become_null(monkeypatch):
    monkeypatch.setattr("slimformer.recipe.Recipe.to_json", lambda _: {"a": [float("nan"), float("inf"), 1.0]})
    assert json.loads(done("recipes", "show", "stat", "--json").out) == {"a": [None, None, 1.0]}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = done(*command, "--help")
    assert f"Example: slimformer {' '.join(command)}" in said.out
    assert "Traceback" not in said.err
    if command in (["compress"], ["calibrate"]):
        for default in (
            "[default: (builtin)]",
            "(default 32768, for encoders of text 65536)",
            "(default 512 for decoders",
            "[default: auto]",
        ):
            assert default in said.out


@pytest.mark.parametrize("arguments", [[], ["recipes"]])
def test_no_command_shows_help(arguments):
    said = done(*arguments)
    assert "Usage: slimformer" in said.out
    assert said.err == ""


def test_version():
    assert done("--version").out == f"slimformer {package.__version__}\n"


def test_odd_names_are_printed_as_they_are(shelf, tmp_path):
    model = Path(shutil.copytree(shelf / "llama", tmp_path / "[red]o'ne[/nope]"))
    assert "[red]o'ne[/nope]" in done("inspect", model).out.replace("\n", "")
    said = done(*compress(model, shelf, tmp_path / "[/]tw'o"))
    assert "[red]o'ne[/nope]" in said.out.replace("\n", "")
    line = said.out.splitlines()[-1].strip()
    assert line.startswith("python -c ")
    assert "[/]tw'o" in shlex.split(line)[2]


def test_a_bug_is_not_dressed_up_as_a_mistake_of_the_user(monkeypatch, shelf):
    def broken(_name, _opening):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("slimformer.models.load.load_model", broken)
    with pytest.raises(ZeroDivisionError):
        slimformer("inspect", shelf / "llama")


def test_the_least_budget_that_is_shown_can_be_had(shelf, tmp_path):
    for model, format in (("llama", "ragged"), ("llama", "plain"), ("bert", "plain")):
        least = json.loads(done("inspect", shelf / model, "--json").out)["least_macs"][format]
        done("compress", shelf / model, "--macs", least, "--format", format, "--dry-run", "-q")
        refused("compress", shelf / model, "--macs", least - 0.001, "--format", format, "--dry-run")


def test_plain_sizes_are_not_promised_for_a_ragged_model(stats, plan, tmp_path):
    done("apply", stats, plan, "--out", tmp_path / "small", "-q")
    assert json.loads(done("inspect", tmp_path / "small", "--json").out)["least_macs"]["plain"] is None
    assert "none: the blocks differ" in done("inspect", tmp_path / "small").out
    line = refused("compress", tmp_path / "small", "--macs", 0.9, "--format", "plain", "--dry-run")
    assert "differ in size already" in line


def test_other_data_are_measured_beside(shelf, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(texts(60, seed=5)))
    beside = ("--eval-data", other, "--eval-data", shelf / "text.txt")
    found = json.loads(done(*compress(shelf / "llama", shelf, tmp_path / "one", "--no-refine", *beside, "--json")).out)
    named = [each for each in found["other_data"] if not each.get("unfitted")]
    assert [each["name"] for each in named] == [str(other), str(shelf / "text.txt")]
    unseen, same = named
    assert [metric["name"] for metric in unseen["metrics"]] == [metric["name"] for metric in found["metrics"]]
    assert unseen["metrics"] != found["metrics"] == same["metrics"]  # of the data calibrated on, what was held out
    done(*compress(shelf / "llama", shelf, tmp_path / "two", "--no-refine", "-q"))
    assert same_weights(tmp_path / "one", tmp_path / "two")
    how = ("--against", shelf / "llama", "--data", shelf / "text.txt", *BRIEF)
    again = json.loads(done("eval", tmp_path / "one", *how, *beside, "--json").out)
    assert [each["metrics"] for each in again["other_data"]] == [each["metrics"] for each in named]
    assert "other.txt" in done("eval", tmp_path / "one", *how, *beside).out.replace("\n", "")


def test_several_sources_by_commas_or_one_by_one_are_the_same(shelf, tmp_path):
    (tmp_path / "b.txt").write_text("\n\n".join(texts(80, seed=6)))
    a, b, brief = shelf / "text.txt", tmp_path / "b.txt", ("--tokens", 600, "-q")
    done("calibrate", shelf / "llama", "--data", f"{a},{b}", "--out", tmp_path / "one", *brief)
    done("calibrate", shelf / "llama", "--data", a, "--data", b, "--out", tmp_path / "two", *brief)
    assert (tmp_path / "one" / "stats.json").read_text() == (tmp_path / "two" / "stats.json").read_text()


def test_a_certificate_is_about_documents(shelf, tmp_path):
    data = ("--data", shelf / "text.txt", "--tokens", 2000, "--no-timing", "--no-refine")
    found = json.loads(
        done("compress", shelf / "llama", "--max-kl", 0.5, *data, "--out", tmp_path / "out", "--json").out
    )
    certificate = found["certificate"]
    assert certificate["documents"] >= 12
    assert f"if the {certificate['documents']} tested were drawn" in certificate["statement"]
    assert "over documents like those of text.txt (the first " in certificate["statement"], "the population is named"


@pytest.mark.parametrize(
    "command",
    [
        ("calibrate",),
        ("quantize", "--bits", 8),
        ("sparsify", "--pattern", "0.3"),
        ("compress", "--macs", 0.7, "--no-timing", "--no-refine"),
    ],
)
def test_how_narrow_a_text_is_is_said_before_the_work(command, shelf, tmp_path):
    name, *options = command
    data = ("--data", shelf / "text.txt", "--tokens", 600)
    lines = done(name, shelf / "llama", *data, *options, "--out", tmp_path / "out").err.splitlines()
    (narrow,) = (i for i, line in enumerate(lines) if "of broad text lies in directions it hardly shows" in line)
    assert all(PROGRESS.fullmatch(f"{line}\n") is None for line in lines[:narrow])
    assert any(PROGRESS.fullmatch(f"{line}\n") for line in lines[narrow:])
