"""Pictures that stand in where a vision model has none to calibrate on."""

from pathlib import Path

import numpy as np
import pytest
import torch

from families import tiny
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.own_images import dead_leaves, own_images
from slimformer.errors import CannotWrite
from slimformer.models import describe


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_power_falls_with_frequency_as_in_photographs() -> None:
    """Power ∝ f^−a with a between 1.5 and 3.5; white noise has 0."""
    pictures = [dead_leaves(1, (128, 128), np.random.default_rng(i))[..., 0].astype(float) for i in range(8)]
    power = np.mean([np.abs(np.fft.fft2(each - each.mean())) ** 2 for each in pictures], 0)
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(128), np.fft.fftfreq(128)))
    low, high = (power[(f > a) & (f < 1.5 * a)].mean() for a in (0.03, 0.2))
    assert 1.5 < -np.log(high / low) / np.log(0.2 / 0.03) < 3.5


def test_the_same_seed_draws_the_same_pictures_and_another_others() -> None:
    first, again, other = (dead_leaves(3, (16, 24), np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.shape == (16, 24, 3)
    assert (first == again).all() and (first != other).any()


def test_a_vision_model_is_calibrated_on_drawn_pictures() -> None:
    model = tiny("vit")
    data, again = (gather("self", model, None, describe(model), Reading(tokens=60)) for _ in range(2))
    assert all(data.splits.values())
    assert data.hash == again.hash and data.reading["sources"] == ["self"]
    pixels = data.splits["fit"][0].inputs["pixel_values"]
    assert torch.equal(pixels, again.splits["fit"][0].inputs["pixel_values"])
    assert pixels.std() > 0.1


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CannotWrite, match="set XDG_CACHE_HOME") as caught:
        own_images(1, channels=1, sides=(8, 8), seed=0)
    assert "\n" not in str(caught.value)
