"""Compress, then fine-tune with the stock Trainer: a compressed model is an ordinary model.

A small character-level LLaMA is trained on built-in text, cut to half of its block MACs, and trained a little more.
"""

import tempfile
from pydoc_data.topics import topics

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import slimformer

LENGTH = 64
text = "\n\n".join(topics.values()).encode()[: 1600 * LENGTH]
rows = torch.tensor(list(text)).view(-1, LENGTH)
train, held_out = rows[:1500], rows[1500:]


def fine_tune(model, steps, scratch):
    """A few steps with the stock Trainer."""
    arguments = TrainingArguments(
        scratch, max_steps=steps, per_device_train_batch_size=16, learning_rate=2e-3, lr_scheduler_type="cosine",
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in train]).train()
    return model.eval()


@torch.no_grad()
def loss(model):
    return float(model(input_ids=held_out, labels=held_out).loss)


with tempfile.TemporaryDirectory() as scratch:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH,
    )  # fmt: skip
    dense = fine_tune(LlamaForCausalLM(config), 200, scratch)
    result = slimformer.compress(dense, train, macs=0.5, timing=False)  # data as token ids: sequences × length
    compressed = loss(result.model)
    fine_tune(result.model, 60, scratch)
    print(f"held-out loss: dense {loss(dense):.3f}, compressed {compressed:.3f}, fine-tuned {loss(result.model):.3f}")
    folder = result.save(f"{scratch}/smaller")
    print(f"reloaded {loss(slimformer.load(folder)):.3f}")
