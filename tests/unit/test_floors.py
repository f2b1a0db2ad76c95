"""The floors hold, and a breach of each rule is found: contracts run on a copy with violations planted."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).parent / "lint-imports"

FLOORS = "Nothing imports upward and siblings do not know each other"
PURE = "Types, roles, baselines and the loop know no process, network or framework"
TRAINING = "Only mia.training knows verl, ray and hydra"
SEARCH = "local_search knows of mia only types, errors, text, protocols, wire and runtime"
HTTP = "mia meets local_search over HTTP only"

BREACHES = {
    "upward import": ("mia/types.py", "import mia.agent", FLOORS),
    "import between roles": ("mia/judge/planted.py", "import mia.planner", FLOORS),
    "import between ground siblings": ("mia/text.py", "import mia.transcript", FLOORS),
    "the command line from below": ("mia/runtime/planted.py", "import mia.cli", FLOORS),
    "new module without a floor": ("mia/helpers.py", "", FLOORS),
    "role that imports runtime": ("mia/memory/planted.py", "import mia.runtime.settings", PURE),
    "role that imports wire": ("mia/executor/planted.py", "import mia.wire", PURE),
    "role that imports os": ("mia/planner/planted.py", "import os", PURE),
    "role that imports httpx": ("mia/judge/planted.py", "import httpx", PURE),
    "loop that imports torch": ("mia/agent.py", "import torch", PURE),
    "baseline that imports os": ("mia/baselines/planted.py", "import os", PURE),
    "verl outside training": ("mia/evaluation/planted.py", "import verl", TRAINING),
    "ray under a role's import guard": ("mia/clients/planted.py", "def f():\n    import ray", TRAINING),
    "hydra in search": ("local_search/planted.py", "import hydra", TRAINING),
    "search that imports the loop": ("local_search/planted.py", "import mia.agent", SEARCH),
    "search that imports a role": ("local_search/planted.py", "from mia.memory import bank", SEARCH),
    "mia that imports search": ("mia/evaluation/planted.py", "import local_search", HTTP),
}


@pytest.fixture
def house(tmp_path):
    """A copy of the packages and their contracts."""
    for package in ("mia", "local_search"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(house):
    done = subprocess.run([LINT, "--no-cache"], cwd=house, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def plant(house, file, code):
    path = house / file
    if not path.parent.exists():
        path.parent.mkdir()
        (path.parent / "__init__.py").write_text("")
    with path.open("a") as end:
        end.write(f"\n{code}\n")


def test_the_house_keeps_its_contracts(house):
    status, said = lint(house)
    assert status == 0, said


@pytest.mark.parametrize(("file", "code", "contract"), BREACHES.values(), ids=BREACHES)
def test_a_breach_is_found(house, file, code, contract):
    plant(house, file, code)
    status, said = lint(house)
    assert status == 1, said
    assert f"{contract} BROKEN" in " ".join(said.split()), said


def test_training_may_import_verl(house):
    plant(house, "mia/training/planted.py", "import verl, ray, hydra, os")
    status, said = lint(house)
    assert status == 0, said
