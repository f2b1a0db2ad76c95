"""The small model server as a user meets it: real weights, real HTTP, the official client."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from mia.embedded.model import DEFAULT, resolve
from mia.embedded.process import start
from mia.errors import ConfigError
from mia.memory.storage import Storage
from mia.types import Episode, Label

ROOT = Path(__file__).parents[2]
MIA = [sys.executable, "-c", "from mia.cli.main import main; main()"]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def weights():
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    try:
        return resolve(DEFAULT, ROOT / "models")
    except ConfigError as error:
        pytest.skip(f"the small model cannot be had: {error.message}")


async def serve(weights, log, *options, **environment):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    given = {**os.environ, "PYTHONPATH": str(ROOT), "MIA_MODELS": str(weights.parent), "MIA_MODEL": DEFAULT}
    command = [*MIA, "serve", "model", "--port", str(port), *options]
    return url, await start(
        command, name="model", log=log, url=f"{url}/health", deadline=120, environment={**given, **environment}
    )


def test_the_server_chats_counts_tells_its_window_and_ends_when_asked(weights, tmp_path):
    async def story():
        url, process = await serve(weights, tmp_path / "log", "--slots", "2", "--window", "2048")
        async with process, httpx.AsyncClient(base_url=url, timeout=60) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["executor", "planner", "judge", "manager", DEFAULT]
            assert {model["meta"]["n_ctx"] for model in listed} == {2048}
            tokens = (await http.post("/tokenize", json={"content": "Hello, world"})).json()["tokens"]
            assert len(tokens) in range(2, 6)
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:
                reply = await client.chat.completions.create(
                    model=DEFAULT,
                    messages=[{"role": "user", "content": "What is the capital of France?"}],
                    max_tokens=16,
                    temperature=0,
                )
                assert reply.choices[0].message.content.strip()
                assert 0 < reply.usage.completion_tokens <= 16
            # It ends while it writes, too.
            endless = {"prompt": "Once", "n_predict": 1500, "ignore_eos": True, "stream": True}
            async with http.stream("POST", "/completion", json=endless) as writing:
                lines = writing.aiter_lines()
                assert (await anext(lines)).startswith("data: ")
                await process.stop(grace=30)
                with pytest.raises(httpx.TransportError):
                    assert [line async for line in lines] == []
        return process.code

    assert asyncio.run(story()) == -signal.SIGTERM


def test_the_server_asks_for_its_token(weights, tmp_path):
    async def story():
        url, process = await serve(weights, tmp_path / "log", MIA_TOKEN="open sesame")
        async with process, httpx.AsyncClient(base_url=url, timeout=60) as http:
            refused = await http.post("/tokenize", json={"content": "x"})
            welcome = await http.post(
                "/tokenize", json={"content": "x"}, headers={"Authorization": "Bearer open sesame"}
            )
        return refused.status_code, welcome.status_code

    assert asyncio.run(story()) == (401, 200)


def test_a_window_beyond_the_model_is_refused_not_cut(weights):
    options = ["--model", str(weights), "--port", "0", "--slots", "1", "--window", "16384"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*MIA, "serve", "model", *options], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "window is 8192 tokens" in done.stderr


def write_adapter(folder):
    """A LoRA of one matrix in each of the 30 layers, large enough to change what the model says."""
    numpy = pytest.importorskip("safetensors.numpy", reason="needs the role embedded")
    random = np.random.default_rng(0)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.o_proj.lora_{side}.weight": random.normal(size=shape)
        for layer in range(30)
        for side, shape in {"A": (2, 576), "B": (576, 2)}.items()
    }
    folder.mkdir()
    halves = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    numpy.save_file(halves, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_each_name_answers_by_its_own_weights(weights, tmp_path):
    write_adapter(tmp_path / "odd")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / weights.name).symlink_to(weights)
    adapters = f"executor={tmp_path}/odd,planner={tmp_path}/odd"
    asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8}

    async def story():
        environment = {"MIA_ADAPTERS": adapters, "MIA_MODELS": str(tmp_path / "models")}
        url, process = await serve(weights, tmp_path / "log", "--slots", "1", "--window", "512", **environment)
        async with process, httpx.AsyncClient(base_url=f"{url}/v1", timeout=120) as http:
            listed = (await http.get("/models")).json()["data"]
            said = {}
            for name in ("executor", "planner", "judge", DEFAULT):
                reply = await http.post("/chat/completions", json={"model": name, "temperature": 0, **asked})
                said[name] = (reply.json()["model"], reply.json()["choices"][0]["message"]["content"])
        return {entry["id"]: entry["root"] for entry in listed}, said

    roots, said = asyncio.run(story())
    assert roots["executor"] == roots["planner"]
    assert roots["executor"].startswith(f"{weights.stem}+odd-")
    assert roots["judge"] == roots[DEFAULT] == weights.name
    assert {name: f"{model}.gguf" for name, (model, _) in said.items()} == {name: roots[name] for name in said}
    assert said["executor"] == said["planner"]
    assert said["judge"] == said[DEFAULT]
    assert said["executor"][1] != said["judge"][1]


def test_the_real_model_plays_planner_and_executor_and_the_episode_is_remembered(weights, tmp_path):
    async def story():
        url, process = await serve(weights, tmp_path / "log")
        async with process:
            budgets = {"MIA_PLAN_TOKENS": "24", "MIA_TURN_TOKENS": "24", "MAX_LLM_CALL_PER_RUN": "2"}
            places = {
                "MIA_MODEL": f"{url}/v1",
                "MIA_HOME": str(tmp_path),
                "MIA_MEMORY_PATH": str(tmp_path / "m.sqlite"),
            }
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **budgets, **places}
            command = [*MIA, "ask", "--json", "What is the capital of France?", "--truth", "Paris"]
            return await asyncio.to_thread(
                subprocess.run, command, env=environment, capture_output=True, text=True, check=False
            )

    done = asyncio.run(story())
    assert done.returncode in (0, 1), done.stderr
    episode = Episode.model_validate_json(done.stdout)
    assert episode.failure is None
    assert episode.attempts[0].plan.text
    assert episode.attempts[0].trajectory.steps[0].said.model == "executor"
    assert episode.attempts[0].verdict.label in (Label.CORRECT, Label.INCORRECT, Label.NOT_ATTEMPTED)
    assert episode.reflections[0].said.prompt_tokens > 100
    with closing(Storage(tmp_path / "m.sqlite")) as storage:
        assert storage.stats()["memories"] == 1
