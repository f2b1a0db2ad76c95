import pytest
from scripted import say

from mia.errors import InputError, StorageError
from mia.runs.folder import RunFolder, new_id
from mia.types import Attempt, Episode, Key, Plan, Question, StopReason, Trajectory

MADE_BY = {"settings": {"a": 1}, "prompts": "x"}


def episode(id, text="?"):
    attempt = Attempt(
        plan=Plan(said=say("1.")), trajectory=Trajectory(steps=(), answer="東京", stop=StopReason.ANSWERED)
    )
    return Episode(key=Key(run="r", question_id=id), question=Question(id=id, text=text), attempts=(attempt,))


def test_episodes_read_back_as_they_were_added(tmp_path):
    run = RunFolder.create(tmp_path / "r", MADE_BY)
    run.append(episode("a"))
    run.append(episode("b", "مرحبا"))
    assert list(run.episodes()) == [episode("a"), episode("b", "مرحبا")]
    assert "東京" in (tmp_path / "r" / "episodes.jsonl").read_text()


def test_the_manifest_says_how_the_run_was_made(tmp_path):
    manifest = RunFolder.create(tmp_path / "r", MADE_BY).manifest
    assert manifest["made_by"] == MADE_BY
    assert manifest["id"].startswith("r-")
    assert len(manifest["code"]) == 64


def test_a_torn_last_line_is_dropped_and_does_not_grow_into_the_next(tmp_path):
    run = RunFolder.create(tmp_path / "r", MADE_BY)
    run.append(episode("a"))
    with (tmp_path / "r" / "episodes.jsonl").open("ab") as file:
        file.write(b'{"schema": 1, "key"')
    assert list(run.episodes()) == [episode("a")]
    again = RunFolder.create(tmp_path / "r", MADE_BY)
    again.append(episode("b"))
    assert list(again.episodes()) == [episode("a"), episode("b")]


def test_a_run_made_differently_is_not_gone_on_with(tmp_path):
    RunFolder.create(tmp_path / "r", MADE_BY)
    with pytest.raises(InputError, match="other prompts"):
        RunFolder.create(tmp_path / "r", {**MADE_BY, "prompts": "y"})


def test_a_run_of_other_code_is_not_gone_on_with(tmp_path, monkeypatch):
    RunFolder.create(tmp_path / "r", MADE_BY)
    monkeypatch.setattr("mia.runs.folder.code_hash", lambda: "another")
    with pytest.raises(InputError, match="other code"):
        RunFolder.create(tmp_path / "r", MADE_BY)


def test_a_line_that_is_no_episode_is_an_error_with_its_number(tmp_path):
    run = RunFolder.create(tmp_path / "r", MADE_BY)
    (tmp_path / "r" / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(StorageError, match="Line 1"):
        list(run.episodes())


def test_a_folder_that_cannot_be_made_names_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="MIA_HOME"):
        RunFolder.create(tmp_path / "file" / "r", MADE_BY)


def test_a_folder_without_a_manifest_is_no_run(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        _ = RunFolder(tmp_path).manifest


def test_ids_do_not_repeat():
    assert len({new_id("ask") for _ in range(50)}) == 50


def test_two_folders_of_one_name_are_two_runs(tmp_path):
    one, other = (RunFolder.create(tmp_path / place / "first", MADE_BY) for place in "ab")
    assert one.id != other.id
    assert RunFolder.create(tmp_path / "a" / "first", MADE_BY).id == one.id == RunFolder(tmp_path / "a" / "first").id


def test_a_run_may_be_given_the_id_whose_seeds_it_repeats(tmp_path):
    assert RunFolder.create(tmp_path / "r", MADE_BY, "eval-1").id == "eval-1"
    assert RunFolder.create(tmp_path / "r", MADE_BY).id == "eval-1"
