"""`mia memory`: every command on a real bank, with its exit code, and every undo line that it prints."""

import io
import json
import re
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mia import wiring
from mia.cli.main import main
from mia.memory import transfer
from mia.memory.storage import Storage
from mia.memory.writing import Fresh, Vectors
from mia.runtime.encoder import HashedEncoder
from mia.runtime.settings import known_names
from mia.types import PlanPair, Workflow
from mia.wire.memory_files import plan_file, workflow_file

RELEASED = Path(__file__).parents[2] / "data" / "released"
BAR = "━"


def workflow(number, **changes):
    values = {
        "question": f"第{number}个问题：长城有多长？",
        "summary": "1. 查找长城",
        "plan": "1. 搜索",
        "correct": number % 2 == 1,
        "question_id": f"q{number}",
        "episode": f"first-run/0/q{number}/0",
        "source": "first-run",
    }
    return Workflow(id=0, created=0.0, **(values | changes))


def pair(number, **changes):
    values = {"correct_plan": "1. 搜索", "incorrect_plan": "1. 猜", "question_id": f"q{number}", "source": "first-run"}
    return PlanPair(id=0, question=f"第{number}个问题？", created=0.0, **(values | changes))


@pytest.fixture(autouse=True)
def bank(tmp_path, monkeypatch):
    for name in known_names():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIA_MEMORY_PATH", "bank.sqlite")
    monkeypatch.setenv("MIA_ENCODER", "hashed")
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path / "bank.sqlite"


@pytest.fixture
def mia(monkeypatch, capsys):
    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["mia", "memory", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capsys.readouterr()
        return exited.value.code or 0, out, err

    return run


def keep(path, workflows=(), pairs=()):
    """Take memories into a bank as an import does."""
    encoder = HashedEncoder()
    with closing(Storage(path, encoder.id)) as storage:
        return transfer.take_in(storage, encoder, workflows, pairs, lambda _: None)


def held(path):
    """What a bank holds, as exported, and how much waits."""
    with closing(Storage(path)) as storage:
        found = storage.stats()
        return workflow_file(storage.list(None)), plan_file(storage.pairs()), found["drafts"], found["explorations"]


def undo(mia, out):
    (number,) = re.findall(r"^To undo this: mia memory restore (\d+)$", out, re.MULTILINE)
    code, out, err = mia("restore", number)
    assert code == 0, err
    return out


@pytest.fixture
def three(bank):
    keep(bank, [workflow(1), workflow(2, source="second-run"), workflow(3, uses=3, wins=2)], [pair(1), pair(2)])
    return bank


COMMANDS = ("list", "show", "forget", "stats", "export", "import", "reembed", "snapshot", "restore", "clear")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_an_example(mia, command):
    assert command in mia("--help")[1]
    code, out, _ = mia(command, "--help")
    assert code == 0
    assert re.search(rf"Example: (MIA_ENCODER=\w+ )?mia memory {command}\b", out)


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("show", "1"), ("forget", "1"), ("stats",), ("export", "x.json"), ("reembed",), ("snapshot", "s")]
    + [("restore", "0"), ("clear", "--yes")],
    ids=lambda arguments: arguments[0],
)
def test_without_a_bank_none_is_made(mia, bank, arguments):
    code, _, err = mia(*arguments)
    assert code == 2
    assert "MIA_MEMORY_PATH" in err
    assert not bank.exists()


def test_memories_are_listed_by_label_and_source_and_shown_whole(mia, three):
    assert "长城" in mia("list")[1]
    correct = mia("list", "--label", "correct")[1]
    assert "第1个" in correct
    assert "第2个" not in correct
    second = mia("list", "--source", "second-run")[1]
    assert "第2个" in second
    assert "第1个" not in second
    assert json.loads(mia("show", 2)[1])["source"] == "second-run"
    assert "Nothing of that kind" in mia("list", "--source", "third-run")[1]
    assert mia("list", "--label", "good")[0] == 2
    assert mia("show", 9)[0] == 2


def test_memories_are_forgotten_by_id_and_brought_back_by_the_line_that_is_printed(mia, three):
    before = held(three)
    code, out, _ = mia("forget", 1, 3, 9, 9)
    assert code == 0
    assert "Forgot 2 memories." in out
    assert "There is no memory 9." in out
    assert mia("show", 3)[0] == 2
    undo(mia, out)
    assert held(three) == before


def test_memories_and_plan_pairs_are_forgotten_by_source_and_brought_back(mia, three):
    before = held(three)
    code, out, _ = mia("forget", "--source", "first-run")
    assert code == 0
    assert "Forgot 4 memories and plan pairs." in out
    again = undo(mia, out)
    assert held(three) == before
    undo(mia, again)
    assert json.loads(mia("stats", "--json")[1])["memories"] == 1


@pytest.mark.parametrize(
    "arguments", [(), ("1", "--source", "first-run"), ("9", str(1 << 70)), ("--source", "nowhere")], ids=str
)
def test_forgetting_what_is_not_there_or_not_said_is_the_users_error(mia, three, arguments):
    before = held(three)
    code, _, err = mia("forget", *arguments)
    assert code == 2
    assert "remedy" in err
    assert held(three) == before


def bars(out):
    """Every bar by its name: the count beside it, and its length."""
    found = re.findall(rf"^ (\S+) +([\d,]+) +({BAR}*)", out, re.MULTILINE)
    return {name: (int(count), len(bar)) for name, count, bar in found}


def test_stats_show_counts_as_bars_in_proportion(mia, three):
    mia("snapshot", "实验前")
    code, out, _ = mia("stats")
    assert code == 0
    drawn = bars(out)
    assert drawn["correct"] == (2, 30)
    assert drawn["incorrect"] == (1, 15)
    assert drawn["0"] == (2, 30)
    assert drawn["2-3"] == (1, 15)
    assert drawn["16+"] == (0, 0)
    assert drawn["first-run"] == (2, 30)
    assert "category" not in out
    assert re.search(r"shown +3 times, 2 of them for a right answer", out)
    assert re.search(r"plan pairs +2\b", out)
    assert re.search(r"waiting +0 rollouts for their group, 0 summaries", out)
    assert re.search(rf"encoder +{HashedEncoder.id}", out)
    assert re.search(r"实验前 +11\b", out)


def test_stats_show_categories_and_what_waits_when_there_are_any(mia, bank):
    vectors = Vectors(*HashedEncoder().encode(["?", ""]))
    with closing(Storage(bank, HashedEncoder.id)) as storage, storage.writing() as writing:
        writing.add([Fresh(workflow(1, category="human"), "twin", vectors, draft="{}")])
    out = mia("stats")[1]
    assert bars(out)["human"] == (1, 30)
    assert "1 summary to be written again" in out


def test_stats_of_many_sources_and_of_none_are_readable(mia, bank):
    keep(bank)
    code, out, _ = mia("stats")
    assert code == 0
    assert BAR not in out
    keep(bank, [workflow(number, source=f"run-{number}" if number else "") for number in range(12)])
    out = mia("stats")[1]
    assert "8 of 12" in out
    assert "(unnamed)" in out


def test_stats_as_json_are_those_of_the_storage(mia, three):
    with closing(Storage(three)) as storage:
        expected = storage.stats()
    code, out, _ = mia("stats", "--json")
    assert code == 0
    assert {**json.loads(out), "bytes": 0} == {**expected, "bytes": 0}


def test_what_is_exported_and_imported_into_a_new_bank_is_exported_to_the_same_bytes(mia, bank, monkeypatch):
    many = [workflow(number, caption="图" * (number % 3 == 0), category="event", uses=number) for number in range(9)]
    keep(bank, many, [pair(1), pair(2, caption="桥"), pair(1)])
    code, out, _ = mia("export", "a.json", "--plans", "b.json")
    assert code == 0
    assert "9 memories" in out
    assert "3 plan pairs" in out
    monkeypatch.setenv("MIA_MEMORY_PATH", "new/bank.sqlite")
    code, out, err = mia("import", "a.json", "b.json", "--source", "a")
    assert code == 0, err
    assert "Took in 9 memories and 3 plan pairs; known already: 0." in out
    assert "12/12" in err
    assert mia("export", "c.json", "--plans", "d.json")[0] == 0
    for old, new in (("a.json", "c.json"), ("b.json", "d.json")):
        assert Path(old).read_bytes() == Path(new).read_bytes()
        assert "长城" in Path("a.json").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path().iterdir() if path.suffix == ".json") == [f"{x}.json" for x in "abcd"]


def test_an_export_overwrites_only_when_told_and_leaves_nothing_half_written(mia, three):
    Path("a.json").write_text("precious", encoding="utf-8")
    code, _, err = mia("export", "b.json", "--plans", "a.json")
    assert code == 2
    assert "--force" in err
    assert not Path("b.json").exists()
    assert Path("a.json").read_text(encoding="utf-8") == "precious"
    code, out, _ = mia("export", "a.json", "--force")
    assert code == 0
    assert "Left out 2 plan pairs" in out
    for where in (("none/a.json",), ("a.json/b",), (f"{'长' * 300}.json",), (".", "--force")):
        assert mia("export", *where)[0] == 2
    assert mia("export", "new.json", "--plans", "./new.json")[0] == 2
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_an_import_takes_in_once_and_its_undo_line_lets_it_be_taken_in_again(mia, bank):
    files = [RELEASED / "ttrl_workflow_memory.json", RELEASED / "ttrl_plan_memory.json", RELEASED / "lines.jsonl"]
    code, first, err = mia("import", *files)
    assert code == 0, err
    before = held(bank)
    code, second, _ = mia("import", *files)
    assert code == 0
    assert "Took in 0 memories and 0 plan pairs" in second
    assert "To undo" not in second
    assert held(bank) == before
    undo(mia, first)
    assert json.loads(mia("stats", "--json")[1])["memories"] == 0
    code, third, _ = mia("import", *files)
    assert third.splitlines()[0] == first.splitlines()[0]
    assert held(bank)[:2] == before[:2]


def test_an_import_is_named_after_its_file_and_says_which_fields_were_dropped(mia):
    record = {"question": "谁？", "workflow_summary": "1. 查", "judgement": "correct"}
    lines = [record | {"colour": "red"}, record | {"colour": "blue", "shape[x]": 1}]
    Path("记忆.jsonl").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    code, out, _ = mia("import", "记忆.jsonl")
    assert code == 0
    assert "The field 'colour' has no place here and was dropped, in 2 records." in out
    assert "The field 'shape[x]' has no place here and was dropped, in 1 record." in out
    assert json.loads(mia("stats", "--json")[1])["sources"] == {"记忆.jsonl": 2}


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("bad", b"{", "JSON"),
        ("bad", '{"question": "谁？"}'.encode("utf-16"), "UTF-8"),
        ("missing", b"", "No such file"),
        (".", b"", "directory"),
    ],
    ids=["broken", "UTF-16", "missing", "directory"],
)
def test_when_one_file_is_bad_nothing_is_imported(mia, bank, name, content, what):
    if content:
        Path(name).write_bytes(content)
    code, _, err = mia("import", RELEASED / "list.json", name)
    assert code == 2
    assert what in err
    assert "remedy" in err
    assert not bank.exists()


def other(path, count=1):
    """Make a bank of another encoder."""
    vectors = Vectors(np.ones(2, np.float32), np.zeros(2, np.float32))
    with closing(Storage(path, "other")) as storage, storage.writing() as writing:
        writing.add([Fresh(workflow(number), f"twin {number}", vectors) for number in range(count)])
        writing.add_pairs([(pair(1), vectors)])


def test_a_bank_of_another_encoder_is_refused_until_it_is_moved(mia, bank):
    other(bank, 4)
    mia("forget", 2)
    code, _, err = mia("import", RELEASED / "list.json")
    assert code == 3
    assert "mia memory reembed" in err
    code, out, err = mia("reembed")
    assert code == 0, err
    assert "start them again" in out
    assert "5/5" in err
    code, out, _ = mia("reembed")
    assert code == 0
    assert "already" in out
    assert mia("import", RELEASED / "list.json")[0] == 0


def test_moving_to_another_encoder_can_be_broken_off_and_goes_on(mia, bank, monkeypatch):
    class Breaking(HashedEncoder):
        calls = 0

        def encode(self, texts):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().encode(texts)

    other(bank, 4)
    monkeypatch.setattr(transfer, "CHUNK", 2)
    breaking = Breaking()
    monkeypatch.setattr(wiring, "encoder", lambda settings: breaking)
    code, _, err = mia("reembed")
    assert code == 130
    assert "goes on" in err
    assert json.loads(mia("stats", "--json")[1])["encoder"] == "other"
    code, _, err = mia("reembed")
    assert code == 0
    assert "3/3" in err
    assert json.loads(mia("stats", "--json")[1])["encoder"] == HashedEncoder.id


def test_a_snapshot_is_restored_by_its_name_or_number_and_the_restore_is_undone(mia, three):
    before = held(three)
    code, out, _ = mia("snapshot", "实验 前")
    assert code == 0
    assert "mia memory restore '实验 前'" in out
    mia("forget", 1, 2)
    after = held(three)
    code, out, _ = mia("restore", "实验 前")
    assert code == 0
    assert held(three) == before
    undo(mia, out)
    assert held(three) == after
    number = json.loads(mia("stats", "--json")[1])["snapshots"]["实验 前"]
    assert mia("restore", number)[0] == 0
    assert held(three) == before
    assert "already" in mia("restore", number)[1]


def test_a_snapshots_name_is_not_taken_twice_and_is_no_number(mia, three):
    assert mia("snapshot", "s")[0] == 0
    mia("forget", 1)
    code, _, err = mia("snapshot", "s")
    assert code == 2
    assert "already" in err
    assert mia("snapshot", "12")[0] == 2
    assert mia("snapshot", " ")[0] == 2


@pytest.mark.parametrize("state", ["nothing", "999", ""])
def test_restoring_what_never_was_is_the_users_error(mia, three, state):
    code, _, err = mia("restore", state)
    assert code == 2
    assert "remedy" in err


def test_clearing_asks_first_and_is_undone_by_the_line_that_is_printed(mia, three):
    before = held(three)
    assert mia("clear", stdin="n\n")[0] != 0
    assert held(three) == before
    code, out, _ = mia("clear", stdin="y\n")
    assert code == 0
    assert "Forgot 3 memories and 2 plan pairs." in out
    assert json.loads(mia("stats", "--json")[1])["memories"] == 0
    undo(mia, out)
    assert held(three) == before
    assert mia("clear", "--yes")[0] == 0


def test_a_file_that_is_no_bank_is_said_to_be_none(mia, bank):
    bank.write_bytes(b"not a database at all" * 100)
    for arguments in (("stats",), ("import", RELEASED / "list.json"), ("clear", "--yes")):
        code, _, err = mia(*arguments)
        assert code == 4
        assert "Traceback" not in err
