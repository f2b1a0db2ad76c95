import asyncio
import json

import httpx
import pytest
from served import served

from mia.clients.search import SearchTool
from mia.errors import SearchUnavailable
from mia.runtime.http import Service


def search(arguments, respond, words=0):
    async def go(url):
        service = Service("search", url, error=SearchUnavailable, attempts=1)
        try:
            return await SearchTool(service, 2, words).call(arguments, 5.0)
        finally:
            await service.aclose()

    with served(respond) as url:
        return asyncio.run(go(url))


def hit(id, title, text):
    return {"document": {"id": id, "contents": f'"{title}"\n{text}', "title": title, "text": text}, "score": 1.0}


def test_each_query_brings_its_passages_with_their_sources():
    asked = []

    def respond(request):
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"result": [[hit("a", "Aba", "A city.")], []]})

    seen = search({"query_list": ["aba", "zzz"]}, respond)
    assert asked == [{"queries": ["aba", "zzz"], "topk": 2, "return_scores": True}]
    assert seen.text == "Results for: aba\n[1] Aba\nA city.\n=======\nResults for: zzz\nNothing was found."
    assert [(source.id, source.title) for source in seen.sources] == [("a", "Aba")]


def test_passages_are_cut_to_what_matches_where_a_limit_is_set():
    def respond(request):
        return httpx.Response(200, json={"result": [[hit("a", "Aba", "Aba is a city. Its mayor is Ola. It is old.")]]})

    assert search({"query_list": ["mayor of Aba"]}, respond, words=4).text.endswith("[1] Aba\n… Its mayor is Ola. …")
    assert search({"query_list": ["mayor of Aba"]}, respond).text.endswith("It is old.")


@pytest.mark.parametrize(
    "arguments", [{"query": "aba"}, {"queries": ["aba"]}, {"query_list": "aba"}, {"query_list": ["aba", " "]}]
)
def test_other_names_of_the_argument_are_understood(arguments):
    def respond(request):
        assert json.loads(request.content)["queries"] == ["aba"]
        return httpx.Response(200, json={"result": [[]]})

    assert search(arguments, respond).error is None


@pytest.mark.parametrize(
    "arguments", [{}, {"query_list": []}, {"query_list": [" "]}, {"query_list": [3]}, {"query_list": None}]
)
def test_a_call_without_a_query_is_answered_with_what_to_mend(arguments):
    seen = search(arguments, lambda request: pytest.fail("nothing to search for"))
    assert "query_list" in seen.error


@pytest.mark.parametrize("answer", [{"result": "x"}, {}, {"result": [["x"]]}])
def test_garbage_from_the_search_service_is_an_error_and_no_observation(answer):
    with pytest.raises(SearchUnavailable):
        search({"query_list": ["a"]}, lambda request: httpx.Response(200, json=answer))


def test_documents_without_scores_are_passages_too():
    bare = hit("a", "Aba", "A city.")["document"]
    seen = search({"query_list": ["a"]}, lambda request: httpx.Response(200, json={"result": [[bare]]}))
    assert "[1] Aba\nA city." in seen.text


def test_a_service_that_leaves_queries_out_is_an_error():
    with pytest.raises(SearchUnavailable):
        search({"query_list": ["a", "b"]}, lambda request: httpx.Response(200, json={"result": [[]]}))


def test_a_search_service_that_is_down_is_an_error():
    with pytest.raises(SearchUnavailable):
        search({"query_list": ["a"]}, lambda request: httpx.Response(404))


def test_a_passage_without_title_or_id_is_shown_by_what_it_has():
    bare = {"document": {"contents": '"Aba"\nA city.'}, "score": 1.0}
    seen = search({"query_list": ["a"]}, lambda request: httpx.Response(200, json={"result": [[bare]]}))
    assert "[1] Aba\nA city." in seen.text


def test_queries_that_are_too_many_or_too_long_are_not_cut_in_silence():
    asked = []

    def respond(request):
        asked.append(json.loads(request.content)["queries"])
        return httpx.Response(200, json={"result": [[] for _ in asked[-1]]})

    seen = search({"query_list": ["a" * 401, "b", "c", "d", "e"]}, respond)
    assert asked == [["a" * 400, "b", "c", "d"]]
    assert seen.text.startswith(
        "[only the first 4 of 5 queries were searched, of each query only the first 400 characters]\nResults for: aaa"
    )
