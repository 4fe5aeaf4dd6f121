"""A sample of text before and after compression: greedy, so that only the weights can make a difference."""

from __future__ import annotations

from typing import Any

from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from slimformer.evaluate.perplexity import device_of, evaluating


def generate_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, max_new_tokens: int = 64
) -> str:
    """`prompt` and its greedy continuation, x_t = argmax p(· | x_<t), up to the end-of-text token."""
    if not isinstance(model, GenerationMixin):
        raise TypeError(f"{type(model).__name__} does not generate text; load it with a language-model head")
    writer: Any = model  # the type of `generate` asks for more than the two classes have
    inputs = tokenizer(prompt, return_tensors="pt")
    device = device_of(model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    with evaluating(model):
        # what a checkpoint's generation_config.json may ask for is put back: sampling, beams, penalties
        ids = writer.generate(
            input_ids=inputs["input_ids"].to(device),
            attention_mask=inputs["attention_mask"].to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            temperature=1.0,
            top_p=1.0,
            top_k=50,
            pad_token_id=pad,
        )
    return str(tokenizer.decode(ids[0], skip_special_tokens=True))
