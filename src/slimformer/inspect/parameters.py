"""Where the parameters are: counted by part, by an exact formula, and by the rule of thumb 12 L D² + embeddings.

For L blocks of hidden size D, H query heads and K key/value heads of width d, and F neurons written by w matrices

    N = L (2 D d (H + K) + (w + 1) D F) + biases + norms + V D + positions + head,

which is 12 L D² + V D where K = H, H d = D, w = 1 and F = 4 D. An output matrix that is not tied adds another V D.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from slimformer.models import Architecture, Site
from slimformer.models.architecture import has_bias
from slimformer.plan.cost import full_size, site_cost


@dataclass(frozen=True)
class Term:
    """One summand of the formula."""

    symbols: str
    what: str
    value: int
    inside: bool = False  # of the blocks


@dataclass(frozen=True)
class ParameterFormula:
    """The exact sum, the rule of thumb, and whether the output matrix is the token table (None: there is none)."""

    terms: tuple[Term, ...]
    rule_blocks: int
    rule_embeddings: int
    tied: bool | None

    @property
    def exact(self) -> int:
        return sum(term.value for term in self.terms)

    @property
    def rule(self) -> int:
        return self.rule_blocks + self.rule_embeddings

    def to_json(self) -> dict[str, Any]:
        """As `slimformer inspect --json` prints it."""
        return {
            "terms": [asdict(term) for term in self.terms if term.value],
            "exact": self.exact,
            "rule_of_thumb": {"blocks": self.rule_blocks, "embeddings": self.rule_embeddings, "total": self.rule},
            "rule_over_exact": self.rule / self.exact if self.exact else None,
            "tied": self.tied,
        }


def parameter_formula(model: PreTrainedModel, architecture: Architecture) -> ParameterFormula:
    """Every parameter of `model` in one term. Matrices come from sizes, the rest is counted. Nothing is run."""
    heads, neurons = architecture.heads, architecture.neurons
    shapes = {(s.units, s.unit, s.group, s.fixed or s.writers[0].rows) for s in heads}
    alike = len(shapes) == 1 == len({s.units for s in neurons})
    biases = sum(_biases(model, site) for site in architecture)
    matrices = {kind: sum(map(_matrix_parameters, sites)) for kind, sites in (("attn", heads), ("ffn", neurons))}
    inside = sum(p.numel() for stack in architecture.stacks for p in model.get_submodule(stack.path).parameters())
    writers = max(len(site.writers) for site in neurons)
    vocabulary, rest, tied = _outside(model, architecture)
    D, L = architecture.hidden, architecture.n_blocks
    over = "L" if alike else "Σ over blocks"
    symbols = "" if any(site.fixed for site in neurons) else f"{over} {writers + 1} D F"
    if architecture.family.experts:
        symbols = f"{over} E ({writers + 1} D F + D)"
    terms = (
        Term("" if heads[0].fixed else f"{over} 2 D d (H + K)", "attention matrices", matrices["attn"], True),
        Term(symbols, "feed-forward matrices", matrices["ffn"], True),
        Term("", "biases of these", biases, True),
        Term("", "norms and other vectors in blocks", inside - biases - sum(matrices.values()), True),
        *vocabulary,
        *rest,
    )
    table = sum(term.value for term in vocabulary if term.what == "token embeddings")
    return ParameterFormula(terms, 12 * L * D * D, table * (2 if tied is False else 1), tied)


def _matrix_parameters(site: Site) -> int:
    """Weights without biases: those of the exact cost minus one for every row that has a bias."""
    size = full_size(site)
    if site.fixed:
        return site.fixed.params
    rows = sum(w.rows * w.bias * (size.units if w.shared == 1 else size.groups) for w in site.writers)
    return site_cost(site, size, 1).params - rows


def _biases(model: PreTrainedModel, site: Site) -> int:
    if site.fixed:  # counted with its matrices
        return 0
    modules = [model.get_submodule(name) for name in {*(w.module for w in site.writers), site.reader}]
    return sum(module.bias.numel() for module in modules if has_bias(module) and isinstance(module.bias, nn.Parameter))


def _outside(
    model: PreTrainedModel, architecture: Architecture
) -> tuple[tuple[Term, ...], tuple[Term, ...], bool | None]:
    """Tables, then everything else outside the blocks; a parameter with two names counts once, by the first."""
    tokens: Any = model.get_input_embeddings() if architecture.family.unit == "tokens" else None
    output: Any = model.get_output_embeddings()
    table = tokens.weight if isinstance(tokens, nn.Embedding) else None
    out = getattr(output, "weight", None)
    tied = None if out is None or table is None else out is table
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} - {id(table)}
    counts = {"tables": 0, "out": 0, "norms": 0, "rest": 0}
    for name, parameter in model.named_parameters():
        if architecture.inside(name) or parameter is table:
            continue
        norm = "norm" in name.lower() or ".ln_" in name.lower()
        here = id(parameter)
        part = "tables" if here in tables else "out" if parameter is out else "norms" if norm else "rest"
        counts[part] += parameter.numel()
    symbols = ["V r" if hasattr(end, "basis") else "V D" for end in (tokens, output)]
    vocabulary = (
        Term(symbols[0], "token embeddings", 0 if table is None else table.numel()),
        Term("", "other embeddings (positions, types)", counts["tables"]),
        Term(symbols[1], "output matrix, not tied", counts["out"]),
    )
    rest = (
        Term("", "norms outside blocks", counts["norms"]),
        Term("", "heads, poolers and all else", counts["rest"]),
    )
    return vocabulary, rest, tied
