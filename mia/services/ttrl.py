"""What Serve does while a Planner learns at test time: memory for its prompts, rollouts kept, chosen, consolidated."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from mia.errors import StorageError
from mia.executor.render import FORMATS
from mia.judge.truth import TruthJudge
from mia.memory.exploration import correct
from mia.memory.threads import waited
from mia.planner.memories import memory_block
from mia.prompts import template
from mia.runtime.files import write_whole
from mia.services.plan_router import PlanMemory, PlanRouter
from mia.services.steps import Steps
from mia.text import to_json
from mia.transcript import record
from mia.types import Episode, Key, Label, Recall, Truth
from mia.wire import memory_files
from mia.wire.agent_serve import (
    ConsolidateReply,
    EvaluateReply,
    PanelSaveRequest,
    RecallReply,
    SaveReply,
    attempts,
    report_line,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from pathlib import Path

    from mia.memory.manager import Manager
    from mia.protocols import Encoder
    from mia.runtime.settings import AgentServiceSettings
    from mia.types import PlanPair, Question
    from mia.wire.agent_serve import SaveRequest, StepRequest
    from mia.wiring import AgentRoles

_AT_ONCE = 8  # questions that are chosen for at once
_TRUTH = "truth"
_NUMBERED = re.compile(r"^\s*\d+[.)]", re.MULTILINE)


class Chosen(NamedTuple):
    """How many choices were made for a question, and the line that each leaves, by file."""

    choices: int
    lines: dict[str, dict[str, Any]]


class TestTime:
    """Memory, rollouts and choices of one service."""

    def __init__(self, settings: AgentServiceSettings, roles: AgentRoles, memory: Manager, encoder: Encoder) -> None:
        self._settings = settings
        self._roles = roles
        self._memory = memory
        self.steps = Steps(memory, settings.run)
        pairs = PlanMemory(memory.bank.storage, encoder, exclude_same_question=settings.benchmark)
        self._router = PlanRouter(roles.models, pairs, settings.turn_seconds)
        self._report = Report(settings.output)
        before, _, after = template(FORMATS[settings.format].revise).partition("{{plan}}")
        self._revision = before, after

    async def recall(self, question: Question) -> RecallReply:
        """Return the memories that may help with a question."""
        recall = await self._memory.recall(question)
        budget, counter = self._roles.speaker
        return RecallReply(prompt=memory_block(recall, budget.memory_tokens, counter), indices=list(recall.ids))

    async def save(self, request: SaveRequest | PanelSaveRequest, question: Question) -> SaveReply:
        """Keep a rollout until its step is consolidated, once."""
        storage = self._memory.bank.storage
        found = await waited(None, storage.fetch, request.used_memory_indices)
        shown = [(found[id_], 0.0) for id_ in dict.fromkeys(request.used_memory_indices) if id_ in found]
        recall = Recall(
            successes=tuple(entry for entry in shown if entry[0].correct),
            failures=tuple(entry for entry in shown if not entry[0].correct),
        )
        tried = attempts(request, self._revision)
        if isinstance(request, PanelSaveRequest) and request.truth:
            await waited(None, storage.keep_note, _TRUTH, question.id, json.dumps(request.truth), "")

        def rollout(run: str, step: int, number: int = request.digest) -> Episode:
            key = Key(run=run, step=step, question_id=question.id, rollout=number)
            return Episode(key=key, question=question, recall=recall, attempts=tried)

        if request.run is None or request.step is None or request.rollout is None:
            await self.steps.explore(rollout)
        else:
            await self._memory.explore(rollout(request.run, request.step, request.rollout))
        return SaveReply()

    async def evaluate(self, step: StepRequest | None) -> EvaluateReply:
        """Choose one rollout of each question that waits, and write it to the report."""
        groups = await self.steps.waiting(step)
        if self._settings.mode == "ttrl-no-truth":
            count = await self._grade(groups)
        else:
            planned = [kept for group in groups if (kept := [each for each in group if each.attempts[0].plan.text])]
            pairs = await self._router.pairs([group[0].question for group in planned])
            at_once = asyncio.Semaphore(_AT_ONCE)
            choosing = [self._choose(group, some, at_once) for group, some in zip(planned, pairs, strict=True)]
            count = 0
            for chosen in await _all(choosing):
                await waited(None, self._report.add, chosen.lines)
                count += chosen.choices
        return EvaluateReply(processed_count=count, message=f"{count} choices, {len(groups)} question(s)")

    async def consolidate(self, step: StepRequest | None) -> ConsolidateReply:
        """Make memories of what waits."""
        done = await self.steps.commit(step)
        return ConsolidateReply(saved_positives=done.successes, saved_negatives=done.failures)

    async def write_files(self) -> SaveReply:
        """Write the memory as the released code does, each file whole or not at all."""
        await waited(None, self._write_files)
        return SaveReply()

    def _write_files(self) -> None:
        storage = self._memory.bank.storage
        folder = self._settings.output
        _write(folder / "workflow_memory.jsonl", memory_files.workflow_file(reversed(storage.list(None))))
        if self._settings.mode != "ttrl-no-truth":
            _write(folder / "plan_memory.jsonl", memory_files.plan_file(storage.pairs()))

    async def _choose(self, group: Sequence[Episode], pairs: Sequence[PlanPair], at_once: asyncio.Semaphore) -> Chosen:
        """Let the Router choose among all rollouts, and among those without a revised plan."""
        question = group[0].question
        plans = [episode.attempts[0].plan.text for episode in group]
        plain = [place for place, episode in enumerate(group) if len(episode.attempts) == 1]
        async with at_once:
            routed = await self._router.choose(question, pairs, plans)
            few = None
            if plain:
                few = await self._router.choose(question, pairs, [plans[place] for place in plain])
        by_length = sorted(range(len(group)), key=lambda place: _length(plans[place]))
        chosen = {
            "choice": routed or 0,
            "choice-few-reflect": plain[few or 0] if plain else routed or 0,
            "random": _draw(group),
            "first": 0,
            "short": by_length[0],
            "long": by_length[-1],
        }
        lines = {
            f"evaluated-{name}.jsonl": report_line(group[place], record(group[place]), unrouted=routed is None)
            for name, place in chosen.items()
        }
        return Chosen(1 + bool(plain), lines)

    async def _grade(self, groups: Sequence[Sequence[Episode]]) -> int:
        """Take a rollout that reviewers approved of each question, and score it by the truth, for the report alone."""
        for group in groups:
            approved = [episode for episode in group if correct(episode)] or group
            episode = approved[_draw(approved)]
            note = await waited(None, self._memory.bank.storage.note, _TRUTH, episode.question.id)
            key = {episode.question.id: Truth(answers=tuple(json.loads(note)))} if note else {}
            judge = TruthJudge(key, self._roles.models if self._settings.judge == "truth" else None)
            verdict = await judge.judge(episode.question, episode.attempts[-1])
            reviewed = Label.CORRECT if correct(episode) else Label.INCORRECT
            graded = {"judgement": verdict.label.value, "judgement_nogt": reviewed.value}
            line = report_line(episode, record(episode), **graded)
            await waited(None, self._report.add, {"evaluated.jsonl": line})
        return len(groups)


class Report:
    """Files of choices, a line a question of a step: one that is there already is not written again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def add(self, lines: Mapping[str, dict[str, Any]]) -> None:
        """Add a line to each of the files named; on disk when this returns. Raises StorageError."""
        with self._lock:
            for name, line in lines.items():
                path = self._folder / name
                try:
                    self._add(path, line)
                except (OSError, ValueError, KeyError) as error:
                    raise _unusable(path, error) from error

    def _add(self, path: Path, line: dict[str, Any]) -> None:
        group = line["key"].rpartition("/")[0]
        if path.name not in self._known:
            self._known[path.name] = self._open(path)
        if group in self._known[path.name]:
            return
        with path.open("ab") as file:
            file.write(to_json(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._known[path.name].add(group)

    def _open(self, path: Path) -> set[str]:
        """Return the groups that a file tells of, and cut off what a killed process left of a line."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open("rb+") as file:
            lines = [line for line in file if line.endswith(b"\n")]
            file.truncate(sum(map(len, lines)))
        return {json.loads(line)["key"].rpartition("/")[0] for line in lines}


async def _all(choosing: Sequence[Coroutine[Any, Any, Chosen]]) -> list[Chosen]:
    """Wait for all, so that none goes on after the answer, then raise the first error if there was one."""
    done = await asyncio.gather(*choosing, return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in done if isinstance(outcome, Chosen)]


def _length(plan: str) -> tuple[int, int]:
    """Return how long a plan is: numbered steps, then words."""
    return len(_NUMBERED.findall(plan)), len(plan.split())


def _draw(group: Sequence[Episode]) -> int:
    """Return a place that looks random and is the same each time for the same group."""
    key = group[0].key
    digest = hashlib.sha256(f"{key.run}/{key.step}/{key.question_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % len(group)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> StorageError:
    return StorageError(f"{path} cannot be written: {error}.", remedy="Set TTRL_SAVE to a folder with free space.")
