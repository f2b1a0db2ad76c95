"""The Planner as a dialogue with a model: plan, reflect, replan, in one conversation (paper section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mia.errors import OutOfRoom
from mia.planner.memories import memory_block
from mia.prompts import fill
from mia.text import disarm, parse_decision
from mia.transcript import fitted, transcript
from mia.types import Message, Plan, Reflection, Said, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mia.protocols import Conversation, Models, Planning, TokenCounter
    from mia.types import Attempt, Key, Question, Recall, ToolSpec

_TEMPLATE = 64  # tokens that a chat template puts around the messages of two turns


@dataclass(frozen=True)
class PlanBudget:
    """What the Planner may spend per reply. `retries` is 0 for a policy: its malformed turn is data."""

    plan_tokens: int = 1024
    memory_tokens: int = 2048
    observation_tokens: int = 512
    seconds: float = 120.0
    temperature: float = 0.0
    retries: int = 1
    replan_if_unclear: bool = True


class DialoguePlanner:
    """A Planner that asks a model."""

    def __init__(self, models: Models, tools: Sequence[ToolSpec], budget: PlanBudget, counter: TokenCounter) -> None:
        self._models = models
        self._tools = tools
        self._budget = budget
        self._counter = counter

    def start(self, question: Question, recall: Recall, key: Key) -> DialoguePlanning:
        """Open the dialogue of one question with what is recalled for it."""
        tools = "\n".join(f"- {tool.name}: {tool.description}" for tool in self._tools)
        memories = memory_block(recall, self._budget.memory_tokens, self._counter)
        slots = {"tools": tools, "memories": memories, "question": disarm(question.text)}
        if question.images:
            opening = fill("plan_image", caption=disarm(question.caption) or "(none)", **slots)
        else:
            opening = fill("plan_text", **slots)
        conversation = self._models.open("planner", fill("planner_system"))
        return DialoguePlanning(question, key, conversation, self._budget, self._counter, opening)

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> DialoguePlanning:
        """Go on with a dialogue held elsewhere; its first reply is the plan."""
        conversation = self._models.open("planner", fill("planner_system"), messages)
        return DialoguePlanning(question, key, conversation, self._budget, self._counter, "")


class DialoguePlanning:
    """One question's dialogue with the Planner."""

    def __init__(
        self,
        question: Question,
        key: Key,
        conversation: Conversation,
        budget: PlanBudget,
        counter: TokenCounter,
        opening: str,
    ) -> None:
        self._question = question
        self._key = key
        self._conversation = conversation
        self._budget = budget
        self._counter = counter
        self._opening = opening

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, without the system message."""
        return tuple(message for message in self._conversation.messages if message.role != "system")

    async def plan(self) -> Plan:
        """Write the plan. Thoughts are never a plan: a reply without text is asked for once more, then stays empty.

        A prompt that does not fit the window gives an empty plan, cut off by its length.
        """
        return await self._plan(self._opening)

    async def reflect(self, attempt: Attempt) -> Reflection:
        """Ask whether to plan again; when the window has no room left for the question, the plan stands.

        What is shown of the attempt leaves room for the reply and for the revised plan that may follow.
        """
        asked = fill("reflect", trace="") + fill("replan", question=disarm(self._question.text))
        room = self._conversation.room - 2 * self._budget.plan_tokens - self._counter.count(asked) - _TEMPLATE

        def render(cut: Callable[[str], str]) -> str:
            return disarm(transcript(self._question.text, attempt.trajectory, cut))

        trace = fitted(
            render,
            max(room, 0),
            each=self._budget.observation_tokens,
            count=self._counter.count,
            cut=self._counter.cut,
        )
        try:
            said = await self._say(fill("reflect", trace=trace))
        except OutOfRoom:
            return Reflection(said=None, replan=False)
        decision = parse_decision(said.text)
        return Reflection(said=said, replan=self._budget.replan_if_unclear if decision is None else decision)

    async def replan(self, attempt: Attempt) -> Plan:
        """Write the revised plan."""
        plan = await self._plan(fill("replan", question=disarm(self._question.text)))
        return plan.model_copy(update={"revises": attempt.plan.text})

    async def _plan(self, prompt: str) -> Plan:
        replies: list[Said] = []
        try:
            replies.append(await self._say(prompt))
            while not replies[-1].text.strip() and len(replies) <= self._budget.retries:
                replies.append(await self._say(fill("plan_again")))
        except OutOfRoom:
            replies = replies or [Said(raw="", text="", finish="length")]
        return Plan(said=replies[-1], drafts=tuple(replies[:-1]))

    async def _say(self, text: str) -> Said:
        turn = sum(message.role == "assistant" for message in self._conversation.messages)
        want = Want(
            max_tokens=self._budget.plan_tokens,
            temperature=self._budget.temperature,
            seed=self._key.seed(turn),
            deadline=self._budget.seconds,
        )
        return await self._conversation.say(Message(role="user", text=text), want)


class PlannerReflector:
    """Lets the Planner decide on replanning."""

    async def reflect(self, planning: Planning, attempt: Attempt) -> Reflection:
        """Ask the Planner."""
        return await planning.reflect(attempt)
