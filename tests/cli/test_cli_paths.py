"""Linear paths and fewer blocks from the shell."""

import json

from slimformer.models import describe
from slimformer.models.load import load_model
from terminal import done, refused, save_tiny, write_texts


def test_paths_are_cut_from_statistics_that_have_what_they_need(tmp_path):
    model, text = save_tiny(tmp_path / "llama", "llama"), write_texts(tmp_path / "text.txt")
    brief = ("--data", text, "--tokens", 600, "--quiet")
    done("calibrate", model, *brief, "--out", tmp_path / "stats")
    done("plan", tmp_path / "stats", "--macs", 0.5, "--recipe", "bypass", "--out", tmp_path / "plan.json")
    edits = json.loads((tmp_path / "plan.json").read_text())["edits"]
    ranks = [edit["rank"] for edit in edits if edit["site"].endswith("hidden")]
    assert any(ranks)
    done("cut", tmp_path / "stats", "--macs", 0.5, "--recipe", "bypass", "--no-verify", "--out", tmp_path / "small")
    small = describe(load_model(tmp_path / "small").model)
    assert [bool(site.beside) for site in small if site.kind == "ffn.hidden"] == [rank > 0 for rank in ranks]
    done("calibrate", model, *brief, "--no-paths", "--out", tmp_path / "without")
    said = refused("plan", tmp_path / "without", "--macs", 0.5, "--recipe", "bypass", "--out", tmp_path / "no.json")
    assert "calibrate --paths" in said


def test_blocks_go_by_compress_alone(tmp_path):
    model, text = save_tiny(tmp_path / "gpt2", "gpt2"), write_texts(tmp_path / "text.txt")
    asked = ("--macs", 0.7, "--recipe", "depth")
    brief = ("--data", text, "--tokens", 600, "--no-timing")
    found = json.loads(done("compress", model, *asked, *brief, "--json", "--out", tmp_path / "small").out)
    assert [site["keep"] for site in found["sites"]].count(0) == 2
    against = ("--against", model, "--data", text, "--no-timing", "--json")
    again = json.loads(done("eval", tmp_path / "small", *against).out)
    assert again["sites"] == found["sites"] and again["macs_kept"] == found["macs_kept"]
    assert "follows from the data; use it without --dry-run" in refused("compress", model, *asked, "--dry-run")
