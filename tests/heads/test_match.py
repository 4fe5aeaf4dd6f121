"""Maps between two spaces: exact where they can be, better than chance where not, hubs, files, retrieval."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slimformer.errors import DataUnreadable, RowsUnusable, TooFewTokens
from slimformer.heads import pairing
from slimformer.heads.match import METHODS, match, on_sphere, ranks, without_hubs
from slimformer.heads.match_file import modules_of, read_match, write_match

every_method = pytest.mark.parametrize("method", METHODS)


def spaces(n=300, d=12, e=9, *, noise=0.05, seed=0):
    """Two linear views of the same hidden things, with different means and scales."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 8, generator=generator, dtype=torch.float64)
    maps = [torch.randn(8, k, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in (d, e)]
    X, Y = (hidden @ M + noise * torch.randn(n, M.shape[1], generator=generator, dtype=torch.float64) for M in maps)
    return X + 5, 0.1 * Y - 2


@every_method
def test_partners_are_found_again(method):
    X, Y = spaces()
    found = match(X[:200], Y[:200], method)
    S = found.scores(X[200:], Y[200:])
    r = torch.cat([ranks(S), ranks(S.mT)])
    assert float((r <= 10).double().mean()) > (0.35 if method in ("relative", "procrustes") else 0.9)  # chance: 0.1


@every_method
def test_units_and_places_of_the_features_do_not_matter(method):
    X, Y = spaces(80)
    S = match(X, Y, method, strength=0.1).scores(X, Y)
    T = match(7 * X + 3, Y - 1, method, strength=0.1).scores(7 * X + 3, Y - 1)
    torch.testing.assert_close(S, T, rtol=1e-6, atol=1e-6)


def test_a_rotation_is_recovered_exactly():
    X, _ = spaces(100, 6)
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    found = match(X, 3 * X @ Q + 1, "procrustes")
    scale = found.source.A.norm() / 6**0.5
    torch.testing.assert_close(found.source.A / scale, Q.mT, rtol=1e-9, atol=1e-9)
    assert float(scale) == pytest.approx(1)


def test_lengths_that_carry_nothing_are_free():
    """Targets on the sphere, A x of any length: scale-free finds the directions, least squares is drawn off."""
    generator = torch.Generator().manual_seed(3)
    X = on_sphere(torch.randn(400, 6, generator=generator, dtype=torch.float64))
    A = torch.randn(6, 6, generator=generator, dtype=torch.float64) @ torch.diag(
        torch.tensor([9, 5, 2, 1, 0.5, 0.2]).double()
    )
    Y = on_sphere(X @ A.mT)
    X, Y = torch.cat([X, -X]), torch.cat([Y, -Y])  # both means are zero, so centring changes nothing
    cosine = {m: float((match(X, Y, m, strength=1e-6).scores(X, Y)).diagonal().mean()) for m in ("ridge", "scale-free")}
    assert cosine["scale-free"] > 1 - 1e-3
    assert 1 - cosine["scale-free"] < (1 - cosine["ridge"]) / 5


def test_canonical_directions_that_do_not_correlate_do_not_count():
    X, Y = spaces(2000)
    noise = torch.randn(2000, 3, dtype=torch.float64)
    found = match(torch.cat([X, 9 * noise], 1), Y, "cca", strength=1e-3)
    assert float(found.source.A[:, -3:].norm() * 9) < 0.1 * float(found.source.A[:, :-3].norm())


def test_ranks_count_ties_by_half_and_hubs_are_set_back():
    assert ranks(torch.tensor([[1.0, 2.0], [0.0, 0.0]])).tolist() == [2, 1.5]
    S = torch.tensor([[0.8, 0.9, 0.0], [0.0, 0.9, 0.0], [0.0, 0.9, 0.8]])  # the second column is everybody's friend
    assert ranks(S).tolist() == [2, 1, 2]
    assert ranks(without_hubs(S, k=2)).tolist() == [1, 1, 1]


@every_method
def test_a_saved_map_gives_the_same_vectors(method, tmp_path):
    X, Y = spaces(60)
    found = match(X, Y, method)
    write_match(found, tmp_path / "map.safetensors")
    again = read_match(tmp_path / "map.safetensors")
    torch.testing.assert_close(again.scores(X, Y), found.scores(X, Y), rtol=1e-3, atol=1e-4)
    left, right = modules_of(again)
    S = left(X.float()) @ right(Y.float()).mT
    torch.testing.assert_close(S.double(), again.scores(X, Y), rtol=1e-4, atol=1e-5)


def test_retrieval_is_measured_on_pairs_that_decided_nothing(tmp_path):
    X, Y = spaces()
    found = pairing.fit_and_retrieve(X, Y)
    assert found.report["pairs"] + found.report["held_out"] == len(X)
    assert [row["method"] for row in found.report["methods"]] == list(METHODS)
    shuffled = pairing.fit_and_retrieve(X, Y[torch.randperm(len(Y))], ("cca",))
    chance = shuffled.report["chance"]["R@10"]
    assert shuffled.report["methods"][0]["cosine"]["forward"]["R@10"] < 3 * chance
    assert found.report["methods"][2]["cosine"]["forward"]["R@10"] > 5 * chance


def test_features_come_from_files_and_pairs_from_tables(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    save_file({"x": torch.ones(3, 2), "note": torch.ones(1)}, tmp_path / "x.safetensors")
    assert pairing.read_features(tmp_path / "x.npy").equal(pairing.read_features(tmp_path / "x.safetensors"))
    save_file({"x": torch.ones(3, 2), "y": torch.ones(3, 2)}, tmp_path / "two.safetensors")
    with pytest.raises(DataUnreadable, match="2 matrices"):
        pairing.read_features(tmp_path / "two.safetensors")
    rows = [{"image": f"{i}.png", "caption": f"thing {i}"} for i in range(3)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = str(tmp_path / "pairs.jsonl")
    assert pairing.documents_of(data, image=True)[2].text == str(tmp_path / "2.png")
    assert pairing.documents_of(data, image=False)[1].text == "thing 1"


def test_what_cannot_be_matched_is_refused():
    X, Y = spaces(30)
    for bad in (lambda: match(X, Y[:9]), lambda: match(X, Y, "svm"), lambda: match(X * torch.nan, Y)):
        with pytest.raises(RowsUnusable):
            bad()
    with pytest.raises(TooFewTokens):
        pairing.fit_and_retrieve(X[:5], Y[:5])
    with pytest.raises(DataUnreadable, match="as many"):
        pairing.fit_and_retrieve(X, Y[:20])
