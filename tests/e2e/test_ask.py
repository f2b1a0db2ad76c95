"""`mia` as a person uses it: real processes, real search over the default corpus, a stand-in for the model alone."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from mia.runs.folder import RunFolder
from mia.runtime.settings import known_names
from mia.types import Episode

ROOT = Path(__file__).parents[2]
ANSWERS = {"Romania": "Romanian Leu", "عاصمة": "بوخارست"}
QUESTION = "What is the official currency of Romania?"


def environment(folder, **more):
    kept = {name: value for name, value in os.environ.items() if name not in known_names()}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "MIA_HOME": str(folder),
        "MIA_MEMORY_PATH": str(folder / "m.sqlite"),
        **more,
    }


@pytest.fixture(scope="module")
def processes():
    started = []

    def start(*command, **options):
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate()


def standin(processes, *options):
    model = processes(sys.executable, "tests/standin.py", "--answers", json.dumps(ANSWERS), *options)
    return f"http://127.0.0.1:{int(model.stdout.readline())}/v1"


@pytest.fixture(scope="module")
def model(processes):
    return standin(processes)


@pytest.fixture(scope="module")
def search(processes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    command = [sys.executable, "-m", "mia.cli.main", "serve", "search", "--port", "0", "--index", str(folder / "index")]
    process = processes(*command, env=environment(folder), stderr=subprocess.STDOUT)
    for line in process.stdout:
        if '"ready"' in line:
            return f"http://127.0.0.1:{json.loads(line)['port']}"
    return pytest.fail("the search service did not start")


@pytest.fixture
def mia(tmp_path, model, search):
    def run(*arguments, stdin=b"", **more):
        env = environment(tmp_path, **{"MIA_MODEL": model, "MIA_SEARCH_URL": search, **more})
        command = [sys.executable, "-m", "mia.cli.main", *map(str, arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, env=env, cwd=ROOT, check=False, timeout=120)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


def runs(folder):
    return [episode for path in sorted(folder.glob("ask-*")) for episode in RunFolder(path).episodes()]


def test_a_question_is_answered_with_sources_judged_remembered_and_recalled(mia, tmp_path):
    code, out, err = mia("ask", QUESTION, "--truth", "Romanian Leu")
    assert code == 0, err
    assert "Answer: Romanian Leu" in out
    assert "[1] Romania" in out
    assert re.search(r"recall +nothing similar yet", err)
    for shown in ("plan", "call", "result", "the answer stands", "correct (by exact)", "offered to the memory"):
        assert shown in err
    code, out, err = mia("ask", QUESTION)
    assert code == 0
    assert re.search(r"recall +1 successes, 0 failures", err)
    assert "Not judged" in out
    code, out, _ = mia("memory", "stats", "--json")
    assert json.loads(out)["memories"] == 1
    assert [episode.answer for episode in runs(tmp_path)] == ["Romanian Leu"] * 2


def test_memories_are_listed_shown_and_forgotten(mia):
    code, _, err = mia("memory", "list")
    assert code == 2
    assert "MIA_MEMORY_PATH" in err
    mia("ask", QUESTION, "--truth", "Romanian Leu")
    assert "Romania" in mia("memory", "list", "--label", "correct")[1]
    code, out, _ = mia("memory", "show", "1")
    assert json.loads(out)["question"] == QUESTION
    assert mia("memory", "forget", "1")[0] == 0
    code, _, err = mia("memory", "show", "1")
    assert code == 2
    assert "mia memory list" in err


def test_json_is_the_episode_and_nothing_else(mia):
    code, out, err = mia("ask", "--json", QUESTION)
    assert code == 0
    assert err == ""
    assert Episode.model_validate_json(out).answer == "Romanian Leu"


@pytest.mark.parametrize(
    "question", ["ما هي عاصمة رومانيا؟", "چه\u200cکسی \u200fمی\u200cآید؟", "👨\u200d👩\u200d👧\u200d👦?"]
)
def test_a_question_in_any_script_is_answered(mia, question):
    code, out, err = mia("ask", "-", stdin=question.encode())
    assert code == 0, err
    assert ("بوخارست" if "عاصمة" in question else "unknown") in out


@pytest.mark.parametrize(
    ("stdin", "what"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"word " * 200_000, "8,000"),
        (b"\xff\xfe\x00\x80", "UTF-8"),
        (b"\x00\x01\x02", "binary"),
    ],
    ids=["empty", "blank", "1 MB", "not UTF-8", "binary"],
)
def test_a_question_that_is_none_is_refused_as_the_users_error(mia, tmp_path, stdin, what):
    code, _, err = mia("ask", "-", stdin=stdin)
    assert code == 2
    assert what in err
    assert "remedy" in err
    assert "Traceback" not in err
    assert runs(tmp_path) == []


def test_an_image_that_is_none_or_missing_is_refused(mia, tmp_path):
    (tmp_path / "x.png").write_bytes(b"not an image")
    for path in (tmp_path / "x.png", tmp_path / "none.png"):
        code, _, err = mia("ask", QUESTION, "--image", path)
        assert code == 2
        assert "image" in err


def test_an_image_for_a_model_that_sees_none_is_refused_with_the_remedy(mia, tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    (tmp_path / "flag.png").write_bytes(data.getvalue())
    code, _, err = mia("ask", "Whose flag of Romania?", "--image", tmp_path / "flag.png")
    assert code == 2
    assert "MIA_VISION" in err
    code, _, _ = mia("ask", "Whose currency is it, Romania?", "--image", tmp_path / "flag.png", MIA_VISION="true")
    assert code == 0


@pytest.mark.parametrize("format", ["release-train", "release-inference", "release-serve"])
def test_a_question_is_answered_in_every_format_of_the_release(mia, tmp_path, format):
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    (tmp_path / "flag.png").write_bytes(data.getvalue())
    shown = ["--image", tmp_path / "flag.png"] if format == "release-train" else []
    code, out, err = mia("ask", "--json", QUESTION, *shown, MIA_FORMAT=format, MIA_VISION="true", MIA_CAPTION="off")
    assert code == 0, err
    episode = Episode.model_validate_json(out)
    assert episode.answer == "Romanian Leu"
    assert [bool(step.observation) for step in episode.final.trajectory.steps] == [True, False]


def test_no_model_server_is_an_infrastructure_error_that_names_the_command(mia):
    code, _, err = mia("ask", QUESTION, MIA_MODEL="smollm2", MODEL_PORT="9")
    assert code == 5
    assert "mia serve model" in err


def test_a_model_server_that_answers_garbage_fails_the_episode_and_nothing_is_remembered(mia, tmp_path, processes):
    garbage = standin(processes, "--garbage")
    code, out, err = mia("ask", QUESTION, "--truth", "Romanian Leu", MIA_MODEL=garbage)
    assert code == 5
    assert "not a JSON object" in err
    assert "Answer" not in out
    assert runs(tmp_path)[0].failure.service == "model"
    assert json.loads(mia("memory", "stats", "--json")[1])["memories"] == 0
    data = write_questions(tmp_path / "data.jsonl", 2)
    code, out, err = mia("eval", data, "--out", tmp_path / "run", MIA_MODEL=garbage)
    assert code == 5
    assert "2 questions: 2 failed." in out


def test_something_that_is_no_model_server_is_named_as_such(mia, search):
    code, _, err = mia("ask", QUESTION, MIA_MODEL=search)
    assert code == 5
    assert search in err


def test_a_search_service_that_is_down_fails_the_episode_and_is_recorded(mia, tmp_path):
    code, _, err = mia("ask", QUESTION, "--truth", "Romanian Leu", MIA_SEARCH_URL="http://127.0.0.1:9")
    assert code == 5
    assert "mia serve search" in err
    assert runs(tmp_path)[0].failure.service == "search"
    assert runs(tmp_path)[0].attempts[0].verdict is None


def test_configuration_errors_have_their_own_exit_code(mia):
    code, _, err = mia("ask", QUESTION, MIA_TYPO="1")
    assert code == 3
    assert "MIA_TYPO" in err
    assert mia("config", MIA_TOPK="many")[0] == 3
    code, _, err = mia("ask", QUESTION, MIA_TURN_TOKENS="20000")
    assert code == 3
    assert "MIA_TURN_TOKENS" in err


def test_a_memory_that_cannot_be_opened_is_a_storage_error(mia, tmp_path):
    (tmp_path / "broken.sqlite").write_bytes(b"not a database, whatever its name says" * 100)
    code, _, err = mia("ask", QUESTION, MIA_MEMORY_PATH=str(tmp_path / "broken.sqlite"))
    assert code == 4
    assert "MIA_MEMORY_PATH" in err


def test_a_wrong_option_is_the_users_error_and_help_teaches(mia):
    assert mia("ask", "--nonsense")[0] == 2
    code, out, _ = mia("ask", "--help")
    assert code == 0
    assert "mia serve model" in out
    assert "Exit codes" in mia("--help")[1]


def test_secrets_are_masked_in_the_configuration(mia):
    code, out, _ = mia("config", MIA_TOKEN="hush-hush", MIA_MODEL_KEY="k3y")
    assert code == 0
    assert "MIA_TOPK" in out
    assert "hush-hush" not in out + mia("config", "--json", MIA_TOKEN="hush-hush")[1]


def write_questions(path, count):
    rows = [
        {"id": f"q{n}", "question": f"{QUESTION[:-1]} in case {n}?", "answers": ["Romanian Leu" if n % 2 else "Euro"]}
        for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_an_evaluation_counts_every_question_and_resumes(mia, tmp_path):
    data = write_questions(tmp_path / "data.jsonl", 4)
    code, out, err = mia("eval", data, "--out", tmp_path / "run")
    assert code == 0, err
    assert "4 questions: 2 correct, 2 incorrect." in out
    assert "50.0%" in out
    lines = (tmp_path / "run" / "episodes.jsonl").read_text()
    assert mia("eval", data, "--out", tmp_path / "run")[0] == 0
    assert (tmp_path / "run" / "episodes.jsonl").read_text() == lines
    code, _, err = mia("eval", data, "--out", tmp_path / "run", MIA_TOPK="2")
    assert code == 2
    assert "other topk" in err


def test_an_evaluation_tells_what_the_managers_model_did_not_write_and_keeps_all(mia, tmp_path):
    data = write_questions(tmp_path / "data.jsonl", 3)
    code, out, err = mia("eval", data, "--out", tmp_path / "run", MIA_COMPRESSION="model")
    assert code == 0, err
    assert "failed to write: 3 workflows" in out
    code, out, _ = mia("memory", "stats", "--json", MIA_MEMORY_PATH=tmp_path / "run" / "memory.sqlite")
    assert (json.loads(out)["memories"], json.loads(out)["drafts"]) == (3, 3)


def test_an_evaluation_killed_in_the_middle_goes_on_where_it_was(mia, tmp_path, processes, search):
    slow = standin(processes, "--delay", "0.1")
    data = write_questions(tmp_path / "data.jsonl", 12)
    env = environment(tmp_path, MIA_MODEL=slow, MIA_SEARCH_URL=search)
    command = [sys.executable, "-m", "mia.cli.main", "eval", str(data), "--out", str(tmp_path / "run")]
    running = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    episodes = tmp_path / "run" / "episodes.jsonl"
    while not episodes.exists() or episodes.read_bytes().count(b"\n") < 3:
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = episodes.read_bytes().count(b"\n")
    code, out, _ = mia("eval", data, "--out", tmp_path / "run")
    assert code == 0
    assert before < 12
    assert "12 questions: 6 correct, 6 incorrect." in out
    ids = [episode.key.question_id for episode in RunFolder(tmp_path / "run").episodes()]
    assert sorted(ids) == sorted({f"q{n}" for n in range(12)})
