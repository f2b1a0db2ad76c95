"""Golden texts: a change here changes what models were trained on."""

from scripted import say

from mia.executor.render import Renderer, forced, mend
from mia.types import ImageRef, Message, Observation, Plan, Question, ToolSpec

TOOL = ToolSpec(name="search", description="Searches 漢字.", parameters={"type": "object"})
PLAN = Plan(said=say("1. Look."))
IMAGE = ImageRef(sha256="0" * 64, mime="image/png", width=2, height=2)
RENDER = Renderer([TOOL])


def test_the_system_message_lists_tools_as_json_without_escapes():
    text = RENDER.system
    assert (
        '<tools>\n{"name": "search", "description": "Searches 漢字.", "parameters": {"type": "object"}}\n</tools>'
        in text
    )
    assert text.startswith("You are a research agent.")


def test_the_opening_message_is_golden():
    assert RENDER.opening(Question(id="q", text="Who?"), PLAN) == Message(
        role="user",
        text="Question: Who?\n\n"
        "A plan for your guidance. Follow it as far as it helps, and leave it where the evidence says otherwise:\n"
        "1. Look.\n\nBegin with the first step.",
    )


def test_an_image_question_opens_with_its_image_and_the_image_wording():
    message = RENDER.opening(Question(id="q", text="Who?", images=(IMAGE,)), PLAN)
    assert message.images == (IMAGE,)
    assert message.text.startswith("Look at the image")


def test_an_observation_is_a_user_message_in_closed_tags():
    message = RENDER.observation(Observation(text="found"))
    assert message == Message(role="user", text="<tool_response>\nfound\n</tool_response>")


def test_what_to_mend_speaks_in_the_tags_that_are_wanted():
    text = mend("The answer is not closed by </answer>.")
    assert text.startswith("The answer is not closed by </answer>. Write one tool call as <tool_call>{")


def test_a_revision_is_a_new_message_that_withdraws_the_answer():
    message = RENDER.revision(PLAN)
    assert message.role == "user"
    assert message.text.startswith("The answer so far is withdrawn.")
    assert "1. Look." in message.text


def test_the_demand_to_answer_follows_the_observation_in_one_message():
    message = forced(RENDER.observation(Observation(text="found")))
    assert message.text == (
        "<tool_response>\nfound\n</tool_response>\n\nNo more tool calls are possible. Give your best final answer now "
        "from what you have found: <answer>final answer</answer>"
    )
