"""Row spaces of attention: what one input needs and what all share."""

from __future__ import annotations

import json

import pytest
import torch

from families import VOCABULARY, tiny, tiny_tokenizer
from slimformer.calibrate.text import Batch
from slimformer.inspect.attention import attention_spectra
from slimformer.inspect.rows import identity_error, row_spaces, shared_energies, smallest
from slimformer.models import describe
from terminal import done, refused


def rows(count: int, n: int) -> list[Batch]:
    tokens = torch.randint(3, VOCABULARY, (count, n), generator=torch.Generator().manual_seed(0))
    return [Batch({"input_ids": row[None], "attention_mask": torch.ones_like(row[None])}, None) for row in tokens]


@pytest.mark.parametrize("model_type", ["bert", "llama", "gpt2"])
def test_it_sees_the_matrices_the_model_itself_gives(model_type):
    model, n = tiny(model_type), 16
    found = row_spaces(model, describe(model), rows(4, n), share=0.9)
    for own, eager in zip(found, attention_spectra(model, describe(model), rows(4, n)), strict=True):
        # the mean curve of all heads reaches 0.9 among the numbers of the heads
        at = float(smallest(eager.real.curve_squares, 0.9))
        assert float(own.k_squares.min()) - 1 <= at <= float(own.k_squares.max()) + 1
        assert (own.k_squares <= own.k_sum + 1e-6).all()
        assert (own.own >= own.shared - 1e-5).all()
        assert (own.k_shared <= n).all()


def test_one_row_space_for_all_is_seen_and_so_is_its_absence():
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(1, 3, 12, generator=generator)
    same = [torch.randn(1, 12, 3, generator=generator) @ B for _ in range(2)]
    curve = shared_energies(*(P.mT @ P for P in same))
    assert float(smallest(curve, 0.999)) == 3
    apart = [torch.eye(12)[None, :, :6] @ torch.eye(12)[None, half, :] for half in (slice(0, 6), slice(6, 12))]
    assert float(shared_energies(*(P.mT @ P for P in apart))[0, 5]) < 1e-9


def test_the_theorem_fails_on_the_identity():
    assert identity_error(256, 64) == pytest.approx(2, rel=0.2)
    assert identity_error(1024, 64) == pytest.approx(4, rel=0.2)


def test_the_command(tmp_path):
    tiny("bert", "bare").save_pretrained(tmp_path / "m")
    tiny_tokenizer().save_pretrained(tmp_path / "m")
    words = " ".join(f"w{i % 50}" for i in range(3000))
    (tmp_path / "t.txt").write_text("\n\n".join(words[i : i + 200] for i in range(0, 9000, 200)))
    arguments = ("attention", tmp_path / "m", "--data", tmp_path / "t.txt", "--lengths", "16", "--sequences", "4")
    found = json.loads(done(*arguments, "--json").out)
    (at,) = found["lengths"]
    assert at["n"] == 16 and len(at["layers"]) == 3 and 1 <= at["layers"][0]["suggested_k"] <= 16
    assert "keys that must serve every text" in done(*arguments).out
    assert "a fraction between 0 and 1" in refused(*arguments, "--share", "2")
