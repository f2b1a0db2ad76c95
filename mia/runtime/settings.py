"""Every setting of every process, each declared once, read from the environment or a `.env` file.

This is the only module that reads the environment. Unknown `MIA_*` names are refused, so a typing mistake cannot pass
for a default.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from mia.errors import ConfigError

S = TypeVar("S", bound="Settings")

Port = Annotated[int, Field(ge=0, le=65535)]
Profile = Literal["auto", "vllm", "llamacpp", "openai", "openai-reasoning", "plain"]


def _named(*names: str, default: Any = ..., **constraints: Any) -> Any:
    """Declare a setting by its environment names, the first being the one to document."""
    return Field(default, validation_alias=AliasChoices(*names), **constraints)


class Settings(BaseSettings):
    """What all processes share."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_file=".env", env_ignore_empty=True, validate_default=True
    )


class ServiceSettings(Settings):
    """What every HTTP service has. Port 0 takes a free port."""

    host: str = _named("HOST", default="127.0.0.1")
    port: Port = _named("PORT", default=0)
    token: SecretStr | None = _named("MIA_TOKEN", default=None)
    max_request_mb: float = _named("MIA_MAX_REQUEST_MB", default=32.0, gt=0)
    max_running: int = _named("MIA_MAX_RUNNING", default=64, ge=1)
    max_waiting: int = _named("MIA_MAX_WAITING", default=256, ge=0)
    drain_seconds: float = _named("MIA_DRAIN_SECONDS", default=20.0, ge=0)


class SearchServiceSettings(ServiceSettings):
    """Offline search over a corpus of JSON lines (`python -m local_search`)."""

    port: Port = _named("SEARCH_PORT", "PORT", default=8001)
    corpus: Path = _named("CORPUS_PATH", default=Path("data/worldfacts/corpus.jsonl"))
    index: Path = _named("INDEX_PATH", default=Path("runs/index"))
    k1: float = _named("MIA_BM25_K1", default=0.9, gt=0)
    b: float = _named("MIA_BM25_B", default=0.4, ge=0, le=1)


class ModelServiceSettings(ServiceSettings):
    """The small model server of one machine (`mia serve model`)."""

    port: Port = _named("MODEL_PORT", "PORT", default=8000)
    model: str = _named("MIA_MODEL", default="smollm2")
    folder: Path = _named("MIA_MODELS", default=Path("models"))
    slots: int = _named("MIA_MODEL_SLOTS", default=4, ge=1)
    window: int = _named("MIA_WINDOW", default=4096, ge=512)
    threads: int = _named("MIA_MODEL_THREADS", default=0, ge=0)


class RoleSettings(Settings):
    """How the roles are played: where the models are, what they may spend, what is remembered."""

    home: Path = _named("MIA_HOME", default=Path("runs"))

    model: str = _named("MIA_MODEL", default="smollm2")
    model_port: Port = _named("MODEL_PORT", default=8000)
    model_name: str = _named("MIA_MODEL_NAME", default="")
    model_key: SecretStr | None = _named("MIA_MODEL_KEY", "OPENAI_API_KEY", default=None)
    profile: Profile = _named("MIA_PROFILE", default="auto")
    vision: bool = _named("MIA_VISION", default=False)
    planner_url: str = _named("MIA_PLANNER_URL", default="")
    executor_url: str = _named("MIA_EXECUTOR_URL", "AGENT_URL", default="")
    judge_url: str = _named("MIA_JUDGE_URL", "JUDGE_URL", default="")
    manager_url: str = _named("MIA_MANAGER_URL", default="")

    search_url: str = _named("MIA_SEARCH_URL", "SERVICE_URL", default="http://127.0.0.1:8001")
    topk: int = _named("MIA_TOPK", default=3, ge=1, le=50)
    token: SecretStr | None = _named("MIA_TOKEN", default=None)

    judge: Literal["truth", "exact", "none"] = _named("MIA_JUDGE", default="exact")
    max_replans: Literal[0, 1] = _named("MAX_REFLECTION_TIMES", default=1)
    replan_if_unclear: bool = _named("MIA_REPLAN_IF_UNCLEAR", default=True)
    temperature: float = _named("MIA_TEMPERATURE", default=0.0, ge=0)
    max_calls: int = _named("MAX_LLM_CALL_PER_RUN", default=8, ge=1)
    plan_tokens: int = _named("MIA_PLAN_TOKENS", default=512, ge=16)
    turn_tokens: int = _named("MIA_TURN_TOKENS", default=512, ge=16)
    observation_tokens: int = _named("MIA_OBSERVATION_TOKENS", default=512, ge=64)
    memory_tokens: int = _named("MIA_MEMORY_TOKENS", default=768, ge=0)
    turn_seconds: float = _named("MIA_TURN_SECONDS", default=120.0, gt=0)
    episode_seconds: float = _named("MIA_EPISODE_SECONDS", default=600.0, gt=0)

    memory: Literal["bank", "none"] = _named("MIA_MEMORY", default="bank")
    memory_path: Path = _named("MIA_MEMORY_PATH", default=Path("runs/memory.sqlite"))
    score: Literal["release", "three_term"] = _named("MIA_MEMORY_SCORE", default="three_term")
    recall_each: int = _named("MIA_RECALL_EACH", default=2, ge=0)
    recall_floor: float = _named("MIA_RECALL_FLOOR", default=0.3, ge=-1, le=1)
    compression: Literal["model", "extractive"] = _named("MIA_COMPRESSION", default="extractive")
    encoder: Literal["wordllama", "hashed"] = _named("MIA_ENCODER", default="wordllama")
    benchmark: bool = _named("MIA_BENCHMARK", default=False)
    max_pixels: int = _named("MIA_MAX_PIXELS", default=448 * 448, ge=1024)

    ROLE_URLS: ClassVar[dict[str, str]] = {role: f"{role}_url" for role in ("planner", "executor", "judge", "manager")}


def names(kind: type[Settings]) -> dict[str, tuple[str, ...]]:
    """Return the environment names that each setting of a process answers to, the documented one first."""
    found: dict[str, tuple[str, ...]] = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else []
        found[name] = tuple(choice for choice in choices if isinstance(choice, str))
    return found


@cache
def known_names() -> frozenset[str]:
    """Return every environment name that some setting answers to."""
    known: set[str] = set()
    pending: list[type[Settings]] = [Settings]
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        known.update(*names(kind).values())
    return frozenset(known)


def load(kind: type[S], **overrides: Any) -> S:
    """Read the settings of one process; `overrides` (None means not given) win over the environment.

    Raises:
        ConfigError: an unknown `MIA_*` name, or a value that does not fit, named with what would.
    """
    unknown = sorted(name for name in os.environ if name.startswith("MIA_") and name not in known_names())
    if unknown:
        raise ConfigError(f"Unknown setting {', '.join(unknown)}.", remedy="`mia config` lists the names that exist.")
    documented = names(kind)
    given = {documented[name][0]: value for name, value in overrides.items() if value is not None}
    try:
        return kind(**given)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigError(
            f"Settings are not valid: {details}.", remedy="Correct the variable or option named."
        ) from error


def export(**values: str) -> None:
    """Set variables that native libraries read when they are loaded, unless the user has set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)
