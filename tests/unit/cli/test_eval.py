"""`mia eval` and `mia compare`, with a stand-in for the model and a search that finds one passage."""

import json
import sys

import httpx
import pytest
from served import served
from standin import Policy, completion

from mia.cli.main import main
from mia.runs.folder import RunFolder
from mia.runtime.settings import known_names

MODELS = {"data": [{"id": "standin", "max_model_len": 32768}]}
FOUND = {"result": [[{"document": {"id": "d1", "contents": '"Romania"\nIts currency is the leu.'}, "score": 1.0}]]}
ROWS = [
    {"id": f"q{n}", "question": f"What is the currency of {country}?", "answers": ["leu"], "type": kind}
    for n, (country, kind) in enumerate(
        [("Romania", "chain1"), ("Moldova", "chain1"), ("Chad", "chain2"), ("Mali", "chain2"), ("Togo", "chain2")]
    )
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name in known_names():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIA_ENCODER", "hashed")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


@pytest.fixture
def server(monkeypatch):
    policy = Policy({"Romania": "leu", "Moldova": "leu", "Chad": "leu"}, searches=1)
    asked = []

    def respond(request):
        if request.url.path == "/retrieve":
            return httpx.Response(200, json={"result": FOUND["result"] * len(json.loads(request.content)["queries"])})
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json=MODELS)
        asked.append(json.loads(request.content)["messages"])
        return httpx.Response(200, json=completion(policy, {"messages": asked[-1]}))

    with served(respond) as url:
        monkeypatch.setenv("MIA_MODEL", f"{url}/v1")
        monkeypatch.setenv("MIA_SEARCH_URL", url)
        yield asked, policy


@pytest.fixture
def mia(monkeypatch, capsys, server):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mia", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


def test_a_baseline_needs_no_planner_and_its_method_is_recorded(mia, server, folder):
    asked, policy = server
    policy.searches = 0
    code, out, err = mia("eval", "data.jsonl", "--method", "one-shot", "--out", "run")
    assert code == 0, err
    assert "5 questions: 3 correct, 2 incorrect." in out
    assert len(asked) == 5
    assert all("Its currency is the leu." in messages[-1]["content"] for messages in asked)
    made_by = RunFolder(folder / "run").manifest["made_by"]
    assert (made_by["method"], made_by["models"]) == ("one-shot", {"executor": "standin"})


def test_another_method_is_another_run(mia):
    assert mia("eval", "data.jsonl", "--method", "closed-book", "--out", "run")[0] == 0
    code, _, err = mia("eval", "data.jsonl", "--out", "run")
    assert code == 2
    assert "method" in err


def test_shares_are_told_by_type(mia):
    _, out, _ = mia("eval", "data.jsonl", "--memory", "none", "--out", "run")
    lines = [" ".join(line.replace("│", " ").split()) for line in out.splitlines()]
    assert any(line.startswith("chain1 2/2 100.0 % (34.2 to 100.0)") for line in lines)
    assert any(line.startswith("chain2 1/3 33.3 %") for line in lines)
    assert any(line.startswith("all 3/5 60.0 %") for line in lines)


def test_a_sample_has_the_same_few_of_each_type_in_every_run(mia, folder):
    mia("eval", "data.jsonl", "--per-type", "1", "--memory", "none", "--out", "one")
    mia("eval", "data.jsonl", "--per-type", "2", "--memory", "none", "--out", "two")
    one, two = ({e.question.id for e in RunFolder(folder / name).episodes()} for name in ("one", "two"))
    assert (len(one), len(two)) == (2, 4)
    assert one < two


def test_a_run_is_compared_in_pairs_with_another_over_its_questions(mia, server):
    policy = server[1]
    mia("eval", "data.jsonl", "--memory", "none", "--out", "before")
    policy.answers["Mali"] = "leu"
    code, out, err = mia("eval", "data.jsonl", "--memory", "none", "--out", "after", "--against", "before")
    assert code == 0, err
    assert "+20.0 (" in out
    code, out, err = mia("compare", "before", "after")
    assert code == 0, err
    assert "5 questions of data" in out
    assert "loop without memory, loop without memory: standin" in out
    assert "3/5" in out
    assert "4/5" in out
    assert "+20.0 (" in out


def test_runs_over_other_questions_are_not_compared(mia):
    mia("eval", "data.jsonl", "--limit", "2", "--memory", "none", "--out", "few")
    mia("eval", "data.jsonl", "--memory", "none", "--out", "all")
    for command in (("compare", "few", "all"), ("compare", "all", "few")):
        code, _, err = mia(*command)
        assert code == 2
        assert "does not hold the question" in err
    code, _, err = mia("eval", "data.jsonl", "--memory", "none", "--out", "more", "--against", "few")
    assert code == 2
    assert "does not hold the question" in err


def test_an_unfinished_run_is_not_compared(mia, folder):
    mia("eval", "data.jsonl", "--memory", "none", "--out", "run")
    path = folder / "run" / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    code, _, err = mia("compare", "run")
    assert code == 2
    assert "holds 2 of 5 questions" in err
    assert mia("compare", "nowhere")[0] == 2
