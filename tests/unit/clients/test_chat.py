import asyncio
import json

import httpx
import pytest
from served import served

from mia.clients.chat import ChatModels, Endpoint
from mia.errors import ConfigError, InputError, ModelUnavailable, OutOfRoom
from mia.runtime.http import Service
from mia.text import STOPS, ByteCounter
from mia.types import ImageRef, Message, Want

WANT = Want(max_tokens=64, stop=STOPS, seed=7)
IMAGE = ImageRef(sha256="0" * 64, mime="image/png", width=20, height=20)
VLLM = {"data": [{"id": "qwen", "owned_by": "vllm", "max_model_len": 4096}]}


def reply(content, finish="stop", **message):
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}], "usage": usage}


class Server:
    def __init__(self, *replies, models=None, tokenize=lambda text: httpx.Response(404)):
        self.tokenize = tokenize
        self.models = VLLM if models is None else models
        self.replies = list(replies)
        self.bodies = []

    def __call__(self, request):
        if request.url.path == "/v1/models":
            return self.models if isinstance(self.models, httpx.Response) else httpx.Response(200, json=self.models)
        if request.url.path == "/tokenize":
            return self.tokenize(json.loads(request.content)["prompt"])
        self.bodies.append(json.loads(request.content))
        answer = self.replies.pop(0)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


def talk(server, *messages, want=WANT, attempts=1, system="system", **endpoint):
    async def go(url):
        service = Service("model", f"{url}/v1/", error=ModelUnavailable, attempts=attempts)
        try:
            place = Endpoint(service, **endpoint)
            await place.connect()
            models = ChatModels({"executor": place}, lambda image: f"data:{image.mime}")
            conversation = models.open("executor", system)
            return [await conversation.say(message, want) for message in messages], conversation, place
        finally:
            await service.aclose()

    with served(server) as url:
        return asyncio.run(go(url))


def user(text, images=()):
    return Message(role="user", text=text, images=images)


def test_a_dialogue_grows_by_what_was_said_thoughts_included():
    server = Server(reply("<think>hm</think>one"), reply("two"))
    said, conversation, _ = talk(server, user("a"), user("b"))
    assert (said[0].text, said[0].thoughts) == ("one", "hm")
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": "system"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>hm</think>one"},
        {"role": "user", "content": "b"},
    ]
    assert conversation.messages[-1].text == "two"


def test_room_is_what_the_server_counted():
    _, conversation, _ = talk(Server(reply("x")), user("a"))
    assert conversation.room == 4096 - 120 - 8


def test_name_window_and_dialect_come_from_the_server():
    llamacpp = {"data": [{"id": "smol", "owned_by": "llamacpp", "meta": {"n_ctx": 2048}}]}
    server = Server(reply("x"), models=llamacpp)
    _, _, place = talk(server, user("a"))
    assert (place.model, place.window, place.profile) == ("smol", 2048, "llamacpp")
    assert server.bodies[0]["top_k"] == 0
    assert server.bodies[0]["seed"] == 7


def test_vllm_is_asked_to_keep_the_stop_string():
    server = Server(reply("x"))
    talk(server, user("a"))
    assert server.bodies[0]["include_stop_str_in_output"] is True
    assert server.bodies[0]["stop"] == list(STOPS)


def test_a_reasoning_endpoint_gets_none_of_what_it_refuses_and_its_text_is_cut_here():
    server = Server(reply("<answer>x</answer> and more"))
    said, _, _ = talk(server, user("a"), profile="openai-reasoning")
    assert not {"stop", "temperature", "top_p", "seed", "max_tokens"} & set(server.bodies[0])
    assert server.bodies[0]["max_completion_tokens"] == 64
    assert said[0].raw == "<answer>x</answer>"


def test_constrained_output_travels_as_response_format_where_it_is_known():
    want = Want(max_tokens=64, schema={"type": "object"})
    server = Server(reply("{}"))
    talk(server, user("a"), want=want)
    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    server = Server(reply("{}"))
    talk(server, user("a"), want=want, profile="plain")
    assert "response_format" not in server.bodies[0]


@pytest.mark.parametrize("profile", ["vllm", "llamacpp", "openai", "openai-reasoning", "plain"])
def test_a_stop_string_is_added_back_where_the_server_drops_it_and_else_was_not_said(profile):
    said, _, _ = talk(Server(reply("<answer>x")), user("a"), profile=profile, window=4096)
    assert said[0].raw == ("<answer>x" if profile in ("vllm", "openai-reasoning") else "<answer>x</answer>")


def test_a_reply_cut_off_by_its_length_is_left_open():
    said, _, _ = talk(Server(reply("<answer>x", "length")), user("a"))
    assert (said[0].raw, said[0].finish) == ("<answer>x", "length")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_in_a_field_of_their_own_are_thoughts(field):
    said, _, _ = talk(Server(reply(None, **{field: "hm"})), user("a"))
    assert (said[0].text, said[0].thoughts) == ("", "hm")


def test_a_tag_in_separate_thoughts_does_not_cut_the_answer_off():
    server = Server(reply("<answer>Paris</answer>", reasoning="I must end with </answer>."))
    said, _, _ = talk(server, user("a"))
    assert said[0].text == "<answer>Paris</answer>"


def test_one_of_several_models_must_be_named():
    several = {"data": [{"id": "embedding"}, {"id": "chat"}]}
    with pytest.raises(ConfigError, match="MIA_MODEL_NAME"):
        talk(Server(models=several))
    _, _, place = talk(Server(reply("x"), models=several), user("a"), model="chat")
    assert place.model == "chat"


def test_a_window_that_is_no_number_is_passed_over():
    models = {"data": [{"id": "qwen", "max_model_len": "lots"}]}
    assert talk(Server(models=models))[2].window == 32768
    assert talk(Server(models=models), window=512)[2].window == 512


def test_half_characters_and_nul_do_not_get_further():
    said, _, _ = talk(Server(httpx.Response(200, content=json.dumps(reply("a\ud800\x00b")))), user("a"))
    assert said[0].text == "a\ufffd\ufffdb"


def test_a_message_that_does_not_fit_is_out_of_room_and_changes_nothing():
    server = Server(reply("x"))
    with pytest.raises(OutOfRoom):
        talk(server, user("word " * 5000))
    assert server.bodies == []


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        (
            400,
            {"error": {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000."}},
        ),
        (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
        (400, {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."}),
        (400, {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."}),
        (
            400,
            {
                "error": {
                    "code": 400,
                    "message": "request (5000 tokens) exceeds the available context size (4096 tokens)",
                    "type": "exceed_context_size_error",
                }
            },
        ),
        (
            400,
            {
                "error": {
                    "message": "Input tokens exceed the configured limit of 4096 tokens. Please reduce the length of the messages.",
                    "code": "context_length_exceeded",
                }
            },
        ),
        (
            400,
            {"error": {"message": "The input token count (5000) exceeds the maximum number of tokens allowed (4096)."}},
        ),
        (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."}),
        (413, {"error": {"message": "prompt is too long: 5000 tokens > 4096 maximum"}}),
    ],
)
def test_a_server_that_refuses_for_length_is_out_of_room(status, refusal):
    with pytest.raises(OutOfRoom, match="4096"):
        talk(Server(httpx.Response(status, json=refusal)), user("a"))


def test_a_server_that_refuses_for_anything_else_is_not_out_of_room():
    with pytest.raises(ModelUnavailable, match="temperature"):
        talk(Server(httpx.Response(400, json={"error": {"message": "temperature must be positive"}})), user("a"))


def counted(rate):
    return lambda text: httpx.Response(200, json={"tokens": list(range(round(len(text) * rate)))})


def test_near_the_end_of_the_window_the_endpoint_counts_what_is_sent():
    server = Server(reply("x"), tokenize=counted(0.9))
    talk(server, user("word " * 760), want=Want(max_tokens=1000))
    assert server.bodies[0]["max_tokens"] == 4096 - 32 - (5 + 8) - (3420 + 8)
    with pytest.raises(OutOfRoom):
        talk(Server(tokenize=counted(0.9)), user("word " * 900), want=Want(max_tokens=1000))


def test_a_count_that_does_not_come_loses_no_reply():
    server = Server(reply("x"))
    server.tokenize = lambda text: httpx.Response(503) if text.startswith("word") else counted(0.9)(text)
    said, _, place = talk(server, user("word " * 700), want=Want(max_tokens=2000))
    assert said[0].text == "x"
    estimated = sum(place.counter.count(text) + 8 for text in ("system", "word " * 700))
    assert server.bodies[0]["max_tokens"] == 4096 - 32 - estimated


def test_far_from_the_end_of_the_window_nothing_is_counted_over_http():
    texts = []

    def tokenize(text):
        texts.append(text)
        return counted(1)(text)

    talk(Server(reply("x"), tokenize=tokenize), user("word " * 100))
    assert not any(text.startswith("word") for text in texts)


def test_a_text_that_bytes_would_count_too_long_fits_when_the_endpoint_counts_it():
    server = Server(reply("x"), tokenize=counted(0.2))
    talk(server, user("word " * 2600), want=Want(max_tokens=1000))
    assert server.bodies[0]["max_tokens"] == 1000


def test_an_endpoint_without_tokenize_is_counted_by_bytes():
    for answer in (httpx.Response(404), httpx.Response(200, json={"data": []}), httpx.Response(200, content=b"no")):
        _, _, place = talk(Server(reply("x"), tokenize=lambda text, answer=answer: answer), user("a"))
        assert place.tokenizer is None
        assert isinstance(place.counter, ByteCounter)


def test_a_dialogue_without_a_system_message_begins_with_the_users():
    server = Server(reply("x"))
    talk(server, user("a"), system="")
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "a"}]


def test_the_reply_is_asked_for_no_longer_than_the_window_allows():
    server = Server(reply("x"))
    talk(server, user("word " * 2400), want=Want(max_tokens=1000))
    assert 16 <= server.bodies[0]["max_tokens"] < 1000


def test_images_go_to_a_model_that_sees_and_to_no_other():
    server = Server(reply("x"))
    talk(server, user("a", (IMAGE,)), vision=True)
    assert server.bodies[0]["messages"][1]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png"},
    }
    with pytest.raises(InputError, match="does not read images"):
        talk(Server(reply("x")), user("a", (IMAGE,)))


def test_images_stand_where_the_text_marks_them_if_it_marks_each():
    image = {"type": "image_url", "image_url": {"url": "data:image/png"}}
    shown = {
        "a<image>b": ["a", image, "b"],
        "<image>b": [image, "b"],
        "a": ["a", image],
        "a<image>b<image>": ["a<image>b<image>", image],
    }
    for text, parts in shown.items():
        server = Server(reply("x"))
        talk(server, user(text, (IMAGE,)), vision=True)
        found = server.bodies[0]["messages"][1]["content"]
        assert [part.get("text", part) for part in found] == parts


@pytest.mark.parametrize("models", [{"hello": 1}, {"data": []}, {"data": "x"}, {"data": [3]}])
def test_something_else_than_a_model_server_is_named_as_such(models):
    with pytest.raises(ModelUnavailable, match="not as a model server"):
        talk(Server(models=models))


def test_a_model_that_is_not_served_is_a_configuration_error_that_lists_what_is():
    with pytest.raises(ConfigError, match="qwen"):
        talk(Server(), model="other")


@pytest.mark.parametrize(
    "garbage",
    [{}, {"choices": []}, {"choices": [3]}, {"choices": [{}]}, {"choices": [{"message": "x"}]}, {"choices": {"a": 1}}],
)
def test_garbage_from_a_model_server_is_an_error_and_no_reply(garbage):
    with pytest.raises(ModelUnavailable, match="not a chat completion"):
        talk(Server(garbage), user("a"))


def test_missing_usage_is_estimated():
    said, _, _ = talk(
        Server({"choices": [{"message": {"content": "word"}, "finish_reason": "stop"}]}), user("word " * 700)
    )
    assert said[0].new_tokens == 2
    assert said[0].prompt_tokens > 1000
