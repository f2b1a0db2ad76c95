"""Planning for dialogues that clients hold: whose model speaks, what it is told, and what it says."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from mia.errors import OutOfRoom
from mia.planner.dialogue import DialoguePlanning
from mia.planner.memories import memory_block
from mia.prompts import fill
from mia.text import disarm, parse_decision
from mia.transcript import fitted
from mia.types import IMAGE_MARK, Attempt, Key, Message, Plan, Recall, Said, StopReason, Trajectory, Want
from mia.wire.memory_serve import (
    PLANS,
    RUN,
    BestPlanResponse,
    DialogueMessage,
    JudgeReplanRequest,
    JudgeReplanResponse,
    MemoryRequest,
    MemoryResponse,
    PlanResponse,
    ReplanRequest,
    ReplanResponse,
    ReplanTrainRequest,
    ReplanTrainResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mia.protocols import Conversation, Role
    from mia.services.shelf import Shelf
    from mia.types import Question
    from mia.wiring import MemoryRoles

FEW = 4  # memories below which the cold-start switch has the Manager's model decide on replanning

_CHOICE = re.compile(r"\W*(?:answer)?\W*([1-9])\W*", re.IGNORECASE)
_CHOICE_TOKENS, _CHOICE_SECONDS = 1024, 100.0


class Desk:
    """Plans with what the shelf holds, decides and plans again. A dialogue comes whole and goes back longer.

    With `cold_start` the Manager's model plays the Planner while few memories are found, by the released rules.
    """

    def __init__(self, roles: MemoryRoles, shelf: Shelf, *, cold_start: bool) -> None:
        self._shelf = shelf
        self._models = roles.models
        self._speakers = roles.speakers
        self._tools = "\n".join(f"- {tool.name}: {tool.description}" for tool in roles.tools)
        self._cold_start = cold_start

    async def recall(self, request: MemoryRequest) -> MemoryResponse:
        """Return memories as the Planner is shown them."""
        found = await self._recall(request)
        budget, counter = self._speakers["planner"]
        return MemoryResponse(context=memory_block(found, budget.memory_tokens, counter), **_ids(found))

    async def plan(self, request: MemoryRequest) -> PlanResponse:
        """Write a plan."""
        return await self._plan(request, await self._recall(request), self._speakers["planner"].budget.temperature, 0)

    async def best_plan(self, request: MemoryRequest) -> BestPlanResponse:
        """Write several plans at temperature 1, and have the Manager's model choose; unread choices mean the first."""
        found = await self._recall(request)
        plans = await asyncio.gather(*(self._plan(request, found, 1.0, rollout) for rollout in range(PLANS)))
        shown = "\n\n".join(f"Plan {number}\n{disarm(each.plan)}" for number, each in enumerate(plans, 1))
        numbers = [str(number) for number in range(1, PLANS + 1)]
        answer = {"type": "string", "enum": numbers}
        want = Want(
            max_tokens=_CHOICE_TOKENS,
            schema_={"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
            seed=Key(run=RUN, question_id=request.data_id).seed(0),
            deadline=_CHOICE_SECONDS,
        )
        prompt = fill("best_plan", question=disarm(request.question), plans=shown)
        said = await self._models.open("manager", fill("planner_system")).say(Message(role="user", text=prompt), want)
        choice = _CHOICE.fullmatch(said.text)
        number = int(choice.group(1)) if choice and choice.group(1) in numbers else 1
        return BestPlanResponse(
            **plans[number - 1].model_dump(),
            selected_plan_number=number,
            all_plans=[each.plan for each in plans],
        )

    async def judge(self, request: JudgeReplanRequest) -> JudgeReplanResponse:
        """Decide whether a trace calls for another plan; with no room left to ask, the plan stands."""
        role = self._role(cold=len(request.memory_indices) < FEW)
        budget, _ = self._speakers[role]
        conversation = self._models.open(role, fill("planner_system"), request.history)
        want = Want(
            max_tokens=budget.plan_tokens,
            temperature=budget.temperature,
            seed=Key(run=RUN, question_id="").seed(len(request.history) // 2),
            deadline=budget.seconds,
        )
        try:
            said = await conversation.say(self._trace(role, conversation, request.workflow), want)
        except OutOfRoom:
            return JudgeReplanResponse(need_replan="no", messages=_wire(conversation))
        decision = parse_decision(said.text)
        again = budget.replan_if_unclear if decision is None else decision
        return JudgeReplanResponse(need_replan="yes" if again else "no", messages=_wire(conversation))

    async def replan(self, request: ReplanRequest) -> ReplanResponse:
        """Write a revised plan. Memories are looked up for the cold-start switch alone, and only counted."""
        found = Recall()
        if self._cold_start:
            found = await self._shelf.recall(request.noun, request.mem_top_k + request.pass_num)
        role = self._role(cold=_fewest(found) < request.pass_num)
        plan, conversation = await self._replan(role, request.noun, request.history)
        return ReplanResponse(replan=plan.text, messages=_wire(conversation))

    async def replan_train(self, request: ReplanTrainRequest) -> ReplanTrainResponse:
        """Write the revised plan of an attempt that a verdict calls wrong, as if the Planner had said so."""
        opening = self._opening(request.noun, disarm(request.memories))
        history = [Message(role="user", text=opening), Message(role="assistant", text=request.plan)]
        conversation = self._models.open("planner", fill("planner_system"), history)
        history += [self._trace("planner", conversation, request.trace), Message(role="assistant", text="yes")]
        plan, _ = await self._replan("planner", request.noun, history)
        return ReplanTrainResponse(content=plan.text)

    async def _recall(self, request: MemoryRequest) -> Recall:
        return await self._shelf.recall(request.noun, request.mem_top_k, request.pass_num)

    async def _plan(self, request: MemoryRequest, found: Recall, temperature: float, rollout: int) -> PlanResponse:
        question = request.noun
        role = self._role(cold=_fewest(found) < request.mem_top_k)
        budget, counter = self._speakers[role]
        opening = self._opening(question, memory_block(found, budget.memory_tokens, counter))
        conversation = self._models.open(role, fill("planner_system"))
        key = Key(run=RUN, question_id=question.id, rollout=rollout)
        budget = replace(budget, temperature=temperature)
        plan = await DialoguePlanning(question, key, conversation, budget, counter, opening).plan()
        return PlanResponse(plan=plan.text, messages=_wire(conversation), **_ids(found))

    def _role(self, *, cold: bool) -> Role:
        return "manager" if self._cold_start and cold else "planner"

    def _opening(self, question: Question, memories: str) -> str:
        slots = {"tools": self._tools, "memories": memories, "question": disarm(question.text)}
        if question.caption.strip() or IMAGE_MARK in question.text:
            return fill("plan_image", caption=disarm(question.caption) or "(none)", **slots)
        return fill("plan_text", **slots)

    def _trace(self, role: Role, conversation: Conversation, trace: str) -> Message:
        """Ask about a trace, its paragraphs shortened evenly to leave room for the decision and for a plan after it."""
        budget, counter = self._speakers[role]
        room = conversation.room - 2 * budget.plan_tokens - counter.count(fill("reflect", trace=""))
        paragraphs = disarm(trace).split("\n\n")

        def render(cut: Callable[[str], str]) -> str:
            return "\n\n".join(map(cut, paragraphs))

        shown = fitted(render, max(room, 0), each=budget.observation_tokens, count=counter.count, cut=counter.cut)
        return Message(role="user", text=fill("reflect", trace=shown))

    async def _replan(self, role: Role, question: Question, history: Sequence[Message]) -> tuple[Plan, Conversation]:
        budget, counter = self._speakers[role]
        conversation = self._models.open(role, fill("planner_system"), history)
        key = Key(run=RUN, question_id=question.id)
        planning = DialoguePlanning(question, key, conversation, budget, counter, "")
        # The dialogue holds the attempt already; nothing of this one is said.
        told = Attempt(plan=Plan(said=Said(raw="", text="")), trajectory=_UNTOLD)
        return await planning.replan(told), conversation


_UNTOLD = Trajectory(steps=(), answer=None, stop=StopReason.NO_ANSWER)


def _fewest(recall: Recall) -> int:
    return min(len(recall.successes), len(recall.failures))


def _ids(recall: Recall) -> dict[str, list[int]]:
    return {
        "pos_indices": [memory.id for memory, _ in recall.successes],
        "neg_indices": [memory.id for memory, _ in recall.failures],
    }


def _wire(conversation: Conversation) -> list[DialogueMessage]:
    return [DialogueMessage.of(message) for message in conversation.messages]
