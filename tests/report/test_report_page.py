"""The page as a file: made from report.json alone, safe to embed, written with every result, never over other files."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from slimformer.checkpoint.lines import json_text
from slimformer.files.manifest import require_unchanged, strangers
from slimformer.report.page import html_page, json_in_html
from terminal import compress, done, files, refused


def embedded(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def folder(shelf, stats):
    """What cut writes."""
    out = shelf / "cut-for-page"
    done("cut", stats, "--macs", 0.7, "--out", out, "--no-verify", "-q")
    return out


def test_every_result_has_its_page(trusting, folder, shelf, tmp_path):
    done(*compress(shelf / "llama", shelf, tmp_path / "out", "-q"))
    for place in (folder, tmp_path / "out"):
        report = json.loads((place / "report.json").read_text())
        inside = embedded((place / "report.html").read_text())
        assert inside["report"]["front"] == report["front"] and inside["report"]["metrics"] == report["metrics"]
        assert inside["folder"] == place.name
        assert report["front"]["points"][0]["budget"] == 1.0


def test_the_command_makes_the_same_page_from_the_report_alone(folder, tmp_path):
    before = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert str(folder / "report.html") in done("report", folder).out
    assert (folder / "report.html").read_bytes() == before
    done("report", folder)  # a page of ours is made anew without being asked twice
    found = json.loads(done("report", folder / "report.json", "--out", tmp_path / "other.html", "--json").out)
    assert found == {"page": str(tmp_path / "other.html")}
    assert (tmp_path / "other.html").read_bytes() == before


def test_what_is_not_a_report_is_refused_and_other_files_are_kept(folder, tmp_path):
    assert "cannot be read" in refused("report", tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    assert "not a report" in refused("report", tmp_path / "notes.json")
    (tmp_path / "broken.json").write_text("{")
    assert "not JSON" in refused("report", tmp_path / "broken.json")
    whole = json.loads((folder / "report.json").read_text())
    for odd, why in (
        ({"slimformer_report": 1}, "model: "), ({**whole, "tasks": []}, "tasks: "), ({**whole, "bench": {}}, "bench."),
        ({**whole, "tasks": {"sst2": {"metrics": 3}}}, "tasks.sst2"), ({**whole, "sites": [1]}, "sites.0"),
        ({**whole, "budget": float("nan")}, "holds NaN"), ({**whole, "metrics": [{"name": "kl"}]}, "metrics.0"),
        ([], "not a report"),
    ):  # fmt: skip
        (tmp_path / "odd.json").write_text(json.dumps(odd))
        assert why in refused("report", tmp_path / "odd.json")
    assert not (tmp_path / "odd.html").exists()
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    before = files(tmp_path)
    assert "exists already" in refused("report", folder, "--out", mine)
    assert files(tmp_path) == before
    assert "it is not a page of slimformer" in refused("report", folder, "--out", mine, "--force")
    assert files(tmp_path) == before


def test_a_page_asks_for_nothing_and_tells_no_places(folder, shelf):
    page = (folder / "report.html").read_text()
    assert str(shelf) not in page
    assert not re.search(r"(?:src|href)=\"(?!#)|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", page)
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).replace("http-equiv", "")
    assert "http" not in outside


def test_no_text_can_end_the_element_it_stands_in():
    odd = {"a": "</script><!--<script>&amp;\u2028\u2029\"'", "b": [1.5, None]}
    text = json_in_html(odd)
    assert json.loads(text) == odd
    assert not set(text) & set("<>&\u2028\u2029")
    page = html_page({"model": "@DATA@</title><script>", "data": {}, "front": None})
    assert embedded(page)["report"]["model"] == "@DATA@</title><script>"
    assert "<title>@DATA@&lt;/title&gt;&lt;script&gt;" in page


def test_json_lines_hold_the_same_and_put_numbers_on_one_line():
    value = {"a": [1, 2.5e-07, None, -3], "b": ["[\n1,\n2]", "x"], "c": [[1, 2], []], "d": {"e": [True, "1"]}, "f": []}
    text = json_text(value)
    assert json.loads(text) == value
    assert '"a": [ 1, 2.5e-07, null, -3 ]' in text
    with pytest.raises(ValueError):
        json_text([float("nan")])


def test_a_page_made_anew_elsewhere_tells_no_more_places(folder, tmp_path, monkeypatch):
    """A report that was made with relative paths, where these were files, and read where they are none."""
    report = json.loads((folder / "report.json").read_text())
    report["model"], report["data"]["name"] = "./secret/models/mine", "secret/a.txt,../secret/b.txt"
    report["warnings"] = ["calibrated on documents of ../secret/b.txt and /home/ann/secret/c.txt"]
    monkeypatch.chdir(tmp_path)
    before = html_page(report)
    assert "secret" not in before
    shown = embedded(before)["report"]
    assert (shown["model"], shown["data"]["name"]) == ("mine", "a.txt, b.txt")
    assert shown["warnings"] == ["calibrated on documents of b.txt and c.txt"]
    (tmp_path / "secret" / "models" / "mine").mkdir(parents=True)
    (tmp_path / "secret" / "a.txt").write_text("x")
    assert html_page(report) == before
    report["model"] = "owner/name"
    assert embedded(html_page(report))["report"]["model"] == "owner/name"


def test_a_page_that_somebody_has_changed_is_kept(folder, tmp_path):
    from slimformer.cli.output import record_in

    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    page = mine / "report.html"
    page.write_text(page.read_text().replace("</body>", "<p>my notes</p></body>"))
    assert "exists already" in refused("report", mine)
    record_in(str(mine), lambda report: report)
    assert "my notes" in page.read_text()
    done("report", mine, "--force")
    assert "my notes" not in page.read_text()


@pytest.mark.parametrize("beside", [True, False])
def test_a_page_somebody_has_edited_is_replaced_by_force_alone(beside, folder, tmp_path):
    """Whether there is a list of files beside it or not: the page carries its own checksum."""
    page = folder / "report.html" if beside else tmp_path / "page.html"
    out = () if beside else ("--out", page)
    done("report", folder, *out, "--force")
    done("report", folder, *out)  # as it was made
    edited = page.read_text().replace("</body>", "<p>my words</p></body>")
    page.write_text(edited)
    assert "exists already" in refused("report", folder, *out)
    assert page.read_text() == edited
    done("report", folder, *out, "--force")
    assert "my words" not in page.read_text()
    require_unchanged(folder, "*")  # the list knows the new page
    assert "report.html" not in strangers(folder)
