import asyncio
import re

import pytest

from mia.errors import ModelUnavailable, OutOfRoom
from mia.memory.compress import ExtractiveCompressor, ModelCompressor, count_words, cut_words
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
    return asyncio.run(ExtractiveCompressor().compress(episode(*attempts, **question)))


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

    def __init__(self, reply):
        self.reply = reply
        self.asked = []

    def open(self, role, system, history=()):
        self.asked.append((role, system))
        return self

    async def say(self, message, want):
        self.asked.append((message.text, want))
        if isinstance(self.reply, Exception):
            raise self.reply
        return Said(raw=self.reply, text=self.reply)


def compress(talk, **settings):
    compressor = ModelCompressor(talk, lambda episode: "the trace {{question}}", **settings)
    return asyncio.run(compressor.compress(episode(attempt(step("a", "A")))))


def test_the_model_is_asked_as_manager_with_question_and_trace():
    talk = Talk(" 1. look (a -> b) ")
    assert compress(talk) == "1. look (a -> b)"
    (role, _), (prompt, want) = talk.asked
    assert role == "manager"
    assert "What is the capital of France?" in prompt
    assert "the trace {{question}}" in prompt
    assert want.temperature == 0


def test_what_the_model_writes_is_cut_to_length():
    assert count_words(compress(Talk("word " * 1000), words=50)) == 50


@pytest.mark.parametrize(
    "reply",
    ["", " \n", ModelUnavailable("down", service="model"), OutOfRoom("too long")],
    ids=["none", "blank", "down", "long"],
)
def test_the_extract_stands_in_for_a_model_that_gives_nothing(reply):
    assert compress(Talk(reply)) == "1. search: a -> A\n2. end: answered"
