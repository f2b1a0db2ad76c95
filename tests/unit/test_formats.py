"""Whole dialogues in each named format: a change here changes what published weights and ours are shown."""

import asyncio
import json
from pathlib import Path

import pytest
from scripted import Heard, ScriptedModels, ScriptedTool, call, say

from mia.errors import ConfigError
from mia.executor.react import Budget, ReactExecutor
from mia.executor.render import FORMATS, Renderer
from mia.text import ByteCounter
from mia.types import ImageRef, Key, Observation, Plan, Question, ToolSpec

GOLDEN = json.loads(Path(__file__).parents[1].joinpath("data", "formats.json").read_text("utf-8"))
IMAGE = ImageRef(sha256="0" * 64, mime="image/png", width=2, height=2)
PLAN = Plan(said=say("1. 查找埃菲尔铁塔。"))
REVISED = Plan(said=say("2. Look again."), revises=PLAN.text)


def dialogue(format, images=()):
    models = ScriptedModels(executor=[call("Who?"), "<answer>Ada</answer>", "<answer>Eve</answer>"])
    tool = ScriptedTool(lambda arguments: "Doc 1(Title: 漢字) found")
    executor = ReactExecutor(models, [tool], Budget(), ByteCounter(), Heard(), format)
    execution = executor.start(Question(id="q", text="Who?", images=images), Key(run="r", question_id="q"))

    async def go():
        await execution.carry_out(PLAN)
        await execution.carry_out(REVISED)

    asyncio.run(go())
    return [(message.role, message.text, len(message.images)) for message in models.opened[0].messages if message.text]


@pytest.mark.parametrize("images", [(), (IMAGE,)], ids=["text", "image"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_dialogue_is_golden_in_every_format(format, images):
    kind = "image" if images else "text"
    assert dialogue(format, images) == [tuple(message) for message in GOLDEN[f"{format} {kind}"]]


@pytest.mark.parametrize(
    ("format", "observation"),
    [
        ("mia", "<tool_response>\nfound\n</tool_response>"),
        ("release-train", "<tool_response>\nfound\n</tool_response>"),
        ("release-inference", "<tool_response>\nfound\n</tool_response>"),
        ("release-serve", "<tool_response>\\found\n<tool_response>"),
    ],
)
def test_an_observation_is_a_user_message_in_the_tags_of_its_format(format, observation):
    message = Renderer([], format).observation(Observation(text="found"))
    assert (message.role, message.text) == ("user", observation)


@pytest.mark.parametrize("format", ["release-inference", "release-serve"])
def test_formats_without_a_system_message_begin_with_the_instructions_in_the_users(format):
    roles = [role for role, _, _ in dialogue(format)]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    render = Renderer([], format)
    assert render.system == ""
    assert render.opening(Question(id="q", text="Who?"), PLAN).text.startswith(render.instructions)


@pytest.mark.parametrize("format", FORMATS)
def test_text_from_outside_neither_speaks_in_tags_nor_moves_the_image(format):
    question = Question(id="q", text="<image> </tool_response> Who?", images=(IMAGE,))
    plan = Plan(said=say("<image> <answer>x"))
    opening = Renderer([], format).opening(question, plan)
    assert "‹image› ‹/tool_response› Who?" in opening.text
    assert "‹image› ‹answer›x" in opening.text
    assert opening.text.count("<image>") == (format != "mia")


@pytest.mark.parametrize("format", FORMATS)
def test_every_image_of_a_question_has_a_mark_where_one_has(format):
    opening = Renderer([], format).opening(Question(id="q", text="Who?", images=(IMAGE, IMAGE)), PLAN)
    assert opening.text.count("<image>") == (0 if format == "mia" else 2)


def test_release_formats_declare_a_tool_as_chat_templates_do():
    tool = ToolSpec(name="search", description="漢字", parameters={"type": "object"})
    declared = (
        '{"type": "function", "function": {"name": "search", "description": "漢字", "parameters": {"type": "object"}}}'
    )
    for format in FORMATS:
        assert (declared in Renderer([tool], format).instructions) == (format != "mia")


def test_an_unknown_format_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match="release-train"):
        Renderer([], "chatml")
