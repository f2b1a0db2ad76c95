import asyncio
import re

import pytest
from hypothesis import given, strategies

from mia.errors import ModelUnavailable, OutOfRoom
from mia.memory.compress import (
    ExtractiveCompressor,
    ModelCompressor,
    Summary,
    TraceCompressor,
    count_words,
    cut_words,
    read_steps,
)
from mia.text import split_thoughts
from mia.types import (
    Attempt,
    Episode,
    Key,
    Observation,
    Plan,
    Question,
    Said,
    Source,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
)


def step(query, *titles, error=None, **arguments):
    said = Said(raw="r", text="r")
    sources = tuple(Source(id=title, title=title) for title in titles)
    call = ToolCall(name="search", arguments={"query": query} | arguments)
    return Step(said=said, call=call, observation=Observation(text="long text", error=error, sources=sources))


def attempt(*steps, answer="Paris", stop=StopReason.ANSWERED):
    said = Said(raw="plan", text="plan")
    return Attempt(plan=Plan(said=said), trajectory=Trajectory(steps=steps, answer=answer, stop=stop))


def episode(*attempts, question="What is the capital of France?"):
    return Episode(key=Key(run="r", question_id="q"), question=Question(id="q", text=question), attempts=attempts)


def extract(*attempts, **question):
    summary = asyncio.run(ExtractiveCompressor().compress(episode(*attempts, **question)))
    assert summary.final
    return summary.text


def test_an_extract_numbers_the_steps_and_tells_how_it_ended():
    text = extract(
        attempt(step("capital of France", "France", "Europe"), step("x", error="timed out"), stop=StopReason.CALL_LIMIT)
    )
    assert text.splitlines() == [
        "1. search: capital of France -> France; Europe",
        "2. search: x -> error: timed out",
        "3. end: call limit",
    ]


def test_an_extract_tells_of_the_second_plan():
    text = extract(attempt(step("a")), attempt(step("b", "B")))
    assert text.splitlines() == [
        "1. search: a -> no sources",
        "2. plan again: the attempt so far was not enough",
        "3. search: b -> B",
        "4. end: answered",
    ]


def test_an_extract_reads_arguments_of_any_shape():
    call = ToolCall(name="search", arguments={"query_list": ["a  b", "c"], "options": {"k": 3}})
    text = extract(attempt(Step(said=Said(raw="", text=""), call=call)))
    assert text.splitlines()[0] == "1. search: a b | c | 3 -> nothing came back"


def test_an_extract_does_not_give_the_answer_away():
    text = extract(attempt(step("is Paris the capital", "Paris", "Parisian life"), answer="paris"))
    assert "1. search: is […] the capital -> […]; Parisian life" in text


def test_an_extract_hides_the_title_that_a_long_answer_names():
    text = extract(attempt(step("capital", "Paris", "France"), answer="The capital of France is Paris."))
    assert "1. search: capital -> […]; France" in text


def test_an_extract_hides_answers_in_scripts_without_spaces():
    text = extract(attempt(step("日本の首都", "東京都の歴史"), answer="東京"), question="日本の首都はどこ?")
    assert "東京" not in text
    assert "日本の首都" in text


def test_an_extract_keeps_what_the_question_itself_names():
    text = extract(attempt(step("Paris or Lyon", "Paris")), question="Is Paris or Lyon larger?")
    assert "search: Paris or Lyon -> Paris" in text


@pytest.mark.parametrize("word", ["word ", "語", "a", "\ud800", "👩‍👩‍👧 "])
def test_an_extract_is_bounded_in_any_language(word):
    text = extract(attempt(*[step(word * 500, word * 500, word * 400, word * 300, word * 200)] * 60))
    assert count_words(text) <= 300
    assert len(text) <= 300 * 17
    assert text.splitlines()[0].startswith("1. search")
    assert re.search(r"^\d+\. end: answered \(\d+ steps left out\)$", text.splitlines()[-1])


def test_an_episode_without_attempts_has_an_extract():
    assert extract() == "1. end: not begun"


def test_words_are_counted_with_and_without_spaces():
    assert count_words("two words") == 2
    assert count_words("东京 tower") == 3
    assert count_words("w" * 33) == 3
    assert cut_words("  one two three ", 2) == "one two"
    assert cut_words("東京都", 2) == "東京"
    assert cut_words("ab", 2) == "ab"


class Talk:
    """A model that says one thing, and notes what it was asked."""

    def __init__(self, reply, finish="stop"):
        self.reply = reply
        self.finish = finish
        self.asked = []

    def open(self, role, system, history=()):
        self.asked.append((role, system))
        return self

    async def say(self, message, want):
        self.asked.append((message.text, want))
        if isinstance(self.reply, Exception):
            raise self.reply
        thoughts, text = split_thoughts(self.reply)
        return Said(raw=self.reply, text=text, thoughts=thoughts, finish=self.finish)


def compress(talk, answer="Paris", **settings):
    compressor = ModelCompressor(talk, lambda episode: "the trace {{question}} <answer>", **settings)
    return asyncio.run(compressor.compress(episode(attempt(step("a", "A"), answer=answer))))


def steps(text, finish="stop"):
    return read_steps(Said(raw=text, text=text, finish=finish))


def test_the_model_is_asked_as_manager_with_question_and_trace():
    talk = Talk(" 1. look (a -> b) ")
    assert compress(talk) == Summary("1. look (a -> b)", final=True)
    (role, _), (prompt, want) = talk.asked
    assert role == "manager"
    assert "What is the capital of France?" in prompt
    assert "the trace {{question}} ‹answer›" in prompt
    assert want.temperature == 0
    assert want.deadline == 100


def test_what_the_model_writes_is_cut_to_length():
    text = compress(Talk("1. a\n2. " + "word " * 1000), words=50).text
    assert count_words(text) == 50
    assert text.startswith("1. a\n2. word")


def test_a_cut_leaves_no_number_without_a_step():
    assert compress(Talk("1. a b\n2. c d"), words=4).text == "1. a b"


def test_the_answer_is_hidden_in_what_the_model_writes_but_the_numbers_of_steps_stay():
    assert compress(Talk("1. look (-> the\n  city of Paris)\n2. check 2"), answer="city of Paris").text == (
        "1. look (-> the […])\n2. check 2"
    )
    assert compress(Talk("1. look\n2. found 2"), answer="2").text == "1. look\n2. found […]"


@pytest.mark.parametrize(
    "talk",
    [
        Talk(""),
        Talk(" \n"),
        Talk("<think>\n1. I think of steps"),
        Talk("<think>1. I think</think>"),
        Talk("I cannot help with that."),
        Talk("Here it comes:\n1. the first step is n", finish="length"),
        Talk("1.\n2.\n"),
        Talk(ModelUnavailable("down", service="model")),
        Talk(OutOfRoom("too long")),
    ],
    ids=["none", "blank", "cut thoughts", "thoughts", "prose", "cut", "numbers", "down", "long"],
)
def test_the_extract_stands_in_for_a_model_that_gives_no_workflow(talk):
    assert compress(talk) == Summary("1. search: a -> A\n2. end: answered", final=False)


@pytest.mark.parametrize(
    "number",
    [
        "1. ",
        "1) ",
        "(1) ",
        "（1）",
        "[1] ",
        "1、",
        "１．",
        "① ",
        "1: ",
        "Step 1: ",
        "**Step 1:** ",
        "### 1. ",
        "- 1. ",
        "  12. ",
        "第1步：",
        "단계 1: ",
        "١. ",
    ],
)
def test_steps_are_numbered_in_many_ways(number):
    assert steps(f"{number}look up\n{number}check") == ["look up", "check"]


@pytest.mark.parametrize(
    "line", ["1.5 million people", "1.1 sub-step", "12:30 departure", "In 2020: nothing", "10 results", "- a detail"]
)
def test_a_line_without_a_step_number_goes_on_with_the_step_before(line):
    assert steps(f"1. look up\n\n   {line}\n2. check") == [f"look up {line}", "check"]


def test_what_stands_before_the_first_number_is_dropped():
    assert steps("# Workflow\n\nHere are the steps.\n```\n1. **Look** up\n---\n2. check\n```") == ["Look up", "check"]


def test_bullets_are_steps_where_nothing_is_numbered():
    assert steps("Steps\n- look up\n  with care\n- check") == ["look up with care", "check"]


def test_the_last_step_of_a_reply_cut_off_is_dropped():
    assert steps("1. look up\n2. che", finish="length") == ["look up"]
    assert steps("1. look up\n2. che", finish="aborted") == ["look up"]


@given(strategies.text(), strategies.sampled_from(["stop", "length", "aborted"]))
def test_any_reply_gives_steps_of_one_line_or_none(text, finish):
    assert all(step.strip() and len(step.splitlines()) == 1 for step in steps(text, finish))


def test_a_trace_is_kept_as_it_is():
    summary = asyncio.run(TraceCompressor(lambda episode: f"of {episode.question.text}").compress(episode()))
    assert summary == Summary("of What is the capital of France?", final=True)
