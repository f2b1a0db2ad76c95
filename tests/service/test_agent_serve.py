"""`mia serve agent` as a released trainer sees it: its routes in process, models and search over real HTTP."""

import asyncio
import base64
import io
import json
import re
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image
from served import served

from mia.errors import ConfigError
from mia.runtime.settings import AgentServiceSettings, load
from mia.services.agent import create_app
from mia.types import ImageRef, Message
from mia.wire.agent_serve import Turn

GOLDEN = Path(__file__).parent / "golden" / "agent"
CALL = '<tool_call>{"name": "search", "arguments": {"query_list": ["Aba"]}}</tool_call>'
PASSAGE = {"id": "d1", "contents": '"Aba"\nAba is a city in Nigeria.'}
QUESTION = {"data_id": "q1", "question": "Which country is Aba in?"}
PLAN = QUESTION | {"plan": "1. Search for Aba."}
SAVE = {
    **QUESTION,
    "plan": "1. Search for Aba.",
    "slow_plan": "1. Search for Aba.",
    "image_caption": "",
    "used_memory_indices": [],
    "judgement": "correct",
    "temp_messages": [
        {"role": "assistant", "content": f"I search.\n{CALL}"},
        {"role": "user", "content": "<tool_response>\nAba is a city in Nigeria.\n</tool_response>"},
        {"role": "assistant", "content": "<answer>Nigeria</answer>"},
    ],
}
FAILED = SAVE | {
    "plan": "1. Guess.\n2. Answer.",
    "judgement": "incorrect",
    "temp_messages": [{"role": "assistant", "content": "<answer>Ghana</answer>"}],
}
TTRL_ROUTES = ("/memory", "/memory_bank_save", "/batch_evaluate", "/consolidate_memories", "/save_memory")


class House:
    """Plays model and search: one search per plan, then the answer; it may be held up, or down."""

    def __init__(self):
        self.asked = []
        self.down = False
        self.choice = '{"answer": "2"}'
        self.answer = "Nigeria"
        self.called, self.open = threading.Event(), threading.Event()
        self.open.set()

    def respond(self, request):
        if request.url.path == "/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "x", "max_model_len": 32768}]})
        if request.url.path == "/retrieve":
            return httpx.Response(200, json={"result": [[PASSAGE]]})
        if request.url.path != "/chat/completions":
            return httpx.Response(404)
        self.asked.append(json.loads(request.content)["messages"])
        self.called.set()
        self.open.wait(20)
        if self.down:
            return httpx.Response(400, json={"error": "out of order"})
        message = {"role": "assistant", "content": self.reply(self.asked[-1])}
        return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "stop"}]})

    def reply(self, messages):
        first, last = str(messages[0]["content"]), str(messages[-1]["content"])
        if first.startswith("You choose"):
            return self.choice
        if first.startswith("You write"):
            return "1. Find where it lies (its name -> a country)"
        return f"<answer>{self.answer}</answer>" if "<tool_response>" in last else f"I search.\n{CALL}"

    def prompts(self, system):
        return [messages[-1]["content"] for messages in self.asked if messages[0]["content"].startswith(system)]


@pytest.fixture
def house():
    model = House()
    with served(model.respond) as url:
        model.url = url
        yield model
        model.open.set()


@pytest.fixture
def settings(house, tmp_path):
    def build(mode="ttrl", **more):
        paths = {"home": tmp_path, "memory_path": tmp_path / "memory.sqlite", "output": tmp_path / "ttrl"}
        near = {"model": house.url, "search_url": house.url, "encoder": "hashed", "recall_floor": -1.0}
        return load(AgentServiceSettings, mode=mode, **(paths | near | {"benchmark": False} | more))

    return build


@asynccontextmanager
async def client_of(settings):
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=30) as client,
    ):
        yield client


def post(settings, *requests):
    """Post (route, body) one after the other to one process; return the answers."""

    async def go():
        async with client_of(settings) as client:
            return [await client.post(route, json=body) for route, body in requests]

    return asyncio.run(go())


def posted(settings, *requests):
    answers = post(settings, *requests)
    assert [answer.status_code for answer in answers] == [200] * len(answers), [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def posted_get(settings, *routes):
    async def go():
        async with client_of(settings) as client:
            return [(await client.get(route)).json() for route in routes]

    return asyncio.run(go())


def png(color="red"):
    data = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def problem(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    return error


# --- the released fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "routes"),
    [
        ("train", ["plan", "replan"]),
        (
            "streaming",
            [
                "streaming/register_images",
                "plan",
                "replan",
                "memory_bank_save",
                "batch_evaluate",
                "consolidate_memories",
            ]
            + ["memory", "save_memory"],
        ),
        ("ttrl-no-truth", ["memory_bank_save.no_truth", "batch_evaluate.no_truth", "save_memory"]),
    ],
)
def test_routes_answer_as_it_is_written_down(settings, mode, routes):
    files = [GOLDEN / f"{route.replace('/', '.')}.json" for route in routes]
    written = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    asked = zip(routes, written, strict=True)
    answers = post(settings(mode), *[(f"/{route.partition('.')[0]}", each["request"]) for route, each in asked])
    assert [answer.json() for answer in answers] == [each["response"] for each in written]


def test_health_answers_as_it_is_written_down(settings):
    (reply,) = posted_get(settings("streaming"), "/streaming/health")
    assert reply == json.loads((GOLDEN / "streaming.health.json").read_text(encoding="utf-8"))["response"]


def test_train_has_no_memory_routes(settings):
    assert {answer.status_code for answer in post(settings("train"), *[(route, []) for route in TTRL_ROUTES])} == {404}


def test_the_history_goes_on_where_the_plan_ended(settings, house):
    async def go():
        async with client_of(settings("train")) as client:
            first = (await client.post("/plan", json=PLAN)).json()
            body = PLAN | {"replan": "1. Search again.", "messages": first["history_messages"]}
            return first, (await client.post("/replan", json=body)).json()

    first, second = asyncio.run(go())
    assert second["history_messages"][: len(first["history_messages"])] == first["history_messages"]
    assert "Search again." in second["history_messages"][len(first["history_messages"])]["content"]
    opening = house.asked[0][:2]
    assert all(messages[:2] == opening for messages in house.asked)
    assert first["trace"].count("<answer>") == second["trace"].count("<answer>") == 1
    assert second["trace"].count("### Round") == 2


def test_a_revised_plan_after_a_plan_that_was_none_starts_afresh(settings, house):
    empty, _ = posted(
        settings("train"),
        ("/plan", PLAN | {"plan": "<think>cut off"}),
        ("/replan", PLAN | {"plan": "", "replan": "1. Search.", "messages": []}),
    )
    assert empty["history_messages"] == []
    assert "<answer>" not in empty["trace"]
    assert len(house.asked) == 2
    assert "1. Search." in house.asked[0][-1]["content"]


def test_thoughts_are_no_part_of_a_plan(settings, house):
    posted(settings("train"), ("/plan", PLAN | {"plan": "<think>secret</think>1. Look."}))
    assert "secret" not in str(house.asked)
    assert "1. Look." in str(house.asked[0])


def test_a_trace_holds_the_answer_in_tags_once_however_long_the_reply(settings, house):
    house.answer = "Nigeria " * 3000
    (reply,) = posted(settings("train", trace_tokens=512), ("/plan", PLAN))
    assert reply["trace"].count("<answer>") == reply["trace"].count("</answer>") == 1
    assert len(reply["prompt"]) < 4000


def test_a_model_that_is_down_is_an_error_and_no_answer(settings, house):
    house.down = True
    (answer,) = post(settings("train"), ("/plan", PLAN))
    problem(answer, 502)


# --- images --------------------------------------------------------------------------------------------------------


def test_a_registered_image_is_shown_to_the_executor_in_every_mode_and_after_a_restart(settings, house):
    for mode in ("train", "streaming"):
        color = {"train": "red", "streaming": "blue"}[mode]
        options = settings(mode, vision=True)
        (registered,) = posted(
            options, ("/streaming/register_images", {"data_id": "q1", "images": [png(color), png("green")]})
        )
        assert registered == {"status": "ok", "registered": 1, "total_data_ids": 1}
        posted(options, ("/plan", PLAN | {"question": "<image>\nWhose flag is it?"}))
        shown = [part for part in house.asked[-1][1]["content"] if part["type"] == "image_url"]
        assert len(shown) == 1


def test_entries_are_taken_in_all_or_none(settings):
    entries = [{"data_id": "a", "images": png()}, {"data_id": "b", "images": ["no image"]}]
    refused, after = post(
        settings("streaming"),
        ("/streaming/register_images", {"entries": entries}),
        ("/streaming/register_images", {"data_id": "c"}),
    )
    assert "'b'" in problem(refused, 400)["message"]
    assert after.json()["total_data_ids"] == 1


def test_a_marked_image_that_is_not_known_is_refused(settings):
    (answer,) = post(settings("train"), ("/plan", PLAN | {"question": "<image>\nWhose flag is it?"}))
    assert "/streaming/register_images" in problem(answer, 400)["remedy"]


def test_a_line_that_a_killed_process_left_half_is_dropped(settings, tmp_path):
    posted(settings("train"), ("/streaming/register_images", {"data_id": "a", "images": png()}))
    with (tmp_path / "registered.jsonl").open("a") as file:
        file.write('{"data_id": "b", "im')
    (reply,) = posted(settings("train"), ("/streaming/register_images", {"data_id": "c", "images": png()}))
    assert reply["total_data_ids"] == 2


def flags():
    return pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed"), pytest.importorskip("pyarrow")


@pytest.mark.parametrize("form", ["bytes", "base64", "objects", "list"])
def test_a_data_set_brings_images_in_any_form(settings, house, tmp_path, form):
    parquet, arrow = flags()
    raw = base64.b64decode(png())
    images = {"bytes": raw, "base64": [png()], "objects": [{"bytes": raw, "path": None}], "list": [raw]}[form]
    rows = [{"data_id": "q1", "images": images}, {"data_id": "q2", "images": None}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "set.parquet")
    options = settings("train", vision=True, parquet=f"{tmp_path / 'set.parquet'}")
    seen, text, unknown = post(
        options,
        ("/plan", PLAN),
        ("/plan", PLAN | {"data_id": "q2"}),
        ("/plan", PLAN | {"data_id": "q3"}),
    )
    assert (seen.status_code, text.status_code) == (200, 200)
    assert [type(messages[1]["content"]) for messages in house.asked] == [list, list, str, str]
    assert "PARQUET_PATH" in problem(unknown, 400)["message"]


def test_the_shipped_flags_are_read(settings):
    flags()
    path = Path(__file__).parents[2] / "data/flags/dev.parquet"
    (health,) = posted_get(settings("train", parquet=str(path)), "/streaming/health")
    assert health == {"status": "ok", "registered_data_ids": 84, "memory_bank_keys": 0}


def test_a_data_set_that_cannot_be_read_stops_the_start(settings, tmp_path):
    flags()
    (tmp_path / "no.parquet").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"no\.parquet"):
        post(settings("train", parquet=str(tmp_path / "no.parquet")))


# --- rollouts ------------------------------------------------------------------------------------------------------


def test_a_step_leaves_a_success_a_failure_and_a_pair(settings, tmp_path):
    longer = SAVE | {"temp_messages": [*SAVE["temp_messages"][:2], *SAVE["temp_messages"]]}
    *_, done, again, found, _ = posted(
        settings(),
        ("/memory_bank_save", longer),
        ("/memory_bank_save", SAVE),
        ("/memory_bank_save", FAILED),
        ("/consolidate_memories", []),
        ("/consolidate_memories", []),
        ("/memory", QUESTION | {"image_caption": ["", "b"]}),
        ("/save_memory", []),
    )
    assert (done["saved_positives"], done["saved_negatives"]) == (1, 1)
    assert (again["saved_positives"], again["saved_negatives"]) == (0, 0)
    assert found["indices"] == [1, 2]
    assert "Find where it lies" in found["prompt"]
    workflows = json.loads((tmp_path / "ttrl/workflow_memory.jsonl").read_text(encoding="utf-8"))
    assert [record["judgement"] for record in workflows["text-only"]["others"]] == ["correct", "incorrect"]
    (pair,) = json.loads((tmp_path / "ttrl/plan_memory.jsonl").read_text(encoding="utf-8"))["text-only"]["others"]
    assert (pair["correct_plan"], pair["incorrect_plan"]) == (SAVE["plan"], FAILED["plan"])


def test_a_rollout_sent_again_is_no_second_one(settings):
    wrong = FAILED | {"temp_messages": [{"role": "assistant", "content": "<answer>Togo</answer>"}]}
    posted(
        settings(),
        ("/memory_bank_save", SAVE),
        ("/consolidate_memories", []),
        *[("/memory_bank_save", SAVE | {"used_memory_indices": [1]})] * 3,
        *[("/memory_bank_save", each | {"used_memory_indices": [1]}) for each in (FAILED, wrong)],
        ("/consolidate_memories", []),
        ("/save_memory", []),
    )
    path = settings().output / "workflow_memory.jsonl"
    (first, *_) = json.loads(path.read_text(encoding="utf-8"))["text-only"]["others"]
    assert (first["usage_count"], first["success_count"]) == (2, 1)  # one vote, and 1 of 3 is no majority


def test_the_next_step_takes_the_same_rollout_again(settings):
    saves = [("/memory_bank_save", SAVE), ("/consolidate_memories", [])]
    replies = posted(settings(), *saves, *saves)
    assert [reply["saved_positives"] for reply in replies[1::2]] == [1, 1]


def test_rollouts_and_the_open_step_outlive_the_process(settings):
    posted(settings(), ("/memory_bank_save", SAVE), ("/consolidate_memories", []), ("/memory_bank_save", SAVE))
    (done,) = posted(settings(), ("/consolidate_memories", []))
    assert done["saved_positives"] == 1
    _, done = posted(settings(), ("/memory_bank_save", SAVE), ("/consolidate_memories", []))
    assert done["saved_positives"] == 1


def test_named_rollouts_are_consolidated_when_their_group_is_complete(settings):
    place = {"run": "r", "step": 7}
    step = place | {"rollouts": 2}
    _, early, _, _, late, again = posted(
        settings(),
        ("/memory_bank_save", SAVE | place | {"rollout": 0}),
        ("/consolidate_memories", step),
        ("/memory_bank_save", SAVE | place | {"rollout": 0}),
        ("/memory_bank_save", SAVE | place | {"rollout": 1}),
        ("/consolidate_memories", step),
        ("/consolidate_memories", step),
    )
    assert [each["saved_positives"] for each in (early, late, again)] == [0, 1, 0]


def test_a_revised_plan_is_told_in_the_memory(settings, house):
    revised = {
        "role": "user",
        "content": "The answer so far is withdrawn. A reviewer read your work and wrote a revised plan. What you have "
        "found still holds; do not repeat searches that you have made.\n\nRevised plan:\n1. Look twice.\n\nGo on",
    }
    dialogue = [*SAVE["temp_messages"], revised, {"role": "assistant", "content": "<answer>Ghana</answer>"}]
    posted(settings(), ("/memory_bank_save", SAVE | {"temp_messages": dialogue}), ("/consolidate_memories", []))
    (prompt,) = house.prompts("You write")
    assert re.search(r"### Revised plan\n1\. Look twice\.\n", prompt)


# --- choices -------------------------------------------------------------------------------------------------------


def test_the_router_chooses_by_plans_and_pairs_of_earlier_steps(settings, house, tmp_path):
    group = [("/memory_bank_save", SAVE), ("/memory_bank_save", FAILED)]
    *_, done = posted(settings(), *group, ("/consolidate_memories", []), *group, ("/batch_evaluate", []))
    assert done["processed_count"] == 2
    assert done["status"] == "success"
    prompt = house.prompts("You choose")[0]
    assert "This plan worked:\n1. Search for Aba." in prompt
    assert "Nigeria" not in prompt
    chosen = {path.stem: lines(path) for path in (tmp_path / "ttrl").glob("evaluated-*.jsonl")}
    names = ("choice", "choice-few-reflect", "random", "first", "short", "long")
    assert set(chosen) == {f"evaluated-{name}" for name in names}
    assert all(len(found) == 1 for found in chosen.values())
    assert chosen["evaluated-short"][0]["plan"] == SAVE["plan"]
    assert chosen["evaluated-long"][0]["plan"] == FAILED["plan"]
    second = re.search(r"Plan 2:\n(.*)", prompt).group(1)
    assert chosen["evaluated-choice"][0]["plan"].startswith(second)


def test_a_choice_is_written_once_however_often_it_is_asked_for(settings, tmp_path):
    save, choose = ("/memory_bank_save", SAVE), ("/batch_evaluate", [])
    posted(settings(), save, choose, choose)
    posted(settings(), choose)
    assert len(lines(tmp_path / "ttrl/evaluated-choice.jsonl")) == 1


def test_a_choice_that_names_no_plan_is_marked(settings, house, tmp_path):
    house.choice = "I would take both."
    posted(settings(), ("/memory_bank_save", SAVE), ("/memory_bank_save", FAILED), ("/batch_evaluate", []))
    (line,) = lines(tmp_path / "ttrl/evaluated-choice.jsonl")
    assert line["unrouted"]


def test_a_router_that_is_down_is_an_error_and_nothing_is_written(settings, house, tmp_path):
    house.down = True
    *_, answer = post(settings(), ("/memory_bank_save", SAVE), ("/memory_bank_save", FAILED), ("/batch_evaluate", []))
    problem(answer, 502)
    assert not list(tmp_path.glob("ttrl/*"))


def reviewed(save, **more):
    body = {name: value for name, value in save.items() if name not in ("judgement", "slow_plan")}
    data = {"is_correct": save["judgement"], "raw_verdict": "A", "evaluator_1_feedback": "Sound."}
    return body | {"judgement_nogt": save["judgement"], "judgement_data": data} | more


def test_without_truth_an_approved_rollout_is_scored_for_the_report(settings, tmp_path):
    *_, done, _ = posted(
        settings("ttrl-no-truth"),
        ("/memory_bank_save", reviewed(SAVE, ground_truth="Niger", model_answer="Nigeria")),
        ("/memory_bank_save", reviewed(FAILED, ground_truth="Niger", model_answer="Ghana")),
        ("/batch_evaluate", []),
        ("/save_memory", []),
    )
    assert done["processed_count"] == 1
    (line,) = lines(tmp_path / "ttrl/evaluated.jsonl")
    assert (line["answer"], line["judgement_nogt"], line["judgement"]) == ("Nigeria", "correct", "incorrect")
    assert not (tmp_path / "ttrl/plan_memory.jsonl").exists()


# --- the same at once ----------------------------------------------------------------------------------------------


def test_the_same_plan_in_flight_is_carried_out_once_though_a_client_goes_away(settings, house):
    async def go():
        async with client_of(settings("train")) as client:
            house.open.clear()
            impatient, patient = (asyncio.create_task(client.post("/plan", json=PLAN)) for _ in range(2))
            assert await asyncio.to_thread(house.called.wait, 20)
            impatient.cancel()
            other = asyncio.create_task(client.post("/plan", json=PLAN | {"plan": "2. Another."}))
            house.open.set()
            return await patient, await other

    patient, other = asyncio.run(go())
    assert (patient.status_code, other.status_code) == (200, 200)
    assert len(house.asked) == 4  # two turns for each of two plans


def test_rollouts_that_arrive_while_a_step_closes_are_not_lost(settings):
    async def go():
        async with client_of(settings()) as client:
            saves = [SAVE | {"data_id": f"q{n}", "question": f"Where is town {n}?"} for n in range(24)]
            calls = [client.post("/memory_bank_save", json=save) for save in saves]
            calls[8:8] = [client.post("/consolidate_memories", json=[])]
            calls[17:17] = [client.post("/consolidate_memories", json=[])]
            answers = await asyncio.gather(*calls)
            return [*answers, await client.post("/consolidate_memories", json=[])]

    replies = [answer.json() for answer in asyncio.run(go())]
    assert [reply["status"] for reply in replies] == ["success"] * len(replies)
    # The two that run at once are one execution, whose reply both get.
    shared = [reply["saved_positives"] for reply in replies if "saved_positives" in reply]
    assert shared[-1] + shared[0] + (0 if shared[0] == shared[1] else shared[1]) == 24


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/plan", {}),
        ("/plan", {"question": "?"}),
        ("/plan", PLAN | {"data_id": ""}),
        ("/plan", PLAN | {"data_id": 1}),
        ("/plan", PLAN | {"plan": ["x"]}),
        ("/plan", PLAN | {"run": "r"}),
        ("/plan", []),
        ("/replan", PLAN | {"replan": "x", "messages": [{"role": "wizard", "content": ""}]}),
        ("/replan", PLAN | {"replan": "x", "messages": [{"role": "user", "content": [{"type": "sound"}]}]}),
        ("/memory", QUESTION | {"image_caption": 3}),
        ("/memory_bank_save", SAVE | {"judgement": "fine"}),
        ("/memory_bank_save", SAVE | {"used_memory_indices": ["1"]}),
        ("/memory_bank_save", SAVE | {"used_memory_indices": [True]}),
        ("/memory_bank_save", SAVE | {"run": "r", "step": -1, "rollout": 0}),
        ("/batch_evaluate", "all"),
        ("/consolidate_memories", {"run": "r"}),
        ("/consolidate_memories", {"run": "r", "step": 0, "rollouts": 0}),
        ("/streaming/register_images", {}),
        ("/streaming/register_images", {"entries": {}}),
        ("/streaming/register_images", {"entries": [{"images": "x"}]}),
        ("/streaming/register_images", {"entries": ["x"]}),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings, route, body):
    (answer,) = post(settings("streaming"), (route, body))
    problem(answer, 422)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/plan", PLAN | {"question": " "}),
        ("/plan", PLAN | {"question": "x" * 9000}),
        ("/replan", PLAN | {"replan": "x", "messages": [{"role": "user", "content": "I go first"}]}),
        ("/streaming/register_images", {"data_id": "a", "images": "../../etc/passwd"}),
        ("/streaming/register_images", {"data_id": "a", "images": 5}),
        ("/streaming/register_images", {"data_id": "a", "images": [[[[[[png()]]]]]]}),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_remedy(settings, route, body):
    (answer,) = post(settings("streaming"), (route, body))
    assert problem(answer, 400)["remedy"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"data_id": NaN}', b"\xff\xfe", b'"' * 3])
def test_text_that_is_no_json_is_refused(settings, content):
    async def go():
        async with client_of(settings()) as client:
            headers = {"Content-Type": "application/json"}
            routes = ("/plan", "/memory_bank_save")
            return [await client.post(route, content=content, headers=headers) for route in routes]

    assert {answer.status_code for answer in asyncio.run(go())} <= {400, 422}


def test_a_body_of_100_mb_is_refused(settings):
    async def go():
        async with client_of(settings()) as client:
            return await client.post("/plan", content=b"x" * 100_000_000)

    problem(asyncio.run(go()), 413)


def test_half_characters_are_kept_as_what_utf_8_can_hold(settings):
    odd = json.dumps(SAVE | {"data_id": "q\ud800", "question": "Where\ud800 is Aba?", "plan": "1. \udfff"})

    async def go():
        async with client_of(settings()) as client:
            headers = {"Content-Type": "application/json"}
            saved = await client.post("/memory_bank_save", content=odd, headers=headers)
            done = await client.post("/consolidate_memories", json={})
            return saved, done, await client.post("/plan", content=odd, headers=headers)

    assert [answer.status_code for answer in asyncio.run(go())] == [200, 200, 200]


def test_memories_that_never_were_are_credited_to_nobody(settings):
    odd = SAVE | {"used_memory_indices": [999, -1, 2**70, 0]}
    _, done = posted(settings(), ("/memory_bank_save", odd), ("/consolidate_memories", None))
    assert done["saved_positives"] == 1


def test_empty_lists_are_fine(settings):
    _, registered, done = posted(
        settings("streaming"),
        ("/memory_bank_save", SAVE | {"temp_messages": []}),
        ("/streaming/register_images", {"entries": []}),
        ("/batch_evaluate", []),
    )
    assert registered["registered"] == 0
    assert done["processed_count"] == 2


def test_images_of_a_dialogue_travel_by_content():
    image = ImageRef(sha256="a" * 64, mime="image/png", width=4, height=4)
    for text in ("before <image> after", "no mark"):
        told = Turn.of(Message(role="user", text=text, images=(image,)))
        back = Turn.model_validate_json(told.model_dump_json()).message
        assert back.images == (image,)
        assert back.text.replace("<image>", "") == text.replace("<image>", "")
