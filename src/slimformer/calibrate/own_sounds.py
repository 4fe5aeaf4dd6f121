"""Sounds for a model that has no recordings to calibrate on: made, not recorded.

What stands in for speech is its simplest model, a source through a filter. Vowels are pulses of a voice whose pitch
glides, through three resonances that move from one place to another; consonants are noise in a band; between them is
silence, four or five sounds a second. They have the harmonics, the bands and the rhythm of speech, and say no word:
recordings like those the model will hear are always the better choice.

Cost: some milliseconds for a recording; kept below the user's cache.

References: Fant, "Acoustic Theory of Speech Production" (1960); Klatt, "Software for a cascade/parallel formant
synthesizer" (1980).
"""

from __future__ import annotations

import os
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from slimformer.calibrate.own_text import cache_folder
from slimformer.errors import CannotWrite

SECONDS = (4.0, 9.0)  # of a recording
FORMANTS = ((250, 850), (800, 2300), (2300, 3200))  # Hz, where the resonances of vowels lie
WIDTHS = (80, 100, 140)  # Hz, of these
PARTS = 4  # of a vowel: its resonances are the same inside each
Sound = NDArray[np.float64]


def own_sounds(count: int, *, rate: int, seed: int) -> Path:
    """A folder of `count` recordings; the same seed, the same recordings. From the cache, if there."""
    folder = cache_folder().with_name("sounds") / f"voices-{count}x{rate}-{seed}"
    files = [folder / f"{i:06d}.wav" for i in range(count)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, file in enumerate(files):
            if not file.exists():
                _keep(file, voice(rate, np.random.default_rng([seed, i])), rate)
    except OSError as error:
        raise CannotWrite(f"recordings cannot be kept in {folder}: {error.strerror}; set XDG_CACHE_HOME") from error
    return folder


def voice(rate: int, rng: np.random.Generator) -> Sound:
    """One recording, between −1 and 1: vowels, consonants and silence in turn."""
    pitch, wanted = rng.uniform(80, 240), rng.uniform(*SECONDS) * rate
    sounds: list[Sound] = []
    while sum(map(len, sounds)) < wanted:
        sounds += [_noise(rate, rng), _vowel(rate, pitch, rng)]
        if rng.random() < 0.3:
            sounds.append(np.zeros(int(rng.uniform(0.05, 0.4) * rate)))
    out = np.concatenate(sounds)[: int(wanted)] + 1e-4 * rng.standard_normal(int(wanted))
    return out * rng.uniform(0.2, 0.9) / np.abs(out).max()


def _vowel(rate: int, pitch: float, rng: np.random.Generator) -> Sound:
    n = int(rng.uniform(0.08, 0.3) * rate)
    glide = pitch * np.linspace(rng.uniform(0.8, 1.25), rng.uniform(0.8, 1.25), n)
    source = np.diff(np.floor(np.cumsum(glide) / rate), prepend=0.0) + 0.01 * rng.standard_normal(n)
    source = lfilter([1.0], [1.0, -0.95], source)
    ends = np.array([[rng.uniform(*np.minimum(band, 0.45 * rate)) for band in FORMANTS] for _ in range(2)])
    edges = np.linspace(0, n, PARTS + 1).astype(int)
    for place, width in enumerate(WIDTHS):
        memory = np.zeros(2)
        for part in range(PARTS):
            centre = ends[0, place] + (ends[1, place] - ends[0, place]) * part / PARTS
            here = slice(edges[part], edges[part + 1])
            source[here], memory = lfilter(*_resonance(centre, width, rate), source[here], zi=memory)
    return _scaled(source * np.hanning(n), 1.0)


def _noise(rate: int, rng: np.random.Generator) -> Sound:
    n = int(rng.uniform(0.03, 0.12) * rate)
    source = rng.standard_normal(n)
    b, a = _resonance(rng.uniform(0.15, 0.45) * rate, 0.06 * rate, rate)
    return _scaled(lfilter(b, a, source) * np.hanning(n), rng.uniform(0.05, 0.3))


def _resonance(centre: float, width: float, rate: int) -> tuple[list[float], list[float]]:
    """A filter with one peak, of gain 1 at frequency 0 or about it."""
    r = np.exp(-np.pi * width / rate)
    a1, a2 = -2 * r * np.cos(2 * np.pi * centre / rate), r * r
    return [float(1 + a1 + a2)], [1.0, float(a1), float(a2)]


def _scaled(sound: Sound, most: float) -> Sound:
    return most * sound / max(float(np.abs(sound).max()), 1e-12)


def _keep(file: Path, sound: Sound, rate: int) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with wave.open(str(draft), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((32767 * sound).astype("<i2").tobytes())
    os.replace(draft, file)
