"""What a run needs, looked at before anything is loaded: one line for each thing that is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from mia.errors import ConfigError, InputError, OutOfRoom, UpstreamError
from mia.planner.dialogue import DialoguePlanner, PlanBudget
from mia.runtime.http import Service
from mia.training.conversation import PolicyCounter
from mia.training.dataset import Questions
from mia.types import Key, Message, Question, Recall
from mia.wiring.trainers import planner_tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omegaconf import DictConfig

    from mia.training.config import Stage

_SECONDS = 10.0
_LONGEST = ("max_position_embeddings", "max_sequence_length", "n_positions")


def check(config: DictConfig, stage: Stage) -> None:
    """Look at files, lengths and services.

    Raises:
        ConfigError: with every fault found, one a line.
        InputError: a data file cannot be used.
    """
    faults = [*_model(Path(config.actor_rollout_ref.model.path), stage), *asyncio.run(_services(stage))]
    if faults:
        raise ConfigError("\n".join(faults), remedy="Mend that, then start again.")
    train, val = Questions(config.data.train_files), Questions(config.data.val_files)
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    asyncio.run(_prompts([*train.rows, *val.rows], tokenizer, stage))
    if len(train) < config.data.train_batch_size:
        raise ConfigError(
            f"{config.data.train_files} has {len(train)} questions, and a step takes {config.data.train_batch_size}.",
            remedy="Lower data.train_batch_size.",
        )


class _Measured:
    """A dialogue that is measured, not held."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._system = ""
        self.messages: tuple[Message, ...] = ()
        self.tokens = self.room = 0

    def open(self, role: str, system: str, history: Sequence[Message] = ()) -> _Measured:  # noqa: ARG002
        self._system = system
        return self

    async def say(self, message: Message, want: Any) -> Any:  # noqa: ARG002
        said = [{"role": "system", "content": self._system}, {"role": "user", "content": message.text}]
        text = self._tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        self.tokens = len(self._tokenizer.encode(text, add_special_tokens=False))
        raise OutOfRoom("measured")


async def _prompts(rows: Sequence[dict[str, Any]], tokenizer: Any, stage: Stage) -> None:
    """Refuse questions whose first prompt does not fit: their groups would be dropped, in every epoch anew."""
    long: list[tuple[int, str]] = []
    budget = PlanBudget(memory_tokens=stage.lengths.memory, retries=0)
    for row in rows:
        measured, question = _Measured(tokenizer), Question.model_validate_json(row["question"])
        planner = DialoguePlanner(measured, planner_tools(), budget, PolicyCounter(tokenizer))
        key = Key(run=stage.run, question_id=question.id)
        await planner.start(question, Recall.model_validate_json(row["recall"]), key).plan()
        if measured.tokens > stage.lengths.prompt:
            long.append((measured.tokens, question.id))
    if long:
        tokens, question_id = max(long)
        raise InputError(
            f"{len(long)} of {len(rows)} prompts are longer than mia.lengths.prompt ({stage.lengths.prompt}): "
            f"question {question_id} makes one of {tokens} tokens.",
            remedy="Raise mia.lengths.prompt, lower mia.lengths.memory, or take those questions out.",
        )


def _model(folder: Path, stage: Stage) -> Iterator[str]:
    """Tell what a local folder lacks; a name of the hub is left to the hub."""
    if not folder.exists() and len(folder.parts) == 2 and not folder.is_absolute():
        return
    if not (folder / "config.json").is_file():
        yield f"{folder} has no config.json, so it is no model. Set REF_MODEL_PATH; scripts/fetch_model.sh fetches one."
        return
    if not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        yield f"{folder} has no weights (*.safetensors). Fetch it again with scripts/fetch_model.sh."
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longest = next((settings[name] for name in _LONGEST if settings.get(name)), 0)
    needed = stage.lengths.prompt + stage.lengths.response
    if longest and needed > longest:
        yield f"mia.lengths add up to {needed} tokens and {folder.name} reads {longest}. Lower mia.lengths."


async def _services(stage: Stage) -> list[str]:
    asked = [
        ("The Executor's service", stage.executor_url, "/healthz", "Start Serve/agent.sh train, or correct PLAN_URL.")
    ]
    if stage.judge == "truth":
        asked.append(("The Judge's model", stage.judge_url, "/models", "Start a model, or correct JUDGE_URL."))
    faults = []
    for name, url, path, remedy in asked:
        service = Service(name, url, attempts=1)
        try:
            await service.get(path, deadline=_SECONDS)
        except UpstreamError:
            faults.append(f"{name} does not answer at {url or 'an empty URL'}. {remedy}")
        finally:
            await service.aclose()
    return faults
