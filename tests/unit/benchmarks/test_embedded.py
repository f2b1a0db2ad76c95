"""The probes and the table of scripts/evaluate_embedded.sh, on models that read, recite or reflect to order."""

import asyncio
import importlib.util
import json
import re
import sys
from pathlib import Path

import httpx
import pytest
from served import served
from standin import Policy, completion

from mia.runs.folder import RunFolder
from mia.runtime.settings import RoleSettings, known_names, load
from mia.types import Attempt, Cost, Episode, Key, Label, Plan, Question, Said, StopReason, Trajectory, Truth, Verdict

ROOT = Path(__file__).parents[3]
DATA = ROOT / "data" / "worldfacts"


def module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


probes, tables = module("embedded_probes"), module("embedded_table")
FACT = probes.Fact(
    "q", "What is the currency of Romania?", Truth(answers=("leu",)), Truth(answers=("yen",)), frozenset({"kept"})
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in known_names():
        monkeypatch.delenv(name, raising=False)


def document(id, text):
    return {"document": {"id": id, "title": "T", "text": text, "contents": f'"T"\n{text}'}, "score": 1.0}


def test_passages_are_retold_as_whole_words_and_those_to_keep_are_kept():
    hits = FACT.rewrite({"result": [[document("a", "leu, leuco; the leu."), document("kept", "the leu")]]})["result"][0]
    assert hits[0]["document"]["text"] == "yen, leuco; the yen."
    assert hits[0]["document"]["contents"] == '"T"\nyen, leuco; the yen.'
    assert hits[1]["document"]["text"] == "the leu"


def test_an_invented_answer_is_that_of_another_question_after_the_same_relation():
    facts = probes.invent(DATA / "test.jsonl", DATA / "corpus.jsonl", 100)
    rows = {row["id"]: row for row in map(json.loads, (DATA / "test.jsonl").read_text().splitlines())}
    assert len({fact.id for fact in facts}) == 100
    for fact in facts:
        relation = rows[fact.id]["decomposition"][-1]["relation"]
        givers = [row for row in rows.values() if tuple(row["answers"]) == fact.invented.answers]
        assert relation in {row["decomposition"][-1]["relation"] for row in givers}
        assert not {*fact.truth.answers} & {*fact.invented.answers}


class Reader(Policy):
    """Answers with the currency that the passages name."""

    def reply(self, messages):
        text = super().reply(messages)
        named = re.findall(r"Its currency is the (\w+)", messages[-1]["content"])
        return f"<answer>{named[0]}</answer>" if named and "<answer>" in text else text


@pytest.mark.parametrize(
    ("policy", "expected"), [(Reader({}, 1), "followed"), (Policy({"Romania": "leu"}, 1), "recited")]
)
def test_who_reads_follows_and_who_recites_does_not(tmp_path, policy, expected):
    asked = []

    def respond(request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 32768}]})
        body = json.loads(request.content)
        if request.url.path == "/retrieve":
            return httpx.Response(200, json={"result": [[document("d", "Its currency is the leu.")]]})
        asked.append(body)
        return httpx.Response(200, json=completion(policy, body))

    def go(url):
        settings = load(RoleSettings, model=f"{url}/v1", search_url=url, home=tmp_path)
        return asyncio.run(probes.read(settings, [FACT], RunFolder.create(tmp_path / "r", {})))

    with served(respond) as url:
        found = go(url)
        assert {name: found[name] for name in ("size", "followed", "recited", "other")} == {
            "size": 1,
            "followed": 0,
            "recited": 0,
            "other": 0,
            expected: 1,
        } | {"size": 1}
        replies = len(asked)
        assert go(url) == found
        assert len(asked) == replies


def trace(id, last, kind="right"):
    said = [("system", "You plan."), ("user", "Plan."), ("assistant", "1. Look."), ("user", f"Is {id} right?")]
    messages = [{"role": role, "content": text} for role, text in [*said, ("assistant", last)]]
    return {"id": id, "role": "reflection", "kind": kind, "messages": messages}


def test_reflections_are_asked_with_what_came_before_them_once_each(tmp_path):
    lines = [trace("a", "It is.\nno"), trace("b", "<think>no</think>yes", "cut"), {"id": "c", "role": "executor"}]
    (tmp_path / "traces.jsonl").write_text("\n".join(map(json.dumps, lines)))
    asked = []

    def respond(request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 32768}]})
        asked.append([(message["role"], message["content"]) for message in json.loads(request.content)["messages"]])
        text = "Hm." if "Is b" in asked[-1][-1][1] else "no"
        return httpx.Response(200, json={"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    with served(respond) as url:
        settings = load(RoleSettings, model=f"{url}/v1", home=tmp_path)
        for _ in range(2):
            found = asyncio.run(probes.reflect(settings, tmp_path / "traces.jsonl", tmp_path / "out.jsonl"))
    assert [(each.id, each.right, each.said, each.clear) for each in found] == [
        ("a", False, False, True),
        ("b", True, True, False),
    ]
    assert [[role for role, _ in messages] for messages in asked] == [["system", "user", "assistant", "user"]] * 2


def test_a_trace_that_does_not_end_in_yes_or_no_is_refused(tmp_path):
    with pytest.raises(probes.InputError, match="does not end"):
        probes._question(trace("a", "perhaps"))


def write_run(path, name, right, answer="x"):
    rows = list(map(json.loads, (DATA / f"{name}.jsonl").read_text().splitlines()))[:12]
    folder = RunFolder.create(path, {"data": {"name": name, "size": len(rows)}})
    said = Said(raw="p", text="p")
    for number, row in enumerate(rows):
        label = Label.CORRECT if number < right else Label.INCORRECT
        trajectory = Trajectory(steps=(), answer=answer, stop=StopReason.ANSWERED)
        attempt = Attempt(plan=Plan(said=said), trajectory=trajectory, verdict=Verdict(label=label, judge="exact"))
        folder.append(
            Episode(
                key=Key(run="r", question_id=row["id"]),
                question=Question(id=row["id"], text=row["question"]),
                attempts=(attempt,),
                cost=Cost(seconds={"all": float(number)}),
            )
        )


def test_the_table_has_a_row_for_all_that_was_run_and_for_nothing_else(tmp_path):
    write_run(tmp_path / "test", "test", 9)
    write_run(tmp_path / "test-one-shot", "test", 3, "unknown")
    write_run(tmp_path / "ask", "test", 9)
    (tmp_path / "reading.json").write_text(json.dumps({"size": 10, "followed": 9, "recited": 1}))
    counts = {"yes": {"size": 10, "right": 9}, "no": {"size": 20, "right": 16}}
    (tmp_path / "reflection.json").write_text(json.dumps({**counts, "kinds": {"cut": {"size": 10, "right": 9}}}))
    rows = {row["what"]: row for row in tables.measured(tmp_path, DATA)}
    assert (rows["test, all, %"]["hits"], rows["test, all, %"]["n"]) == (9, 12)
    assert rows["test, 1-2 hops, %"]["must"] == ">= 95 %"
    gain = rows["loop - one-shot adapter, all, points"]
    assert (gain["value"], gain["gained"], gain["lost"]) == (50.0, 6, 0)
    assert 0 < gain["low"] < 50 < gain["high"]
    assert rows["test, answered by saying that nothing is known, %"]["hits"] == 0
    assert rows["one question at a time, s"]["value"] == 5.5
    assert rows["invented fact in the passages: followed, %"]["hits"] == 9
    balanced = rows["reflection: balanced accuracy, %"]
    assert (balanced["value"], balanced["n"]) == (85.0, 30)
    assert balanced["low"] < 85 < balanced["high"]
    assert not any("phrasing" in name for name in rows)
    text = tables.markdown(list(rows.values()))
    assert text.count("\n| ") == len(rows) + 1
