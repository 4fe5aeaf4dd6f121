"""Recordings: what a model is given of them, what it writes of them, and what is refused."""

import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import slimformer
from families import LENGTH, RATE, tiny, tiny_extractor, tiny_processor, tiny_tokenizer
from slimformer.calibrate.gather import HEARD, Reading, gather
from slimformer.calibrate.own_sounds import voice
from slimformer.calibrate.sounds import read_sounds, wave_batches
from slimformer.checkpoint.save import Belongings, save
from slimformer.errors import DataEmpty, DataNotFound, DataUnreadable, UnknownArchitecture, UnknownMethod
from slimformer.models import describe
from slimformer.models.load import load_model
from slimformer.models.sample_inputs import positions_of, samples_of, seen_or_heard, start_token, with_others
from slimformer.plan.cost import outside_macs

ENCODERS = ("wav2vec2", "hubert")
every_encoder = pytest.mark.parametrize("kind", ENCODERS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def record(file: Path, sound: np.ndarray, rate: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as out:
        out.setnchannels(sound.ndim)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((32767 * sound).astype("<i2").tobytes())


def folder_of(place: Path, n: int, rate: int = RATE, *, seconds: float | None = None) -> Path:
    """Recordings of a voice, all of them or their first seconds."""
    for i in range(n):
        sound = voice(rate, np.random.default_rng(i))
        record(place / f"{i}.wav", sound[: None if seconds is None else int(seconds * rate)], rate)
    return place


@every_encoder
def test_a_position_is_what_the_convolutions_make_of_samples(kind):
    config = tiny(kind).config
    for n in (1, 2, 17):
        assert positions_of(config, samples_of(config, n)) == n
        assert positions_of(config, samples_of(config, n) - 1) == n - 1
    with torch.no_grad():
        states = tiny(kind, "bare")(torch.randn(1, samples_of(config, 9))).last_hidden_state
    assert states.shape[1] == 9


@every_encoder
def test_what_a_position_holds_does_not_depend_on_the_batch(kind, tmp_path):
    """Padding is masked, or there is none."""
    model, folder = tiny(kind, "bare"), folder_of(tmp_path / "sounds", 9)
    together = wave_batches(read_sounds(folder), model, tiny_extractor(model), positions=300, tokens=10**6)
    alone = wave_batches(read_sounds(folder), model, tiny_extractor(model), positions=300, tokens=10**6, batch_size=1)
    assert sum(len(batch.mask) for batch in together) == len(alone) < 2 * 9
    assert all((batch.mask.sum(1) > 0.85 * batch.mask.shape[1]).all() for batch in together)
    by_length = {}
    with torch.no_grad():
        for batch in together:
            states = model(**batch.inputs).last_hidden_state
            for row, mask, number in zip(states, batch.mask, batch.documents.tolist(), strict=True):
                by_length.setdefault(number, []).append(row[mask])
        for batch in alone:
            (found,) = model(**batch.inputs).last_hidden_state
            if kind == "hubert":
                same = [row for row in by_length[int(batch.documents)] if len(row) == len(found)]
                assert any(torch.allclose(row, found, atol=1e-4) for row in same)


@every_encoder
def test_an_encoder_is_compressed_on_the_built_in_sounds_and_comes_back(kind, tmp_path):
    model = tiny(kind)
    save(model, tmp_path / "dense", Belongings(tiny_processor(model)), verify=False)
    result = slimformer.compress(tmp_path / "dense", "builtin", macs=0.6, seq_len=60, tokens=900, timing=True)
    assert result.plan.macs <= 0.6 and result.report.data["unit"] == "positions"
    assert {metric["name"] for metric in result.report.metrics} == {"kl", "agreement"}
    result.save(tmp_path / "small")
    again = load_model(tmp_path / "small")
    batch = wave_batches(read_sounds(folder_of(tmp_path / "more", 2)), model, again.processor, positions=60, tokens=100)
    with torch.no_grad():
        expected, found = (each(**batch[0].inputs).logits for each in (result.model, again.model))
    torch.testing.assert_close(found, expected)


def test_whisper_is_compressed_on_the_built_in_sounds_and_writes_as_before_from_its_folder(tmp_path):
    model = tiny("whisper")
    save(model, tmp_path / "dense", Belongings(tiny_extractor(model)), verify=False)
    result = slimformer.compress(tmp_path / "dense", "builtin", macs=0.7, seq_len=LENGTH, tokens=400)
    assert result.plan.macs <= 0.7 and HEARD in result.report.data["read_as"]
    assert {"perplexity", "kl"} <= {metric["name"] for metric in result.report.metrics}
    result.save(tmp_path / "small")
    again = load_model(tmp_path / "small")
    heard = torch.randn(2, 8, 24)
    rows = [each.generate(heard, max_new_tokens=5, do_sample=False) for each in (result.model, again.model)]
    assert torch.equal(*rows)


def test_a_transcript_beside_a_recording_is_its_target(tmp_path):
    model, folder = tiny("whisper"), folder_of(tmp_path / "sounds", 12, 16_000, seconds=1)
    for file in folder.glob("*.wav"):
        file.with_suffix(".txt").write_text(f"w{5 + int(file.stem)} w9 w7")
    data = gather(folder, model, tiny_processor(model), describe(model), Reading(tokens=100, seq_len=8))
    assert HEARD not in data.notes and data.unit == "recording"
    words = tiny_tokenizer()
    known = {tuple(words(f"w{5 + i} w9 w7")["input_ids"]) for i in range(12)}
    seen = [tuple(row[mask].tolist()) for part in data.splits.values() for batch in part
            for row, mask in zip(batch.targets, batch.mask, strict=True)]  # fmt: skip
    assert set(seen) <= known and seen
    first = [batch.inputs["decoder_input_ids"][:, 0] for part in data.splits.values() for batch in part]
    assert set(torch.cat(first).tolist()) == {start_token(model.config)}


def test_sub_folders_are_classes_and_two_channels_are_one(tmp_path):
    for name in ("yes", "no"):
        folder_of(tmp_path / "words" / name, 6)
    stereo = np.stack([voice(RATE, np.random.default_rng(99))] * 2, 1)
    record(tmp_path / "words" / "no" / "two.wav", stereo, RATE)
    names = ["yes", "no", "a", "b", "c"]
    model = tiny("hubert", "classify", id2label=dict(enumerate(names)), label2id={w: i for i, w in enumerate(names)})
    data = gather(tmp_path / "words", model, tiny_extractor(model), describe(model), Reading(seq_len=40, tokens=400))
    assert {0, 1} >= {int(n) for batch in data.splits["fit"] for n in batch.labels}


def test_the_same_seed_makes_the_same_sounds_and_another_others():
    first, again, other = (voice(8000, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first[:1000], other[:1000])
    assert np.abs(first).max() <= 1


def test_made_sounds_have_the_bands_and_the_rhythm_of_speech():
    """Loudest below 1 kHz, and the loudness goes up and down some times a second."""
    sounds = [voice(16_000, np.random.default_rng(i)) for i in range(8)]
    power = sum(np.abs(np.fft.rfft(each, 16_000)) ** 2 for each in sounds)
    assert power[80:1000].mean() > 10 * power[3000:].mean()
    loud = [np.sqrt((each[: len(each) // 160 * 160].reshape(-1, 160) ** 2).mean(1)) for each in sounds]
    rhythm = sum(np.abs(np.fft.rfft(each - each.mean(), 800)) ** 2 for each in loud)  # 8 seconds of 100 Hz
    assert rhythm[8:64].mean() > 5 * rhythm[160:].mean()


@pytest.mark.parametrize("kind", [*ENCODERS, "whisper"])
def test_what_is_no_folder_of_recordings_is_refused_in_one_line(kind, tmp_path):
    model = tiny(kind)
    processor, known = tiny_extractor(model), describe(model)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("words and words")
    for source, error, message in (
        (tmp_path / "text.txt", DataUnreadable, f"is a file, and {kind} hears sounds"),
        (["some words", "others"], DataUnreadable, f"{kind} hears sounds, not text"),
        (torch.ones(8, 8, dtype=torch.long), DataUnreadable, "hears sounds"),
        (tmp_path / "empty", DataEmpty, "no recordings below"),
        (tmp_path / "nowhere", DataNotFound, "there is no folder"),
    ):
        with pytest.raises(error, match=message) as caught:
            gather(source, model, processor, known)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataUnreadable, match="no feature extractor with the model"):
        gather("builtin", model, None, known)


def test_recordings_that_cannot_be_read_are_refused_in_one_line(tmp_path, monkeypatch):
    model = tiny("wav2vec2")
    processor, known = tiny_extractor(model), describe(model)
    with pytest.raises(DataUnreadable, match=r"has 800 samples a second, and the model reads 400; .*ffmpeg"):
        gather(folder_of(tmp_path / "fast", 5, 800), model, processor, known)
    (folder_of(tmp_path / "bad", 5) / "1.wav").write_bytes(b"RIFF and no more")
    with pytest.raises(DataUnreadable, match=r"1.wav is corrupt or no sound"):
        gather(tmp_path / "bad", model, processor, known)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataUnreadable, match=r"needs soundfile: pip install 'slimformer\[audio\]'"):
        gather(tmp_path / "bad", model, processor, known)


def test_recordings_for_a_model_of_text_are_refused(tmp_path):
    folder, model = folder_of(tmp_path / "sounds", 4), tiny("bert")
    for source in (folder, folder / "0.wav"):
        with pytest.raises(DataUnreadable, match="holds recordings, and this model reads text"):
            gather(source, model, tiny_tokenizer(), describe(model))


def test_whisper_without_a_head_or_a_tokenizer_says_what_it_lacks(tmp_path):
    folder = folder_of(tmp_path / "sounds", 5, 16_000, seconds=1)
    bare, whole = tiny("whisper", "bare"), tiny("whisper")
    with pytest.raises(DataNotFound, match=r"has no head that writes, and .*wav has no transcript beside it"):
        gather(folder, bare, tiny_processor(bare), describe(bare))
    (folder / "0.txt").write_text("w5 w6")
    with pytest.raises(DataUnreadable, match="no tokenizer with the model, so it cannot read transcripts"):
        gather(folder, whole, tiny_extractor(whole), describe(whole))


@pytest.mark.parametrize("kind", [*ENCODERS, "whisper"])
def test_what_reads_text_and_images_refuses_models_that_hear(kind, tmp_path):
    model = tiny(kind)
    with pytest.raises(UnknownMethod, match=rf"the step heal is for .*, and {kind} "):
        slimformer.compress(model, "builtin", processor=tiny_extractor(model), macs=0.5, heal=1)
    save(model, tmp_path / "dense", Belongings(tiny_extractor(model)), verify=False)
    with pytest.raises(UnknownArchitecture, match="reads sounds, and is walked in memory only"):
        slimformer.compress_streamed(tmp_path / "dense", tmp_path / "out", "builtin", macs=0.5, memory=10**9)
    with pytest.raises(UnknownArchitecture, match="read sounds, and export works on models of text and images"):
        slimformer.export(tmp_path / "dense", to="onnx", out=tmp_path / "x")


@pytest.mark.parametrize("kind", [*ENCODERS, "whisper"])
def test_convolutions_before_the_blocks_are_counted_as_they_run(kind):
    """Every convolution multiplies its weights at each of its outputs."""
    model = tiny(kind, "bare")
    known, positions, done = describe(model), 12 if kind == "whisper" else 30, list[int]()

    def note(module, _args, output):
        of_positions = module.kernel_size[0] == 4 and module.in_channels > 1  # one output more, which is thrown away
        done.append(module.weight.numel() * (positions if of_positions else output.shape[-1]))

    for module in (each for each in model.modules() if isinstance(each, torch.nn.Conv1d)):
        module.register_forward_hook(note)
    generator = torch.Generator().manual_seed(0)
    model(**with_others(model, seen_or_heard(model, 1, positions, generator), generator, positions))
    outside = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and not known.inside(name)]
    linear = sum(module.weight.numel() for module in outside)
    assert outside_macs(model, known, positions) == round(sum(done) / positions + linear)
