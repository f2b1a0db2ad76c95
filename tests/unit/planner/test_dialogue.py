import asyncio

import pytest
from scripted import ScriptedModels, call, say

from mia.planner.dialogue import DialoguePlanner, PlanBudget
from mia.text import ByteCounter
from mia.types import (
    Attempt,
    ImageRef,
    Key,
    Message,
    Observation,
    Plan,
    Question,
    Recall,
    Step,
    StopReason,
    ToolSpec,
    Trajectory,
    Workflow,
)

QUESTION = Question(id="q", text="Who?")
KEY = Key(run="r", question_id="q")
TOOLS = [ToolSpec(name="search", description="Searches.", parameters={})]
ATTEMPT = Attempt(
    plan=Plan(said=say("1. Look.")),
    trajectory=Trajectory(
        steps=(Step(said=say(call("a")), observation=Observation(text="fact " * 50)),),
        answer="x",
        stop=StopReason.ANSWERED,
    ),
)


def workflow(id, correct, summary="1. search"):
    return Workflow(
        id=id, question=f"Q{id}", summary=summary, plan="", correct=correct, question_id="o", episode="e", created=0.0
    )


def planner(models, **budget):
    return DialoguePlanner(models, TOOLS, PlanBudget(**budget), ByteCounter())


def test_the_plan_prompt_shows_tools_question_and_memories_successes_first():
    models = ScriptedModels(planner=["1. Look."])
    recall = Recall(successes=((workflow(7, True), 0.9),), failures=((workflow(3, False), 0.8),))
    plan = asyncio.run(planner(models).start(QUESTION, recall, KEY).plan())
    prompt = models.asked[0][1]
    assert plan.text == "1. Look."
    assert "- search: Searches." in prompt
    assert "Question: Who?" in prompt
    assert prompt.index("[1] This worked\nQuestion: Q7") < prompt.index("[2] This failed\nQuestion: Q3")


def test_without_memories_the_prompt_says_so():
    models = ScriptedModels(planner=["1. Look."])
    asyncio.run(planner(models).start(QUESTION, Recall(), KEY).plan())
    assert "There are no memories" in models.asked[0][1]


def test_an_image_question_has_its_own_prompt_with_the_caption():
    image = ImageRef(sha256="0" * 64, mime="image/png", width=1, height=1)
    question = QUESTION.model_copy(update={"images": (image,), "caption": "a red flag"})
    models = ScriptedModels(planner=["1. Look."])
    asyncio.run(planner(models).start(question, Recall(), KEY).plan())
    assert "Caption of the image: a red flag" in models.asked[0][1]
    assert models.opened[0].messages[1].images == ()


def test_memories_stay_within_their_budget():
    models = ScriptedModels(planner=["1. Look."])
    recall = Recall(successes=((workflow(1, True, "step " * 5000), 0.9), (workflow(2, True), 0.8)))
    asyncio.run(planner(models, memory_tokens=400).start(QUESTION, recall, KEY).plan())
    assert ByteCounter().count(models.asked[0][1]) < 1200
    assert "Q2" in models.asked[0][1]


def test_thoughts_are_never_a_plan_and_are_asked_about_once_more():
    models = ScriptedModels(planner=["<think>I should search", "1. Look."])
    plan = asyncio.run(planner(models).start(QUESTION, Recall(), KEY).plan())
    assert plan.text == "1. Look."
    assert models.asked[1][1].startswith("Your reply held no plan.")
    assert [draft.thoughts for draft in plan.drafts] == ["I should search"]


def test_a_policy_is_not_asked_again_and_its_plan_stays_empty():
    models = ScriptedModels(planner=["<think>I should search", "1. Look."])
    plan = asyncio.run(planner(models, retries=0).start(QUESTION, Recall(), KEY).plan())
    assert plan.text == ""


@pytest.mark.parametrize(("reply", "replan"), [("yes", True), ("<think>fine</think>No", False)])
def test_reflection_is_one_word_of_the_planner(reply, replan):
    models = ScriptedModels(planner=["1. Look.", reply])

    async def both():
        planning = planner(models).start(QUESTION, Recall(), KEY)
        await planning.plan()
        return await planning.reflect(ATTEMPT)

    assert asyncio.run(both()).replan is replan
    assert "### Round 1" in models.asked[1][1]


def test_what_is_shown_of_an_attempt_is_counted_as_it_is_shown():
    steps = (Step(said=say("<think>a</think>" * 300), observation=Observation(text="x")),) * 4
    attempt = ATTEMPT.model_copy(update={"trajectory": Trajectory(steps=steps, answer="x", stop=StopReason.ANSWERED)})
    models = ScriptedModels(window=3000, planner=["1. Look.", "no"])

    async def go():
        planning = planner(models, plan_tokens=500, observation_tokens=400).start(QUESTION, Recall(), KEY)
        await planning.plan()
        room = models.opened[0].room
        await planning.reflect(attempt)
        return room

    room = asyncio.run(go())
    assert "‹think›" in models.asked[1][1]
    assert ByteCounter().count(models.asked[1][1]) <= room - 500


@pytest.mark.parametrize("default", [True, False])
def test_an_unclear_reflection_follows_the_setting(default):
    models = ScriptedModels(planner=["it depends"])
    planning = planner(models, replan_if_unclear=default).resume(QUESTION, (), KEY)
    assert asyncio.run(planning.reflect(ATTEMPT)).replan is default


def test_a_trace_that_does_not_fit_is_shortened_to_the_room_there_is():
    models = ScriptedModels(window=1200, planner=["no"])
    long = Step(said=say("x" * 9000), observation=Observation(text="fact " * 9000))
    attempt = ATTEMPT.model_copy(
        update={"trajectory": Trajectory(steps=(long,) * 9, answer="x", stop=StopReason.ANSWERED)}
    )
    planning = planner(models, plan_tokens=300).resume(QUESTION, (), KEY)
    assert asyncio.run(planning.reflect(attempt)).replan is False


def test_without_any_room_the_plan_stands():
    models = ScriptedModels(window=100, planner=["yes"])
    reflection = asyncio.run(planner(models).resume(QUESTION, (), KEY).reflect(ATTEMPT))
    assert (reflection.said, reflection.replan) == (None, False)


def test_a_revised_plan_names_the_plan_it_replaces_and_the_question():
    models = ScriptedModels(planner=["2. Look elsewhere."])
    history = (Message(role="user", text="plan"), Message(role="assistant", text="1. Look."))
    plan = asyncio.run(planner(models).resume(QUESTION, history, KEY).replan(ATTEMPT))
    assert (plan.text, plan.revises) == ("2. Look elsewhere.", "1. Look.")
    assert "Who?" in models.asked[0][1]


def test_a_plan_prompt_that_does_not_fit_is_an_empty_plan_cut_off():
    question = Question(id="q", text="why " * 500)
    plan = asyncio.run(planner(ScriptedModels(window=600, planner=["1."])).start(question, Recall(), KEY).plan())
    assert (plan.text, plan.said.finish) == ("", "length")
