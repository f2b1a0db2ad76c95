"""Text of any language, and text that is none, goes through every stage over real HTTP, and arrives."""

import asyncio
import io
import json
import logging
import re
import sqlite3
import sys

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from scripted import call
from served import served

from mia import wiring
from mia.cli.main import main
from mia.errors import InputError
from mia.evaluation.datasets import read_dataset
from mia.memory.storage import Storage
from mia.prompts import fill
from mia.runs.folder import RunFolder
from mia.runtime import problems
from mia.runtime.logging import configure
from mia.runtime.settings import RoleSettings, known_names, load
from mia.text import ByteCounter, clean, disarm
from mia.types import Key, Label, Truth
from mia.wire.memory_files import read, workflow_file

TEXTS = {
    "chinese": "北京是中华人民共和国的首都，𠮷野家在哪里？",
    "japanese": "パリ と ﾊﾟﾘ と か\u3099 の違い",
    "korean": "서울은 어디에 있습니까, \u1112\u1161\u11ab\u1100\u1173\u11af",
    "arabic": "ما هي عاصمة \u200fفرنسا\u200e؟ مُحَمَّد ١٢٣",
    "hebrew": "שָׁלוֹם עולם",
    "hindi": "नमस्ते दुनिया क्\u200dष",
    "thai": "กรุงเทพมหานคร อยู่ที่ไหน",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷 ❤️ ☎︎",
    "combining marks": "e\u0301\u0323\u0308 n\u0303 Z͑ͫ̓̚a̴l͜g̛o",
    "direction marks": "\u202eabc\u202c \u2066def\u2069 \u061c",
    "beyond the first plane": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010fffd",
    "lone surrogates": "half \ud83d of a pair, and the other half \ude00 alone",
    "nul": "a zero \x00 within a text of some length",
    "other controls": "bell \x07 escape \x1b[31m delete \x7f end of it",
    "separators": "one\u2028two\u2029three\x85four\u00a0five\u3000six",
    "no characters": "\ufffe here and \uffff there, \ufeff too",
    "escapes": 'a "quoted" \\ backslash, \\u4e2d and \\n, &lt; %s {x} {{question}}',
}
CASES = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
# An escape that JSON needs is one of a control character; after an even number of backslashes it is an escape at all.
ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u(?!00[01])")


def folded(text):
    """What is left when all white space counts the same: lines and columns are laid out anew on the way."""
    return "".join(text.split())


def arrives(text, whole):
    """Tell whether a text stands in another as it was, or where tags would count, disarmed."""
    return folded(clean(text)) in folded(whole) or folded(disarm(clean(text))) in folded(whole)


class World:
    """A model server and a search service of one text; what they are asked is kept."""

    def __init__(self, text):
        self.text = text
        self.bodies = []

    def __call__(self, request):
        if request.method == "GET":
            return self.answer({"data": [{"id": "m", "owned_by": "tests", "max_model_len": 32_768}]})
        if request.url.path == "/tokenize":
            return httpx.Response(404)
        self.bodies.append(request.content)
        body = json.loads(request.content)
        if request.url.path == "/retrieve":
            document = {"id": f"id {self.text}", "contents": f'"Title {self.text}"\nFound {self.text}'}
            return self.answer({"result": [[{"document": document, "score": 1.0}] for _ in body["queries"]]})
        message = {"role": "assistant", "content": self.reply(body["messages"]), "reasoning": f"Thought {self.text}"}
        return self.answer({"choices": [{"message": message, "finish_reason": "stop"}]})

    def reply(self, messages):
        system, last = messages[0]["content"], messages[-1]["content"]
        if system.startswith("You are the planner"):
            return "no" if "yes or no" in last else f"1. Look for {self.text}"
        if system.startswith("You write the memory"):
            return f"1. Look for {self.text}"
        if system.startswith("You grade"):
            return "A"
        return call(f"Query {self.text}") if len(messages) == 2 else f"<answer>Paris, or {self.text}</answer>"

    @staticmethod
    def answer(body):
        """Answer with escapes, which can carry what UTF-8 cannot."""
        return httpx.Response(200, content=json.dumps(body), headers={"Content-Type": "application/json"})


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in known_names():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(url, home):
    return load(
        RoleSettings,
        home=home,
        model=f"{url}/v1",
        search_url=url,
        memory_path=home / "bank.sqlite",
        encoder="hashed",
        compression="model",
        judge="truth",
        recall_floor=-1,
    )


def play(world, home, rounds=2):
    """Ask the same question in turn, so that the last time it is remembered; return episodes and memories."""

    async def go(url):
        ours = settings(url, home)
        question = wiring.question(ours, f"What is {world.text}", id=f"id {clean(world.text)}")
        truth = Truth(answers=("Paris", world.text))
        episodes = []
        async with wiring.agent(ours, answer_key={question.id: truth}) as agent:
            for number in range(rounds):
                key = Key(run="r", question_id=question.id, rollout=number)
                episodes.append(await agent.run(question, key))
        return episodes

    with served(world) as url:
        return asyncio.run(go(url))


@CASES
def test_a_text_goes_through_every_role_and_back_from_memory_and_disk(text, home):
    world = World(text)
    *_, episode = play(world, home)
    assert episode.failure is None
    final = episode.final
    step = final.trajectory.steps[0]
    for whole in (
        episode.question.text,
        final.plan.text,
        final.plan.said.thoughts,
        str(step.call.arguments["query_list"][0]),
        step.observation.text,
        step.observation.sources[0].id,
        step.observation.sources[0].title,
        episode.answer,
        episode.recall.successes[0][0].question,
        episode.recall.successes[0][0].plan,
    ):
        assert arrives(text, whole)
    assert final.verdict.label is Label.CORRECT
    folder = RunFolder.create(home / "r", {"settings": {"home": clean(text)}})
    folder.append(episode)
    assert list(folder.episodes()) == [episode]
    assert folder.manifest["made_by"]["settings"]["home"] == clean(text)
    for path in (folder.path / "episodes.jsonl", folder.path / "manifest.json"):
        assert not ESCAPE.search(path.read_bytes())


@CASES
def test_a_text_arrives_in_every_prompt_unescaped(text, home):
    world = World(text)
    play(world, home)
    for body in world.bodies:
        assert not ESCAPE.search(body)
        sent = json.loads(body)
        for whole in sent.get("queries") or [message["content"] for message in sent["messages"][1:]]:
            protocol = whole in ("A", "no") or "yes or no" in whole or "one letter" in whole
            assert protocol or arrives(text, whole)


@CASES
def test_a_text_goes_through_the_bank_its_file_and_back(text, home):
    play(World(text), home, rounds=1)
    path = home / "bank.sqlite"
    storage = Storage(path)
    (workflow,) = storage.list(None)
    storage.close()
    for whole in (workflow.question, workflow.plan):
        assert arrives(text, whole)
    exported = workflow_file([workflow])
    assert not ESCAPE.search(exported.encode())
    (again,) = read(exported, "file", 0.0).workflows
    assert (again.question, again.plan, again.summary) == (workflow.question, workflow.plan, workflow.summary)
    with sqlite3.connect(path) as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert "\\u" in text or not ESCAPE.search(dump.encode())


@CASES
def test_a_text_is_cut_between_characters(text):
    counter, whole = ByteCounter(), clean(text) * 3
    for tokens in range(counter.count(whole) + 1):
        cut = counter.cut(whole, tokens)
        assert counter.count(cut) <= tokens
        assert cut == whole or whole.startswith(cut.split("[cut]")[0].removesuffix(" …"))
        assert "\ufffd" not in cut or "\ufffd" in whole


@CASES
def test_a_text_stands_in_a_prompt_as_it_is(text):
    assert text in fill("judge", question=text, reference="{{answer}}", answer="{{question}}")
    assert "{{answer}}" in fill("judge", question=text, reference="{{answer}}", answer="x")


@CASES
def test_a_text_is_logged_on_one_line(text, home):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with (home / "log").open("w", encoding="utf-8") as file:
        configure("INFO", file)
        logging.getLogger("a").warning("said %s", text, extra={"text": text})
        root.handlers[:] = handlers
        root.setLevel(level)
    written = (home / "log").read_bytes()
    assert not ESCAPE.search(written)
    line = json.loads(written)
    assert (clean(line["message"]), clean(line["text"])) == (clean(f"said {text}"), clean(text))


@CASES
def test_a_text_comes_out_of_a_problem(text):
    app = FastAPI()
    problems.install(app)

    @app.get("/")
    def raising():
        raise InputError(f"It is {text}.", remedy=text)

    answer = TestClient(app).get("/")
    assert not ESCAPE.search(answer.content)
    error = answer.json()["error"]
    assert "\ud83d" in text or (error["message"], error["remedy"]) == (f"It is {text}.", text)


@CASES
def test_a_text_comes_out_of_the_command_line_as_json(text, home, monkeypatch):
    with served(World(text)) as url:
        options = ["--json", "--no-memory", "--model", f"{url}/v1", "--search-url", url]
        monkeypatch.setattr(sys, "argv", ["mia", "ask", "-", *options])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"What is {text}".encode("utf-8", "replace"))))
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    assert not ESCAPE.search(out.getvalue())
    assert arrives(text, json.loads(out.getvalue())["attempts"][0]["trajectory"]["answer"])


@CASES
def test_a_text_comes_out_of_a_data_set(text, home):
    row = {"id": text, "question": f"What is {text}", "answers": [text]}
    (home / "data.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    dataset = read_dataset(home / "data.jsonl", settings("http://127.0.0.1:1", home))
    assert dataset.answer_key == {clean(text): Truth(answers=(clean(text),))}
    assert dataset.questions[0].text == clean(f"What is {text}").strip()
