"""A tiny model for smoke runs: a lossless word-level tokenizer, and a Qwen3 of two layers over its vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW = 2048
PAD, START, END, UNK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"
TEMPLATE = Path(__file__).parents[2] / "configs" / "templates" / "keep_thoughts.jinja"

# Marks and tags, line breaks, words and signs with the blank before them, other blanks: together, every text.
_SPLIT = pre_tokenizers.Split(Regex(r"<\|\w+\|>|</?\w+>|\n| ?\w+| ?[^\w\s]|\s"), "isolated")
_PROTOCOL = tuple(
    piece for tag in ("think", "tool_call", "tool_response", "tools", "answer") for piece in (f"<{tag}>", f"</{tag}>")
)
_ALWAYS = ("\n", " ", "system", "user", "assistant", *_PROTOCOL)


def pieces(text: str) -> list[str]:
    """Split a text into words, signs, tags and blanks, which joined are the text."""
    return [piece for piece, _ in _SPLIT.pre_tokenize_str(text)]


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows every piece of these texts and of the protocol; any other piece is `<unk>`."""
    found = {piece for text in texts for piece in pieces(text)}
    special = [PAD, START, END, UNK]
    vocabulary = {piece: number for number, piece in enumerate([*special, *sorted(found.union(_ALWAYS) - {*special})])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    made.pre_tokenizer = _SPLIT
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNK,
        model_max_length=WINDOW,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return a fresh fp32 model whose vocabulary is exactly the tokenizer's."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def save(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a model folder as transformers reads it."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, **ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
