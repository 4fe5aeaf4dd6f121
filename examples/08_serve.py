"""Cut a language model for where it will be served: llama.cpp, which takes whole heads and neurons, block by block.

A small LLaMA with a tokenizer of its own, so that nothing has to be downloaded; needs the extra `gguf`. Where xllamacpp
is installed, `export` lets llama.cpp go on with some tokens and compares them.
"""

import tempfile
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import slimformer

texts = list(topics.values())
words = Tokenizer(models.BPE())
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
special = ["<s>", "</s>", "<unk>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
words.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>")

with tempfile.TemporaryDirectory() as scratch:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128,
    )  # fmt: skip
    result = slimformer.compress(
        LlamaForCausalLM(config), texts[:40], macs=0.6, runtime="llama.cpp", processor=tokenizer, seq_len=64,
        tokens=4096, timing=False, only_data=True,
    )  # fmt: skip
    print(next(note for note in result.report.warnings if note.startswith("made for")))
    written = slimformer.export(result.save(f"{scratch}/small"), to="gguf", out=f"{scratch}/files", quant="q8_0")
    print(f"{written.file}: {written.bytes / 1e6:.2f} MB, {written.notes[0]}")
