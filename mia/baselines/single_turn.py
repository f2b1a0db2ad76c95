"""An Executor's dialogue of one turn, within the budgets and the failures of the loop's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mia.errors import OutOfRoom, UpstreamError
from mia.text import STOPS, Answer, Malformed, parse_turn
from mia.types import Event, EventKind, Failure, Step, StopReason, Trajectory, Want

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mia.executor.react import Budget
    from mia.protocols import Conversation, Listener
    from mia.types import Key, Message, Plan, Said

    # Returns the message to the model within so many seconds, and adds the steps that led to it to the list.
    Compose = Callable[[list[Step], float], Awaitable[Message]]

_CUT_SHORT = {"length": StopReason.TOKEN_LIMIT, "aborted": StopReason.ABORTED}


class SingleTurn:
    """One message and one reply, which is read as the loop reads a turn: an answer, or why there is none."""

    def __init__(
        self, conversation: Conversation, compose: Compose, key: Key, budget: Budget, listener: Listener
    ) -> None:
        self._conversation = conversation
        self._compose = compose
        self._key = key
        self._budget = budget
        self._listener = listener

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, without the system message."""
        return tuple(message for message in self._conversation.messages if message.role != "system")

    async def carry_out(self, plan: Plan) -> Trajectory:  # noqa: ARG002  (the role's)
        """Ask and answer; the plan is not looked at."""
        ends = time.monotonic() + self._budget.seconds
        steps: list[Step] = []
        answer, failure = None, None
        try:
            stop, answer = await self._ask(steps, ends)
        except OutOfRoom:
            stop = StopReason.TOKEN_LIMIT
        except UpstreamError as error:
            # A request that ended because the episode's own time was up says nothing about the service.
            stop = StopReason.TIME_LIMIT
            if time.monotonic() < ends:
                stop, failure = StopReason.INFRA_ERROR, Failure.model_validate(error.facts())
        return Trajectory(steps=tuple(steps), answer=answer, stop=stop, failure=failure)

    async def _ask(self, steps: list[Step], ends: float) -> tuple[StopReason, str | None]:
        message = await self._compose(steps, self._seconds(ends))
        want = Want(
            max_tokens=self._budget.turn_tokens,
            temperature=self._budget.temperature,
            stop=STOPS,
            seed=self._key.seed(0),
            deadline=self._seconds(ends),
        )
        said = await self._conversation.say(message, want)
        self._listener.on(Event(EventKind.SAID, self._key, time.time(), said))
        steps.append(Step(said=said))
        return _read(said)

    def _seconds(self, ends: float) -> float:
        return max(0.0, min(self._budget.turn_seconds, ends - time.monotonic()))


def _read(said: Said) -> tuple[StopReason, str | None]:
    turn = parse_turn(said.text)
    if isinstance(turn, Answer):
        return StopReason.ANSWERED, turn.text
    return _CUT_SHORT.get(
        said.finish, StopReason.MALFORMED if isinstance(turn, Malformed) else StopReason.NO_ANSWER
    ), None
