"""What the fields of a `report.json` may hold. Files are written by hand, too, and what is read is printed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from slimformer.calibrate.provenance import Reading
from slimformer.evaluate.bench import Bench
from slimformer.evaluate.report import Count, Report
from slimformer.evaluate.task import TaskReport
from slimformer.files.reading import one_of

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1, le=10**15)]
Share = Annotated[float, Field(ge=0, le=1)]

# by metric: the least and the most it can be; of others nothing is known
RANGES = {
    "perplexity": (1.0, math.inf), "nats per token": (0.0, math.inf), "kl": (0.0, math.inf), "agreement": (0.0, 1.0),
    "accuracy": (0.0, 1.0), "cosine of pooled states": (-1.0, 1.0), "cosine of token states": (-1.0, 1.0),
    "cka": (0.0, 1.0), "neighbour overlap": (0.0, 1.0), "matches": (0.0, 1.0),
    "relative squared change of the output": (0.0, math.inf), "bits per byte": (0.0, math.inf),
}  # fmt: skip
ROUNDING = 1e-6


@dataclass(frozen=True)
class Metric:
    """One row of the table of metrics."""

    name: str
    better: Annotated[str, one_of("lower", "higher")]
    small: float | None
    dense: float | None = None
    low: float | None = None
    high: float | None = None
    on: AtLeastOne | None = None
    documents: AtLeastOne | None = None


@dataclass(frozen=True)
class Other:
    """Metrics on other data."""

    name: str
    metrics: list[Metric]
    tokens: Count = 0
    unfitted: bool = False


@dataclass(frozen=True)
class SiteRow:
    """What one site keeps."""

    site: str
    block: Count
    kind: str
    keep: Count
    of: Count
    groups: Count
    of_groups: Count


@dataclass(frozen=True)
class DataFacts:
    """What was fitted and measured on."""

    name: str = ""
    hash: str = ""
    seed: Count = 0
    tokens: dict[str, Count] = field(default_factory=dict)
    unit: Annotated[str, one_of("tokens", "images", "positions", "pairs")] = "tokens"
    document: Annotated[str, one_of("document", "example", "image", "recording")] = "document"
    read_as: list[str] = field(default_factory=list)
    mixed: str | None = None
    held_out: bool = True  # false where some of it may have been fitted
    reading: Reading | None = None


@dataclass(frozen=True)
class Pace:
    """Seconds of both models."""

    dense: Positive
    small: Positive
    ratio: Positive


@dataclass(frozen=True)
class LatencyFacts:
    """Medians of interleaved runs."""

    body: Pace
    end_to_end: Pace
    repeats: AtLeastOne
    threads: AtLeastOne
    device: str = ""
    inputs: dict[str, list[Count]] = field(default_factory=dict)


@dataclass(frozen=True)
class CertificateFacts:
    """What is promised, and of which population."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip: Positive
    documents: AtLeastOne
    statement: str
    budget: Share | None = None
    upper: NotNegative | None = None


@dataclass(frozen=True)
class QuantizationFacts:
    """Bits, or zeros."""

    layers: Count
    errors: dict[str, NotNegative]
    method: str
    bits: Annotated[int, Field(ge=1, le=16)] | None = None
    tables: bool = False
    bits_per_weight: Annotated[float, Field(gt=0, le=64)] | None = None
    pattern: str | None = None
    zeros: Share | None = None
    grouped_keys: bool = False


@dataclass(frozen=True)
class EmbeddingFacts:
    """Shorter embeddings, and what they keep."""

    dim: AtLeastOne
    of: AtLeastOne
    energy: Annotated[float, Field(ge=0, le=1 + ROUNDING)]
    cosine_change: NotNegative
    texts: Count


@dataclass(frozen=True)
class RefitFacts:
    """Pieces refitted for words that are gone: what was tried, and what was taken."""

    ridge: str
    losses: dict[str, float]
    words: Count


@dataclass(frozen=True)
class VocabularyFacts:
    """Tokens that stay, and what that does to texts."""

    kind: str
    keep: AtLeastOne
    of: AtLeastOne
    covered: Share
    texts: Count
    tokens_per_text: tuple[NotNegative, NotNegative]
    bytes: tuple[Count, Count]
    counted: Count
    on: str
    covered_there: Share
    refit: RefitFacts | None = None


@dataclass(frozen=True)
class EndsFacts:
    """The rank of the embedding and of the head of words, and what that does."""

    rank: AtLeastOne
    of: AtLeastOne
    ends: list[str]
    error: dict[str, NotNegative]
    tied: bool
    bytes: tuple[Count, Count]
    harm: float


@dataclass(frozen=True)
class ExpertsFacts:
    """Experts that stay."""

    by: str
    instead: str
    keep: AtLeastOne
    of: AtLeastOne
    active: AtLeastOne
    kept: list[list[Count]]


@dataclass(frozen=True)
class WonFacts:
    """The loss to the dense model before and after learning from it."""

    metric: str
    before: float
    after: float
    change: float
    low: float | None = None
    high: float | None = None
    documents: Count = 0


@dataclass(frozen=True)
class HealingFacts:
    """What learning won, by text."""

    kept: bool
    won: dict[str, WonFacts]


@dataclass(frozen=True)
class SavingFacts:
    """What a rewrite saved."""

    rewrite: str
    possible: bool
    says: str = ""
    why: str = ""
    sites: Count = 0
    params: int = 0
    macs: int = 0
    kv_cache_bytes: int = 0
    implicit: Count = 0


@dataclass(frozen=True)
class LosslessFacts:
    """All rewrites."""

    rewrites: list[SavingFacts]
    largest_change: NotNegative
    dtype: str
    hint: str | None = None


@dataclass(frozen=True)
class ShownTask(TaskReport):
    """A task with scores that can be shown."""

    metrics: list[Metric]  # type: ignore[assignment]
    examples: Count


@dataclass(frozen=True)
class ChosenSize:
    """What a size was spent on, where tokens went for it."""

    tokens: AtLeastOne
    params: NotNegative
    bits: AtLeastOne | None
    tables: bool


@dataclass(frozen=True)
class SizeLosses:
    """What the best models lose on the texts they were chosen on."""

    all: float
    fewer: float | None


@dataclass(frozen=True)
class SizeTried:
    """A model that was made for a size."""

    bits: AtLeastOne | None
    tables: bool
    params: NotNegative
    bytes: Count
    harm: float | None


@dataclass(frozen=True)
class SizingFacts:
    """For a budget in bytes."""

    size: AtLeastOne
    candidates: list[SizeTried]
    chosen: ChosenSize | None = None
    losses: SizeLosses | None = None


@dataclass(frozen=True, repr=False)
class ShownReport(Report):
    """A report in which everything that is shown has its type. `elsewhere` is not among it: it is computed anew."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    format: Annotated[str, one_of("ragged", "plain", "unknown")]
    budget_by: Annotated[str, one_of("macs", "params", "latency")] = "macs"
    total_macs: Annotated[float, Field(gt=0, le=1)] | None = None
    metrics: list[Metric] = field(default_factory=list)  # type: ignore[assignment]
    other_data: list[Other] = field(default_factory=list)  # type: ignore[assignment]
    elsewhere: Any = None
    sites: list[SiteRow] = field(default_factory=list)  # type: ignore[assignment]
    data: DataFacts = field(default_factory=DataFacts)  # type: ignore[assignment]
    latency: LatencyFacts | None = None  # type: ignore[assignment]
    certificate: CertificateFacts | None = None  # type: ignore[assignment]
    quantization: QuantizationFacts | None = None  # type: ignore[assignment]
    embedding: EmbeddingFacts | None = None  # type: ignore[assignment]
    sizing: SizingFacts | None = None  # type: ignore[assignment]
    vocabulary: VocabularyFacts | None = None  # type: ignore[assignment]
    ends: EndsFacts | None = None  # type: ignore[assignment]
    experts: ExpertsFacts | None = None  # type: ignore[assignment]
    healing: HealingFacts | None = None  # type: ignore[assignment]
    lossless: LosslessFacts | None = None  # type: ignore[assignment]
    seconds: dict[str, NotNegative] = field(default_factory=dict)
    tasks: dict[str, ShownTask] = field(default_factory=dict)
    bench: Bench | None = None  # type: ignore[assignment]


def require_agreement(report: ShownReport) -> None:
    """What follows from other fields must be what follows from them, and metrics what they can be."""
    if report.dense.block_macs:
        share = report.small.block_macs / report.dense.block_macs
        if not math.isclose(share, report.macs_kept, rel_tol=1e-9):
            raise ValueError(f"macs_kept is said to be {report.macs_kept:g}, and its MACs make it {share:g}")
    for row in report.sites:
        if row.keep > row.of or row.groups > row.of_groups:
            raise ValueError(f"sites: {row.site[:80]} keeps {row.keep} of {row.of}")
    for name, pace in (
        (("body", report.latency.body), ("end_to_end", report.latency.end_to_end)) if report.latency else ()
    ):
        if not math.isclose(pace.ratio, pace.small / pace.dense, rel_tol=1e-6):
            raise ValueError(f"latency.{name}.ratio is said to be {pace.ratio:g}, not {pace.small / pace.dense:g}")
    _require_possible("metrics", report.metrics)
    for other in report.other_data:
        _require_possible(f"other_data, {other.name[:80]}", other.metrics)


def _require_possible(where: str, metrics: Iterable[Metric]) -> None:
    for metric in metrics:
        low, high = RANGES.get(metric.name, (-math.inf, math.inf))
        for value in (metric.dense, metric.small):
            if value is not None and not low - ROUNDING <= value <= high + ROUNDING:
                raise ValueError(f"{where}: {metric.name} cannot be {value:g}")
        if metric.low is not None and metric.high is not None and metric.low > metric.high:
            raise ValueError(f"{where}: the interval of {metric.name} ends before it begins")
