"""Every setting of every process, each declared once, read from the environment or a `.env` file.

This is the only module that reads the environment. Unknown `MIA_*` names are refused, so a typing mistake cannot pass
for a default.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from dotenv import dotenv_values
from pydantic import AliasChoices, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mia.errors import ConfigError

DOTENV = ".env"
SMALL = "smollm2"
SNIPPET = 30  # words: of a passage of the world facts the sentence that was asked for and one or two beside it

_log = logging.getLogger(__name__)

S = TypeVar("S", bound="Settings")

Port = Annotated[int, Field(ge=0, le=65535)]
Profile = Literal["auto", "vllm", "llamacpp", "openai", "openai-reasoning", "plain"]


def _named(*names: str, default: Any, about: str, **constraints: Any) -> Any:
    """Declare a setting by its environment names, the first being the one to document, and what it is about."""
    return Field(default, validation_alias=AliasChoices(*names), description=about, **constraints)


class Settings(BaseSettings):
    """What all processes share."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_file=DOTENV, env_ignore_empty=True, validate_default=True
    )


class ListeningSettings(Settings):
    """Where a server listens, and whom it lets in."""

    host: str = _named("HOST", default="127.0.0.1", about="address to listen on")
    port: Port = _named("PORT", default=0, about="port to listen on; 0 takes a free one")
    token: SecretStr | None = _named("MIA_TOKEN", default=None, about="bearer token that services ask for and send")


class ServiceSettings(ListeningSettings):
    """What every HTTP service of ours has."""

    max_request_mb: float = _named("MIA_MAX_REQUEST_MB", default=32.0, gt=0, about="largest request body, in MB")
    max_running: int = _named("MIA_MAX_RUNNING", default=64, ge=1, about="requests at once")
    max_waiting: int = _named("MIA_MAX_WAITING", default=256, ge=0, about="requests that may wait; the rest get 429")
    drain_seconds: float = _named(
        "MIA_DRAIN_SECONDS", default=20.0, ge=0, about="time for requests in flight at the end"
    )


class SearchServiceSettings(ServiceSettings):
    """Offline search over a corpus of JSON lines (`python -m local_search`)."""

    port: Port = _named("SEARCH_PORT", "PORT", default=8001, about="port to listen on; 0 takes a free one")
    corpus: Path = _named(
        "CORPUS_PATH", default=Path("data/worldfacts/corpus.jsonl"), about="JSON lines with id and contents, or .gz"
    )
    index: Path = _named("INDEX_PATH", default=Path("runs/index"), about="folder of the search index")
    k1: float = _named("MIA_BM25_K1", default=0.9, gt=0, about="BM25 term saturation")
    b: float = _named("MIA_BM25_B", default=0.4, ge=0, le=1, about="BM25 length normalisation")
    language: str = _named(
        "MIA_SEARCH_LANGUAGE", default="auto", about="language of the corpus: english, french, ...; none; or auto"
    )
    workers: int = _named("MIA_SEARCH_WORKERS", default=2, ge=1, about="processes that build an index")
    threads: int = _named("MIA_SEARCH_THREADS", default=2, ge=1, about="threads that search")
    seconds: float = _named("MIA_SEARCH_SECONDS", default=30.0, gt=0, about="deadline of one request")
    answers: int = _named("MIA_SEARCH_ANSWERS", default=10_000, ge=0, about="answers kept for the same query again")


class ModelServiceSettings(ListeningSettings):
    """The small model server of one machine (`mia serve model`)."""

    port: Port = _named("MODEL_PORT", "PORT", default=8000, about="port to listen on; 0 takes a free one")
    model: str = _named("MIA_MODEL", default=SMALL, about="smollm2, a .gguf file, or a Hugging Face name")
    folder: Path = _named("MIA_MODELS", default=Path("models"), about="folder of model files")
    adapters: str = _named(
        "MIA_ADAPTERS", default="auto", about="auto: those that belong to the model; none; or role=folder[,role=folder]"
    )
    slots: int = _named("MIA_MODEL_SLOTS", default=4, ge=1, about="requests at once to each of the weights")
    window: int = _named("MIA_WINDOW", default=8192, ge=512, about="tokens per request")
    threads: int = _named("MIA_MODEL_THREADS", default=0, ge=0, about="CPU threads for each of the weights; 0: all")


class RoleSettings(Settings):
    """How the roles are played: where the models are, what they may spend, what is remembered."""

    home: Path = _named("MIA_HOME", default=Path("runs"), about="folder of runs")

    model: str = _named(
        "MIA_MODEL", default=SMALL, about="smollm2, a .gguf file, a Hugging Face name, or the URL of a server"
    )
    model_port: Port = _named("MODEL_PORT", default=8000, about="where `mia serve model` listens")
    model_name: str = _named(
        "MIA_MODEL_NAME", default="", about="which of a server's models, for roles that it serves none by name for"
    )
    model_key: SecretStr | None = _named("MIA_MODEL_KEY", default=None, about="key for model servers on other machines")
    openai_key: SecretStr | None = _named(
        "OPENAI_API_KEY", default=None, about="key for api.openai.com, sent nowhere else"
    )
    window: int = _named("MIA_WINDOW", default=0, ge=0, about="tokens of the model's window; 0 asks the server")
    profile: Profile = _named("MIA_PROFILE", default="auto", about="dialect of the endpoint")
    vision: bool = _named("MIA_VISION", default=False, about="whether the model reads images")
    planner_url: str = _named("MIA_PLANNER_URL", default="", about="a model of its own for the Planner")
    executor_url: str = _named("MIA_EXECUTOR_URL", "AGENT_URL", default="", about="a model of its own for the Executor")
    judge_url: str = _named("MIA_JUDGE_URL", "JUDGE_URL", default="", about="a model of its own for the Judge")
    manager_url: str = _named("MIA_MANAGER_URL", default="", about="a model of its own for the Memory Manager")
    planner_model: str = _named(
        "MIA_PLANNER_MODEL",
        default="",
        about="the name of the Planner's model at its server; empty: planner, if served",
    )
    executor_model: str = _named(
        "MIA_EXECUTOR_MODEL", default="", about="the same for the Executor; empty: executor, if served"
    )
    judge_model: str = _named("MIA_JUDGE_MODEL", default="", about="the same for the Judge; empty: judge, if served")
    manager_model: str = _named(
        "MIA_MANAGER_MODEL", default="", about="the same for the Memory Manager; empty: manager, if served"
    )

    search_url: str = _named(
        "MIA_SEARCH_URL", "SERVICE_URL", default="http://127.0.0.1:8001", about="base URL of a /retrieve service"
    )
    topk: int = _named("MIA_TOPK", default=3, ge=1, le=50, about="passages per query")
    snippet: int = _named(
        "MIA_SNIPPET_WORDS",
        default=-1,
        ge=-1,
        about=f"words shown of a passage, the best matching sentences; 0: all; -1: {SNIPPET} for {SMALL}, else all",
    )
    token: SecretStr | None = _named("MIA_TOKEN", default=None, about="bearer token that services ask for and send")

    judge: Literal["truth", "exact", "none"] = _named(
        "MIA_JUDGE", default="exact", about="exact match alone, or truth: a model too"
    )
    max_replans: int = _named("MAX_REFLECTION_TIMES", default=1, ge=0, le=1, about="revised plans per question")
    replan_if_unclear: bool = _named(
        "MIA_REPLAN_IF_UNCLEAR", default=True, about="what a reflection without yes or no means"
    )
    temperature: float = _named(
        "MIA_TEMPERATURE", default=0.0, ge=0, about="sampling temperature of Planner and Executor"
    )
    max_calls: int = _named("MAX_LLM_CALL_PER_RUN", default=8, ge=1, about="replies of the Executor per plan")
    plan_tokens: int = _named(
        "MIA_PLAN_TOKENS", default=0, ge=0, about="longest reply of the Planner; 0 takes an eighth of the window"
    )
    turn_tokens: int = _named(
        "MIA_TURN_TOKENS", default=0, ge=0, about="longest reply of the Executor; 0 takes an eighth of the window"
    )
    observation_tokens: int = _named(
        "MIA_OBSERVATION_TOKENS", default=0, ge=0, about="longest observation; 0 takes an eighth of the window"
    )
    memory_tokens: int = _named(
        "MIA_MEMORY_TOKENS", default=0, ge=0, about="room for recalled memories; 0 takes an eighth of the window"
    )
    format: Literal["mia", "release-train", "release-inference", "release-serve"] = _named(
        "MIA_FORMAT", default="mia", about="how the Executor's dialogue is put; release-* for published weights"
    )
    turn_seconds: float = _named("MIA_TURN_SECONDS", default=120.0, gt=0, about="deadline of one reply or call")
    episode_seconds: float = _named(
        "MIA_EPISODE_SECONDS", default=600.0, gt=0, about="deadline of one question's execution"
    )

    memory: Literal["bank", "none"] = _named("MIA_MEMORY", default="bank", about="bank, or none")
    memory_path: Path = _named("MIA_MEMORY_PATH", default=Path("runs/memory.sqlite"), about="file of the memory bank")
    score: Literal["release", "three_term", "gated"] = _named(
        "MIA_MEMORY_SCORE", default="three_term", about="how memories are ranked"
    )
    recall_each: int = _named("MIA_RECALL_EACH", default=2, ge=0, about="successes and failures shown, each")
    recall_floor: float = _named(
        "MIA_RECALL_FLOOR", default=0.3, ge=-1, le=1, about="least similarity of a memory shown"
    )
    compression: Literal["model", "extractive", "none"] = _named(
        "MIA_COMPRESSION", default="extractive", about="how an episode becomes a workflow; none keeps its trace"
    )
    caption: Literal["auto", "off"] = _named(
        "MIA_CAPTION", default="auto", about="whether the vision model captions images that come without a caption"
    )
    categories: Literal["model", "off"] = _named(
        "MIA_MEMORY_CATEGORIES", default="off", about="whether memories are compared within a question's category only"
    )
    encoder: str = _named(
        "MIA_ENCODER", default="static", min_length=1, about="static, hashed, or a Hugging Face name or folder"
    )
    encoder_device: str = _named(
        "MIA_ENCODER_DEVICE", default="cpu", min_length=1, about="where such a model runs: cpu, cuda, cuda:1 ..."
    )
    benchmark: bool = _named("MIA_BENCHMARK", default=False, about="hide memories made from the question itself")
    max_pixels: int = _named("MIA_MAX_PIXELS", default=448 * 448, ge=1024, about="images are shrunk to this area")

    @property
    def snippet_words(self) -> int:
        """Words of a passage that the Executor is shown; 0 shows all. The small model loses its way in whole ones."""
        if self.snippet >= 0:
            return self.snippet
        return SNIPPET if self.model == SMALL and not self.executor_url else 0

    @model_validator(mode="after")
    def _deadlines_nest(self) -> Self:
        if self.turn_seconds >= self.episode_seconds:
            raise ValueError("MIA_TURN_SECONDS must be less than MIA_EPISODE_SECONDS")
        return self


class MemoryServiceSettings(ServiceSettings, RoleSettings):
    """Memory and planning over HTTP (`mia serve memory`). Its names for models are the released ones, too."""

    port: Port = _named("MEMORY_PORT", "PORT", default=5000, about="port to listen on; 0 takes a free one")
    planner_url: str = _named(
        "MIA_PLANNER_URL", "PLAN_URL", default="", about="a model of its own for the Planner, usually ending in /v1"
    )
    manager_url: str = _named(
        "MIA_MANAGER_URL", "MEMORY_URL", default="", about="a model of its own for the Memory Manager"
    )
    compression: Literal["model", "extractive", "none"] = _named(
        "MIA_COMPRESSION", default="model", about="how an episode becomes a workflow; none keeps its trace"
    )
    cold_start: bool = _named(
        "MIA_COLD_START", default=False, about="whether the Manager's model plans while few memories are found"
    )
    memory_folder: Path = _named(
        "MEMORY_DIR", default=Path("runs/memory"), about="folder that /save_memory and /load_memory stay in"
    )


class AgentServiceSettings(ServiceSettings, RoleSettings):
    """The Executor for trainers, and the memory that they fill, over HTTP (`mia serve agent`)."""

    port: Port = _named("AGENT_PORT", "PORT", default=5000, about="port to listen on; 0 takes a free one")
    mode: Literal["train", "ttrl", "ttrl-no-truth", "streaming"] = _named(
        "MIA_AGENT_MODE", default="train", about="whom it serves: the training of Planners, or learning at test time"
    )
    parquet: str = _named("PARQUET_PATH", default="", about="data sets that hold the images, separated by commas")
    output: Path = _named("TTRL_SAVE", default=Path("runs/ttrl"), about="folder of memory files and of choices")
    run: str = _named(
        "MIA_AGENT_RUN", default="serve", min_length=1, about="run that rollouts belong to whose client names none"
    )
    trace_tokens: int = _named("MIA_TRACE_TOKENS", default=4096, ge=256, about="longest trace that a reply tells")
    manager_url: str = _named(
        "MIA_MANAGER_URL", "MEMORY_URL", default="", about="a model of its own for the Memory Manager and the Router"
    )
    max_running: int = _named("MIA_MAX_RUNNING", default=256, ge=1, about="requests at once")
    max_calls: int = _named("MAX_LLM_CALL_PER_RUN", default=20, ge=1, about="replies of the Executor per plan")
    compression: Literal["model", "extractive", "none"] = _named(
        "MIA_COMPRESSION", default="model", about="how an episode becomes a workflow; none keeps its trace"
    )
    benchmark: bool = _named("MIA_BENCHMARK", default=True, about="hide memories made from the question itself")


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
    try:
        given = {*os.environ, *dotenv_values(DOTENV)}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{DOTENV} cannot be read: {error}.", remedy="Make it UTF-8 text, or remove it.") from error
    unknown = sorted(name for name in given if name.startswith("MIA_") and name not in known_names())
    if unknown:
        raise ConfigError(f"Unknown setting {', '.join(unknown)}.", remedy="`mia config` lists the names that exist.")
    documented = names(kind)
    if "MEMORY_URL" in given and any("MEMORY_URL" in answers for answers in documented.values()):
        _log.warning("MEMORY_URL has had four meanings; here it is the Memory Manager's model, MIA_MANAGER_URL")
    options = {documented[name][0]: value for name, value in overrides.items() if value is not None}
    try:
        return kind(**options)
    except ValidationError as error:
        details = "; ".join(": ".join([*map(str, item["loc"]), item["msg"]]) for item in error.errors())
        raise ConfigError(
            f"Settings are not valid: {details}.", remedy="Correct the variable or option named."
        ) from error


def export(**values: str) -> None:
    """Set variables that native libraries read when they are loaded, unless the user has set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)
