"""The load on the services, on a small scale: what it checks of answers and records holds, whatever the time it takes."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "services.py"


@pytest.mark.parametrize(
    ("part", "words"), [("recall", "nothing failed"), ("plan", "longest chain"), ("kill", "saved and acknowledged")]
)
def test_services_lose_and_cross_nothing_under_load(part, words):
    command = [sys.executable, str(SCRIPT), "--quick", "--encoder", "hashed", "--only", part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert words in " ".join(done.stdout.split())
