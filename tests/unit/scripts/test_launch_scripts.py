"""Every script can be rehearsed, says what it is, and names only variables that exist."""

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mia.runtime.settings import known_names

ROOT = Path(__file__).parents[3]
LOCAL = {"runs", "models", "build", "dist"}
SCRIPTS = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in sorted(ROOT.rglob("*.sh"))
    if not any(part.startswith(".") or part in LOCAL for part in path.relative_to(ROOT).parts)
}
SOURCED = {
    name for name, text in SCRIPTS.items() if re.search(r"^# .*\b[Ss]ourced\b.*, never run\.", text, re.MULTILINE)
}
SERVING = {name for name, text in SCRIPTS.items() if "# ---- yours to adjust ----" in text}
ARGUMENTS = {
    "install.sh": "embedded",
    "scripts/test.sh": "house",
    "scripts/quickstart.sh": "3",
    "scripts/fetch_model.sh": "Qwen/Qwen3-8B",
    "scripts/serve_model.sh": "Qwen/Qwen3-8B",
    "Memory-Serve/models.sh": "manager",
    "Serve/agent.sh": "ttrl",
}


def bash(*command, venv="/venv", **environment):
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["bash", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=clean | {"VENV": str(venv)} | environment,
    )


def rehearsed(*command, **environment):
    done = bash(*command, DRY_RUN="1", **environment)
    assert done.returncode == 0, done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("script", sorted(SCRIPTS.keys() - SOURCED))
def test_every_script_rehearses_without_what_it_needs(tmp_path, script):
    done = bash(script, *ARGUMENTS.get(script, "").split(), DRY_RUN="1", venv=tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not (tmp_path / "venv").exists()


MEMORY = """\
wait for http://127.0.0.1:8002/v1/models
wait for http://127.0.0.1:8003/v1/models
env HOST=127.0.0.1 MEMORY_PORT=5000 MIA_MANAGER_URL=http://127.0.0.1:8002/v1 MIA_PLANNER_URL=http://127.0.0.1:8003/v1 \
MIA_MEMORY_PATH=runs/memory-serve.sqlite MEMORY_DIR=runs/memory MIA_COMPRESSION=model MIA_COLD_START=false \
/venv/bin/mia serve memory"""
AGENT = """\
wait for http://127.0.0.1:8000/v1/models
wait for http://127.0.0.1:8001/healthz
env HOST=127.0.0.1 AGENT_PORT=5000 MIA_EXECUTOR_URL=http://127.0.0.1:8000/v1 MIA_SEARCH_URL=http://127.0.0.1:8001 \
MIA_MANAGER_URL=http://127.0.0.1:8002/v1 MIA_JUDGE=truth MIA_JUDGE_URL=http://127.0.0.1:8002/v1 MIA_FORMAT=mia \
MIA_VISION=true MAX_LLM_CALL_PER_RUN=20 PARQUET_PATH= TTRL_SAVE=runs/ttrl MIA_MEMORY_PATH=runs/ttrl/memory.sqlite \
/venv/bin/mia serve agent --mode train"""


def model(name, port, gpus, rest=""):
    return (
        f"/venv/bin/vllm serve models/{name} --host 127.0.0.1 --port {port} --tensor-parallel-size {gpus} "
        "--generation-config vllm --gpu-memory-utilization 0.8 --max-model-len 32768 --served-model-name qwen "
        f"--chat-template configs/templates/keep_thoughts.jinja --chat-template-content-format openai{rest}"
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("Memory-Serve/models.sh manager", model("Qwen/Qwen3-32B", 8002, 4)),
        ("Memory-Serve/models.sh planner --enforce-eager", model("Qwen/Qwen3-8B", 8003, 1, " --enforce-eager")),
        (
            "Serve/executor.sh",
            model("Qwen/Qwen2.5-VL-7B-Instruct", 8000, 1, r" --limit-mm-per-prompt \{\"image\":\ 4\}"),
        ),
        ("Memory-Serve/memory.sh", MEMORY),
        ("Serve/agent.sh train", AGENT),
        ("scripts/fetch_model.sh LightningCreeper/MIA:Trained-Planner", "models/LightningCreeper/MIA/Trained-Planner"),
    ],
)
def test_a_rehearsal_prints_the_exact_command(command, expected):
    assert rehearsed(*command.split()) == expected.splitlines()


def test_a_model_that_is_not_here_is_fetched_by_the_hubs_client():
    done = bash("scripts/serve_model.sh", "org/name:sub/folder", DRY_RUN="1", MIA_MODELS="/big disk")
    assert r"/venv/bin/hf download org/name --include sub/folder/\* --local-dir /big\ disk/org/name" in done.stderr
    assert done.stdout.startswith(r"/venv/bin/vllm serve /big\ disk/org/name/sub/folder ")


def test_a_model_is_served_in_fp8_with_adapters_by_role():
    (command,) = rehearsed(
        *("scripts/serve_model.sh", "Qwen/Qwen3-8B"),
        QUANTIZATION="fp8",
        LORA_MODULES="executor=data/a planner=data/b",
        SERVED_NAME="qwen mine",
        CHAT_TEMPLATE="own",
    )
    lora = "--enable-lora --max-lora-rank 64 --max-loras 2 --lora-modules executor=data/a planner=data/b"
    assert command.endswith(f"--served-model-name qwen mine --quantization fp8 {lora}")


def test_no_secret_is_part_of_a_command():
    done = bash("scripts/serve_model.sh", "Qwen/Qwen3-8B", DRY_RUN="1", HOST="0.0.0.0", MIA_TOKEN="hush")
    assert "hush" not in done.stdout + done.stderr
    assert "without a key" not in done.stderr
    assert "without a key" in bash("scripts/serve_model.sh", "Qwen/Qwen3-8B", DRY_RUN="1", HOST="0.0.0.0").stderr


@pytest.mark.parametrize(
    ("script", "old", "new"),
    [
        ("Memory-Serve/memory.sh", "MEMORY_URL", "MIA_MANAGER_URL"),
        ("Memory-Serve/memory.sh", "PLAN_URL", "MIA_PLANNER_URL"),
        ("Serve/agent.sh", "MEMORY_URL", "MIA_MANAGER_URL"),
        ("Serve/agent.sh", "AGENT_URL", "MIA_EXECUTOR_URL"),
        ("Serve/agent.sh", "SERVICE_URL", "MIA_SEARCH_URL"),
        ("Serve/agent.sh", "JUDGE_URL", "MIA_JUDGE_URL"),
    ],
)
def test_released_names_work_and_clear_names_win(script, old, new):
    command = (script, *ARGUMENTS.get(script, "").split())
    assert f" {new}=http://old:1/v1 " in rehearsed(*command, **{old: "http://old:1/v1"})[-1]
    assert f" {new}=http://new:1/v1 " in rehearsed(*command, **{old: "http://old:1/v1", new: "http://new:1/v1"})[-1]


@pytest.mark.parametrize(
    ("mode", "waits"), [("train", ["8000", "8001"]), ("ttrl", ["8000", "8001", "8002"]), ("ttrl-no-truth", None)]
)
def test_a_mode_waits_for_what_it_uses(mode, waits):
    lines = rehearsed("Serve/agent.sh", mode, MIA_JUDGE_URL="http://judge:7/v1")
    found = [re.search(r":(\d+)/", line)[1] for line in lines if line.startswith("wait for")]
    assert found == (waits or ["8000", "8001", "8002", "7"])


@pytest.mark.parametrize("command", ["Serve/agent.sh", "Serve/agent.sh testing", "Memory-Serve/models.sh judge"])
def test_what_does_not_exist_is_refused_with_what_does(command):
    done = bash(*command.split(), DRY_RUN="1")
    assert done.returncode == 1
    assert "Name one:" in done.stderr


@pytest.mark.parametrize("model", ["", "./nowhere", "/nowhere", "../a", "one", "a/b/c", "--help/x y"])
def test_what_names_no_model_is_refused(model):
    done = bash("scripts/fetch_model.sh", model, DRY_RUN="1")
    assert done.returncode == 1
    assert "Name a model as in" in done.stderr


@pytest.fixture
def weights(tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text('{"added_tokens": [{"content": "<|im_start|>"}]}')
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for shard in shards:
        (folder / shard).touch()
    names = {"a.weight": shards[0], "b.weight": shards[1]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def test_a_whole_folder_is_taken_as_it_is(weights):
    done = bash("scripts/fetch_model.sh", f"{weights}/")
    assert (done.returncode, done.stdout) == (0, f"{weights}\n")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model-00002-of-00002.safetensors"])
def test_a_folder_that_lacks_something_is_refused(weights, missing):
    (weights / missing).unlink()
    done = bash("scripts/fetch_model.sh", str(weights))
    assert done.returncode == 1
    assert missing.split(".")[0] in done.stderr


def test_a_folder_without_weights_is_refused(weights):
    for file in weights.glob("*.safetensors*"):
        file.unlink()
    assert "no weights" in bash("scripts/fetch_model.sh", str(weights)).stderr


def program(folder, name, text):
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def test_fetching_ends_with_the_remedy_when_the_hub_fails(tmp_path):
    program(tmp_path, "hf", "echo no network >&2; exit 1")
    done = bash("scripts/fetch_model.sh", "org/name", venv=tmp_path, MIA_MODELS=str(tmp_path))
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert "or a folder that exists" in done.stderr
    assert done.stdout == ""


def test_vllm_takes_the_place_of_the_script_and_the_key_from_the_environment(tmp_path, weights):
    program(tmp_path, "vllm", 'printf "%s\\n" "$VLLM_API_KEY" "$@"')
    done = bash("scripts/serve_model.sh", str(weights), venv=tmp_path, MIA_TOKEN="t", MIA_MODEL_KEY="k")
    assert done.stdout.splitlines()[:3] == ["k", "serve", str(weights)]


def test_a_template_that_the_model_does_not_know_is_refused(tmp_path, weights):
    program(tmp_path, "vllm", "echo started")
    (weights / "tokenizer.json").write_text("{}")
    done = bash("scripts/serve_model.sh", str(weights), venv=tmp_path)
    assert done.returncode == 1
    assert "CHAT_TEMPLATE=own" in done.stderr
    assert bash("scripts/serve_model.sh", str(weights), venv=tmp_path, CHAT_TEMPLATE="own").stdout == "started\n"


def test_a_folder_that_is_no_adapter_is_refused(tmp_path, weights):
    program(tmp_path, "vllm", "echo started")
    done = bash("scripts/serve_model.sh", str(weights), venv=tmp_path, LORA_MODULES=f"executor={tmp_path}")
    assert done.returncode == 1
    assert "holds no adapter" in done.stderr


def test_a_signal_to_the_script_ends_the_process(tmp_path):
    program(tmp_path, "vllm", "echo $$; exec sleep 60")
    command = f"source scripts/lib.sh; echo $$; become {tmp_path}/bin/vllm"
    with subprocess.Popen(["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        script, served = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        assert script == served
        assert process.wait(10) == -15


@contextmanager
def answering(status):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "there"), [(200, True), (401, True), (404, True), (503, False)])
def test_a_server_that_asks_for_a_key_is_there_and_one_that_loads_is_not(status, there):
    with answering(status) as url:
        done = bash("-c", f"source scripts/lib.sh; await it {url}/x 'Start it.'", WAIT_SECONDS="0")
    assert done.returncode == (0 if there else 1)
    assert ("did not answer" in done.stderr and "Start it." in done.stderr) != there


def test_a_service_waits_for_its_models_before_it_starts(tmp_path):
    program(tmp_path, "mia", "echo started")
    done = bash("Memory-Serve/memory.sh", venv=tmp_path, WAIT_SECONDS="0", MIA_MANAGER_URL="http://127.0.0.1:1/v1")
    assert done.returncode == 1
    assert "Memory-Serve/models.sh manager" in done.stderr
    with answering(200) as url:
        models = {"MIA_MANAGER_URL": f"{url}/v1", "MIA_PLANNER_URL": f"{url}/v1"}
        assert bash("Memory-Serve/memory.sh", venv=tmp_path, **models).stdout == "started\n"


def test_a_dotenv_file_counts_where_the_environment_is_silent(tmp_path):
    lines = ["# note", "A=1 # one", "export B='two words'", 'C = "x#y"  # why', "D=from file", "E=", "F=a#b", "G=last"]
    (tmp_path / ".env").write_text("\n".join(lines))
    names = "ABCDEFG"
    shown = " ".join(f'"${{{name}:-}}"' for name in names)
    script = f"source {ROOT}/scripts/lib.sh; cd {tmp_path}; D=given; read_dotenv; printf '%s|' {shown}"
    done = bash("-c", script)
    assert done.stdout.split("|")[:-1] == ["1", "two words", "x#y", "given", "", "a#b", "last"]


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_script_says_what_it_is_and_stops_at_the_first_error(script):
    lines = SCRIPTS[script].splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1].startswith("# ")
    assert script in SOURCED or "set -euo pipefail" in lines
    assert os.access(ROOT / script, os.X_OK) or script in SOURCED


@pytest.mark.parametrize("script", sorted(SERVING))
def test_launch_scripts_keep_one_form(script):
    text = SCRIPTS[script]
    comment = re.match(r"(#.*\n)+", text)[0].splitlines()
    assert comment[1].startswith(f"# Usage: {script}")
    assert comment[3].startswith("# Needs ")
    assert f"{ROOT}" not in text
    assert "/your_path" not in text
    assert re.search(r'^(run|become|exec) .*(\\\n.*)*\n?\Z|^printf .*"\$folder"\n\Z', text, re.MULTILINE)
    (block,) = re.findall(r"^# ---- yours to adjust ----\n(.*?)^# -{10,}$", text, re.DOTALL | re.MULTILINE)
    for line in block.splitlines():
        assert re.match(r'([A-Z][A-Z_]*)="\$\{\1:-.*\}"( |$)|# ', line), line


@pytest.mark.parametrize("script", sorted(SERVING))
def test_variables_of_launch_scripts_exist_and_are_documented(script):
    names = set(re.findall(r"^([A-Z][A-Z_]*)=", SCRIPTS[script], re.MULTILINE)) - {"MODEL", "MODE"}
    pages = {(ROOT / script).parent / "README.md", ROOT / "Memory-Serve" / "README.md"}
    told = "".join(page.read_text("utf-8") for page in pages if page.exists())
    assert {name for name in names if f"`{name}`" not in told} == set()
    used = set(re.findall(r"\bMIA_[A-Z_]+\b", SCRIPTS[script]))
    passed = set(re.findall(r'([A-Z_]+)="\$\1"', SCRIPTS[script])) if "bin/mia" in SCRIPTS[script] else set()
    assert (used | passed) - known_names() == set()


def test_all_scripts_are_clean():
    shellcheck = Path(sys.executable).parent / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck comes with the role dev")
    done = subprocess.run(
        [shellcheck, "-x", "-P", "SCRIPTDIR", *SCRIPTS, ".ci/run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
