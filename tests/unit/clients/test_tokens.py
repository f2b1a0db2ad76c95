import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import served

from mia.clients.tokens import FittedCounter, Tokenizer
from mia.errors import ModelUnavailable
from mia.runtime.http import Service
from mia.text import CUT

RATES = {"words": 0.25, "digits": 1.0, "signs": 0.8, "alphabets": 0.9, "cjk": 1.5, "rest": 3.0}
COUNTER = FittedCounter(RATES)


def with_tokenizer(respond, use, base="/v1", field="prompt"):
    async def go(url):
        service = Service("model", url + base, error=ModelUnavailable, attempts=1)
        try:
            return await use(Tokenizer(service, "qwen", field))
        finally:
            await service.aclose()

    with served(respond) as url:
        return asyncio.run(go(url))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("the tower of Paris", 5),
        ("1889", 4),
        ("9f86d0 81884c", 13),
        ("q" * 24, 24),
        ("a\n\n", 2),
        ("башня", 5),
        ("埃菲尔铁塔", 8),
        ("🗼", 3),
    ],
)
def test_each_kind_of_text_counts_at_its_own_rate(text, tokens):
    assert COUNTER.count(text) == tokens


@given(text=st.text(), tokens=st.integers(-5, 50))
def test_a_cut_text_never_counts_more_than_it_may(text, tokens):
    cut = COUNTER.cut(text, tokens)
    assert COUNTER.count(cut) <= max(tokens, 0)
    assert cut in (text, "") or (cut.endswith(CUT) and text.startswith(cut.removesuffix(CUT)))
    assert (cut == text) >= (COUNTER.count(text) <= tokens)


def test_long_runs_are_counted_in_linear_time():
    text = "a" * 200_000 + "1"
    assert COUNTER.count(text) == 200_001
    assert COUNTER.count(" " * 200_000) == 50_000


@pytest.mark.parametrize(("base", "field"), [("/v1", "prompt"), ("", "content")])
def test_the_route_stands_beside_v1_and_answers_are_remembered(base, field):
    asked = []

    def respond(request):
        asked.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"tokens": [1, 2, 3]})

    async def twice(tokenizer):
        return [await tokenizer.count("漢字"), await tokenizer.count("漢字")]

    assert with_tokenizer(respond, twice, base, field) == [3, 3]
    assert asked == [("/tokenize", {"model": "qwen", field: "漢字", "add_special_tokens": False})]


def test_a_rule_is_fitted_to_what_the_endpoint_counts():
    def respond(request):
        text = json.loads(request.content)["prompt"]
        return httpx.Response(200, json={"tokens": list(range(len(text.encode())))})

    counter = with_tokenizer(respond, lambda tokenizer: tokenizer.fit())
    assert (counter.count("tower"), counter.count("埃菲尔铁塔")) == (6, 17)


@pytest.mark.parametrize("answer", [{"data": []}, {"tokens": []}], ids=["something else", "the text not found"])
def test_an_answer_without_tokens_is_no_tokenizer(answer):
    with pytest.raises(ModelUnavailable, match="tokenize"):
        with_tokenizer(lambda request: httpx.Response(200, json=answer), lambda tokenizer: tokenizer.count("a"))


@pytest.mark.parametrize("text", ["e\u0301" * 60, "👩\u200d👧" * 60, "👍🏽" * 60])
def test_a_cut_leaves_no_character_in_pieces(text):
    whole = {text[: size * n] for size in (2, 3) for n in range(61)}
    assert all(COUNTER.cut(text, tokens).removesuffix(CUT) in whole for tokens in range(60))
