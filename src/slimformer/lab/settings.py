"""An experiment file: data, model, what varies, and how to train. Checked before anything is computed.

    name: digits
    task: image-classes
    datasets: {digits: {source: digits}}
    model: {model_type: vit, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 32}
    variants: {narrow: {hidden_size: 16}, wide: {hidden_size: 32}}
    grid: {num_hidden_layers: [1, 2]}
    seeds: [0, 1, 2]
    epochs: 10
    batch_size: 64

Every field is explained in docs/lab.md.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slimformer.errors import BadExperiment
from slimformer.files.manifest import sha256
from slimformer.files.reading import parse_yaml
from slimformer.lab.experiments import text_of

Task = Literal["image-classes", "text-classes", "masked-lm", "causal-lm"]
Source = Literal["digits", "mnist", "fashion-mnist", "idx", "cifar10", "images", "text", "builtin", "hub"]
Checked = TypeVar("Checked", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(_Strict):
    """Where examples come from, and how many. A relative path starts at the folder of the experiment file."""

    source: Source
    path: str | None = None
    validation_path: str | None = Field(default=None, description="examples to validate on; else a share is held out")
    validation_share: float = Field(default=0.1, gt=0, lt=1, description="held out where no validation part is given")
    train_examples: int | None = Field(default=None, ge=1)
    validation_examples: int | None = Field(default=None, ge=1)
    channels: Literal[1, 3] | None = Field(default=None, description="grey or colour; as the data are by default")
    image_size: int | None = Field(default=None, ge=2, description="edge of square images read from a folder")
    columns: tuple[str, ...] = Field(default=(), description="column of the text, two for pairs; or of the image")
    label: str | None = None
    max_length: int = Field(default=128, ge=4)
    tokenizer: str = Field(default="wordpiece", description="wordpiece or bpe, trained here; or the name of one")
    vocabulary: int = Field(default=4096, ge=64)
    mask: float = Field(default=0.15, gt=0, lt=1, description="share of tokens a masked model has to guess")


class DatasetSettings(DataSettings):
    """A data set of an experiment, with settings that hold on it alone."""

    set: dict[str, Any] = {}

    def data(self) -> DataSettings:
        """Without them."""
        return DataSettings(**self.model_dump(exclude={"set"}))


class Optimiser(_Strict):
    """AdamW (Loshchilov, Hutter 2019); weight decay on matrices only, tables of embeddings among them."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup: float = Field(default=0.05, ge=0, lt=1, description="share of the steps")
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    clip: float | None = Field(default=1.0, gt=0, description="largest norm of the gradient")


class Augmentation(_Strict):
    """What training images go through, drawn anew for every image and step."""

    flip: bool = Field(default=False, description="left and right exchanged, every other image")
    crop: int = Field(default=0, ge=0, description="padded by this many pixels, mirrored, and cut at random")
    shift: int = Field(default=0, ge=0, description="moved by up to this many pixels, zeros come in")


class Published(_Strict):
    """Published numbers to compare ours with: by row, then by column of the table."""

    source: str
    rows: dict[str, dict[str, float | str]]


class Schedule(_Strict):
    """How long, in which batches, and at which rate."""

    epochs: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=64, ge=1)
    optimiser: Optimiser = Optimiser()
    augmentation: Augmentation = Augmentation()
    evaluate_every: int | None = Field(default=None, ge=1, description="steps; every epoch by default")
    train_evaluation: int = Field(default=2000, ge=1, description="training examples measured in the end")

    @model_validator(mode="after")
    def _one_length(self) -> Schedule:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class Pretraining(Schedule):
    """What the same model learns first: another task, on the same data but for the fields in `data`."""

    task: Task
    data: dict[str, Any] = {}


class TrainSettings(Schedule):
    """What experiment and run have in common."""

    task: Task
    model: dict[str, Any] = {}
    start: str | None = Field(default=None, description="a model whose weights, and tokenizer, training starts from")
    save_models: bool = False

    @model_validator(mode="after")
    def _one_model(self) -> TrainSettings:
        if not isinstance(self.model.get("model_type", None if self.start is None else ""), str):
            raise ValueError("model has no model_type, e.g. vit, bert, gpt2, minimal, linformer")
        return self


class Experiment(TrainSettings):
    """The whole file. `variants` and `grid` change any field: of the model, or batch_size, optimiser.lr, data.…"""

    name: str = Field(pattern=r"^[\w.-]+$")
    summary: str = ""
    datasets: dict[str, DatasetSettings] = Field(min_length=1)
    variants: dict[str, dict[str, Any]] = {}
    grid: dict[str, list[Any]] = {}
    titles: dict[str, str] = Field(default={}, description="shorter names for fields of the grid, in the rows")
    seeds: list[int] = Field(default=[0], min_length=1)
    pretrain: Pretraining | None = None
    checkpoint_every: float = Field(default=60, gt=0, description="seconds between saved states")
    published: Published | None = None


class RunSettings(TrainSettings):
    """One training: everything that decides its result."""

    row: str
    dataset: str
    labels: dict[str, Any]
    data: DataSettings
    seed: int = Field(ge=-(2**63), lt=2**63, description="what torch can take")
    before: RunSettings | None = Field(default=None, description="the run whose model this one starts from")

    @property
    def name(self) -> str:
        """Row and seed."""
        return f"{self.row}, seed {self.seed}"

    def decisive(self) -> dict[str, Any]:
        """The settings that may differ between runs of one name; what was not asked for is not there."""
        fields = self.model_dump(mode="json", exclude={"row", "labels", "seed", "before"}, exclude_none=False)
        if self.start is None:
            del fields["start"]
        return fields if self.before is None else {**fields, "before": self.before.decisive()}

    def digest(self) -> str:
        """Of the settings that decide the result; what a row is called, and where a folder stands, do not."""
        fields = {**self.decisive(), "seed": self.seed}
        del fields["dataset"]
        for key in ("path", "validation_path"):
            fields["data"][key] = Path(fields["data"][key] or "").name
        if self.start is not None:
            fields["start"] = _content(self.start)
        if self.before is not None:
            fields["before"] = self.before.digest()
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def _content(start: str) -> str:
    """Of the weights in a folder, wherever it stands; the name of what is not here as one."""
    files = sorted(Path(start).glob("*.safetensors"))
    stamps = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _of_files(stamps) if stamps else start


@lru_cache(maxsize=16)
def _of_files(stamps: tuple[tuple[str, int, int], ...]) -> str:
    return hashlib.sha256("".join(sha256(Path(path)) for path, _, _ in stamps).encode()).hexdigest()[:16]


def load_experiment(path: str | Path) -> Experiment:
    """The experiment of that name, or in that YAML file; whatever is wrong with it in one line."""
    try:
        fields = parse_yaml(text_of(str(path)))
    except ValueError as error:
        raise BadExperiment(f"{path} is not valid YAML: {error}") from None
    if not isinstance(fields, dict):
        raise BadExperiment(f"{path} holds no fields; it needs {', '.join(required())}")
    return checked(Experiment, fields, str(path))


def required() -> list[str]:
    """The fields an experiment cannot do without."""
    return [name for name, field in Experiment.model_fields.items() if field.is_required()]


def checked(kind: type[Checked], fields: dict[str, Any], where: str) -> Checked:
    """The settings as `kind`, or the first mistake in them, in one line."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        problems = error.errors()
        first = problems[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"there is no such field; fields here: {', '.join(_siblings(kind, first['loc']))}"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadExperiment(f"{where}: {f'{place}: ' if place else ''}{message}{more}") from None


def _siblings(kind: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The fields known where an unknown one stands."""
    inner: dict[str, type[BaseModel]] = {
        "optimiser": Optimiser, "augmentation": Augmentation, "published": Published, "datasets": DatasetSettings,
        "data": DataSettings, "pretrain": Pretraining,
    }  # fmt: skip
    here = inner.get(str(place[0]), kind) if len(place) > 1 else kind
    return list(here.model_fields)
