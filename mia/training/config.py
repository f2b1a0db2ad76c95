"""The `mia:` block of a training configuration, and the whole configuration: composed by Hydra, then checked."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import verl.trainer
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mia.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OVERLAYS = Path(__file__).parents[2] / "configs"
_LOOPS = Path(__file__).with_name("loops.yaml")
_VERL = Path(verl.trainer.__file__).parent / "config"
# Parts of verl's configuration that hold what other libraries take: any key is one.
# `mia` is checked by its own models.
_OPEN = {"mia", "override_config", "mixed_precision", "ray_init", "sampler_kwargs", "engine_kwargs"}
_DIALOGUE = 512  # tokens: what our own prompts and the chat template add to a dialogue after the first reply


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lengths(_Part):
    """Tokens of the Planner's dialogue: before the plan, of each reply, of what it is shown of a trace."""

    prompt: int = Field(24576, ge=64)
    memory: int = Field(2048, ge=0)
    reply: int = Field(2048, ge=8)
    trace: int = Field(1536, ge=32)
    observation: int = Field(512, ge=16)

    @property
    def response(self) -> int:
        """Everything after the prompt: plan, reflection and revised plan, and what is said between them."""
        return 3 * self.reply + self.trace + _DIALOGUE


class Groups(_Part):
    """What becomes of a group in which a rollout failed.

    `refill` takes another question; `again` tries the same one `retries` times more and then does without it. The run
    stops when more than `most_dropped` of the last 100 groups were dropped.
    """

    dropped: Literal["refill", "again"] = "refill"
    retries: int = Field(2, ge=0)
    most_dropped: float = Field(0.5, gt=0, le=1)
    poll_seconds: float = Field(0.2, gt=0)


class Alarms(_Part):
    """Signs of collapse; one that shows two steps in a row saves and stops the run. 0 switches a sign off."""

    entropy_below: float = Field(0.01, ge=0)
    format_below: float = Field(0.2, ge=0, le=1)
    at_limit_above: float = Field(0.9, ge=0, le=1)
    steps: int = Field(2, ge=1)


class Stage(_Part):
    """The `mia:` block."""

    stage: Literal["planner"]
    run: str = Field(min_length=1)
    executor_url: str = Field(min_length=1)
    judge: Literal["exact", "truth"] = "truth"
    judge_url: str = ""
    judge_model: str = ""
    turn_seconds: float = Field(600.0, gt=0)
    episode_seconds: float = Field(1800.0, gt=0)
    seeded: bool = False
    lengths: Lengths = Lengths()
    groups: Groups = Groups()
    alarms: Alarms = Alarms()


def stage_of(config: DictConfig) -> Stage:
    """Return the checked `mia:` block.

    Raises:
        ConfigError: a key is unknown, missing or does not fit; the message names it.
    """
    block = OmegaConf.to_container(config.mia, resolve=True) if "mia" in config else {}
    try:
        return Stage.model_validate(block)
    except ValidationError as error:
        told = "; ".join(f"mia.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(
            f"The training configuration does not fit: {told}.", remedy="Correct the key named."
        ) from error


def composed(stage: Path, overrides: Sequence[str]) -> DictConfig:
    """Compose a stage's YAML over verl's defaults with overlays (`+overlay=cpu`) and overrides, and check every key.

    The lengths that verl takes are derived from `mia.lengths`.

    Raises:
        ConfigError: a file is missing, a key is unknown or does not fit.
    """
    if not stage.is_file():
        raise ConfigError(f"There is no configuration {stage}.", remedy="Name the config.yaml of a stage folder.")
    paths = ",".join(f"file://{folder}" for folder in (_VERL, OVERLAYS))
    try:
        with initialize_config_dir(str(stage.parent.resolve()), version_base=None):
            config = compose(stage.stem, overrides=[f"hydra.searchpath=[{paths}]", *overrides])
        with initialize_config_dir(str(_VERL), version_base=None):
            default = compose("ppo_trainer")
        _refuse_unknown(config, default)
        _plug_in(config, stage_of(config))
        OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"The training configuration does not compose: {first}", remedy="Correct the key named."
        ) from error
    return config


def _plug_in(config: DictConfig, stage: Stage) -> None:
    """Put our parts into verl's configuration, and the lengths that ours say."""
    OmegaConf.set_struct(config, value=False)
    config.data.custom_cls = {"path": "pkg://mia.training.dataset", "name": "Questions"}
    config.data.max_prompt_length = stage.lengths.prompt
    config.data.max_response_length = stage.lengths.response
    rollout = config.actor_rollout_ref.rollout
    rollout.agent.agent_loop_config_path = str(_LOOPS)
    sampler = config.trainer.v1.sampler
    sampler.custom_sampler = {"path": "pkg://mia.training.sampler", "name": "CompleteGroups"}
    sampler.sampler_kwargs = stage.groups.model_dump() | {"rollouts": rollout.n}


def _refuse_unknown(config: DictConfig, default: DictConfig) -> None:
    """Refuse keys that verl does not have: it would ignore a typing mistake."""
    known = set(_keys(default))
    for key in _keys(config):
        if key in known or not {*key.split(".")}.isdisjoint(_OPEN):
            continue
        near = difflib.get_close_matches(key, known, 1)
        remedy = f"Did you mean {near[0]}?" if near else "verl's trainer/config/ppo_trainer.yaml lists the keys."
        raise ConfigError(f"Unknown key {key} in the training configuration.", remedy=remedy)


def _keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    content: Any = OmegaConf.to_container(config, resolve=False)
    stack = [(prefix, content)]
    while stack:
        where, node = stack.pop()
        for name, value in node.items():
            key = f"{where}{name}"
            yield key
            if isinstance(value, dict):
                stack.append((f"{key}.", value))
