"""The base model for training: the served GGUF file, dequantised into a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mia.embedded.model import DEFAULT, resolve
from mia.errors import InputError
from mia.runtime.files import write_whole

PUBLIC_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_FOLDER = "SmolLM2-135M-Instruct"

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # the kind of token that gguf gives to <|im_start|> and its like


def prepare(models_folder: Path) -> Path:
    """Return the Hugging Face folder of the base model, made from the served GGUF file if it is not there yet.

    Raises:
        MiaError: the weights cannot be fetched, read or written.
    """
    target = models_folder / _FOLDER
    if not target.exists():
        convert(resolve(DEFAULT, models_folder), target)
    return target


def convert(weights: Path, target: Path) -> None:
    """Write a GGUF file of a Llama model as a Hugging Face folder in bf16; a broken-off try leaves nothing there.

    Raises:
        InputError: the file is not of a Llama model with a byte-level vocabulary.
    """
    reader = GGUFReader(weights)

    def field(name: str) -> Any:
        found = reader.fields.get(name)
        return None if found is None else found.contents()

    if (field("general.architecture"), field("tokenizer.ggml.pre")) != ("llama", "smollm"):
        raise InputError(f"{weights} is not of the SmolLM2 kind.", remedy="Train on the weights of MIA_MODEL=smollm2.")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".base-", dir=target.parent))
    try:
        config = _config(field)
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        state = {}
        for each in reader.tensors:
            values = torch.from_numpy(dequantize(each.data, each.tensor_type).copy())
            name, part = _name(each.name)
            state[name] = _unpermuted(values, heads[part]) if part in heads else values
        config["tie_word_embeddings"] = "lm_head.weight" not in state
        save_file(
            {name: values.to(torch.bfloat16).contiguous() for name, values in state.items()},
            scratch / "model.safetensors",
            metadata={"format": "pt"},
        )
        write_json(scratch / "config.json", config)
        _tokenizer(field).save(str(scratch / "tokenizer.json"))
        write_json(scratch / "tokenizer_config.json", _tokenizer_config(field, config["max_position_embeddings"]))
        (scratch / "model.safetensors").chmod(0o644)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _name(name: str) -> tuple[str, str]:
    """Return Hugging Face's name of a tensor of llama.cpp, and which part of a layer it is (empty outside)."""
    if name in _OUTSIDE:
        return _OUTSIDE[name], ""
    _, number, part, _ = name.split(".")
    return f"model.layers.{number}.{_INSIDE[part]}.weight", part


def _unpermuted(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of rows in queries and keys: it turns neighbours, Hugging Face turns halves."""
    rows, columns = values.shape
    return values.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _config(field: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": field("llama.rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }


def _tokenizer(field: Any) -> Tokenizer:
    """Rebuild the byte-level vocabulary; digits stand alone, as llama.cpp's `smollm` has it."""
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in field("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    return made


def _tokenizer_config(field: Any, length: int) -> dict[str, Any]:
    tokens = field("tokenizer.ggml.tokens")
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": field("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": length,
        **{name: tokens[field(f"tokenizer.ggml.{key}_token_id")] for name, key in named.items()},
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON for people to read."""
    write_whole(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
