"""The command of the warm start where nothing of its extra is installed."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "warm_start.py"


def called(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_needs_no_extra_and_teaches():
    done = called("--help")
    assert done.returncode == 0
    assert "goes on where it was" in done.stdout
    assert called("train", "--help").returncode == 0


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_a_missing_package_is_named_with_its_remedy(tmp_path):
    done = called("train", "--traces", tmp_path / "none.jsonl", "--out", tmp_path)
    assert done.returncode == 3
    assert "./install.sh embedded train" in done.stderr
