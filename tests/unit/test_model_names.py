"""Which of a server's models plays which role."""

import asyncio
import json
import threading

import httpx
import pytest
from served import served as serving

from mia import wiring
from mia.errors import ConfigError
from mia.runtime.settings import RoleSettings, known_names, load
from mia.types import Message, Want

LORA = [  # as vLLM lists adapters beside their base
    {"id": "qwen", "owned_by": "vllm", "root": "/weights/Qwen3-4B", "parent": None, "max_model_len": 4096},
    {"id": "executor", "owned_by": "vllm", "root": "adapters/worldfacts", "parent": "qwen"},
    {"id": "planner", "owned_by": "vllm", "root": "adapters/worldfacts", "parent": "qwen"},
]
ONE = [{"id": "smol", "owned_by": "llamacpp", "meta": {"n_ctx": 2048}}]
OURS = [
    {"id": name, "owned_by": "llamacpp", "root": f"{weights}.gguf", "meta": {"n_ctx": 4096}}
    for name, weights in {"executor": "merged", "planner": "merged", "judge": "plain", "smollm2": "plain"}.items()
]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch, tmp_path):
    for name in known_names():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def connected(listed, *roles, **settings):
    """The models of roles and their weights, and what a server that lists `listed` was asked when each said a word."""
    asked, guard = [], threading.Lock()

    def respond(request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": listed})
        if request.url.path == "/tokenize":
            return httpx.Response(404)
        with guard:
            asked.append(json.loads(request.content)["model"])
        return httpx.Response(200, json={"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})

    async def go(url):
        async with wiring.models(load(RoleSettings, model=f"{url}/v1", **settings), roles) as chat:
            for role in roles:
                await chat.open(role, "").say(Message(role="user", text="a"), Want(max_tokens=16))
            return {role: chat.model(role) for role in roles}, {role: chat.weights(role) for role in roles}

    with serving(respond) as url:
        models, weights = asyncio.run(go(url))
    assert asked == list(models.values())
    return models, weights


def test_a_role_is_played_by_the_model_that_bears_its_name():
    assert connected(OURS, "planner", "executor", "judge") == (
        {"planner": "planner", "executor": "executor", "judge": "judge"},
        {"planner": "merged.gguf", "executor": "merged.gguf", "judge": "plain.gguf"},
    )


def test_adapters_that_vllm_serves_by_the_names_of_roles_are_found_and_the_rest_takes_the_named_model():
    models, weights = connected(LORA, "planner", "executor", "judge", model_name="qwen")
    assert models == {"planner": "planner", "executor": "executor", "judge": "qwen"}
    assert weights == {
        "planner": "adapters/worldfacts",
        "executor": "adapters/worldfacts",
        "judge": "/weights/Qwen3-4B",
    }


def test_one_model_plays_all_roles_and_its_name_stands_for_its_weights():
    assert connected(ONE, "planner", "manager") == ({"planner": "smol", "manager": "smol"},) * 2


def test_a_model_set_for_a_role_wins_over_the_one_that_bears_its_name():
    models, _ = connected(OURS, "planner", "executor", executor_model="smollm2", model_name="judge")
    assert models == {"planner": "planner", "executor": "smollm2"}


@pytest.mark.parametrize("settings", [{}, {"judge_model": "judge"}])
def test_several_models_of_which_none_is_meant_are_refused_with_their_names(settings):
    with pytest.raises(ConfigError) as caught:
        connected(LORA, "judge", **settings)
    assert "qwen, executor, planner" in caught.value.remedy
    assert "MIA_MODEL_NAME" in caught.value.remedy
