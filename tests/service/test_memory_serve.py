"""`mia serve memory` in process: the released routes as their clients see them, and what they are spared."""

import asyncio
import json
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from episodes import RULE, Fixed, Letters
from scripted import ScriptedModels

from mia.errors import ModelUnavailable
from mia.memory.bank import Bank
from mia.memory.manager import Manager
from mia.memory.storage import Storage
from mia.planner.dialogue import PlanBudget
from mia.runtime.settings import MemoryServiceSettings, load
from mia.services.memory import create_app
from mia.text import ByteCounter
from mia.types import ToolSpec
from mia.wiring import MemoryRoles, Speaker

GOLDEN = Path(__file__).parent / "golden" / "memory"
TOOL = ToolSpec(name="search", description="Searches.", parameters={})


class Models(ScriptedModels):
    """Answers what `reply(role, prompt)` returns, so that requests at once do not depend on their order."""

    def __init__(self, reply, window=100_000):
        super().__init__(window)
        self.reply = reply

    def next(self, role):
        return self.reply(role, self.asked[-1][1])


def behave(role, prompt):
    if "best of these plans" in prompt:
        return '{"answer": "3"}'
    if "Decide whether a revised plan" in prompt:
        return "<think>weak</think>Yes." if "unsure" in prompt else "no"
    if "revised plan for the same question" in prompt:
        return "1. Look elsewhere."
    asked = prompt.rpartition("Question: ")[2].partition("\n")[0]
    return f"<think>hm</think>1. Plan of the {role} for {asked}"


class House:
    """The service over a bank in `folder`, its models scripted."""

    def __init__(self, folder, reply=behave, *, window=100_000, **settings):
        self.folder = folder
        self.models = Models(reply, window)
        self.settings = load(
            MemoryServiceSettings, memory_folder=folder / "files", memory_path=folder / "memory.sqlite", **settings
        )
        self.compressor = Fixed()

    @asynccontextmanager
    async def roles(self):
        bank = Bank.open(self.settings.memory_path, Letters())
        memory = Manager(bank, Letters(), self.compressor, RULE)
        speaker = Speaker(PlanBudget(retries=0), ByteCounter())
        with closing(memory):
            speakers = {"planner": speaker, "manager": speaker}
            yield MemoryRoles(memory, Letters(), self.models, [TOOL], speakers)

    @asynccontextmanager
    async def client(self):
        app = create_app(self.settings, self.roles())
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client,
        ):
            yield client

    def post(self, *requests):
        """Send (route, body) one after another; a body that is a str goes as it is."""

        async def go():
            async with self.client() as client:
                answers = []
                for route, body in requests:
                    raw = body if isinstance(body, str) else json.dumps(body)
                    headers = {"Content-Type": "application/json"}
                    answers.append(await client.post(route, content=raw, headers=headers))
                return answers

        return asyncio.run(go())

    def kept(self):
        with closing(Storage(self.settings.memory_path, "letters")) as storage:
            return storage.list(None)[::-1]


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def saving(question, judgement="correct", **more):
    values = {
        "data_id": question,
        "question": question,
        "image_caption": "",
        "plan": f"1. look for {question}",
        "messages": [
            {"role": "assistant", "content": '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'},
            {"role": "user", "content": "<tool_response>\nit is y\n</tool_response>"},
            {"role": "assistant", "content": "<think>so</think><answer>y</answer>"},
        ],
        "judgement": judgement,
        "used_memory_indices": [],
    }
    return values | more


SEEDED = [  # one by one, so that each has the same id every time
    ("/batch_memory_save", [saving("who wrote Hamlet", data_id="a")]),
    ("/batch_memory_save", [saving("who wrote Faust", "incorrect", data_id="b")]),
    ("/batch_memory_save", [saving("who wrote Emma", "not_attempted", data_id="c", image_caption=["a book"])]),
]


def recorded(answer, house):
    """An answer as golden files hold it: without the wording of prompts, and the folder by its setting's name."""
    found = json.loads(answer.text.replace(str(house.folder / "files"), "{MEMORY_DIR}"))
    for each in found if isinstance(found, list) else [found]:
        for message in each.get("messages", []):
            if message["role"] != "assistant":
                message["content"] = "{PROMPT}"
    return found


@pytest.mark.parametrize("route", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_a_route_answers_as_its_golden_file_says(house, route):
    golden = json.loads((GOLDEN / f"{route}.json").read_text(encoding="utf-8"))
    before = [("/save_memory", {"save_path": "memory.jsonl"})] if route == "load_memory" else []
    *_, answer = house.post(*SEEDED, *before, (f"/{route}", golden["request"]))
    assert answer.status_code == 200, answer.text
    assert recorded(answer, house) == golden["response"]


def test_every_released_route_has_a_golden_file():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {
        *("memory", "plan", "best_plan", "judge_replan", "replan", "replan_train"),
        *("batch_memory_save", "save_memory", "load_memory", "clear_memory"),
    }


def test_answers_come_in_the_order_of_the_questions(house):
    (answer,) = house.post(("/plan", [{"data_id": str(n), "question": f"q{n}"} for n in range(40)]))
    assert [each["plan"] for each in answer.json()] == [f"1. Plan of the planner for q{n}" for n in range(40)]


@pytest.mark.parametrize("route", ["memory", "plan", "best_plan", "judge_replan", "replan"])
def test_an_empty_list_brings_an_empty_list(house, route):
    (answer,) = house.post((f"/{route}", []))
    assert answer.json() == []


def test_saving_an_empty_list_changes_nothing(house):
    (answer,) = house.post(("/batch_memory_save", []))
    assert (answer.json(), house.kept()) == ({"status": "success", "ignored_memory_indices": []}, ())


def shown(question="who wrote", **more):
    return {"data_id": "z", "question": question, "image_caption": "", **more}


def test_pass_num_skips_the_best_of_each_label(house):
    letters = "abcdefgh"
    saves = [saving(f"who wrote {each}", label) for label in ("correct", "incorrect") for each in letters]
    first, later, none, many = house.post(
        ("/batch_memory_save", saves),
        ("/memory", [shown(mem_top_k=2)]),
        ("/memory", [shown(mem_top_k=2, pass_num=2)]),
        ("/memory", [shown(mem_top_k=0)]),
        ("/memory", [shown(mem_top_k=8)]),
    )[1:]
    best, every = first.json()[0], many.json()[0]
    assert [len(best[side]) for side in ("pos_indices", "neg_indices")] == [2, 2]
    assert [len(every[side]) for side in ("pos_indices", "neg_indices")] == [8, 8]
    for side in ("pos_indices", "neg_indices"):
        assert every[side][:4] == best[side] + later.json()[0][side]
    assert (none.json()[0]["pos_indices"], none.json()[0]["neg_indices"]) == ([], [])


def test_only_the_first_of_several_captions_is_used_and_a_text_will_do(house):
    requests = [shown(image_caption=caption) for caption in (["a red bus", "a dog"], "a red bus", [], None, [None])]
    (answer,) = house.post(("/plan", requests))
    prompts = [text for _, text in house.models.asked]
    assert answer.status_code == 200
    assert sum("Caption of the image: a red bus" in prompt for prompt in prompts) == 2
    assert sum("Caption of the image" in prompt for prompt in prompts) == 2
    assert not any("a dog" in prompt for prompt in prompts)


def test_a_retry_of_a_save_doubles_neither_memory_nor_credit(house):
    save = ("/batch_memory_save", [saving("who wrote Hamlet"), saving("who wrote Faust", used_memory_indices=[1])])
    answers = house.post(("/batch_memory_save", [saving("who")]), save, save, save)
    assert all(answer.json() == {"status": "success", "ignored_memory_indices": []} for answer in answers)
    assert {memory.question: (memory.uses, memory.wins) for memory in house.kept()} == {
        "who": (1, 1),
        "who wrote Hamlet": (0, 0),
        "who wrote Faust": (0, 0),
    }
    assert len(house.kept()) == 3


def test_other_rollouts_of_a_question_are_credited_apart(house):
    twice = [saving("what", plan=plan, used_memory_indices=[1]) for plan in ("1. a", "1. b")]
    house.post(("/batch_memory_save", [saving("who")]), ("/batch_memory_save", twice))
    assert house.kept()[0].uses == 2


def test_ids_that_are_gone_are_named_and_what_was_learnt_is_kept(house):
    request = saving("who wrote Hamlet", used_memory_indices=[1, 77, 2**70, 77])
    _, answer = house.post(("/batch_memory_save", [saving("who")]), ("/batch_memory_save", [request]))
    assert answer.json()["ignored_memory_indices"] == [77, 2**70]
    assert [(memory.question, memory.uses) for memory in house.kept()] == [("who", 1), ("who wrote Hamlet", 0)]


def test_observations_in_parts_are_remembered(house):
    parts = [{"type": "text", "text": "a page"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [
        {"role": "assistant", "content": "I look."},
        {"role": "tool", "content": parts},
        {"role": "assistant", "content": None},
    ]
    (answer,) = house.post(("/batch_memory_save", [saving("what is it", messages=messages)]))
    assert answer.status_code == 200
    assert [memory.question for memory in house.kept()] == ["what is it"]


def test_feedback_of_reviewers_is_kept_and_shown_and_may_be_missing(house):
    said = {"evaluator_1_feedback": "a leap in step 2", "evaluator_3_feedback": "the year is off"}
    reviewed = saving("who wrote Hamlet", **said)
    *_, answer = house.post(
        ("/batch_memory_save", [reviewed, saving("who wrote Faust", evaluator_2_feedback=None)]),
        ("/batch_memory_save", [reviewed]),
        ("/memory", [shown("who wrote Hamlet")]),
    )
    assert sorted(memory.feedback for memory in house.kept()) == [(), ("a leap in step 2", "", "the year is off")]
    context = answer.json()[0]["context"]
    assert "reasoning and logic:\na leap in step 2" in context
    assert "validity of the result:\nthe year is off" in context
    assert "information sourcing" not in context


def test_a_reviewed_episode_credits_and_is_written_again_like_any_other(house):
    house.compressor.down = True
    reviewed = saving("who wrote Hamlet", used_memory_indices=[1], evaluator_1_feedback="good")
    house.post(("/batch_memory_save", [saving("who")]), ("/batch_memory_save", [reviewed]))
    assert house.kept()[0].uses == 1
    with closing(Storage(house.settings.memory_path, "letters")) as storage:
        assert [draft.memory_id for draft in storage.drafts(9)] == [1, 2]


class Down:
    """A model that is down for one question."""

    def __init__(self, question, *, retryable=True):
        self.question, self.retryable = question, retryable

    def __call__(self, role, prompt):
        if f"Question: {self.question}\n" in prompt:
            return ModelUnavailable("It is down.", service="model", retryable=self.retryable)
        return behave(role, prompt)


@pytest.mark.parametrize(("retryable", "status"), [(True, 503), (False, 502)])
@pytest.mark.parametrize("route", ["plan", "best_plan"])
def test_a_model_that_fails_one_sample_fails_the_request_by_name(tmp_path, route, retryable, status):
    house = House(tmp_path, Down("b", retryable=retryable))
    (answer,) = house.post((f"/{route}", [shown("a"), shown("b"), shown("c")]))
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, "ModelUnavailable")
    assert answer.json()["error"]["message"] == "It is down."


def trace(workflow="I am unsure.", ids=(1, 2, 3, 4), **more):
    past = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Question: who"},
        {"role": "assistant", "content": "1. Look."},
    ]
    return {"workflow": workflow, "past_messages": past, "memory_indices": list(ids), **more}


def test_the_decision_is_yes_or_no_and_goes_on_in_the_dialogue(house):
    (answer,) = house.post(("/judge_replan", [trace(), trace("It is clear.")]))
    yes, no = answer.json()
    assert [yes["need_replan"], no["need_replan"]] == ["yes", "no"]
    assert [message["role"] for message in yes["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert yes["messages"][1:3] == trace()["past_messages"][1:]
    assert yes["messages"][-1]["content"] == "<think>weak</think>Yes."


def test_a_trace_longer_than_the_window_is_shortened_evenly(tmp_path):
    house = House(tmp_path, window=4000)
    long = "\n\n".join(f"### Round {n}\n{'word ' * 600}" for n in range(1, 7))
    (answer,) = house.post(("/judge_replan", [trace(f"{long}\n\n### End\nunsure")]))
    prompt = house.models.asked[-1][1]
    assert answer.json()[0]["need_replan"] == "yes"
    assert all(f"### Round {n}" in prompt for n in range(1, 7))


def test_with_no_room_left_to_ask_the_plan_stands(tmp_path):
    (answer,) = House(tmp_path, window=40).post(("/judge_replan", [trace()]))
    assert answer.json()[0]["need_replan"] == "no"
    assert len(answer.json()[0]["messages"]) == 3


def test_the_trainers_dialogue_has_the_plan_the_trace_a_yes_and_both_memories(house):
    request = {
        "question": "who",
        "plan": "1. Look.",
        "trace": "It went wrong.",
        "mem_context1": "M1",
        "mem_context2": "M2",
    }
    house.post(("/replan_train", request))
    roles = [message.role for message in house.models.opened[-1].messages]
    texts = [message.text for message in house.models.opened[-1].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert "M1\n\nM2" in texts[1]
    assert "image" not in texts[1]
    assert texts[2] == "1. Look."
    assert "It went wrong." in texts[3]
    assert texts[4:] == ["yes", texts[5], "1. Look elsewhere."]


@pytest.mark.parametrize(
    ("reply", "number"), [('{"answer": "4"}', 4), ("2", 2), ('{"answer": "9"}', 1), ("All of the 3 are good.", 1)]
)
def test_a_choice_that_cannot_be_read_is_the_first_plan(tmp_path, reply, number):
    house = House(tmp_path, lambda role, prompt: reply if role == "manager" else behave(role, prompt))
    (answer,) = house.post(("/best_plan", [shown("who")]))
    found = answer.json()[0]
    assert found["selected_plan_number"] == number
    assert found["plan"] == found["all_plans"][number - 1]
    assert sorted({want.temperature for want in house.models.wants}) == [0.0, 1.0]


def asked(house):
    return [role for role, _ in house.models.asked]


@pytest.mark.parametrize("cold_start", [True, False])
def test_while_few_memories_are_found_the_managers_model_plans_if_so_set(tmp_path, cold_start):
    house = House(tmp_path, cold_start=cold_start)
    few = [saving("who wrote a"), saving("who wrote b", "incorrect")]
    house.post(("/batch_memory_save", few), ("/plan", [shown(mem_top_k=2)]), ("/plan", [shown(mem_top_k=1)]))
    assert asked(house) == ["manager" if cold_start else "planner", "planner"]


@pytest.mark.parametrize(("ids", "role"), [((1, 2, 3), "manager"), ((1, 2, 3, 4), "planner")])
def test_below_four_memories_the_managers_model_decides(tmp_path, ids, role):
    house = House(tmp_path, cold_start=True)
    house.post(("/judge_replan", [trace(ids=ids)]))
    assert asked(house) == [role]


@pytest.mark.parametrize(("skip", "role"), [(0, "planner"), (1, "planner"), (2, "manager")])
def test_the_managers_model_replans_where_fewer_are_found_than_are_skipped(tmp_path, skip, role):
    house = House(tmp_path, cold_start=True)
    few = [saving("who wrote a"), saving("who wrote b", "incorrect")]
    request = {**shown(mem_top_k=0, pass_num=skip), "past_messages": trace()["past_messages"]}
    house.post(("/batch_memory_save", few), ("/replan", [request]))
    assert asked(house) == [role]


def test_a_saved_memory_is_loaded_as_it_was(house):
    *_, saved, _, empty, loaded = house.post(
        *SEEDED,
        ("/save_memory", {"save_path": "deep/memory.jsonl"}),
        ("/clear_memory", {}),
        ("/memory", [shown()]),
        ("/load_memory", {"load_path": "deep/memory.jsonl"}),
    )
    path = str(house.folder / "files" / "deep" / "memory.jsonl")
    assert saved.json() == {"status": "success", "path": path, "memories": 3}
    assert empty.json()[0]["pos_indices"] == []
    assert loaded.json() == {"status": "success", "path": path, "memories": 3}
    assert [(memory.question, memory.correct) for memory in house.kept()] == [
        ("who wrote Hamlet", True),
        ("who wrote Faust", False),
        ("who wrote Emma", False),
    ]


def test_loading_takes_the_place_of_what_was_there_and_can_be_done_again(house):
    load_it = ("/load_memory", {"load_path": "memory.json"})
    house.post(*SEEDED, ("/save_memory", {"save_path": "memory.json"}), ("/batch_memory_save", [saving("q")]), load_it)
    house.post(load_it)
    assert len(house.kept()) == 3


def test_json_lines_with_counts_are_loaded(house):
    lines = [
        {
            "data_id": "1",
            "question": "who",
            "workflow_summary": "1. s",
            "judgement": "correct",
            "usage_count": 4,
            "success_count": 3,
        },
        {"question": "who", "correct_plan": "a", "incorrect_plan": "b"},
    ]
    (house.folder / "files").mkdir()
    (house.folder / "files" / "m.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (answer,) = house.post(("/load_memory", {"load_path": "m.jsonl"}))
    assert answer.json()["memories"] == 1
    assert [(memory.uses, memory.wins) for memory in house.kept()] == [(3, 2)]


def test_a_file_that_cannot_be_used_changes_nothing(house):
    (house.folder / "files").mkdir()
    for name, text in {
        "half.json": '{"text-only": ',
        "odd.json": '[{"question": ""}]',
        "latin.json": "caf\xe9",
    }.items():
        (house.folder / "files" / name).write_text(text, encoding="latin-1")
    names = ("half.json", "odd.json", "latin.json", "absent.json", ".json", "half.json/x.json")
    _, _, _, *answers = house.post(*SEEDED, *(("/load_memory", {"load_path": name}) for name in names))
    assert [answer.status_code for answer in answers] == [400] * len(names)
    assert len(house.kept()) == 3


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("/etc/memory.jsonl", "memory.jsonl"),
        ("../../memory.jsonl", "memory.jsonl"),
        ("a/../../../b/memory.json", "memory.json"),
        ("sub/memory.jsonl", "sub/memory.jsonl"),
        ("./results/../memory.jsonl", "memory.jsonl"),
        ("记忆.jsonl", "记忆.jsonl"),
    ],
)
def test_an_outside_path_is_reduced_to_its_name_and_the_reply_says_so(house, given, name):
    *_, answer = house.post(*SEEDED, ("/save_memory", {"save_path": given}))
    path = house.folder / "files" / name
    assert answer.json()["path"] == str(path)
    assert path.exists()
    assert {found.name for found in path.parent.iterdir()} == {path.name}


@pytest.mark.parametrize(
    "given", ["", "/", "..", "../memory.sqlite", "memory.sqlite", ".jsonl", f"{'x' * 300}.json", "\x00", "a\x00.pkl"]
)
def test_a_path_that_names_no_memory_file_is_refused(house, given):
    *_, answer = house.post(*SEEDED, ("/save_memory", {"save_path": given}))
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "InputError")
    assert len(house.kept()) == 3


def test_a_link_out_of_the_folder_is_not_followed(house):
    (house.folder / "files").mkdir()
    (house.folder / "files" / "link.json").symlink_to(house.folder / "outside.json")
    *_, answer = house.post(*SEEDED, ("/save_memory", {"save_path": "link.json"}))
    assert answer.status_code == 400
    assert not (house.folder / "outside.json").exists()


def test_what_was_cleared_can_be_brought_back(house):
    *_, answer = house.post(*SEEDED, ("/clear_memory", ""))
    sequence = int(answer.json()["message"].partition("mia memory restore ")[2].partition("`")[0])
    assert house.kept() == ()
    with closing(Storage(house.settings.memory_path, "letters")) as storage:
        storage.restore(sequence)
    assert len(house.kept()) == 3


LONE = '"\\ud800who"'
BAD = {
    "no JSON": ("/plan", "{"),
    "no body": ("/plan", ""),
    "an object for a list": ("/plan", {"question": "who"}),
    "a list for an object": ("/replan_train", []),
    "text for samples": ("/memory", ["who"]),
    "no question": ("/memory", [{"data_id": "a"}]),
    "a blank question": ("/memory", [{"question": " "}]),
    "a number for a question": ("/plan", [{"question": 7}]),
    "an endless question": ("/memory", [{"question": "x" * 40_000}]),
    "an endless trace": ("/judge_replan", [trace("x" * 1_000_001)]),
    "a list of numbers for a caption": ("/memory", [{"question": "who", "image_caption": [7]}]),
    "NaN": ("/memory", '[{"question": "who", "mem_top_k": NaN}]'),
    "infinity": ("/memory", '[{"question": "who", "pass_num": -Infinity}]'),
    "a fraction": ("/memory", [{"question": "who", "mem_top_k": 1.5}]),
    "a number as text": ("/memory", [{"question": "who", "mem_top_k": "2"}]),
    "a switch for a number": ("/memory", [{"question": "who", "mem_top_k": True}]),
    "less than none": ("/memory", [{"question": "who", "pass_num": -1}]),
    "too many": ("/memory", [{"question": "who", "mem_top_k": 10**9}]),
    "too many samples": ("/memory", [{"question": "who"}] * 1025),
    "another judgement": ("/batch_memory_save", [saving("who", "Correct")]),
    "no judgement": ("/batch_memory_save", [{"question": "who", "messages": []}]),
    "no id": ("/batch_memory_save", [saving("who", used_memory_indices=[0])]),
    "ids below none": ("/judge_replan", [trace(ids=[-1])]),
    "ids as text": ("/batch_memory_save", [saving("who", used_memory_indices=["1"])]),
    "an unknown role": ("/judge_replan", [trace(past_messages=[{"role": "asistant", "content": "x"}])]),
    "messages that are none": ("/batch_memory_save", [saving("who", messages=["x"])]),
    "content that is none": ("/batch_memory_save", [saving("who", messages=[{"role": "user", "content": 7}])]),
    "a path that is none": ("/save_memory", {"save_path": ["a"]}),
    "no path": ("/load_memory", {}),
    "one bad sample of two": ("/batch_memory_save", [saving("who"), saving("what", "maybe")]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_what_is_wrong_and_changes_nothing(house, name):
    (answer,) = house.post(BAD[name])
    assert answer.status_code == 422
    assert answer.json()["error"]["type"] == "InvalidRequest"
    assert house.kept() == ()


def test_half_characters_and_null_are_replaced(house):
    save = json.dumps([saving("who")]).replace('"who"', LONE)
    for body in (f'[{{"question": {LONE}}}]', '[{"question": "a\\u0000b"}]'):
        answers = house.post(("/plan", body), ("/memory", body), ("/batch_memory_save", save))
        assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [memory.question for memory in house.kept()] == ["\ufffdwho"]


@pytest.mark.parametrize("body", ["[" * 100_000, f"{'[' * 9999}{']' * 9999}", f'[{{"question": {"9" * 5000}}}]'])
def test_json_that_no_reader_takes_is_refused(house, body):
    (answer,) = house.post(("/plan", body))
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["message"]


def test_a_body_too_large_is_refused(tmp_path):
    (answer,) = House(tmp_path, max_request_mb=0.01).post(("/plan", [shown("x" * 20_000)]))
    assert answer.status_code == 413


def test_the_native_routes_stand_beside_the_released(house):
    *_, answer = house.post(*SEEDED, ("/v1/memory/recall", {"question": {"id": "q", "text": "who wrote Hamlet"}}))
    assert answer.json()["successes"][0][0]["question"] == "who wrote Hamlet"


def test_requests_at_once_lose_and_cross_nothing(house):
    async def go():
        async with house.client() as client:

            async def one(n):
                await client.post("/batch_memory_save", json=[saving(f"question {n}", data_id=str(n))])
                answer = await client.post("/plan", json=[shown(f"question {n}")])
                return answer.json()[0]["plan"]

            return await asyncio.gather(*map(one, range(30)))

    assert asyncio.run(go()) == [f"1. Plan of the planner for question {n}" for n in range(30)]
    assert {memory.question_id for memory in house.kept()} == {str(n) for n in range(30)}


def test_old_names_of_models_are_read_and_the_unclear_one_is_told(monkeypatch, caplog):
    monkeypatch.setenv("MEMORY_URL", "http://a/v1")
    monkeypatch.setenv("PLAN_URL", "http://b/v1")
    settings = load(MemoryServiceSettings)
    assert (settings.manager_url, settings.planner_url, settings.port) == ("http://a/v1", "http://b/v1", 5000)
    assert "MIA_MANAGER_URL" in caplog.text
