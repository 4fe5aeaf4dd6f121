"""To the hub: what arrives is what was saved, the card says what the hub reads, nothing unfinished leaves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from fresh import run
from hub_stand_in import TOKEN, standing_in
from slimformer.export import push as push_file
from slimformer.export.push import CARD
from terminal import compress, done, refused, slimformer

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.fixture(scope="module")
def smaller(shelf):
    """A compressed model, as compress writes it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("slimformer.checkpoint.save.verify_reload", lambda *_: None)
        done(*compress(shelf / "llama", shelf, shelf / "smaller", "-q", "--no-refine"))
    return shelf / "smaller"


@pytest.fixture
def folder(smaller, tmp_path):
    """A copy one may spoil."""
    return Path(shutil.copytree(smaller, tmp_path / "smaller"))


def pushed(hub, *arguments, **more):
    """The command in a process of its own, because the address of the hub is read when its library is imported."""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1",
        "HF_DEBUG": "0", "HF_HUB_VERBOSITY": "debug", **more,
    }  # fmt: skip
    child = run(["-m", "slimformer", "push", *arguments], environment)
    assert TOKEN not in child.stdout + child.stderr
    return child


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_arrives_is_what_was_saved_and_the_card_says_what_the_hub_reads(folder):
    (folder / ".cache").mkdir()
    (folder / ".cache" / "secret").write_text("mine")
    with standing_in() as hub:
        child = pushed(hub, folder, "me/smaller", "--base-model", "meta/llama", "--private", "--json")
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert found["url"] == f"{hub.url}/me/smaller"
    assert hub.repositories == {"me/smaller": True}
    assert hub.commits == 1
    expected = {
        name: content
        for name, content in files_of(folder).items()
        if not name.startswith(".cache") and name != "slimformer.json"
    }
    card = hub.files[CARD].decode()
    aside = {CARD: b"", "report.json": b""}  # the card has more for the hub, the report says no places
    assert {**hub.files, **aside} == {**expected, **aside}
    sent = json.loads(hub.files["report.json"])
    assert str(folder.parent) not in hub.files["report.json"].decode()  # data and model were given with their paths
    assert "reading" not in sent["data"] and sent["metrics"] == json.loads(expected["report.json"])["metrics"]
    assert hub.cards == [card]
    header = ModelCard(card).data
    assert header.base_model == "meta/llama"
    assert {"slimformer", "compressed", "pruned"} <= set(header.tags)
    assert header.pipeline_tag == "text-generation"
    measured = {m["name"]: m["small"] for m in json.loads((folder / "report.json").read_text())["metrics"]}
    assert {each.metric_name: each.metric_value for each in header.eval_results} == pytest.approx(measured)
    assert 'from_pretrained("me/smaller"' in card
    assert 'from_pretrained("smaller"' not in card


def test_what_is_to_be_private_does_not_go_to_a_public_repository(folder):
    with standing_in(repositories={"me/open": False}) as hub:
        child = pushed(hub, folder, "me/open", "--private")
    assert child.returncode == 2
    assert "is there already and public" in child.stderr
    assert hub.commits == 0


@pytest.mark.slow
def test_a_wrong_token_is_one_line_that_does_not_show_it(folder):
    other = "hf_" + "wrong" * 6
    with standing_in() as hub:
        child = pushed(hub, folder, "me/smaller", HF_TOKEN=other)
    assert child.returncode == 2
    *progress, line = child.stderr.splitlines()
    assert "the token is not valid" in line
    assert all(each.split()[0] == "push" for each in progress), progress
    assert other not in child.stdout + child.stderr
    assert not hub.repositories


def test_a_dry_run_names_every_file_and_sends_nothing(folder, monkeypatch):
    monkeypatch.setattr(push_file, "send", lambda *_, **__: pytest.fail("something was sent"))
    found = json.loads(done("push", folder, "me/smaller", "--dry-run", "--json").out)
    assert {file["path"] for file in found["files"]} == set(files_of(folder)) - {"slimformer.json"}
    assert found["url"] is None
    assert any("--base-model" in note for note in found["notes"])


def test_what_somebody_has_written_into_the_card_stays(folder):
    from slimformer.export.push import prepare

    text = (folder / CARD).read_text()
    mine = text.replace("tags:\n", "license: mit\ntags:\n- mine\n", 1) + "\nMy own words.\n"
    assert mine != text + "\nMy own words.\n"
    (folder / CARD).write_text(mine)
    card = prepare(folder, "me/smaller").card
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["license"] == "mit"
    assert {"mine", "slimformer"} <= set(header["tags"])
    assert card.endswith("My own words.\n")


def cut_off(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


SPOILT = {
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half a file": cut_off,
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no plan": lambda folder: (folder / "plan.json").unlink(),
    "no report": lambda folder: (folder / "report.json").unlink(),
    "another report": lambda folder: (folder / "report.json").write_text("{}"),
    "no card": lambda folder: (folder / "README.md").unlink(),
    "a broken card": lambda folder: (folder / "README.md").write_text("---\n[}\n---\n"),
    "a shard is missing": lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    ),
    "a shard elsewhere": lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../smaller/model.safetensors"}})
    ),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_not_finished_is_refused_in_one_line(how, folder):
    SPOILT[how](folder)
    assert len(refused("push", folder, "me/smaller", "--dry-run")) > 30


def test_folders_of_a_run_that_is_going_on_are_refused(folder):
    working = folder.rename(folder.with_name(".smaller.partial-here-123"))
    assert "not finished" in refused("push", working, "me/smaller", "--dry-run")


def test_names_the_hub_does_not_have_are_refused(folder):
    for name in ("smaller", "a/b/c", "me/", "../etc"):
        assert "ORG/NAME" in refused("push", folder, name, "--dry-run")


def test_without_a_token_nothing_is_tried(folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "hf auth login" in refused("push", folder, "me/smaller")


def test_files_that_links_lead_away_to_are_not_sent(folder, tmp_path):
    (tmp_path / "private.txt").write_text("mine")
    (folder / "notes.txt").symlink_to(tmp_path / "private.txt")
    said = slimformer("push", folder, "me/smaller", "--dry-run")
    assert "notes.txt" not in said.out
