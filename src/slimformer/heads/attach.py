"""A head in the place where stock classes keep theirs, so that the result is a checkpoint like any other.

Scores are W h + b with h the state at the first position (encoders) or at the last (decoders). Stock classes put
something in between, which is made to do nothing:

    BERT, RoBERTa   tanh(P h):    P = ε I and W / ε, since tanh(ε h) = ε h (1 − ε² h² / 3 …), wrong by 10⁻⁶ at |h| = 10
    DistilBERT      max(0, P h + c): P = I and c beyond the largest |h| a layer norm can give; exact
    decoders        no bias: W + b vᵀ with v the least-squares solution of vᵀh = 1 on the rows of the fit; exact after a
                    layer norm (whose outputs lie in a plane), nearly so after RMSNorm
    ViT             nothing

A head read after fewer blocks leaves out the blocks above: the classifier is smaller than the model it came from.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification, PreTrainedModel

from slimformer.errors import HeadDoesNotFit
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.features import Reading
from slimformer.heads.lm_head import constant
from slimformer.messages.words import option
from slimformer.models import family_of

EPSILON = 2.0**-12  # a power of two: dividing by it rounds nothing
PLACES = ("score", "classifier.out_proj", "classifier")  # where stock classifiers keep their last layer


def last_layer(model: PreTrainedModel) -> str:
    """The path of the linear layer that gives the logits of a classifier."""
    for path in PLACES:
        try:
            if isinstance(model.get_submodule(path), nn.Linear):
                return path
        except AttributeError:
            continue
    raise HeadDoesNotFit(f"{type(model).__name__} has no classification head to replace")


def attach(model: PreTrainedModel, head: AnalyticHead, reading: Reading, *, pad: int | None = None) -> PreTrainedModel:
    """The stock classifier with the encoder of `model`, cut after `reading.layer` blocks, and this head."""
    family = family_of(model.config)
    wanted = "last" if family.causal else "cls"
    if reading.pool != wanted:
        raise HeadDoesNotFit(
            f"stock classifiers of {family.name} read the {wanted!r} position, and this head was fitted on "
            f"{reading.pool!r}; use {option('pool', wanted)}"
        )
    W, b = rows_of_layer(head)
    config = _config(model, head, reading, pad)
    auto: Any = AutoModelForImageClassification if family.image else AutoModelForSequenceClassification
    out = auto.from_config(config).to(model.dtype)
    _copy_encoder(model, out)
    with torch.no_grad():
        _put(out, head, W, b)
    return out.eval()


def rows_of_layer(head: AnalyticHead) -> tuple[Tensor, Tensor]:
    """W and b whose softmax are the probabilities; random features fit into no stock class."""
    layer = head.to_linear()
    if not isinstance(layer, nn.Linear):
        raise HeadDoesNotFit("stock classifiers have no room for random features; use lda or ridge, or save the head")
    return layer.weight.detach(), layer.bias.detach()


def put_head(model: PreTrainedModel, head: AnalyticHead) -> None:
    """Write a head into the last layer of a classifier whose features it was fitted on."""
    W, b = rows_of_layer(head)
    path = last_layer(model)
    layer: Any = model.get_submodule(path)
    if W.shape != layer.weight.shape:
        raise HeadDoesNotFit(f"the head is {tuple(W.shape)}, and {path} of the model is {tuple(layer.weight.shape)}")
    with torch.no_grad():
        layer.weight.copy_(W if layer.bias is not None else folded(head, W, b))
        if layer.bias is not None:
            layer.bias.copy_(b)


def folded(head: AnalyticHead, W: Tensor, b: Tensor) -> Tensor:
    """W + b vᵀ with vᵀh ≈ 1 on the rows of the fit: a bias for layers that have none."""
    moments = head.moments_
    total = moments.sums.sum(0) if hasattr(moments, "sums") else moments.x
    return W + torch.outer(b.double(), constant(moments.gram, total)).to(W.dtype)


def _config(model: PreTrainedModel, head: AnalyticHead, reading: Reading, pad: int | None) -> Any:
    config = config_up_to(model, reading.layer)
    if head.target == "numbers":
        config.problem_type, names = "regression", ["score"]
    else:
        config.problem_type = "multi_label_classification" if head.target == "labels" else "single_label_classification"
        names = [str(label) for label in head.classes_]
    config.id2label = dict(enumerate(names))
    config.label2id = {name: i for i, name in enumerate(names)}
    if getattr(config, "pad_token_id", None) is None and pad is not None:
        config.pad_token_id = pad
    return config


def config_up_to(model: PreTrainedModel, layer: int) -> Any:
    """The config of the model with its first `layer` blocks; blocks with sizes of their own keep them."""
    config = copy.deepcopy(model.config)
    if layer == config.num_hidden_layers:
        return config
    sizes = config.to_dict().get("per_layer_config") or {}
    config.num_hidden_layers = layer
    if sizes:
        config.per_layer_config = {int(i): size for i, size in sizes.items() if int(i) < layer}
    return config


def _copy_encoder(model: PreTrainedModel, out: PreTrainedModel) -> None:
    """All weights of the blocks that stay; a pooler, if there is one, is overwritten afterwards anyway."""
    there = out.base_model.state_dict()
    given = {name: tensor for name, tensor in model.base_model.state_dict().items() if name in there}
    missing = [name for name in there if name not in given and "pooler" not in name]
    if missing:
        raise HeadDoesNotFit(f"the classifier has weights the model lacks, the first is {missing[0]}")
    out.base_model.load_state_dict(given, strict=False)


def _put(out: Any, head: AnalyticHead, W: Tensor, b: Tensor) -> None:
    kind, path = out.config.model_type, last_layer(out)
    layer = out.get_submodule(path)
    if kind in ("bert", "roberta"):
        between = out.bert.pooler.dense if kind == "bert" else out.classifier.dense
        between.weight.copy_(EPSILON * torch.eye(len(between.weight)))
        between.bias.zero_()
        W = W / EPSILON
    elif kind == "distilbert":
        norm = out.distilbert.transformer.layer[-1].output_layer_norm
        most = norm.weight.abs() * len(norm.weight) ** 0.5 + norm.bias.abs()
        out.pre_classifier.weight.copy_(torch.eye(len(most)))
        out.pre_classifier.bias.copy_(most)
        b = b - W @ most
    layer.weight.copy_(W if layer.bias is not None else folded(head, W, b))
    if layer.bias is not None:
        layer.bias.copy_(b)
