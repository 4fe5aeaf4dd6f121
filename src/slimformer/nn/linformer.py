"""Linformer: attention whose keys and values are compressed along the sequence, as a module and as models.

    from slimformer.nn.linformer import LinformerAttention, LinformerConfig, LinformerForMaskedLM

After `import slimformer` the Auto classes of transformers know `linformer`.
"""

from __future__ import annotations

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from slimformer.nn.linformer_attention import LinformerAttention as LinformerAttention
from slimformer.nn.linformer_config import LinformerConfig as LinformerConfig
from slimformer.nn.linformer_models import LinformerEncoder as LinformerEncoder
from slimformer.nn.linformer_models import LinformerForCausalLM as LinformerForCausalLM
from slimformer.nn.linformer_models import LinformerForMaskedLM as LinformerForMaskedLM
from slimformer.nn.linformer_models import LinformerForSequenceClassification as LinformerForSequenceClassification
from slimformer.nn.linformer_models import LinformerModel as LinformerModel

CLASSES = {
    AutoModel: LinformerModel,
    AutoModelForMaskedLM: LinformerForMaskedLM,
    AutoModelForSequenceClassification: LinformerForSequenceClassification,
    AutoModelForCausalLM: LinformerForCausalLM,
}


def enable() -> None:
    """Let the Auto classes of transformers open and make Linformers. Doing it twice changes nothing."""
    AutoConfig.register(LinformerConfig.model_type, LinformerConfig, exist_ok=True)
    for auto, model in CLASSES.items():
        auto.register(LinformerConfig, model, exist_ok=True)
