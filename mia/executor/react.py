"""The ReAct loop: think, call a tool, observe, until an answer or a budget ends it."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mia.errors import OutOfRoom, UpstreamError
from mia.executor.arguments import fit
from mia.executor.render import Renderer, forced, mend
from mia.text import STOPS, Answer, Malformed, Prose, disarm, image_tokens, parse_turn
from mia.types import Event, EventKind, Failure, Observation, Step, StopReason, ToolCall, Trajectory, Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.protocols import Conversation, Listener, Models, TokenCounter, Tool
    from mia.types import Key, Message, Plan, Question, Said

_TEMPLATE = 64  # tokens that a chat template puts around the messages of two turns


@dataclass(frozen=True)
class Budget:
    """What one question may spend.

    `calls` counts the model's replies to one plan and `mistakes` those among them that could not be read; `seconds` is
    from the first plan to the end, the continuation after a revised plan included; tokens are per turn or observation.
    """

    calls: int = 20
    mistakes: int = 2
    turn_tokens: int = 1024
    observation_tokens: int = 1024
    turn_seconds: float = 120.0
    seconds: float = 600.0
    temperature: float = 0.0


class ReactExecutor:
    """An Executor that talks to a model and calls tools itself."""

    def __init__(
        self,
        models: Models,
        tools: Sequence[Tool],
        budget: Budget,
        counter: TokenCounter,
        listener: Listener,
        format: str = "mia",  # noqa: A002
    ) -> None:
        self._models = models
        self._tools = {tool.spec.name: tool for tool in tools}
        self._budget = budget
        self._counter = counter
        self._listener = listener
        self._render = Renderer([tool.spec for tool in tools], format)

    def start(self, question: Question, key: Key) -> ReactExecution:
        """Open the dialogue of one question."""
        return self.resume(question, (), key)

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> ReactExecution:
        """Go on with a dialogue held elsewhere."""
        conversation = self._models.open("executor", self._render.system, messages)
        return ReactExecution(
            question, key, conversation, self._tools, self._budget, self._counter, self._listener, self._render
        )


class ReactExecution:
    """One question's dialogue with the Executor."""

    def __init__(  # noqa: PLR0913  (made by ReactExecutor alone)
        self,
        question: Question,
        key: Key,
        conversation: Conversation,
        tools: dict[str, Tool],
        budget: Budget,
        counter: TokenCounter,
        listener: Listener,
        render: Renderer,
    ) -> None:
        self._question = question
        self._key = key
        self._conversation = conversation
        self._tools = tools
        self._budget = budget
        self._counter = counter
        self._listener = listener
        self._render = render
        self._replies = sum(message.role == "assistant" for message in conversation.messages)
        self._calls: Counter[str] = Counter()
        self._ends = math.inf

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, without the system message."""
        return tuple(message for message in self._conversation.messages if message.role != "system")

    async def carry_out(self, plan: Plan) -> Trajectory:
        """Carry a plan out. Without a plan nothing is searched: an empty one is a malformed turn, or one cut off."""
        steps: list[Step] = []
        answer, failure = None, None
        self._ends = min(self._ends, time.monotonic() + self._budget.seconds)
        try:
            stop, answer = await self._loop(plan, steps)
        except OutOfRoom:
            stop = StopReason.TOKEN_LIMIT
        except UpstreamError as error:
            # A request that ended because the episode's own time was up says nothing about the service.
            stop = StopReason.TIME_LIMIT
            if time.monotonic() < self._ends:
                stop, failure = StopReason.INFRA_ERROR, Failure.model_validate(error.facts())
        return Trajectory(steps=tuple(steps), answer=answer, stop=stop, failure=failure)

    async def _loop(self, plan: Plan, steps: list[Step]) -> tuple[StopReason, str | None]:
        """Take turns until one ends it; `steps` grows as they are taken, so that an exception loses none."""
        if not plan.text:
            return StopReason.TOKEN_LIMIT if plan.said.finish == "length" else StopReason.MALFORMED, None
        mistakes = 0
        message = self._render.revision(plan) if self._replies else self._render.opening(self._question, plan)
        for left in range(self._budget.calls, 0, -1):
            last = self._last_turn(message, left)
            said = await self._say(forced(message) if last else message)
            turn = parse_turn(said.text)
            steps.append(Step(said=said, call=turn if isinstance(turn, ToolCall) else None))
            if isinstance(turn, Answer):
                return last or StopReason.ANSWERED, turn.text
            if last or said.finish == "aborted":
                return last or StopReason.ABORTED, None
            seen = await self._observe(turn, said)
            steps[-1] = steps[-1].model_copy(update={"observation": seen})
            mistakes += not isinstance(turn, ToolCall)
            if mistakes > self._budget.mistakes:
                return StopReason.MALFORMED if isinstance(turn, Malformed) else StopReason.NO_ANSWER, None
            message = self._render.observation(seen)
        return StopReason.CALL_LIMIT, None

    def _last_turn(self, message: Message, left: int) -> StopReason | None:
        """Name the budget that makes the next reply the last one, if there is one."""
        if left == 1:
            return StopReason.CALL_LIMIT
        if time.monotonic() + self._budget.turn_seconds >= self._ends:
            return StopReason.TIME_LIMIT
        now = self._counter.count(message.text) + image_tokens(message.images) + self._budget.turn_tokens
        then = self._budget.observation_tokens + self._final_turn
        return StopReason.TOKEN_LIMIT if self._conversation.room < now + then else None

    @property
    def _final_turn(self) -> int:
        """Tokens to keep for the turn that a full window forces, its observation's own text apart."""
        asking = forced(self._render.observation(Observation(text=""))).text
        return self._counter.count(asking) + self._budget.turn_tokens + _TEMPLATE

    async def _say(self, message: Message) -> Said:
        want = Want(
            max_tokens=self._budget.turn_tokens,
            temperature=self._budget.temperature,
            stop=STOPS,
            seed=self._key.seed(self._replies),
            deadline=max(0.0, min(self._budget.turn_seconds, self._ends - time.monotonic())),
        )
        said = await self._conversation.say(message, want)
        self._replies += 1
        self._emit(EventKind.SAID, said)
        return said

    async def _observe(self, turn: ToolCall | Malformed | Prose, said: Said) -> Observation:
        if isinstance(turn, ToolCall):
            self._emit(EventKind.CALLED, turn)
            seen = await self._call(turn)
        else:
            reason = "There is no tool call and no answer."
            if isinstance(turn, Malformed):
                reason = turn.reason
            elif said.thoughts and not turn.text:
                reason = "The reply held thoughts only; a tool call or an answer stands after them."
            if said.finish == "length":
                reason = f"The reply was cut off at {self._budget.turn_tokens} tokens. {reason}"
            seen = Observation(text=mend(reason), error=reason)
        self._emit(EventKind.OBSERVED, seen)
        return seen

    async def _call(self, call: ToolCall) -> Observation:
        tool = self._tools.get(call.name)
        if tool is None:
            reason = f"There is no tool named {disarm(call.name)[:64]!r}; there is: {', '.join(self._tools)}."
            return Observation(text=mend(reason), error=reason)
        if tool.spec.max_calls is not None and self._calls[call.name] >= tool.spec.max_calls:
            reason = f"{call.name} may be called {tool.spec.max_calls} time(s) per question, and it was."
            return Observation(text=mend(reason), error=reason)
        arguments = fit(call.arguments, tool.spec.parameters)
        if isinstance(arguments, str):
            reason = f"The call of {call.name} does not fit it: {disarm(arguments)}."
            return Observation(text=mend(reason), error=reason)
        self._calls[call.name] += 1
        started = time.monotonic()
        seen = await tool.call(arguments, max(0.0, min(self._budget.turn_seconds, self._ends - started)))
        return self._bounded(seen).model_copy(update={"seconds": time.monotonic() - started})

    def _bounded(self, seen: Observation) -> Observation:
        """Cut an observation to its budget; what its images show is of no use without its text, and the reverse."""
        text = self._counter.cut(disarm(seen.text), self._budget.observation_tokens)
        needed = image_tokens(seen.images) + self._counter.count(text) + self._final_turn
        if seen.images and needed > self._conversation.room:
            return Observation(text=f"[cut: the result and its {len(seen.images)} image(s) do not fit]")
        return seen.model_copy(update={"text": text})

    def _emit(self, kind: EventKind, payload: object) -> None:
        self._listener.on(Event(kind, self._key, time.time(), payload))
