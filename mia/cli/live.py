"""What a person sees while an episode runs: plan, steps, observations, reflection, answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.panel import Panel
from rich.text import Text

from mia.types import (
    Episode,
    Event,
    Failure,
    Observation,
    Plan,
    Recall,
    Reflection,
    Said,
    ToolCall,
    Trajectory,
    Verdict,
)

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 600


class LiveView:
    """A Listener that writes each event to a terminal as it happens."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on(self, event: Event) -> None:
        """Show an event."""
        match event.payload:
            case Plan() as plan:
                title = "revised plan" if plan.revises is not None else "plan"
                text = Text(plan.text or "(the model wrote no plan)")
                self._console.print(Panel(text, title=title, title_align="left"))
            case payload if label := _LABELS.get(type(payload)):
                self._console.print(Text.assemble((f"{label:>10}  ", "bold cyan"), _words(payload)), soft_wrap=True)


_LABELS: dict[type, str] = {
    Recall: "recall",
    Said: "executor",
    ToolCall: "call",
    Observation: "result",
    Reflection: "reflection",
    Trajectory: "answer",
    Verdict: "verdict",
    Failure: "failed",
    Episode: "memory",
}


def _words(payload: object) -> str:
    words = "offered to the memory"
    match payload:
        case Recall(successes=successes, failures=failures):
            found = f"{len(successes)} successes, {len(failures)} failures"
            words = found if successes or failures else "nothing similar yet"
        case Said(text=text, raw=raw):
            words = _short(text or raw)
        case ToolCall(name=name, arguments=arguments):
            words = _short(f"{name} {arguments}")
        case Observation(text=text):
            words = _short(text)
        case Reflection(replan=replan):
            words = "plan again" if replan else "the answer stands"
        case Trajectory(answer=answer, stop=stop):
            words = answer or f"none ({stop.value})"
        case Verdict(label=label, judge=judge, reason=reason):
            words = f"{label.value} (by {judge}) {reason}".strip()
        case Failure(service=service, message=message):
            words = f"{service}: {message}"
    return words


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
