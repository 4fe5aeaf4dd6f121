"""The page of a report in a real browser, offline: it opens without a complaint, says what the report says, and plans
as Python plans."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest

import slimformer
from chromium import Page, browser
from slimformer.calibrate.store import open_statistics
from slimformer.evaluate.report_file import checked
from slimformer.evaluate.verdict import verdict
from slimformer.models.load import load_model
from slimformer.plan import Budget
from slimformer.plan.sensitivity import predicted_harm
from slimformer.recipe import cut_settings
from slimformer.report.page import html_page
from slimformer.steps.alternatives import alternatives
from slimformer.steps.make import from_statistics, make_plan, priced, read_probes
from terminal import done

BUDGETS = (0.435, 0.615, 0.83)
NAME = "<img src=x onerror=window.hacked=1><script>window.hacked=1<!--&lt;"
EVIL = "</script><img src=x onerror=window.hacked=1><script>window.hacked=1</script>&lt;<!--"
FORMATS = {"M": 1e6, "k": 1e3, "G": 1e9, "MB": 1e6, "ms": 1e-3, "%": 1e-2}

# Every text with a digit in it, the path it came by, and whether something else answers for it.
TEXTS = """
(() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode()) {
    const node = walk.currentNode, parent = node.parentElement;
    if (!/\\d/.test(node.data) || parent.closest("script, style, [hidden]")) continue;
    const own = parent.closest("[data-path]"), ratio = parent.closest("[data-ratio]");
    const other = parent.closest(
      "[data-text], [data-plan], [data-verdict], .tick, title, option, pre, #kept, #budget-value, #correction th");
    found.push([node.data, own && own.dataset.path, ratio && ratio.dataset.ratio, !!other]);
  }
  return found;
})()
"""
KEPT = """
Object.fromEntries([...document.querySelectorAll("#kept td[data-keep]")]
  .map((cell) => [`blocks.${cell.dataset.block}.${cell.dataset.kind}`, Number(cell.dataset.keep)]))
"""


@pytest.fixture(scope="module")
def page():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def report(shelf):
    """A report with everything in it but neighbours, which encoders have."""
    made = slimformer.compress(shelf / "llama", shelf / "text.txt", macs=0.6, tokens=600)
    return made.report.to_dict()


def opened(page: Page, report: dict, folder: Path, **how) -> Page:
    file = folder / "report.html"
    file.write_text(html_page(report), encoding="utf-8")
    page.complaints.clear()
    page.requests.clear()
    page.open(file, **how)
    return page


def value_at(report: dict, path: str):
    for key in path.split("."):
        report = report[int(key)] if isinstance(report, list) else report[key]
    return report


def number(text: str) -> tuple[float, float]:
    """The number a text shows, and by how much its rounding may have moved it."""
    digits, unit = re.fullmatch(r"([-+−]?[\d,.]+(?:e[-+]\d+)?)\s*(\D*)", text).groups()
    digits = digits.replace(",", "").replace("−", "-")
    mantissa, _, power = digits.partition("e")
    scale = FORMATS.get(unit, 1.0) * 10.0 ** int(power or 0)
    return float(mantissa) * scale, 0.5000001 * 10.0 ** -len(mantissa.partition(".")[2]) * scale


def slide(page: Page, fraction: float) -> dict[str, int]:
    """Move the slider as a hand would, and read what every block keeps."""
    page.evaluate(f"document.getElementById('budget').value = '{fraction!r}'")
    page.evaluate("document.getElementById('budget').dispatchEvent(new Event('input'))")
    return page.evaluate(KEPT)


def kept_by(plan, page: Page) -> dict[str, int]:
    """Sizes of a plan as the page counts them: ranks in coordinates of a head, as in reports."""
    widths = page.evaluate("Object.fromEntries(front.sites.map((site) => [site.site, site.width / site.of]))")
    return {edit.site: edit.keep * widths.get(edit.site, 1) for edit in plan.edits}


def test_it_opens_offline_without_a_complaint(page, report, tmp_path):
    opened(page, report, tmp_path)
    assert page.complaints == []
    assert {url.split(":")[0] for url in page.requests} == {"file"}
    assert len(page.requests) == 1
    assert page.evaluate("document.querySelectorAll('.chart svg').length") == 7
    assert page.evaluate("document.getElementById('planner').dataset.exact") == "true"


def test_the_slider_makes_the_plans_that_python_makes(page, report, tmp_path, stats, shelf):
    settings, statistics = cut_settings("balanced"), open_statistics(stats)
    run, probes = from_statistics(load_model(shelf / "llama"), statistics, settings), read_probes(statistics)
    opened(page, report, tmp_path)
    before, seen = page.evaluate(KEPT), []
    for fraction in BUDGETS:
        plan = make_plan(run, Budget(fraction), settings)
        seen.append(slide(page, fraction))
        assert seen[-1] == kept_by(plan, page)
        shown = page.evaluate("consequences(front, ladders, state.keep)")
        assert shown["macs"] == pytest.approx(plan.macs, rel=1e-12)
        assert shown["params"] == pytest.approx(plan.params, rel=1e-12)
        assert shown["kl"] == pytest.approx(predicted_harm(probes, run.curves, plan.sizes), rel=1e-9)
        said = page.evaluate("document.getElementById('consequences').textContent")
        assert f"{100 * plan.macs:.1f} %" in said
    assert len({json.dumps(one) for one in [before, *seen]}) == 4
    assert any(".qk" in site for one in seen for site in one), "a budget that cuts by rank should be among them"
    page.evaluate("document.getElementById('reset').click()")
    assert page.evaluate(KEPT) == before
    assert page.complaints == []


def test_the_report_itself_is_where_the_slider_starts(page, report, tmp_path):
    opened(page, report, tmp_path)
    kept = page.evaluate(KEPT)
    for site in report["sites"]:
        assert kept[site["site"]] == site["keep"]
        for rank in ("qk", "vo") if site["kind"] == "attn.heads" else ():
            assert kept.get(site["site"].replace("heads", rank)) == site.get(rank)


def answered_for(page: Page, report: dict) -> set[str]:
    """The paths of the numbers shown, each of which is the one in the report."""
    paths = set()
    for text, path, ratio, other in page.evaluate(TEXTS):
        if path:
            shown, rounding = number(text)
            assert shown == pytest.approx(value_at(report, path), abs=rounding), path
            paths.add(path)
        elif ratio:
            above, below = (value_at(report, part) for part in ratio.split("|"))
            assert float(text) == pytest.approx(above / below, abs=5.1e-4), ratio
        else:
            assert other or "95 % interval" in text, f"{text!r} comes from nowhere"
    return paths


def test_every_number_is_the_one_in_the_report(page, report, tmp_path):
    paths = answered_for(opened(page, report, tmp_path), report)
    wanted = {f"{which}.{field}" for which in ("dense", "small") for field in report["dense"]}
    wanted |= {f"metrics.{i}.small" for i in range(len(report["metrics"]))} | {"data.seed", "latency.body.ratio"}
    wanted |= {f"correction.{i}.after" for i in range(len(report["correction"]))} | {"macs_kept", "budget", "seq_len"}
    assert wanted <= paths
    for path, text in page.evaluate(
        "[...document.querySelectorAll('[data-text]')].map((e) => [e.dataset.text, e.textContent])"
    ):
        assert str(value_at(report, path)) in text or path in ("model", "data.name")


PLACE = "/home/ann/odd-2/dev.tsv"
SIDES = {
    f"{side}{end}": 50.0 + i
    for i, (side, end) in enumerate(itertools.product(("dense", "small"), ("", "_low", "_high")))
}
SCORE = {
    "name": "accuracy", "better": "higher", "level": 0.95, **SIDES, "difference": 3.125, "low": -1.5, "high": 4.75,
    "p": 0.125, "recovery": 106.25, "recovery_low": 97.5, "recovery_high": 109.5,
}  # fmt: skip
TASK = {
    "slimformer_task": 1, "task": "sst2", "dense": "/home/ann/dense", "small": "../ann/small",
    "data": "/home/ann/odd-2", "files": [PLACE], "examples": 872, "unit": "examples",
    "metrics": [SCORE, {**SCORE, "name": "F1", "recovery": None, "recovery_low": None, "recovery_high": None}],
    "settings": {"seq_len": 128, "predictions": "head", "best_thresholds": {"F1": {"dense": 0.375}}},
    "notes": [f"../ann/small was calibrated on {PLACE}: these are not held-out figures",
              "see /home/ann/else/x.txt, too"],
}  # fmt: skip
MEASURED = {
    "phase": "decode", "batch": 4, "dense_seconds": 0.0204, "small_seconds": 0.0153, "ratio": 0.75, "ratio_low": 0.7,
    "ratio_high": 0.8, "dense_rate": 196.1, "small_rate": 1261.4, "dense_peak_bytes": 3_000_000,
    "small_peak_bytes": 2_000_000,
}  # fmt: skip
BENCH = {
    "slimformer_bench": 1, "dense": "/home/ann/dense", "small": "/home/ann/small", "device": "cpu", "threads": 2,
    "seq_len": 128, "new_tokens": 16, "repeats": 10, "warmup": 3, "unit": "tokens", "measurements": [MEASURED],
    "weights_bytes": {"dense": 9_000_000, "small": 6_000_000}, "kv_cache_bytes": {"dense": 700_000, "small": 500_000},
}  # fmt: skip


def leaves(value, path: str) -> set[str]:
    """The paths of all numbers inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    own = {path} if isinstance(value, float | int) and not isinstance(value, bool) else set()
    return own.union(*(leaves(each, f"{path}.{key}") for key, each in items))


SIZING = {
    "size": 12_000_000,
    "candidates": [
        {"bits": None, "tables": False, "params": 0.25, "bytes": 11_900_000, "harm": 0.5},
        {"bits": 4, "tables": True, "params": 0.875, "bytes": 11_800_000, "harm": 0.0625},
    ],
    "losses": {"all": 0.125, "fewer": 0.03125, "tokens": []},
    "chosen": {"bits": 4, "tables": True, "params": 1.0, "bytes": 11_950_000, "harm": None, "tokens": 24_000},
}  # fmt: skip
STORED = {"bits": 4, "tables": True, "bits_per_weight": 4.5, "layers": 9, "errors": {}, "method": "gptq"}
ENDS = {
    "rank": 256, "of": 576, "ends": ["embedding", "head"], "error": {"embedding": 0.25, "head": 0.25}, "tied": True,
    "bytes": [56_600_000, 25_800_000], "harm": 0.375,
}  # fmt: skip


def test_what_a_size_was_spent_on_is_shown(page, report, tmp_path):
    more = {**report, "sizing": SIZING, "quantization": STORED, "ends": ENDS}
    paths = answered_for(opened(page, checked(more), tmp_path), more)
    assert page.complaints == []
    silent = {"sizing.chosen.bytes", "ends.error.embedding", "ends.error.head"}
    assert leaves(SIZING, "sizing") | leaves(ENDS, "ends") <= paths | silent
    assert {"quantization.bits", "quantization.bits_per_weight"} <= paths
    said = page.evaluate("document.getElementById('notes').textContent")
    assert "4 bits with the tables, 87.5 % of the blocks (11.8 MB, harm 0.0625)" in said
    assert "Taken: 24,000 tokens" in said and "no fewer bits, 25.0 % of the blocks" in said


def test_what_was_measured_elsewhere_is_shown_and_nobody_learns_where_it_lay(page, report, tmp_path):
    metrics = report["metrics"]
    rewrite = {"rewrite": "values folded", "possible": True, "sites": 2, "params": 4096, "macs": 1024}
    more = {
        **report, "other_data": [{"name": PLACE, "hash": "x", "tokens": 5, "metrics": metrics}],
        "tasks": {"sst2": TASK}, "bench": BENCH,
        "lossless": {"largest_change": 3e-7, "dtype": "float32", "rewrites": [rewrite]},
        "warnings": [f"--eval-data {PLACE}: seen before"],
    }  # fmt: skip
    paths = answered_for(opened(page, checked(more), tmp_path), more)
    assert page.complaints == []
    wanted = {f"{each}.{i}.small" for each in ("metrics", "other_data.0.metrics") for i in range(len(metrics))}
    silent = {f"tasks.sst2.{name}" for name in ("slimformer_task", "metrics.0.level", "metrics.1.level")}
    wanted |= (leaves(TASK, "tasks.sst2") | leaves(BENCH, "bench")) - silent - {"bench.slimformer_bench"}
    assert wanted | {"lossless.largest_change", "lossless.rewrites.0.params"} <= paths
    assert "dev.tsv: seen before" in page.evaluate("document.getElementById('notes').textContent")
    said = page.evaluate("document.getElementById('tasks').textContent")
    assert "small was calibrated on dev.tsv: these are not held-out figures" in said
    assert "see x.txt, too" in said and "–" in said
    assert "quartiles of the ratio" in page.evaluate("document.getElementById('serving').textContent")
    written = (tmp_path / "report.html").read_text()
    assert "/home" not in written and "../ann" not in written


def test_the_front_and_the_spectra_can_be_read_as_tables(page, report, tmp_path):
    opened(page, report, tmp_path)
    points = sorted(report["front"]["points"], key=lambda point: -point["budget"])
    shown = page.evaluate("[...document.querySelectorAll('#front-table tbody tr')].map((row) => row.textContent)")
    assert len(shown) == len(points)
    for text, point in zip(shown, points, strict=True):
        assert text.startswith(f"{100 * point['budget']:.1f} %")
        assert ("(this model)" in text) == (point["budget"] == report["budget"])
    front = report["front"]
    sites = [site for site in front["sites"] if site["kind"] == page.evaluate("KINDS[byId('spectrum').value][0]")]
    cells = page.evaluate(
        "[...document.querySelectorAll('#spectra-table tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    assert len(cells) == len(sites) > 0
    for (block, *found), site in zip(cells, sorted(sites, key=lambda each: each["block"]), strict=True):
        units, floor = front["tables"][site["table"]]["units"], site["floor"]
        fewest = [next(u for u, left in zip(units, floor, strict=True) if left <= tail) for tail in (0.1, 0.01, 0.001)]
        assert (int(block), found) == (site["block"], [f"{u}/{site['of']}" for u in fewest])


def test_the_command_of_the_page_makes_the_model_of_the_slider(page, report, tmp_path, shelf, trusting, monkeypatch):
    opened(page, report, tmp_path)
    wanted = slide(page, 0.75)
    program, *arguments = shlex.split(page.evaluate("byId('command').textContent"))
    monkeypatch.chdir(shelf)
    out = arguments.index("--out") + 1
    arguments[out] = str(tmp_path / "made")
    done(*arguments, "--tokens", 600, "--no-timing", "-q")  # the options the calibration had beside these
    assert program == "slimformer"
    made = json.loads((tmp_path / "made" / "report.json").read_text())
    assert made["budget"] == 0.75
    assert opened(page, made, tmp_path).evaluate(KEPT) == wanted
    calibrate, cut = map(
        shlex.split, opened(page, report, tmp_path).evaluate("byId('command-many').textContent").split("\n")
    )
    assert calibrate[1:3] == ["calibrate", "llama"] and cut[1:3] == ["cut", calibrate[-1]]


def test_the_plan_of_the_slider_is_a_file_that_apply_reads(page, report, tmp_path, stats, shelf):
    opened(page, report, tmp_path)
    statistics, wanted = open_statistics(stats), slide(page, 0.615)
    href = page.evaluate("document.getElementById('plan-file').href")
    assert page.evaluate("document.getElementById('plan-file').download") == "plan.json"
    text = unquote(href.partition(",")[2])
    (tmp_path / "plan.json").write_text(text)
    found, own = slimformer.Plan.from_json(text), slimformer.plan(statistics, model=shelf / "llama", macs=0.615)
    assert found.edits == own.edits and any(edit.site.endswith(".qk") for edit in found.edits)
    assert found.predicted_kl == pytest.approx(own.predicted_kl, rel=1e-9)
    same = {"macs": own.macs, "params": own.params, "predicted_kl": own.predicted_kl}
    assert dataclasses.replace(found, **same) == own
    lines = page.evaluate("byId('command-plan').textContent").split("\n")
    (calibrate, apply), place = map(shlex.split, lines), str(tmp_path / "made")
    assert calibrate[:2] == ["slimformer", "calibrate"] and apply[:4] == ["slimformer", "apply", "stats", "plan.json"]
    done("apply", stats, tmp_path / "plan.json", "--model", shelf / "llama", "--out", place, "-q")
    made = json.loads((tmp_path / "made" / "report.json").read_text())
    assert {site["site"]: site["keep"] for site in made["sites"]}.items() <= wanted.items()
    old = {**report, "front": {key: value for key, value in report["front"].items() if key != "plan"}}
    assert opened(page, old, tmp_path).evaluate("document.getElementById('plan-part').hidden")
    assert page.complaints == []


def test_text_stays_text(page, report, tmp_path):
    odd = {
        **report, "model": NAME, "recipe": EVIL, "warnings": [EVIL], "load_class": EVIL,
        "samples": {"dense": EVIL, "small": f"x{EVIL}"}, "versions": {EVIL: EVIL},
        "data": {**report["data"], "name": EVIL, "hash": EVIL},
        "neighbours": [{"text": EVIL, **{which: [{"text": EVIL, "cosine": 0.5}] for which in ("dense", "small")}}],
    }  # fmt: skip
    opened(page, odd, tmp_path)
    assert page.complaints == []
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.images.length + document.scripts.length") == 2
    assert page.evaluate("document.getElementById('title').textContent").startswith(f"{NAME} at ")
    assert page.evaluate("document.querySelector('[data-text=\"samples.dense\"]').textContent") == EVIL
    script = {**report, "model": "<script>"}
    opened(page, script, tmp_path)
    assert page.evaluate("document.getElementById('title').textContent").startswith("<script> at ")


def test_it_can_be_used_without_a_mouse(page, report, tmp_path):
    opened(page, report, tmp_path)
    reached = set()
    for _ in range(40):
        page.press("Tab", 9)
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"theme", "budget", "reset", "block"} <= reached
    before = page.evaluate(KEPT)
    page.evaluate("document.getElementById('budget').focus()")
    for _ in range(20):
        page.press("ArrowLeft", 37)
    assert page.evaluate("Number(document.getElementById('budget').value)") == pytest.approx(0.5)
    assert page.evaluate(KEPT) != before
    assert "50.0 %" in page.evaluate("document.getElementById('budget').getAttribute('aria-valuetext')")


def test_light_dark_and_narrow(page, report, tmp_path):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = opened(page, report, tmp_path).evaluate(colour)
    dark = opened(page, report, tmp_path, dark=True).evaluate(colour)
    assert light != dark
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(colour) == light
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(colour) == dark
    opened(page, report, tmp_path, width=340)
    assert page.evaluate("document.documentElement.scrollWidth") == 340
    assert page.evaluate("Math.max(...[...document.querySelectorAll('.chart svg')].map((e) => e.clientWidth))") < 340
    assert page.complaints == []


@pytest.mark.parametrize(("recipe", "format", "exact"), [
    ("balanced", "plain", True), ("uniform", "ragged", False), ("stat", "ragged", False),
])  # fmt: skip
def test_other_allocations_are_repeated_or_looked_up(page, report, tmp_path, stats, shelf, recipe, format, exact):
    settings = cut_settings(recipe)
    run = from_statistics(load_model(shelf / "llama"), open_statistics(stats), settings, format=format)
    front = alternatives(run, Budget(0.6), settings)
    opened(page, {**report, "front": front, "format": format}, tmp_path)
    assert page.evaluate("document.getElementById('planner').dataset.exact") == str(exact).lower()
    fraction = 0.615 if exact else 0.75
    plan = make_plan(run, Budget(fraction), settings)
    assert slide(page, fraction) == kept_by(plan, page)
    assert page.complaints == []


def test_the_verdict_is_the_one_that_python_gives(page, report, tmp_path):
    opened(page, report, tmp_path)
    found = verdict(report)
    said = page.evaluate("[...document.querySelectorAll('[data-verdict]')].map((e) => e.textContent)")
    assert said == [found.sentence, found.light]
    assert page.evaluate("document.getElementById('light').className") == found.colour


def test_the_slider_says_what_its_model_weighs_and_takes(page, report, tmp_path):
    timed = {"dense": 0.02, "small": 0.015, "ratio": 0.75}
    latency = {"body": timed, "end_to_end": timed, "repeats": 5, "threads": 1, "device": "cpu", "inputs": "x"}
    opened(page, {**report, "latency": latency}, tmp_path)
    text = "document.querySelector('#consequences [data-plan={}]').textContent".format
    size, error = number(page.evaluate(text("bytes")))
    assert abs(size - report["small"]["bytes"]) <= error + 0.01 * report["small"]["bytes"]  # this model's own
    time, error = number(page.evaluate(text("latency")))
    assert abs(time - 0.015) <= error + 1e-4
    slide(page, 1.0)
    assert abs(number(page.evaluate(text("bytes")))[0] - report["dense"]["bytes"]) <= 0.05e6
    assert number(page.evaluate(text("latency")))[0] == pytest.approx(0.02)
    opened(page, {**report, "latency": None, "quantization": {"bits": 4}}, tmp_path)
    assert page.evaluate("document.querySelectorAll('#consequences [data-plan]').length") == 3


def test_a_command_is_copied_by_its_button(page, report, tmp_path):
    opened(page, report, tmp_path)
    page.evaluate("document.execCommand = () => { window.copied = String(getSelection()); return true; }")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.evaluate("document.querySelector('button.copy').click()")
    assert page.evaluate("window.copied.trim() === document.getElementById('command').textContent")
    assert page.evaluate("document.querySelector('button.copy').textContent") == "Copied"


@pytest.mark.parametrize("by", ["params", "latency"])
def test_other_budgets_can_be_slid_along(page, report, tmp_path, stats, shelf, by, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = cut_settings("balanced")
    run = from_statistics(load_model(shelf / "llama"), open_statistics(stats), settings)
    front = alternatives(run, priced(run, Budget(0.9, by)), settings)
    opened(page, {**report, "front": front, "budget": 0.9, "budget_by": by}, tmp_path)
    assert page.evaluate("document.getElementById('planner').dataset.exact") == "true"
    assert page.complaints == []


def test_a_report_without_a_front_has_a_page(page, report, tmp_path):
    bare = {**report, "front": None, "samples": None, "latency": None, "metrics": [], "correction": [], "data": {}}
    opened(page, bare, tmp_path)
    assert page.complaints == []
    assert page.evaluate("document.getElementById('budget-section').hidden") is True
    assert {site["site"]: site["keep"] for site in report["sites"]}.items() <= page.evaluate(KEPT).items()
