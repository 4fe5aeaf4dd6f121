"""Images with captions, for two towers that are compared: what is read, what is measured, and what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPProcessor

import slimformer
from families import LENGTH, tiny, tiny_image_processor, tiny_tokenizer
from slimformer.calibrate.captions import captioned_batches, read_captioned
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.own_pairs import COLOURS, drawn
from slimformer.checkpoint.save import Belongings, save
from slimformer.errors import (
    ColumnNotFound,
    DataEmpty,
    DataNotFound,
    DataUnreadable,
    SequenceTooLong,
    UnknownArchitecture,
    UnknownMethod,
)
from slimformer.evaluate.accuracy import matches
from slimformer.models import describe
from slimformer.models.load import load_model
from slimformer.models.walk import ending_in, last_states
from slimformer.plan.cost import block_cost, outside_macs

TOWERS = ("clip", "siglip")
every_kind = pytest.mark.parametrize("kind", TOWERS)


def pictures(place, n=40):
    """A folder of small pictures, each with a caption of its own."""
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(place / f"{i}.png")
        rows.append({"file_name": f"{i}.png", "text": f"w{5 + i} w{6 + i // 2} w{7 + i // 3}"})
    (place / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return place


def processor(kind):
    tokenizer = tiny_tokenizer()
    if kind == "siglip":  # padded to full length, and no mask
        tokenizer.model_input_names = ["input_ids"]
    return CLIPProcessor(tiny_image_processor(), tokenizer)


@every_kind
def test_the_walk_through_both_towers_ends_where_the_model_does(kind, tmp_path):
    """From the states both have ended in come the outputs, though no block runs."""
    model, folder = tiny(kind), pictures(tmp_path / "p", 12)
    architecture = describe(model)
    batches = captioned_batches(read_captioned(folder), model, processor(kind), batch_size=6)
    ends = last_states(model, architecture, batches, "test")
    with torch.no_grad():
        for batch, end in zip(batches, ends, strict=True):
            expected = model(**batch.inputs).logits_per_image
            with ending_in(model, architecture, [(batch, end)]):
                assert torch.equal(model(**batch.inputs).logits_per_image, expected)


@every_kind
def test_a_budget_counts_both_towers(kind):
    architecture = describe(tiny(kind))
    towers = [describe(tiny("clip_text_model")), describe(tiny("clip_vision_model"))]
    positions = 16 + (kind == "clip")
    text, image = (block_cost(tower, n).macs for tower, n in zip(towers, (LENGTH, positions), strict=True))
    whole = block_cost(architecture, LENGTH).macs
    assert whole == pytest.approx(text + image * positions / LENGTH, abs=len(architecture.sites))
    patches = 16 * 3 * 4 * 4 * 32
    assert outside_macs(tiny(kind), architecture, LENGTH) >= patches // LENGTH


@every_kind
def test_one_budget_cuts_both_towers_and_the_folder_gives_the_same(kind, tmp_path):
    model, folder = tiny(kind), pictures(tmp_path / "p", 60)
    save(model, tmp_path / "dense", Belongings(processor(kind)), verify=False)
    result = slimformer.compress(tmp_path / "dense", folder, macs=0.7, seq_len=LENGTH, tokens=10**4)
    assert 0.5 < result.plan.macs <= 0.7 and result.report.data["unit"] == "pairs"
    metrics = {metric["name"]: metric for metric in result.report.metrics}
    assert {"matches", "kl", "agreement"} == metrics.keys()
    cut = {site["site"].split(".")[0] for site in result.report.sites if site["keep"] < site["of"]}
    assert cut == {"vision", "text"}
    result.save(tmp_path / "small")
    again = load_model(tmp_path / "small")
    (batch, *_) = captioned_batches(read_captioned(folder), model, again.processor)
    with torch.no_grad():
        expected, found = (each(**batch.inputs).logits_per_image for each in (result.model, again.model))
    torch.testing.assert_close(found, expected)


def test_what_matches_is_counted_both_ways():
    class Known(torch.nn.Module):
        def forward(self, **_):
            scores = torch.tensor([[2.0, 1, 0], [3, 0, 0], [0, 0, 1]])
            return type("Out", (), {"logits_per_image": scores, "logits_per_text": scores.mT})

    batch = captioned_batches_of_three()
    assert matches(Known(), [batch]).value == pytest.approx((2 / 3 + 1 / 3) / 2)


def captioned_batches_of_three():
    from slimformer.models.batch import Batch

    return Batch({"input_ids": torch.ones(3, 2, dtype=torch.long)}, None, documents=torch.arange(3))


@pytest.mark.parametrize("recipe", ["lossless", "depth"])
def test_steps_for_one_stack_are_refused(recipe, tmp_path):
    given = {} if recipe == "lossless" else {"macs": 0.5}
    with pytest.raises(UnknownMethod, match=f"the step {recipe} is for models of one stack, and clip is two towers"):
        slimformer.compress(tiny("clip"), pictures(tmp_path / "p"), processor=processor("clip"), recipe=recipe, **given)


@every_kind
def test_data_that_are_no_pairs_of_image_and_text_are_refused_in_one_line(kind, tmp_path):
    model, folder = tiny(kind), pictures(tmp_path / "p")
    known = describe(model)
    (tmp_path / "none").mkdir()
    (tmp_path / "text.txt").write_text("some words")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv").write_text("image,caption\n,\n")
    for source, error, message in (
        (["a text"] * 9, DataNotFound, "calibrated on images with captions"),
        (torch.ones(8, 8, dtype=torch.long), DataUnreadable, "calibrated on images with captions"),
        (tmp_path / "none", DataNotFound, "holds no captions; put a captions.jsonl"),
        (tmp_path / "text.txt", DataUnreadable, "is no table"),
        (tmp_path / "odd.csv", ColumnNotFound, "has none of the columns image"),
        (tmp_path / "empty.csv", DataEmpty, "no row with both"),
    ):
        with pytest.raises(error, match=message) as caught:
            gather(source, model, processor(kind), known)
        assert "\n" not in str(caught.value)
    (folder / "3.png").unlink()
    with pytest.raises(DataUnreadable, match=r"image .*3\.png cannot be opened"):
        gather(folder, model, processor(kind), known)
    with pytest.raises(DataUnreadable, match="an image processor and a tokenizer"):
        gather(pictures(tmp_path / "p"), model, tiny_tokenizer(), known)
    with pytest.raises(SequenceTooLong, match="the tower of text has 64 positions"):
        gather(folder, model, processor(kind), known, Reading(seq_len=500))


def test_what_works_on_one_tower_refuses_two(tmp_path):
    model = tiny("clip")
    save(model, tmp_path / "dense", Belongings(processor("clip")), verify=False)
    with pytest.raises(UnknownArchitecture, match="are two towers, and export works on one"):
        slimformer.export(tmp_path / "dense", to="onnx", out=tmp_path / "x")
    with pytest.raises(UnknownArchitecture, match="is two towers, and is walked in memory only"):
        slimformer.compress_streamed(
            tmp_path / "dense", tmp_path / "o", pictures(tmp_path / "p"), macs=0.5, memory=10**9
        )


# --- drawn pairs ----------------------------------------------------------------------------------------------------


def test_drawn_pictures_are_what_their_captions_say():
    """The colours of a caption, the ground last, are those of the picture; the same seed draws the same."""
    for seed in range(30):
        picture, caption = drawn((48, 48), np.random.default_rng(seed))
        again, _ = drawn((48, 48), np.random.default_rng(seed))
        named = [COLOURS[word] for word in caption.split() if word in COLOURS]
        assert {tuple(each) for each in picture.reshape(-1, 3).tolist()} == set(named)
        assert tuple(picture[0, 0].tolist()) == named[-1]
        assert np.array_equal(picture, again)


@every_kind
@pytest.mark.parametrize("source", ["builtin", "self"])
def test_towers_can_be_cut_without_data_of_ones_own(kind, source, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = tiny(kind)
    data = gather(source, model, processor(kind), describe(model), Reading(tokens=40 * LENGTH))
    pairs = sum(len(batch.inputs["pixel_values"]) for batch in data.splits["fit"])
    assert pairs == 40 * LENGTH // data.seq_len
    result = slimformer.compress(model, source, processor=processor(kind), macs=0.7, tokens=40 * LENGTH, timing=False)
    assert result.report.macs_kept <= 0.7
