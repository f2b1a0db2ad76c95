"""Whether merged weights compute what the trainer computed, told by the next tokens of its probe prompts."""

from __future__ import annotations

import asyncio
import math
import os
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, ValidationError

from mia.embedded.instance import Instance
from mia.errors import InputError
from mia.runtime.http import Service
from mia.runtime.settings import ModelServiceSettings, load

if TYPE_CHECKING:
    from pathlib import Path

PROBES = "probe.json"
LEAST = 0.01
# Nats between a merge and its trainer. Q8_0 weights and llama.cpp's 8-bit activations account for up to 0.5 on tokens
# of a few percent, as measured on the 135M model; wrongly ordered rows were off by 2.4 and more, the bare base by 20.
BOUND = 1.0

_LISTED = 1000
_WHOLE = 'root ::= "a"'  # llama.cpp lists no probabilities beside part of a character; they are those without a grammar
_LEAST_WINDOW = 512
_SECONDS = 120.0


class Probe(BaseModel):
    """A prompt and its likeliest next tokens with their log-probabilities, as the trainer computed them."""

    text: str
    tokens: list[int] = Field(min_length=1)
    top: list[tuple[int, float]] = Field(min_length=1)


class Probes(BaseModel):
    """The file `probe.json` of an adapter."""

    prompts: list[Probe] = Field(min_length=1)


def check(weights: Path, adapter: Path) -> float:
    """Return how far merged weights, as they are served, are from what the trainer computed, in nats.

    It is the largest difference between two log-probabilities of a next token, over the probe prompts of the adapter
    and their tokens that the trainer gave a probability above `LEAST`.

    Raises:
        ConfigError: xllamacpp is missing, or a prompt is longer than the model's window.
        InputError: the probes or the weights cannot be read, or the tokenizer is another than the trainer's.
        UpstreamError: llama.cpp does not answer.
    """
    path = adapter / PROBES
    try:
        probes = Probes.model_validate_json(path.read_bytes()).prompts
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", remedy="Copy the adapter again.") from error
    except ValidationError as error:
        told = error.errors()[0]["msg"]
        remedy = "Copy the adapter again; scripts/warm_start.py writes them with it."
        raise InputError(f"{path} does not hold probe prompts: {told}.", remedy=remedy) from error
    return asyncio.run(_largest(weights, probes))


async def _largest(weights: Path, probes: list[Probe]) -> float:
    window = max(_LEAST_WINDOW, *(len(probe.tokens) + 1 for probe in probes))
    settings = load(ModelServiceSettings, slots=1, window=window)
    instance = Instance(weights, settings.threads or len(os.sched_getaffinity(0)), settings)
    model = Service("model", await instance.address(), token=settings.token)
    try:
        return max([await _difference(model, probe) for probe in probes])
    finally:
        await model.aclose()


async def _difference(model: Service, probe: Probe) -> float:
    """Return the largest difference of one probe; a token that is not even listed counts as the least one that is."""
    text = {"content": probe.text, "add_special": False, "parse_special": True}
    tokens = (await model.post("/tokenize", text, deadline=_SECONDS))["tokens"]
    if tokens != probe.tokens:
        raise InputError(
            f"llama.cpp reads a probe prompt as other tokens than the trainer did: {probe.text[:80]!r}.",
            remedy="Train with the tokenizer of the base that is served.",
        )
    request = {"prompt": probe.tokens, "n_predict": 1, "n_probs": _LISTED, "grammar": _WHOLE}
    answer = await model.post("/completion", request, deadline=_SECONDS)
    listed = answer["completion_probabilities"][0]["top_logprobs"]
    found = {token["id"]: token["logprob"] for token in listed}
    least = min(found.values())
    return max(
        (abs(found.get(token, least) - told) for token, told in probe.top if math.exp(told) > LEAST), default=0.0
    )
