"""Every form of data is read as it was written, split alike at every run, and augmented as promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments import (
    BAD,
    GOOD,
    cifar_binary,
    cifar_png,
    cifar_rows,
    idx_folder,
    image_folder,
    text_file,
)
from slimformer.errors import DataNotFound, DataUnreadable, SlimformerError
from slimformer.lab.data.augment import augmented, moved
from slimformer.lab.data.held_out import held_out, subset
from slimformer.lab.data.images import read_images
from slimformer.lab.data.text import read_texts, split_texts
from slimformer.lab.feed import generator, packed, padded
from slimformer.lab.settings import Augmentation, DataSettings


@pytest.mark.parametrize("gzipped", [False, True])
def test_idx_files(gzipped, tmp_path):
    images, labels = idx_folder(tmp_path / "mnist", packed=gzipped)
    data = read_images(DataSettings(source="mnist", path=str(tmp_path / "mnist")))
    assert np.array_equal(data.train.pixels[:, 0].numpy(), images)
    assert data.train.labels.tolist() == labels.tolist()
    assert len(data.validation) == 5 and len(data.classes) == 4


@pytest.mark.parametrize("write", [cifar_binary, cifar_png])
def test_cifar_in_both_forms(write, tmp_path):
    write(tmp_path / "cifar")
    data = read_images(DataSettings(source="cifar10", path=str(tmp_path / "cifar")))
    images, labels = cifar_rows()
    assert np.array_equal(data.validation.pixels.permute(0, 2, 3, 1).numpy(), images)
    assert data.validation.labels.tolist() == labels and len(data.train) == 30
    grey = read_images(DataSettings(source="cifar10", path=str(tmp_path / "cifar"), channels=1))
    mixed = images[0] @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey.validation.pixels[0, 0].numpy() - mixed).max() <= 0.51


@pytest.mark.parametrize("parts", [("",), ("train", "val")])
def test_image_folders(parts, tmp_path):
    image_folder(tmp_path / "x", parts)
    data = read_images(DataSettings(source="images", path=str(tmp_path / "x"), image_size=8, validation_share=0.3))
    assert data.classes == ("dark", "light") and data.train.pixels.shape[1:] == (3, 8, 8)
    bright = data.train.pixels.float().mean((1, 2, 3)) > 128
    assert torch.equal(bright, data.train.labels == 1)
    assert len(data.train) == (12 if parts != ("",) else 12 - len(data.validation))


def test_a_data_set_that_datasets_can_open(tmp_path):
    """A folder it can read stands for a name: the hub is out of reach in tests."""
    image_folder(tmp_path / "x", ("train", "test"))
    data = read_images(DataSettings(source="hub", path=str(tmp_path / "x")))
    assert data.classes == ("dark", "light") and len(data.train) == len(data.validation) == 12
    assert torch.equal(data.train.pixels.float().mean((1, 2, 3)) > 128, data.train.labels == 1)
    with pytest.raises(DataNotFound, match="cannot be opened"):
        read_images(DataSettings(source="hub", path="nobody/nothing"))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json"])
def test_labelled_texts(name, tmp_path):
    how = {"columns": ("t",), "label": "s"} if name == "a.json" else {}
    settings = DataSettings(source="text", path=str(text_file(tmp_path / name)), vocabulary=200, max_length=8, **how)
    data = read_texts(settings, "text-classes", tmp_path / "texts")
    assert data.classes == ("0", "1") and len(data.train) + len(data.validation) == 60
    batch = padded(data.train, torch.arange(4), data.tokenizer.pad_token_id)
    ids = batch["input_ids"]
    assert ids.shape == (4, 8) and (ids[:, 0] == data.tokenizer.cls_token_id).all()
    assert (ids[:, -1] == data.tokenizer.sep_token_id).all(), "cut texts keep their end mark"
    words = data.tokenizer.decode(ids[0], skip_special_tokens=True)
    assert (GOOD if data.train.labels[0] else BAD).startswith(words[:12])


def test_the_tokenizer_has_seen_the_training_part_only(tmp_path):
    (tmp_path / "train.txt").write_text("\n\n".join(["aaa bbb"] * 30))
    (tmp_path / "other.txt").write_text("\n\n".join(["zzz"] * 3))
    settings = DataSettings(
        source="text", path=str(tmp_path / "train.txt"), validation_path=str(tmp_path / "other.txt")
    )
    data = read_texts(settings, "masked-lm", tmp_path / "texts")
    assert set(data.validation.ids.tolist()) == {data.tokenizer.unk_token_id}
    assert data.tokenizer.unk_token_id not in data.train.ids


def test_what_was_read_is_kept_and_other_files_are_read_anew(tmp_path):
    path = text_file(tmp_path / "a.tsv")
    settings = DataSettings(source="text", path=str(path), vocabulary=100)
    first = read_texts(settings, "text-classes", tmp_path / "texts").digest()
    assert read_texts(settings, "text-classes", tmp_path / "texts").digest() == first
    path.write_text("sentence\tlabel\n" + "\n".join(f"other words {i}\t{i % 2}" for i in range(30)))
    assert read_texts(settings, "text-classes", tmp_path / "texts").digest() != first


def test_copies_are_never_on_both_sides():
    contents = [bytes([i % 50]) for i in range(500)]
    train, validation = held_out(contents, 0.2)
    assert {contents[i] for i in train.tolist()}.isdisjoint(contents[i] for i in validation.tolist())
    assert len(validation) == 100 and len(train) == 400
    shuffled = torch.randperm(500).tolist()
    again = held_out([contents[i] for i in shuffled], 0.2)[1]
    assert {contents[shuffled[i]] for i in again.tolist()} == {contents[i] for i in validation.tolist()}
    assert subset(10, 4).tolist() == sorted(set(subset(10, 4).tolist()))


def test_documents_end_to_end_with_a_mark_between(tmp_path):
    settings = DataSettings(source="text", path=str(text_file(tmp_path / "a.txt")), vocabulary=300)
    data = read_texts(settings, "causal-lm", tmp_path / "texts")
    end = data.tokenizer.eos_token_id
    rows = packed(data.train, 16, end)
    stream = rows.flatten().tolist()
    expected = []
    for i in range(len(data.train)):
        expected += [*data.train.ids[data.train.offsets[i] : data.train.offsets[i + 1]].tolist(), end]
    assert stream == expected[: len(stream)] and len(expected) - len(stream) < 16
    assert data.tokenizer.decode(data.train.ids[: data.train.offsets[1]]) == split_texts(settings)[0][0].text


def test_augmentations_keep_shapes_and_do_what_they_say():
    pixels = torch.arange(4 * 1 * 5 * 5, dtype=torch.uint8).view(4, 1, 5, 5) + 1
    down = moved(pixels, torch.tensor([[1, 0]] * 4), mirror=False)
    assert torch.equal(down[:, :, 1:], pixels[:, :, :-1]) and not down[:, :, 0].any()
    right = moved(pixels, torch.tensor([[0, 2]] * 4), mirror=True)
    assert torch.equal(right[..., 2:], pixels[..., :-2])
    assert torch.equal(right[..., :2], pixels[..., 1:3].flip(-1)), "mirrored at the edge"
    flipped = augmented(pixels.repeat(50, 1, 1, 1), Augmentation(flip=True), generator("flip"))
    original = pixels.repeat(50, 1, 1, 1)
    same, turned = ((flipped == x).all((1, 2, 3)) for x in (original, original.flip(-1)))
    assert (same ^ turned).all() and 60 < turned.sum() < 140
    how = Augmentation(flip=True, crop=2, shift=1)
    once, again = (augmented(pixels, how, generator("seed", 3)) for _ in range(2))
    assert once.shape == pixels.shape and once.dtype == torch.uint8 and torch.equal(once, again)
    assert not torch.equal(once, augmented(pixels, how, generator("seed", 4)))
    assert torch.equal(augmented(pixels, Augmentation(), generator("x")), pixels)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda x: (x / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x63abc"), DataUnreadable),
        (lambda x: (x / "train-images-idx3-ubyte").write_bytes(b"no"), DataUnreadable),
        (lambda x: (x / "t10k-images-idx3-ubyte").unlink(), DataNotFound),
    ],
)
def test_broken_idx_files_are_named_in_one_line(spoil, error, tmp_path):
    idx_folder(tmp_path / "x", packed=False)
    spoil(tmp_path / "x")
    with pytest.raises(error) as caught:
        read_images(DataSettings(source="idx", path=str(tmp_path / "x")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("write", "spoil", "error", "words"),
    [
        (cifar_png, lambda x: (x / "data_batch_2.png").unlink(), DataNotFound, "has no data_batch_2.png"),
        (cifar_binary, lambda x: (x / "data_batch_1.bin").unlink(), DataNotFound, "has no data_batch_1.bin"),
        (
            cifar_png,
            lambda x: (x / "test_lables.json").write_text("[1, 2]"),
            DataUnreadable,
            "6 test images and 2 labels",
        ),
        (cifar_png, lambda x: (x / "test_lables.json").write_text(str([0] * 7)), DataUnreadable, "and 7 labels"),
        (cifar_png, lambda x: (x / "test_lables.json").write_text(str([-1] * 6)), DataUnreadable, "not numbers from 0"),
        (cifar_png, lambda x: (x / "data_batch_3.png").write_bytes(b"no"), DataUnreadable, "is no image"),
    ],
)
def test_cifar_with_a_gap_is_refused(write, spoil, error, words, tmp_path):
    """A batch left out would shift the labels of all behind it."""
    write(tmp_path / "x")
    spoil(tmp_path / "x")
    with pytest.raises(error, match=words) as caught:
        read_images(DataSettings(source="cifar10", path=str(tmp_path / "x")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["mnist", "cifar10", "images"])
def test_what_is_not_there_is_said(source, tmp_path):
    for path in (None, str(tmp_path / "nothing"), str(tmp_path)):
        with pytest.raises(SlimformerError):
            read_images(DataSettings(source=source, path=path))
