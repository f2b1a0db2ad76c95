"""An adapter on the disk, as PEFT stores it, and the probe prompts that tell whether a conversion kept it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mia.embedded.probes import PROBES
from mia.errors import InputError
from warm.from_gguf import PUBLIC_NAME, write_json
from warm.llama import TARGETS, Llama, Weights, rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PROMPTS = 8
_LISTED = 20
_LONGEST = 700  # tokens of a probe prompt
_LOOKED_AT = 500  # traces, which come in no order

Item = TypeVar("Item")


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


def check_unfinished(folder: Path) -> None:
    """Raise InputError if a folder that is to be trained into holds a finished adapter."""
    if (folder / WEIGHTS).exists():
        raise InputError(f"{folder} holds a finished adapter.", remedy="Name another --out, or remove it.")


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
    for text, ids in _prompts(traces, tokenizer):
        with torch.no_grad():
            last = model.hidden(torch.tensor(ids[:1]), torch.tensor([ids[1:]]))[0, -1:]
            top = model.log_probabilities(last)[0].topk(_LISTED)
        listed = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        prompts.append({"text": text, "tokens": ids, "top": [[token, round(told, 5)] for token, told in listed]})
    write_json(folder / PROBES, {"prompts": prompts})


def _prompts(traces: list[dict[str, Any]], tokenizer: Any) -> list[tuple[str, list[int]]]:
    """Return prompts and their tokens, of every role and every turn of its dialogues in turn, none very long."""
    found: dict[str, dict[int, dict[str, list[int]]]] = defaultdict(lambda: defaultdict(dict))
    for trace in traces[:_LOOKED_AT]:
        messages = trace["messages"]
        for number, message in enumerate(messages):
            if message["role"] == "assistant" and message["learn"]:
                text = tokenizer.apply_chat_template(messages[:number], tokenize=False, add_generation_prompt=True)
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                if len(ids) <= _LONGEST:
                    found[trace["role"]][number][text] = ids
    turns = (_in_turn(prompts.items() for _, prompts in sorted(role.items())) for _, role in sorted(found.items()))
    return list(islice(_in_turn(turns), _PROMPTS))


def _in_turn(series: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """Yield the first of each series, then the second of each that has one, and so on."""
    ended = object()
    for row in zip_longest(*series, fillvalue=ended):
        yield from (item for item in row if item is not ended)  # type: ignore[misc]
