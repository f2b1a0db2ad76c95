"""The command of the warm start where nothing of its extra is installed."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "warm_start.py"
sys.path.append(str(SCRIPT.parent))
import warm_start  # noqa: E402


def called(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_needs_no_extra_and_teaches():
    done = called("--help")
    assert done.returncode == 0
    assert "goes on where it was" in done.stdout
    assert called("train", "--help").returncode == 0


def test_only_the_traces_of_all_training_questions_lie_where_they_are_trained_on():
    trained = {warm_start.traces_file(method) for method in warm_start.METHODS}
    assert len(trained) == len(warm_start.METHODS)
    others = [("loop", "test", 0), ("loop", "train", 40), ("one-shot", "test", 40)]
    assert not trained & {warm_start.traces_file(*each) for each in others}


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_a_missing_package_is_named_with_its_remedy(tmp_path):
    done = called("train", "--traces", tmp_path / "none.jsonl", "--out", tmp_path)
    assert done.returncode == 3
    assert "./install.sh embedded train" in done.stderr
