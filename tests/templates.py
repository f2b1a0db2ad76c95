"""Chat templates as model servers render them, and small tokenizers of the two Qwen kinds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

KEEP_THOUGHTS = Path(__file__).parents[1].joinpath("configs", "templates", "keep_thoughts.jinja").read_text("utf-8")

# What Qwen3's own template does to thoughts: they stay only in replies after the last question.
DROPS_THOUGHTS = """
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# What Qwen2.5's own template does: a dialogue without a system message is given one; all else stands as it was said.
ADDS_SYSTEM = """
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

_WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def compiled(template: str) -> Template:
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)


def render(template: str, messages: list[dict], *, reply: bool) -> str:
    return compiled(template).render(messages=messages, add_generation_prompt=reply)


def tokenizer(texts: list[str], *, thinks: bool) -> Tokenizer:
    """Train a byte-level BPE that splits as Qwen's does; Qwen3's has tags for thoughts and results as tokens."""
    made = Tokenizer(models.BPE())
    splits = [
        pre_tokenizers.Split(_WORDS, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made.pre_tokenizer = pre_tokenizers.Sequence(splits)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    tags = ["<tool_call>", "</tool_call>"]
    if thinks:
        tags += ["<think>", "</think>", "<tool_response>", "</tool_response>"]
    made.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return made
