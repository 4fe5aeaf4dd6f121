"""Cut a language model to half of its block MACs, and let it win back what it lost from the dense one.

A small character-level LLaMA is trained on built-in text first, so that nothing has to be downloaded. Healing needs the
extra `heal`; it sees the same unlabelled text that the cut was fitted on.
"""

import tempfile
from pydoc_data.topics import topics

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import slimformer

LENGTH = 64
text = "\n\n".join(topics.values()).encode()[: 1600 * LENGTH]
rows = torch.tensor(list(text)).view(-1, LENGTH)

with tempfile.TemporaryDirectory() as scratch:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH,
    )  # fmt: skip
    arguments = TrainingArguments(
        scratch, max_steps=120, per_device_train_batch_size=16, learning_rate=2e-3, lr_scheduler_type="cosine",
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
    )  # fmt: skip
    dense = LlamaForCausalLM(config)
    Trainer(dense, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows[:1500]]).train()
    smaller = slimformer.compress(dense, rows, macs=0.5, timing=False)
    healed = slimformer.heal(smaller.model, rows, teacher=dense, tokens=40_000)
    home = healed.report.healing["won"]["home"]
    interval = f"{home['low']:+.3f} … {home['high']:+.3f}"
    print(f"KL to the dense model: {home['before']:.3f} when cut, {home['after']:.3f} when healed ({interval})")
    print(f"saved in {healed.save(f'{scratch}/healed')}")
