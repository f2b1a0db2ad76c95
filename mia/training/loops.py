"""The loop as verl runs it: one rollout is one episode, with the policy in one role."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from mia.errors import MiaError
from mia.planner.dialogue import PlanBudget
from mia.runtime.settings import RoleSettings, load
from mia.training.config import Stage, stage_of
from mia.training.conversation import Generated, Policy, PolicyCounter, TokenModels, Tokens
from mia.training.metrics import facts
from mia.training.sampler import FAILED, LEARNS
from mia.types import Key, Question, Recall, Truth
from mia.wiring.trainers import AroundPlanner, around_planner

if TYPE_CHECKING:
    from mia.types import Episode


class NotGraded(MiaError):  # noqa: N818 - named for what it says
    """A rollout that says nothing: a service was down, or its answer could not be graded."""


class _Around:
    """Those around the policy, connected to once per process and kept until it ends."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lock = asyncio.Lock()
        self._found: AroundPlanner | None = None

    async def __call__(self) -> AroundPlanner:
        async with self._lock:
            if self._found is None:
                stage = self._stage
                settings = load(
                    RoleSettings,
                    judge=stage.judge,
                    judge_url=stage.judge_url or None,
                    judge_model=stage.judge_model or None,
                    turn_seconds=stage.turn_seconds,
                    episode_seconds=stage.episode_seconds,
                )
                self._found = await around_planner(settings, stage.executor_url).__aenter__()
            return self._found


@cache
def _around(stage: Stage) -> _Around:
    return _Around(stage)


class PlannerLoop(AgentLoopBase):
    """The policy plans, reflects and plans again; the Executor is a service, the Judge holds the truth."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play one rollout.

        Raises:
            NotGraded: it cannot be rewarded; the sampler drops its group.
        """
        stage, started = stage_of(self.config), time.monotonic()
        policy = self._policy(stage, sampling_params, row)
        question = Question.model_validate_json(row["question"])
        key = Key(run=stage.run, step=int(row["global_steps"]), question_id=question.id, rollout=int(row["session_id"]))
        lengths = stage.lengths
        budget = PlanBudget(
            plan_tokens=lengths.reply,
            memory_tokens=lengths.memory,
            observation_tokens=lengths.observation,
            seconds=stage.turn_seconds,
            temperature=sampling_params["temperature"],
            retries=0,
        )
        models = TokenModels(policy, "planner")
        try:
            around = await _around(stage)()
            answer_key = {question.id: Truth.model_validate_json(row["truth"])}
            recall = Recall.model_validate_json(row["recall"])
            agent = around.agent(models, budget, PolicyCounter(self.tokenizer), recall, answer_key)
            episode = await agent.run(question, key)
        except MiaError as error:
            await _tell(row, key, type(error).__name__)
            raise
        if episode.failure or episode.reward is None:
            kind = episode.failure.service if episode.failure else "judge"
            await _tell(row, key, kind)
            raise NotGraded(f"{key}: {episode.failure.message if episode.failure else 'it could not be graded'}.")
        if models.opened is None or not models.opened.tokens.response:
            await _tell(row, key, "prompt_too_long")
            raise NotGraded(f"{key}: the prompt does not fit into {lengths.prompt} tokens.")
        return self._output(episode, models.opened.tokens, time.monotonic() - started)

    def _policy(self, stage: Stage, sampling: dict[str, Any], row: dict[str, Any]) -> Policy:
        async def generate(ids: list[int], sampling: dict[str, Any]) -> Generated:
            request = f"{row['uid']}-{row['session_id']}"
            found = await self.server_manager.generate(request_id=request, prompt_ids=ids, sampling_params=sampling)
            versions = found.extra_fields["min_global_steps"], found.extra_fields["max_global_steps"]
            self._versions += versions
            aborted = found.stop_reason in ("aborted", "abort")
            return Generated(found.token_ids, found.log_probs or (), aborted, str(versions[1]))

        self._versions: list[int] = []
        return Policy(
            builder=self.continuous_token_builder,
            tokenizer=self.tokenizer,
            generate=generate,
            prompt_tokens=self.rollout_config.prompt_length,
            response_tokens=self.rollout_config.response_length,
            sampling=dict(sampling),
            seeded=stage.seeded,
        )

    def _output(self, episode: Episode, tokens: Tokens, seconds: float) -> AgentLoopOutput:
        spent = episode.cost.seconds.get("planner", 0.0)
        return AgentLoopOutput(
            prompt_ids=tokens.prompt,
            response_ids=tokens.response,
            response_mask=tokens.mask,
            response_logprobs=tokens.log_probs,
            reward_score=episode.reward.value if episode.reward else None,
            num_turns=1 + 2 * sum(episode.cost.model_calls.values()),
            metrics=AgentLoopMetrics(generate_sequences=spent, tool_calls=seconds - spent),
            extra_fields={
                "reward_extra_info": facts(episode),
                "min_global_steps": min(self._versions),
                "max_global_steps": max(self._versions),
                "turn_scores": [],
                "tool_rewards": [],
            },
        )


async def _tell(row: dict[str, Any], key: Key, kind: str) -> None:
    """Note at the group why a rollout failed, for the sampler to count."""
    if row.get(LEARNS):
        await tq.async_kv_put(key=row["uid"], partition_id="train", tag={f"{FAILED}{key.rollout:04}": kind})
