"""Every script explains itself, can be rehearsed and is clean."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "install.sh",
    "scripts/check.sh",
    "scripts/test.sh",
    "scripts/quickstart.sh",
    "scripts/evaluate_embedded.sh",
    "scripts/smoke_train.sh",
    "Planner-Train/train.sh",
    "local_search/run.sh",
]


def bash(*arguments, **environment):
    return subprocess.run(
        ["bash", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("script", COMMANDS)
def test_help_tells_the_usage(script):
    done = bash(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["install.sh", "embedded", "dev"], "-m pip install -c constraints.txt -e .\\[embedded\\,dev\\]"),
        (["install.sh", "serve"], "-m pip install -e .\\[serve\\]"),
        (["install.sh", "train-gpu"], "-c constraints-gpu.txt --no-build-isolation flash-attn"),
        (["scripts/check.sh"], "lint-imports"),
        (["scripts/test.sh", "house"], "bash tests/ci/10_house.sh"),
        (["scripts/quickstart.sh", "3"], "bin/mia eval data/worldfacts/dev.jsonl --limit 3"),
        (["scripts/quickstart.sh", "--full"], "bin/mia compare runs/quickstart-"),
        (
            ["scripts/evaluate_embedded.sh"],
            "bin/mia eval data/worldfacts/test.jsonl --per-type 1000 --out runs/embedded/",
        ),
        (["scripts/evaluate_embedded.sh", "--quick", "--out", "x"], "benchmarks/embedded.py reading x --size 4"),
        (["tests/ci/20_unit.sh"], "-m pytest tests/unit tests/service"),
        (["local_search/run.sh"], "-m local_search serve --corpus data/worldfacts/corpus.jsonl"),
        (["Planner-Train/train.sh", "+overlay=cpu"], "-m mia.training Planner-Train/config.yaml +overlay=cpu"),
        (["scripts/smoke_train.sh", "planner"], "runs/smoke-planner/metrics.jsonl --steps 30"),
        ([".ci/run"], "bash tests/ci/30_e2e.sh"),
    ],
)
def test_a_rehearsal_prints_what_would_run_and_makes_nothing(tmp_path, command, expected):
    venv = tmp_path / "venv"
    done = bash(*command, DRY_RUN="1", VENV=str(venv))
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert not venv.exists()


def test_install_names_the_roles_when_one_is_unknown(tmp_path):
    done = bash("install.sh", "embeded", VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "no role embeded" in done.stderr
    assert "--help" in done.stderr


def test_install_refuses_an_unfit_python(tmp_path):
    done = bash("install.sh", "embedded", VENV=str(tmp_path / "venv"), PYTHON="false")
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12" in done.stderr


def test_an_unknown_area_of_tests_names_those_that_exist():
    done = bash("scripts/test.sh", "nowhere")
    assert done.returncode == 1
    assert "house unit e2e" in done.stderr


def wait_for(port, process):
    return bash("-c", f"source scripts/lib.sh; {process} wait_for it http://127.0.0.1:{port}/ 20 $! README.md")


def test_wait_for_ends_when_the_process_does():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = wait_for(port, "true &")
    assert done.returncode == 1
    assert "ended before it answered" in done.stderr


def test_wait_for_returns_when_the_service_answers():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = f"{sys.executable} -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1 &"
    done = wait_for(port, f"trap 'kill $!' EXIT; {server}")
    assert done.returncode == 0, done.stderr


def test_shell_scripts_are_clean():
    shellcheck = Path(sys.executable).parent / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck comes with the role dev")
    scripts = [*ROOT.glob("*.sh"), *ROOT.glob("scripts/*.sh"), *ROOT.glob("tests/ci/*.sh"), ROOT / ".ci/run"]
    done = subprocess.run([shellcheck, "-x", "-P", "SCRIPTDIR", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
