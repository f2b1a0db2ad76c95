"""Model profiles: what an OpenAI-compatible endpoint accepts, since many refuse parameters that others need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mia.types import Want


@dataclass(frozen=True)
class Profile:
    """The dialect of one kind of endpoint; `extra` goes into every request as it is.

    `keeps_stop` says that a reply holds the stop string that ended it, so that a missing one was not said.
    `tokenize` is the field of /tokenize that takes the text; empty where there is no such route.
    """

    stop: bool = True
    sampling: bool = True
    seed: bool = True
    schema: bool = True
    length: str = "max_tokens"
    keeps_stop: bool = False
    tokenize: str = "prompt"
    extra: dict[str, Any] = field(default_factory=dict)

    def parameters(self, want: Want, max_tokens: int) -> dict[str, Any]:
        """Return the request parameters for one reply, leaving out what the endpoint refuses."""
        body: dict[str, Any] = {self.length: max_tokens, **self.extra}
        if self.sampling:
            body |= {"temperature": want.temperature, "top_p": want.top_p}
        if self.seed and want.seed is not None:
            body["seed"] = want.seed
        if self.stop and want.stop:
            body["stop"] = list(want.stop)
        if self.schema and want.schema_ is not None:
            schema = {"name": "reply", "schema": want.schema_, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


PROFILES = {
    # Thoughts must come back inside the text and stop strings with it: training sees both.
    "vllm": Profile(keeps_stop=True, extra={"include_stop_str_in_output": True}),
    # llama.cpp samples from the 40 likeliest tokens unless told not to; other endpoints do not.
    "llamacpp": Profile(
        tokenize="content",
        extra={"cache_prompt": True, "top_k": 0, "min_p": 0.0, "reasoning_format": "none"},
    ),
    "openai": Profile(length="max_completion_tokens", tokenize=""),
    "openai-reasoning": Profile(
        stop=False, keeps_stop=True, sampling=False, seed=False, length="max_completion_tokens", tokenize=""
    ),
    "plain": Profile(seed=False, schema=False),
}


def recognise(owner: str, url: str) -> str:
    """Name the profile of an endpoint from the `owned_by` of its model list and its URL."""
    if owner in ("vllm", "llamacpp"):
        return owner
    return "openai" if "api.openai.com" in url else "plain"
