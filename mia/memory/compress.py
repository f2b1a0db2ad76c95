"""A trajectory to a workflow: what was asked of which tool and what came back, short enough to be shown again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mia.errors import OutOfRoom, UpstreamError
from mia.prompts import fill
from mia.text import disarm
from mia.types import Message, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia.protocols import Models
    from mia.types import Episode, Said, Step

WORDS = 300
SYSTEM = "You write the memory of a research agent."

_UNSPACED = r"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_LONGEST_WORD = 16  # a longer run counts as several words: some scripts have no spaces, some pages no sense
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]{{1,{_LONGEST_WORD}}}")
_QUERY_WORDS, _TITLE_WORDS, _TITLES = 24, 10, 3
_LONGEST_SECRET = _QUERY_WORDS * _LONGEST_WORD  # nothing longer fits into a line
_HIDDEN = "[…]"

# "1." "1)" "(1)" "[1]" "1、" "１．" "①" "1:" "Step 1:" "第1步：", but neither "1.5" nor "12:30" nor "In 2020:".
_NUMBERED = re.compile(
    r"[\W_]{0,8}?(?:[①-⑳]|\d{1,2}[.．、)）\]]+(?!\d)|[^\s\d]{0,16} ?\d{1,2}[^\W\d]{0,2} ?[:：](?!\d)) ?(.*)"
)
_BULLET = re.compile(r"[-*+•·–] (.*)")
_DANGLING = re.compile(r"\n\d+\.\Z")


class Summary(NamedTuple):
    """What a memory tells of an episode. `final` is false for a stand-in, which is to be written again later."""

    text: str
    final: bool = True


class Compressor(Protocol):
    """Writes the summary of an episode."""

    async def compress(self, episode: Episode) -> Summary:
        """Return how the question was worked on."""
        ...


class ExtractiveCompressor:
    """Takes the steps from the record, without a model: each tool's query and the titles or the error it brought."""

    def __init__(self, words: int = WORDS) -> None:
        self._words = words

    async def compress(self, episode: Episode) -> Summary:
        """Return numbered steps, without the answer, of at most `words` words."""
        return Summary(self.extract(episode))

    def extract(self, episode: Episode) -> str:
        """Return the text of the summary; of a longer road the first steps and the end are kept."""
        lines = list(_lines(episode))
        room = self._words - count_words(lines[-1]) - 5  # its number, and how many steps are left out
        kept: list[str] = []
        for line in lines[:-1]:
            room -= count_words(line) + 1
            if room < 0:
                break
            kept.append(line)
        left_out = len(lines) - 1 - len(kept)
        end = f"{lines[-1]} ({left_out} steps left out)" if left_out else lines[-1]
        return "\n".join(f"{number}. {line}" for number, line in enumerate([*kept, end], 1))


class TraceCompressor:
    """Keeps the trace as it is, answer included: the paper's comparison "Trace/RAG"."""

    def __init__(self, trace: Callable[[Episode], str]) -> None:
        self._trace = trace

    async def compress(self, episode: Episode) -> Summary:
        """Return the trace."""
        return Summary(self._trace(episode))


class ModelCompressor:
    """Asks the Memory Manager's model for a workflow (paper section 3; at temperature 0).

    `trace` renders an episode within what the model's window holds. When the model is down, late, or says nothing
    that is a workflow, the extract stands in and the summary is not final.
    """

    def __init__(
        self,
        models: Models,
        trace: Callable[[Episode], str],
        words: int = WORDS,
        *,
        max_tokens: int = 2048,
        seconds: float = 100.0,
    ) -> None:
        self._models = models
        self._trace = trace
        self._words = words
        self._max_tokens = max_tokens
        self._seconds = seconds
        self._extractive = ExtractiveCompressor(words)

    async def compress(self, episode: Episode) -> Summary:
        """Return numbered steps, without the answer, of at most `words` words."""
        prompt = fill("compress", question=disarm(episode.question.text), trace=disarm(self._trace(episode)))
        want = Want(max_tokens=self._max_tokens, deadline=self._seconds, seed=episode.key.seed(0))
        try:
            said = await self._models.open("manager", SYSTEM).say(Message(role="user", text=prompt), want)
        except (UpstreamError, OutOfRoom):
            return Summary(self._extractive.extract(episode), final=False)
        secrets = _secrets(episode)
        steps = [secrets.sub(_HIDDEN, step) if secrets else step for step in read_steps(said)]
        if not steps:
            return Summary(self._extractive.extract(episode), final=False)
        workflow = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
        return Summary(_DANGLING.sub("", cut_words(workflow, self._words)))


def read_steps(said: Said) -> list[str]:
    """Read the steps of a reply, one line each, without their numbers, however those are written.

    What stands before the first numbered line is a preface and is dropped; a line without a number goes on with the
    step before it. Where no line has a number, bullets count as numbers. Prose has no steps. The last step of a reply
    that was cut off is not whole and is dropped.
    """
    lines = [" ".join(line.replace("**", "").split()) for line in said.text.splitlines() if re.search(r"\w", line)]
    begins = next((mark.match for mark in (_NUMBERED, _BULLET) if any(map(mark.match, lines))), None)
    if begins is None:
        return []
    steps: list[str] = []
    for line in lines:
        begun = begins(line)
        if begun:
            steps.append(begun.group(1))
        elif steps:
            steps[-1] = f"{steps[-1]} {line}"
    whole = steps if said.finish == "stop" else steps[:-1]
    return [step.strip() for step in whole if step.strip()]


def count_words(text: str) -> int:
    """Count words: runs without spaces, and each character of scripts that write none."""
    return sum(1 for _ in _WORD.finditer(text))


def cut_words(text: str, words: int) -> str:
    """Return the head of a text with at most so many words, stripped."""
    text = text.strip()
    for number, word in enumerate(_WORD.finditer(text)):
        if number == words:
            return text[: word.start()].rstrip()
    return text


def _lines(episode: Episode) -> Iterator[str]:
    secrets = _secrets(episode)

    def told(value: Any, words: int = _TITLE_WORDS) -> str:
        """Return a value in one short line that does not give the answer away."""
        text = " ".join(str(value).split())
        return cut_words(secrets.sub(_HIDDEN, text) if secrets else text, words)

    for number, attempt in enumerate(episode.attempts):
        if number:
            yield "plan again: the attempt so far was not enough"
        for step in attempt.trajectory.steps:
            if step.call:
                query = told(" | ".join(_leaves(step.call.arguments)), _QUERY_WORDS)
                yield f"{told(step.call.name)}: {query} -> {_outcome(step, told)}"
    yield f"end: {episode.final.trajectory.stop.value.replace('_', ' ') if episode.final else 'not begun'}"


def _outcome(step: Step, told: Callable[[str], str]) -> str:
    seen = step.observation
    if seen is None:
        return "nothing came back"
    if seen.error is not None:
        return f"error: {told(seen.error)}"
    titles = list(dict.fromkeys(told(source.title or source.id) for source in seen.sources))
    images = [f"{len(seen.images)} images"] if seen.images else []
    return "; ".join([*titles[:_TITLES], *images]) or "no sources"


def _leaves(value: Any) -> Iterator[str]:
    """Yield the values of a tool's arguments, whatever their shape."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield str(value)


def _secrets(episode: Episode) -> re.Pattern[str] | None:
    """Match what would give an answer away: answers, and titles that stand in one, unless the question names them."""
    trajectories = [attempt.trajectory for attempt in episode.attempts]
    answers = [" ".join(trajectory.answer.split()) for trajectory in trajectories if trajectory.answer]
    seen = [step.observation for trajectory in trajectories for step in trajectory.steps if step.observation]
    titles = {" ".join(source.title.split()) for observation in seen for source in observation.sources}
    named, given = episode.question.text.casefold(), "\n".join(answers).casefold()
    secret = {*answers, *(title for title in titles if title.casefold() in given)}
    wanted = sorted(
        (text for text in secret if text and len(text) <= _LONGEST_SECRET and text.casefold() not in named),
        key=lambda text: (-len(text), text),
    )
    if not wanted:
        return None
    return re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(map(re.escape, wanted))})(?![0-9A-Za-z])", re.IGNORECASE)
