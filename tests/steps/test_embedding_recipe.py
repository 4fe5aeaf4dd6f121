"""The step `embedding`: a sentence-transformers folder with shorter embeddings."""

import json
from pathlib import Path

import pytest
import sentence_transformers
import torch

import slimformer
from families import tiny
from slimformer.checkpoint.save import Belongings, save
from slimformer.checkpoint.sentence import pooling_of, sentence_modules
from slimformer.decompose.directions import directions
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from tokenizers_by_kind import WORDS, word_piece

TEXTS = [" ".join(WORDS.split()[i % 30 :][: 6 + i % 5]) + f" {i}" for i in range(240)]
KIND = "sentence_transformers.models."
HOW = {"recipe": "vocabulary", "timing": False, "tokens": 1000, "only_data": True}


@pytest.fixture(params=["mean", "cls"])
def dense(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder, tokenizer = tmp_path / "dense", word_piece()
    save(tiny("bert", "bare", vocab_size=len(tokenizer)), folder, Belongings(tokenizer), verify=False)
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [{"idx": i, "name": str(i), "path": path, "type": KIND + kind} for i, (path, kind) in enumerate(parts)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name.startswith(request.param) for name in ("mean_tokens", "cls_token")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    return folder


def test_sentence_transformers_reads_the_shorter_embeddings(dense: Path, tmp_path: Path) -> None:
    settings = {"vocabulary.cover": 0.9, "vocabulary.refit": False, "embedding.dim": 8}
    result = slimformer.compress(dense, TEXTS, settings=settings, **HOW)
    result.save(tmp_path / "out", verify=False)
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(part).__name__ for part in opened] == ["Transformer", "Pooling", "Dense", "Normalize"]
    found = opened.encode(TEXTS[:6], convert_to_tensor=True)
    assert found.shape == (6, 8)
    whole = opened[1](opened[0](opened.preprocess(TEXTS[:6])))["sentence_embedding"]
    expected = torch.nn.functional.normalize(whole @ opened[2].linear.weight.mT, dim=-1)
    assert torch.allclose(found, expected, atol=1e-5)
    facts = result.report.embedding
    assert (facts["dim"], facts["of"]) == (8, 32) and 0 < facts["energy"] <= 1
    listed = json.loads((tmp_path / "out" / "slimformer.json").read_text())["files"]
    assert {"modules.json", "2_Dense/model.safetensors", "2_Dense/config.json"} <= set(listed)


@pytest.mark.parametrize("path", ["1\0Pooling", "x" * 5000, "../1_Pooling"])
def test_a_list_of_modules_that_no_folder_has_is_none(path: str, dense: Path) -> None:
    modules = json.loads((dense / "modules.json").read_text())
    modules[1]["path"] = path
    (dense / "modules.json").write_text(json.dumps(modules))
    assert sentence_modules(dense) == []
    assert pooling_of(dense) is None


@pytest.mark.parametrize("content", ["[]", '"mean"', "7", "null"])
def test_a_pooling_that_says_nothing_is_none(content: str, dense: Path) -> None:
    (dense / "1_Pooling" / "config.json").write_text(content)
    assert pooling_of(dense) is None
    with pytest.raises(UnknownMethod, match="sentence-transformers folders"):
        slimformer.compress(dense, TEXTS, settings={"embedding.dim": 8}, **HOW)


def test_what_cannot_be_is_refused(dense: Path) -> None:
    with pytest.raises(BudgetOutOfReach, match="embeddings have 32 numbers; give fewer"):
        slimformer.compress(dense, TEXTS, settings={"embedding.dim": 32}, **HOW)
    (dense / "modules.json").unlink()
    with pytest.raises(UnknownMethod, match="sentence-transformers folders"):
        slimformer.compress(dense, TEXTS, settings={"embedding.dim": 8}, **HOW)


def test_no_other_projection_changes_inner_products_less() -> None:
    X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).double()
    V, share = directions(X.mT @ X, 3)
    error = float((X @ X.mT - X @ V.mT @ V @ X.mT).norm())
    assert torch.allclose(V @ V.mT, torch.eye(3).double())
    assert share == pytest.approx(float((X @ V.mT).square().sum() / X.square().sum()))
    for seed in range(20):
        Q = torch.linalg.qr(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)).double()).Q.mT
        assert error <= float((X @ X.mT - X @ Q.mT @ Q @ X.mT).norm())
