import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, ViTConfig, ViTForImageClassification

from slimformer.calibrate.images import image_batches, read_images
from slimformer.calibrate.splits import split_documents
from slimformer.calibrate.text import data_hash
from slimformer.errors import DataEmpty, DataNotFound, DataUnreadable


def picture(path: Path, seed: int, *, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(12):
        picture(tmp_path / ("cat" if i % 2 else "dog") / f"{i}.png", i)
    return tmp_path


def test_sub_folders_are_classes(folder):
    documents = read_images(folder)
    assert len(documents) == 12
    assert all(document.label == Path(document.text).parent.name for document in documents)


def test_numbers_as_folders_are_numbers(tmp_path):
    for i in range(4):
        picture(tmp_path / str(i % 2) / f"{i}.png", i)
    assert [document.label for document in read_images(tmp_path)] == [0, 0, 1, 1]


def test_one_folder_is_no_class(tmp_path):
    picture(tmp_path / "images" / "a.png", 0)
    picture(tmp_path / "b.png", 1)
    assert [document.label for document in read_images(tmp_path)] == [None, None]


def test_other_files_are_passed_over(folder):
    (folder / "README.md").write_text("notes")
    (folder / "cat" / "._1.png").write_bytes(b"what macOS leaves behind")
    assert len(read_images(folder)) == 12


def test_a_picture_under_two_names_is_never_in_two_splits(folder):
    for i in range(12):
        picture(folder / "copies" / f"copy{i}.png", i)
    splits = split_documents(read_images(folder), seed=0)
    groups = [{document.group for document in part} for part in splits.values()]
    assert sum(map(len, groups)) == 12 and all(groups)


def test_the_hash_is_of_the_bytes_by_any_name_of_the_folder(folder):
    before = data_hash(read_images(folder))
    with contextlib.chdir(folder.parent):
        assert data_hash(read_images(folder.name)) == before
    picture(folder / "dog" / "0.png", 99)
    assert data_hash(read_images(folder)) != before


def test_samples_are_chosen_by_the_seed(folder):
    assert read_images(folder, samples=5, seed=1) == read_images(folder, samples=5, seed=1)
    assert read_images(folder, samples=5, seed=1) != read_images(folder, samples=5, seed=2)
    assert len(read_images(folder, samples=99)) == 12


def test_without_processor_pixels_lie_between_minus_one_and_one(folder):
    documents = read_images(folder)
    found = image_batches(documents, None, batch_size=5, image_size=8, label_ids={"cat": 0, "dog": 1})
    assert [batch.tokens for batch in found] == [5, 5, 2]
    pixels = torch.cat([batch.inputs["pixel_values"] for batch in found])
    assert pixels.shape == (12, 3, 8, 8) and pixels.dtype == torch.float32
    assert -1 <= pixels.min() < 0 < pixels.max() <= 1
    assert torch.cat([batch.labels for batch in found]).tolist() == [0] * 6 + [1] * 6
    assert all(batch.mask is None for batch in found)


def test_white_is_one_and_black_is_minus_one(tmp_path):
    for name, value in (("a", 0), ("b", 255)):
        Image.new("L", (4, 4), value).save(tmp_path / f"{name}.png")
    (batch,) = image_batches(read_images(tmp_path), None, image_size=4, channels=1)
    assert batch.inputs["pixel_values"].shape == (2, 1, 4, 4)
    assert batch.inputs["pixel_values"].flatten(1).mean(1).tolist() == [-1, 1]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA"])
def test_every_kind_of_picture_becomes_rgb(tmp_path, mode):
    picture(tmp_path / "a.png", 0, mode=mode)
    (batch,) = image_batches(read_images(tmp_path), None, image_size=4)
    assert batch.inputs["pixel_values"].shape == (1, 3, 4, 4)


def test_a_processor_makes_what_a_model_takes(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("processor")
    (place / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}'
    )
    processor = AutoImageProcessor.from_pretrained(place)
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=8,
    )
    model = ViTForImageClassification(config).eval()
    for batch in image_batches(read_images(folder), processor, batch_size=4):
        with torch.inference_mode():
            assert model(**batch.inputs).logits.shape == (4, 2)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataNotFound, match=r"there is no folder .*nowhere; give a folder of images"):
        read_images(tmp_path / "nowhere")


def test_a_folder_without_images_is_empty(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataEmpty, match=r"there are no images below .*; looked for \.png, \.jpg"):
        read_images(tmp_path)


@pytest.mark.parametrize("content", ["nothing", "cut short", "garbage"])
def test_a_corrupt_image_is_named(folder, content):
    victim = folder / "cat" / "1.png"
    whole = victim.read_bytes()
    victim.write_bytes({"nothing": b"", "cut short": whole[:-60], "garbage": b"no picture"}[content])
    with pytest.raises(DataUnreadable) as caught:
        image_batches(read_images(folder), None, image_size=8)
    assert str(caught.value) == f"image {victim} is corrupt or no image; repair or remove it"


def test_an_image_that_went_away_is_named(folder):
    documents = read_images(folder)
    (folder / "cat" / "1.png").unlink()
    with pytest.raises(DataNotFound, match=r"1\.png is no longer there; read the folder again"):
        image_batches(documents, None, image_size=8)
