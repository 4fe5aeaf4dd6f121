"""What decides how a model is healed, besides the models and the text."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from slimformer.errors import WrongArgument
from slimformer.messages.words import either

BUDGETS = ("minutes", "tokens", "epochs")
MINUTES = 10.0  # where no budget is given
LOCAL_SHARE = 0.25  # of the budget, where both phases run

Trained = Literal["all", "lora", "norms"]


class HealSettings(BaseModel):
    """How long, in which phases, and which parameters; the learning rate is found where none is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minutes: float | None = Field(
        default=None, gt=0, description="how long; turned into steps by the pace at the start"
    )
    tokens: int | None = Field(
        default=None, ge=1, description="or: tokens to learn from, those seen again counted again"
    )
    epochs: int | None = Field(default=None, ge=1, description="or: passes over the text")
    phases: Literal["both", "local", "global"] = Field(
        default="both", description="local: block by block on dense states; global: all of it on dense outputs"
    )
    train: Trained = Field(
        default="all", description="in the global phase: all of the blocks, lora, or norms and biases"
    )
    rate: float | None = Field(default=None, gt=0, description="learning rate of the global phase; found if not given")
    text: int = Field(default=500_000, ge=1, description="tokens of text to read, beside which broad text is put")
    top: int | None = Field(
        default=None, ge=1, description="keep so many likeliest outcomes of the teacher on disk, and ask it once"
    )
    words: int = Field(
        default=4096, ge=0, description="of larger vocabularies compare so many words a step, a quarter drawn; 0: all"
    )
    track: Literal["none", "trackio", "wandb", "tensorboard"] = Field(
        default="none", description="where the global phase records its course"
    )
    accumulate: int = Field(default=1, ge=1, description="batches for one step of the global phase")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", description="to compute the global phase in")
    recompute: bool = Field(default=False, description="activations again on the way back: less memory, more time")

    @property
    def budget(self) -> tuple[str, float]:
        """In what the budget is given, and how much it is; ten minutes where none is."""
        given = {name: value for name in BUDGETS if (value := getattr(self, name)) is not None}
        if len(given) > 1:
            raise WrongArgument(f"{' and '.join(given)} were given to heal; give one of {either(*BUDGETS)}")
        return next(iter(given.items()), ("minutes", MINUTES))

    def share(self, phase: str) -> float:
        """Which part of the budget a phase gets."""
        if self.phases != "both":
            return 1.0 if self.phases == phase else 0.0
        return LOCAL_SHARE if phase == "local" else 1 - LOCAL_SHARE
