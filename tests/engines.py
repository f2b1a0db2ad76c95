"""A tiny model with a tokenizer of bytes, and verl's engine that trains it on the CPU."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.base import EngineRegistry

END, PAD = "<end>", "<pad>"


def byte_tokenizer():
    alphabet = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=PAD)


def tiny(size, *, seed=0, tied=False):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def engine_of(folder, *, frozen=False, rank=0):
    attention = {"attn_implementation": "sdpa"}
    lora = {"lora_rank": rank, "lora": {"merge": rank > 0}}
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    settings = {"strategy": "fsdp2", "model_dtype": "fp32", "use_torch_compile": False, "forward_only": frozen}
    made = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=HFModelConfig(path=folder, override_config=attention, use_remove_padding=False, **lora),
        engine_config=FSDPEngineConfig(mixed_precision=precision, **settings),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=1),
        checkpoint_config=CheckpointConfig(),
    )
    made.initialize()
    return made
