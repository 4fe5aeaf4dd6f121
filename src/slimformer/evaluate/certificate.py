"""A guarantee for the mean harm of a model, valid for finite samples: which point of the front may be returned?

Losses of n documents, ℓ_i = min(harm_i, clip) / clip ∈ [0, 1], are independent draws. For each point of a front fixed
beforehand the hypothesis H: E ℓ > ε / clip is tested, the largest model first, and the first that is not rejected ends
it. No correction for many tests is due: a false guarantee needs a false rejection of the *first* true hypothesis, and
that has probability ≤ δ (fixed-sequence testing). The last point rejected is returned.

Both p-values have P(p ≤ u) ≤ u under H for all u and n, whatever the distribution (μ = ε / clip, r = mean loss):

    betting               1 / Σ_s w_s Π_i (1 − s + s g_i),     g_i = (1 − ℓ_i) / (1 − μ)
    Hoeffding–Bentkus     min( exp(−n kl(min(r, μ) ‖ μ)),  e P(Bin(n, μ) ≤ ⌈n r⌉) )

Betting: the share s of a purse is staked on every document at a price that is fair or worse under H (E g ≤ 1). From 1
the purse then has expectation ≤ 1 to the end, so it reaches 1/δ with probability ≤ δ (Markov). Unlike Hoeffding–Bentkus
it sees the spread of the losses, and it is the default; the smaller of the two would be no p-value.

Reference: Angelopoulos, Bates, Candès, Jordan, Lei, *Learn then test* (2021). Bates, Angelopoulos, Lei, Malik, Jordan,
*Distribution-free, risk-controlling prediction sets* (2021). Waudby-Smith, Ramdas, *Estimating means of bounded random
variables by betting* (2024). docs/methods/certificate.md says what is and is not promised.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, xlogy

from slimformer.errors import BudgetOutOfReach, NotFinite, TooFewTokens
from slimformer.messages.words import option

CLIP = 4.0  # of ε, unless a clip is given
DELTA = 0.05
HALVINGS = 32  # of the unit interval, when a bound is looked for

# Three quarters of the purse is staked whole, the best bet when nearly all documents gain. One clipped document ruins
# it, so the rest is spread over smaller stakes, for losses that vary. Fixed by simulation (benchmarks/certificate.py).
STAKES = 2.0 ** (-np.arange(13) / 2)
WEIGHTS = np.concatenate([[0.75], 0.25 * 2.0 ** -np.arange(1, 13) / (1 - 2.0**-12)])

Losses = Sequence[float] | NDArray[np.float64]
PValue = Callable[[Losses, float], float]


@dataclass(frozen=True)
class Tested:
    """One point of the front: mean of min(harm, clip), p-value, and how many documents reached the clip.

    `upper` ≥ the true mean with probability ≥ 1 − δ for a point named in advance; after a search only ε is promised.
    """

    budget: float
    mean: float
    upper: float
    p_value: float
    clipped: int
    passed: bool


@dataclass(frozen=True)
class Certificate:
    """What was tested, and `budget`: the smallest model that passed, or None."""

    epsilon: float
    delta: float
    clip: float
    documents: int
    test: str
    points: tuple[Tested, ...]
    budget: float | None

    @property
    def upper(self) -> float | None:
        """Upper bound of the mean at the returned point, see `Tested`."""
        return next((point.upper for point in self.points if point.budget == self.budget), None)

    def statement(self, measure: str = "KL", population: str = "documents of the same kind") -> str:
        """The certificate in one line; `population` is what the mean is over."""
        claim, sure = f"mean of min({measure}, {self.clip:g}) ≤ {self.epsilon:g}", f"probability ≥ {1 - self.delta:g}"
        if self.budget is not None:
            return f"{claim} with {sure} over {population}, if the {self.documents:,} tested were drawn independently"
        first = self.points[0]
        return (
            f"{claim} could not be shown for any model: the largest has {first.mean:.3g} on {self.documents:,} "
            f"of the {population}, so at most {first.upper:.3g} with {sure}"
        )

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "points": [asdict(point) for point in self.points], "upper": self.upper}


def certify(
    front: Iterable[tuple[float, Callable[[], Sequence[float]]]],
    *,
    epsilon: float,
    delta: float = DELTA,
    clip: float | None = None,
    test: str = "betting",
) -> Certificate:
    """Test (budget, harms of the documents) along the front, the largest budget first, up to the first failure.

    Harms are asked for one point at a time, so that a model need only be made when its turn comes; the budgets are
    read before. Cost: one evaluation for every point tested.
    """
    clip = _settled(epsilon, delta, clip)
    _named(test)  # a wrong name must not cost an evaluation
    fixed = tuple(front)
    budgets = [budget for budget, _ in fixed]
    if not budgets or any(a <= b for a, b in pairwise(budgets)):
        raise ValueError(f"a front has one or more budgets, each smaller than the one before; got {budgets}")
    points: list[Tested] = []
    counts: set[int] = set()
    for budget, harms_of in fixed:
        losses = clipped_losses(harms_of(), clip)
        counts.add(len(losses))
        if len(counts) > 1 or not losses:
            raise TooFewTokens(f"all points need the same documents, at least one; got {sorted(counts)} of them")
        points.append(_tested(budget, losses, epsilon, delta, clip, test))
        if not points[-1].passed:
            break
    passed = [point.budget for point in points if point.passed]
    return Certificate(epsilon, delta, clip, counts.pop(), test, tuple(points), passed[-1] if passed else None)


def clipped_losses(harms: Sequence[float], clip: float) -> list[float]:
    """min(harm, clip) / clip for every document. KL that rounding left below zero counts as zero."""
    if any(math.isnan(harm) for harm in harms):
        raise NotFinite("the harm of a document is not a number: the outputs of one of the models hold NaN")
    return [min(max(harm, 0.0), clip) / clip for harm in harms]


def least_documents(*, epsilon: float, delta: float = DELTA, clip: float | None = None, test: str = "betting") -> int:
    """The fewest documents a model could pass on if it lost nothing at all: about log(1/δ) · clip / ε."""
    mean = epsilon / _settled(epsilon, delta, clip)
    p_value = _named(test)
    most = math.ceil((1 - math.log(delta)) / -math.log1p(-mean))  # both p-values are < e (1 − mean)ⁿ
    return bisect_left(range(most), True, lo=1, key=lambda n: p_value(np.zeros(n), mean) <= delta)


def require_documents(
    documents: int, *, epsilon: float, delta: float = DELTA, clip: float | None = None, test: str = "betting"
) -> None:
    """Refuse, before any model is made, if there are so few documents that none could pass."""
    least = least_documents(epsilon=epsilon, delta=delta, clip=clip, test=test)
    if documents < least:
        raise TooFewTokens(
            f"there are {documents:,} documents to certify on, and a model that loses nothing needs {least:,} to be "
            f"shown to have a mean of at most {epsilon:g} at confidence {1 - delta:g}; give more data: a larger "
            f"{option('tokens')}, a smaller {option('seq_len')}, or more text"
        )


def betting_p_value(losses: Losses, mean: float) -> float:
    """p-value of H: E ℓ > mean, by betting against it; see the top of this file. Cost O(n).

    It does not depend on the order of the documents, grows with every loss, and is 1 unless their mean is below `mean`.
    """
    return math.exp(-max(0.0, log_purse(losses, mean)))


def log_purse(losses: Losses, mean: float) -> float:
    """log Σ_s w_s Π_i (1 − s + s (1 − ℓ_i) / (1 − mean)): what the bets leave of 1, E exp ≤ 1 under H."""
    gains = (1 - _checked(losses, mean)) / (1 - mean)
    with np.errstate(divide="ignore"):  # log 0: all was staked on a document of loss 1
        growth = np.log1p(STAKES[:, None] * (gains - 1)).sum(1)
    most = float(growth.max())  # finite, as some stakes leave something
    return most + math.log(WEIGHTS @ np.exp(growth - most))


def hoeffding_bentkus_p_value(losses: Losses, mean: float) -> float:
    """p-value of H: E ℓ > mean from the mean loss alone; see the top of this file. Cost O(n).

    Both parts bound the same probability, P(mean of n losses ≤ r), so the smaller is a bound without correction.
    """
    x = _checked(losses, mean)
    n, total = len(x), math.fsum(x)
    low = min(total / max(n, 1), mean)
    hoeffding = math.exp(-n * float(xlogy(low, low / mean) + xlogy(1 - low, (1 - low) / (1 - mean))))
    bentkus = math.e * float(bdtr(math.ceil(total), n, mean))
    return min(1.0, hoeffding, bentkus)


TESTS: dict[str, PValue] = {"betting": betting_p_value, "hoeffding-bentkus": hoeffding_bentkus_p_value}


def upper_bound(losses: Losses, delta: float, test: str = "betting") -> float:
    """The largest mean that is not rejected at level δ: it is ≥ E ℓ with probability ≥ 1 − δ.

    p-values fall as the mean grows, so it is found by bisection; what is returned is rejected, or 1.
    """
    p_value = _named(test)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(losses, middle) <= delta else (middle, high)
    return high


def _tested(budget: float, losses: list[float], epsilon: float, delta: float, clip: float, test: str) -> Tested:
    p = _named(test)(losses, epsilon / clip)
    mean = clip * math.fsum(losses) / len(losses)
    return Tested(budget, mean, clip * upper_bound(losses, delta, test), p, losses.count(1.0), p <= delta)


def _named(test: str) -> PValue:
    if test not in TESTS:
        raise ValueError(f"there is no test {test!r}; choose from {', '.join(TESTS)}")
    return TESTS[test]


def _settled(epsilon: float, delta: float, clip: float | None) -> float:
    """The clip, once it is sure that there is something to guarantee."""
    if not 0 < epsilon < math.inf:
        raise BudgetOutOfReach(
            f"a mean of at most {epsilon:g} cannot be certified; give a number above 0 with {option('max_kl')}"
        )
    if not 0 < delta < 1:
        raise BudgetOutOfReach(f"a guarantee fails with probability at most {delta:g}; give a number between 0 and 1")
    clip = CLIP * epsilon if clip is None else clip
    if not epsilon < clip < math.inf:
        raise BudgetOutOfReach(f"harms clipped at {clip:g} never have a mean above it; clip above {epsilon:g}")
    return clip


def _checked(losses: Losses, mean: float) -> NDArray[np.float64]:
    x = np.asarray(losses, dtype=np.float64)
    if x.ndim != 1 or not ((x >= 0) & (x <= 1)).all():
        raise ValueError("losses are a list of numbers between 0 and 1")
    if not 0 < mean < 1:
        raise ValueError(f"a mean loss to test lies between 0 and 1, and {mean:g} does not")
    return x
