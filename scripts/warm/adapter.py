"""An adapter on the disk, as PEFT stores it, and the probe prompts that tell whether a conversion kept it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mia.errors import InputError
from warm.base import PUBLIC_NAME
from warm.llama import TARGETS, Llama, Weights, rank_of

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PROBES = "probe.json"
_PROMPTS = 6
_LISTED = 20
_LONGEST = 2400  # characters of a probe prompt


def write(folder: Path, adapters: Weights, alpha: int) -> None:
    """Write adapters of one rank in fp16; the weights come last, so that a folder with weights is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": PUBLIC_NAME,
        "r": rank_of(adapters),
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(TARGETS),
    }
    write_json(folder / CONFIG, config)
    half = {name: values.detach().to(torch.float16).contiguous() for name, values in adapters.items()}
    scratch = folder / f".{WEIGHTS}"
    save_file(half, scratch, metadata={"format": "pt"})
    scratch.chmod(0o644)
    scratch.replace(folder / WEIGHTS)


def read(folder: Path) -> tuple[Weights, int]:
    """Return the adapters of a folder in fp32, and their alpha.

    Raises:
        InputError: the folder holds no adapter that can be read.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
        return {name: values.float() for name, values in weights.items()}, int(config["lora_alpha"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(
            f"{folder} holds no adapter that can be read: {error}.",
            remedy="Train one: python scripts/warm_start.py train --help",
        ) from error


def write_probes(folder: Path, base: Path, traces: list[dict[str, Any]], tokenizer: Any) -> None:
    """Write what the stored adapter says after some prompts of the traces, computed in fp32 from its fp16 weights.

    The file is {"prompts": [{"text": the prompt up to where the assistant speaks, "tokens": its ids,
    "top": [[id, natural logarithm of the chance to come next], ...] with the likeliest first}]}.
    """
    weights, alpha = read(folder)
    model = Llama(base, weights, alpha, torch.float32)
    prompts = []
    for text in _prompts(traces, tokenizer):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            last = model.hidden(torch.tensor(ids[:1]), torch.tensor([ids[1:]]))[0, -1:]
            top = model.log_probabilities(last)[0].topk(_LISTED)
        listed = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        prompts.append({"text": text, "tokens": ids, "top": [[token, round(told, 5)] for token, told in listed]})
    write_json(folder / PROBES, {"prompts": prompts})


def _prompts(traces: list[dict[str, Any]], tokenizer: Any) -> list[str]:
    """Return prompts of as many roles and kinds as there are, in the order of the traces, none very long."""
    found: dict[tuple[str, str], list[str]] = {}
    for trace in traces:
        for number, message in enumerate(trace["messages"]):
            if message["role"] == "assistant" and message["learn"]:
                text = tokenizer.apply_chat_template(
                    trace["messages"][:number], tokenize=False, add_generation_prompt=True
                )
                if len(text) <= _LONGEST:
                    found.setdefault((trace["role"], trace["kind"]), []).append(text)
    rounds = max(map(len, found.values()), default=0)
    ordered = (texts[turn] for turn in range(rounds) for _, texts in sorted(found.items()) if turn < len(texts))
    chosen = list(dict.fromkeys(ordered))
    return chosen[:_PROMPTS]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON for people to read."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
