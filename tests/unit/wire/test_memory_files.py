"""Memory files of the released code are read in every variant, and written so that it can read them."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia.errors import InputError
from mia.types import PlanPair, Workflow
from mia.wire.memory_files import plan_file, read, workflow_file

FOLDER = Path(__file__).parents[2] / "data" / "released"
CATEGORIES = ("location", "human", "time", "career", "process", "definition", "event", "function", "property", "others")
FEEDBACK = ("The steps follow from each other.", "来源可靠。", "The answer is one word, as asked.")
RECORD = {"question": "Which?", "workflow_summary": "1. Find it.", "judgement": "correct"}
PAIR = {"question": "Which?", "correct_plan": "Search.", "incorrect_plan": "Guess."}

ABA = Workflow(
    id=7,
    question="In which country is Aba?",
    category="location",
    summary="1. Find the country (city -> country)",
    plan="1. Search for Aba.",
    correct=True,
    uses=3,
    wins=2,
    question_id="q-17",
    episode="run/0/q-17/0",
    model="qwen",
    created=5.0,
)
BRIDGE = Workflow(
    id=8,
    question="图中是哪座桥？",
    caption="江上的一座大桥。",
    summary="1. 识别桥（图像 -> 名称）",
    plan="1. 以图搜图。",
    correct=False,
    feedback=("The bridge has two names.", "来源可靠。"),
    uses=2,
    question_id="8",
    episode="run/0/8/0",
    created=5.0,
)
EVENT = PlanPair(
    id=3,
    question="When did the event begin?",
    correct_plan="1. Search for the event.",
    incorrect_plan="1. Guess the year.",
    question_id="5",
    created=5.0,
)


def fixture(name):
    return (FOLDER / name).read_text(encoding="utf-8")


def read_one(**fields):
    released = read(json.dumps([RECORD | fields]), "file", 9.0)
    return released.workflows[0], released.dropped


def nested(*records, modality="text-only", category="others"):
    return json.dumps({modality: {category: list(records)}}, ensure_ascii=False)


# of each workflow: question id, category, caption given, correct, uses, wins, number of reviews
@pytest.mark.parametrize(
    ("name", "workflows", "pairs", "dropped"),
    [
        (
            "memory_serve.json",
            [
                ("q-17", "location", False, True, 3, 2, 0),
                ("q-18", "human", False, False, 0, 0, 0),
                ("v-3", "others", True, True, 1, 0, 0),
            ],
            [],
            {},
        ),
        ("memory_serve_nogt.json", [("q-21", "others", False, True, 0, 0, 3)], [], {}),
        ("memento.json", [("q-30", "others", False, False, 0, 0, 0)], [], {}),
        ("expel.json", [("q-31", "others", False, True, 0, 0, 0)], [], {"rule": 1}),
        (
            "ttrl_workflow_memory.json",
            [("5", "others", False, True, 2, 2, 0), ("6", "others", False, False, 6, 1, 0)],
            [],
            {"slow_plan": 1},
        ),
        (
            "ttrl_nogt_workflow_memory.json",
            [("8", "others", True, True, 1, 1, 3)],
            [],
            {"judgement_data.raw_verdict": 1},
        ),
        ("ttrl_plan_memory.json", [], ["5", "8"], {}),
        (
            "lines.jsonl",
            [("40", "human", False, True, 0, 0, 0), ("", "others", False, False, 0, 0, 0)],
            [],
            {"category": 1},
        ),
        (
            "list.json",
            [("40", "human", False, True, 0, 0, 0), ("", "others", False, False, 0, 0, 0)],
            [],
            {"category": 1},
        ),
    ],
)
def test_every_variant_is_read(name, workflows, pairs, dropped):
    released = read(fixture(name), name, 9.0)
    assert [
        (w.question_id, w.category, bool(w.caption), w.correct, w.uses, w.wins, len(w.feedback))
        for w in released.workflows
    ] == workflows
    assert [pair.question_id for pair in released.pairs] == pairs
    assert released.dropped == Counter(dropped)


def test_every_field_finds_its_place():
    (workflow,) = read(fixture("ttrl_nogt_workflow_memory.json"), "ttrl", 9.0).workflows
    assert workflow.episode.startswith("import/ttrl/")
    assert workflow.model_copy(update={"episode": ""}) == Workflow(
        id=0,
        question="图中是哪座桥？",
        caption="江上的一座大桥。",
        category="others",
        summary="1. 识别桥（图像 -> 名称）",
        plan="1. 以图搜图。",
        correct=True,
        feedback=FEEDBACK,
        uses=1,
        wins=1,
        question_id="8",
        episode="",
        source="ttrl",
        created=9.0,
    )
    pair = read(fixture("ttrl_plan_memory.json"), "ttrl", 9.0).pairs[1]
    assert pair == PlanPair(
        id=0,
        question="图中是哪座桥？",
        caption="江上的一座大桥。",
        correct_plan="1. 以图搜图。",
        incorrect_plan="1. 搜索“桥”。",
        question_id="8",
        source="ttrl",
        created=9.0,
    )


def test_feedback_is_read_from_the_record_itself_too():
    assert read(fixture("memory_serve_nogt.json"), "file", 9.0).workflows[0].feedback == FEEDBACK
    assert read_one(evaluator_2_feedback="Sourced.")[0].feedback == ("Sourced.",)


def test_a_plan_that_was_not_kept_is_empty_and_a_trace_is_a_summary():
    (expel,) = read(fixture("expel.json"), "file", 9.0).workflows
    (memento,) = read(fixture("memento.json"), "file", 9.0).workflows
    assert expel.plan == ""
    assert memento.summary.startswith("### Question")
    assert memento.plan.startswith("1. ")


def test_workflows_and_pairs_may_stand_in_one_file():
    released = read(json.dumps([RECORD, PAIR]), "file", 9.0)
    assert (len(released.workflows), len(released.pairs)) == (1, 1)


@pytest.mark.parametrize(
    ("judgement", "correct"), [("correct", True), ("Correct", False), ("incorrect", False), ("", False)]
)
def test_only_the_word_correct_is_correct(judgement, correct):
    assert read_one(judgement=judgement)[0].correct is correct


@pytest.mark.parametrize(
    ("data_id", "question_id"), [("q", "q"), (7, "7"), (1.5, "1.5"), (True, "true"), (None, ""), ("\ud800", "\ufffd")]
)
def test_any_scalar_is_an_id(data_id, question_id):
    assert read_one(data_id=data_id)[0].question_id == question_id


def test_null_is_as_good_as_missing():
    workflow, dropped = read_one(usage_count=None, plan=None, judgement_data=None, slow_plan=None)
    assert (workflow.uses, workflow.plan, workflow.feedback, dropped) == (0, "", (), Counter())


@pytest.mark.parametrize("caption", ["", " \n"])
def test_a_blank_caption_makes_text_only_whatever_the_key_says(caption):
    text = nested(RECORD | {"image_caption": caption}, modality="text-image")
    (workflow,) = read(text, "file", 9.0).workflows
    assert workflow.caption == ""
    written = json.loads(workflow_file([workflow]))
    assert (len(written["text-only"]["others"]), len(written["text-image"]["others"])) == (1, 0)


def test_what_has_no_place_is_counted_and_what_says_nothing_is_not():
    records = [RECORD | {"tag": "a", "slow_plan": "b"}, RECORD | {"tag": "c", "slow_plan": "", "list": []}]
    assert read(json.dumps(records), "file", 9.0).dropped == Counter(tag=2, slow_plan=1)
    assert read_one(judgement_nogt="incorrect")[1] == Counter(judgement_nogt=1)
    assert read(nested(PAIR, category="human"), "file", 9.0).dropped == Counter(category=1)
    assert read(nested(RECORD, category=""), "file", 9.0).dropped == Counter(category=1)


def test_fields_named_like_the_readers_own_are_only_unknown():
    names = ("copy", "model_config", "undeclared", "__class__", "noun", "self")
    assert read_one(**dict.fromkeys(names, 1))[1] == Counter(names)


def test_a_win_rate_is_derived_and_not_believed():
    workflow, dropped = read_one(usage_count=4, success_count=2, win_rate=float("nan"))
    assert (workflow.uses, workflow.wins, dropped) == (3, 1, Counter())


def test_reading_again_gives_the_same_episodes_and_copies_are_numbered():
    text = json.dumps([RECORD, RECORD | {"plan": "Search."}, RECORD])
    episodes = [workflow.episode for workflow in read(text, "file", 9.0).workflows]
    assert len(set(episodes)) == 3
    assert episodes[2] == episodes[0].removesuffix("0") + "1"
    assert [workflow.episode for workflow in read(text, "file", 10.0).workflows] == episodes
    reordered = json.dumps([dict(reversed(RECORD.items()))], indent=2)
    assert read(reordered, "file", 9.0).workflows[0].episode == episodes[0]
    assert read(text, "other", 9.0).workflows[0].episode != episodes[0]


def test_a_byte_order_mark_blank_lines_and_line_separators_within_text_do_no_harm():
    line = json.dumps(RECORD | {"plan": "a\u2028b"}, ensure_ascii=False)
    released = read(f"\ufeff\n{line}\r\n\n{line}\n", "file", 9.0)
    assert [workflow.plan for workflow in released.workflows] == ["a\u2028b"] * 2


def test_half_characters_anywhere_are_replaced():
    text = json.dumps([RECORD | {"question": "a\ud800\0", "tag\udfff": 1, "evaluator_1_feedback": "\udc00"}])
    released = read(text, "file\udc80", 9.0)
    (workflow,) = released.workflows
    assert (workflow.question, workflow.feedback, workflow.source) == ("a\ufffd\ufffd", ("\ufffd",), "file\ufffd")
    assert released.dropped == Counter({"tag\ufffd": 1})
    assert "\ufffd" in read(nested(RECORD, category="others"), "\ud800", 9.0).workflows[0].episode


@pytest.mark.parametrize("text", ["{}", "[]", '{"text-only": {}}', workflow_file([]), plan_file([])])
def test_an_empty_memory_is_read(text):
    assert read(text, "file", 9.0) == ((), (), Counter())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "file is empty"),
        (" \n", "file is empty"),
        ("{", "from line 1 on"),
        ("not JSON", "from line 1 on"),
        (f"{json.dumps(RECORD)}\n\n{{oops", "line 3 column 2"),
        (f"{json.dumps(RECORD)}\n5", "Record at line 2 of file"),
        (f"{json.dumps(RECORD)}\n{{}}", "Record at line 2 of file"),
        (workflow_file([]) * 2, "Record at line 1 of file cannot be used: question"),
        ("null", "no memory file"),
        ("5", "no memory file"),
        ('"text"', "no memory file"),
        ("[" * 100_000, "nested too deep"),
        ('[{"deep": ' + "[" * 100_000, "nested too deep"),
        ('{"text-only":' * 100_000, "nested too deep"),
        ('[{"usage_count": ' + "1" * 5000 + "}]", "from line 1 on"),
        ('{"plan": "a"}', "'plan', which is no modality"),
        ('{"text-video": {}}', "'text-video', which is no modality"),
        ('{"\\ud800": {}}', "which is no modality"),
        ('{"text-only": []}', "text-only of file"),
        ('{"text-only": null}', "text-only of file"),
        ('{"text-only": {"others": {}}}', "text-only/others of file"),
        ('{"text-only": {"\\ud800": 1}}', "text-only/\ufffd of file"),
        (nested(RECORD, 5), "Record text-only/others/1 of file cannot be used: record: is not a JSON object"),
        (nested(RECORD, {}, category="human"), "Record text-only/human/1 of file cannot be used: question"),
        ("[[]]", "Record 0 of file"),
        ("[null]", "Record 0 of file"),
    ],
)
def test_what_is_no_memory_file_is_refused_with_its_place(text, reason):
    with pytest.raises(InputError) as caught:
        read(text, "file", 9.0)
    assert reason in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (RECORD | {"question": None}, "question: Field required"),
        (RECORD | {"question": " "}, "question: is blank"),
        (RECORD | {"question": 5}, "question: "),
        (RECORD | {"workflow_summary": None}, "workflow_summary: Field required"),
        (RECORD | {"workflow_summary": ["a"]}, "workflow_summary: "),
        (RECORD | {"plan": {}}, "plan: "),
        (RECORD | {"image_caption": ["a"]}, "image_caption: "),
        (RECORD | {"category": 5}, "category: "),
        (RECORD | {"data_id": [1]}, "data_id: "),
        (RECORD | {"judgement": None}, "judgement: Field required"),
        (RECORD | {"judgement": True}, "judgement: "),
        (RECORD | {"judgement_data": "a"}, "judgement_data: is not a JSON object"),
        (RECORD | {"judgement_data": {"evaluator_1_feedback": 1}}, "judgement_data.evaluator_1_feedback: "),
        (RECORD | {"evaluator_3_feedback": ["a"]}, "evaluator_3_feedback: "),
        (RECORD | {"usage_count": 0}, "usage_count: "),
        (RECORD | {"usage_count": 3, "success_count": -1}, "success_count: "),
        (RECORD | {"usage_count": 2, "success_count": 3}, "success_count 3 is more than usage_count 2"),
        (RECORD | {"success_count": 2}, "success_count 2 is more than usage_count 1"),
        (RECORD | {"usage_count": 2.0}, "usage_count: "),
        (RECORD | {"usage_count": "2"}, "usage_count: "),
        (RECORD | {"usage_count": True}, "usage_count: "),
        (RECORD | {"usage_count": float("nan")}, "usage_count: "),
        (RECORD | {"usage_count": float("inf")}, "usage_count: "),
        (RECORD | {"usage_count": 10**400}, "usage_count: "),
        (PAIR | {"incorrect_plan": None}, "incorrect_plan: Field required"),
        (PAIR | {"correct_plan": 5}, "correct_plan: "),
        (PAIR | {"question": ""}, "question: is blank"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused_with_its_place(record, reason):
    with pytest.raises(InputError) as caught:
        read(nested(RECORD, record, modality="text-image", category="time"), "file", 9.0)
    assert caught.value.message.startswith("Record text-image/time/1 of file cannot be used: ")
    assert reason in caught.value.message
    assert caught.value.remedy


def test_what_is_written_is_what_the_released_code_writes():
    assert workflow_file([BRIDGE, ABA]) == fixture("exported_workflow_memory.json")
    assert plan_file([EVENT]) == fixture("exported_plan_memory.json")


def test_a_file_of_the_released_code_is_written_as_it_was():
    for name in ("memory_serve.json", "memory_serve_nogt.json", "memento.json"):
        assert workflow_file(read(fixture(name), name, 9.0).workflows) == fixture(name)
    assert plan_file(read(fixture("ttrl_plan_memory.json"), "file", 9.0).pairs) == fixture("ttrl_plan_memory.json")


def test_a_category_that_the_released_code_does_not_know_is_written_as_others():
    written = json.loads(workflow_file([ABA.model_copy(update={"category": "food"})]))
    assert [len(written["text-only"][category]) for category in CATEGORIES] == [0] * 9 + [1]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
SAID = TEXTS.filter(str.strip)
COUNTS = st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)).map(sorted)


@st.composite
def workflows(draw):
    wins, uses = draw(COUNTS)
    return Workflow(
        id=0,
        question=draw(SAID),
        caption=draw(st.just("") | SAID),
        category=draw(st.sampled_from(CATEGORIES)),
        summary=draw(TEXTS),
        plan=draw(TEXTS),
        correct=draw(st.booleans()),
        feedback=tuple(draw(st.lists(TEXTS, max_size=3))),
        uses=uses,
        wins=wins,
        question_id=draw(TEXTS),
        episode="",
        source="file",
        created=9.0,
    )


PAIRS = st.builds(
    PlanPair,
    id=st.just(0),
    question=SAID,
    caption=st.just("") | SAID,
    correct_plan=TEXTS,
    incorrect_plan=TEXTS,
    question_id=TEXTS,
    source=st.just("file"),
    created=st.just(9.0),
)


@given(st.lists(workflows(), max_size=5))
def test_workflows_written_and_read_are_the_same(given_workflows):
    released = read(workflow_file(given_workflows), "file", 9.0)
    cells = sorted(given_workflows, key=lambda w: (bool(w.caption), CATEGORIES.index(w.category)))
    assert [workflow.model_copy(update={"episode": ""}) for workflow in released.workflows] == cells
    assert len({workflow.episode for workflow in released.workflows}) == len(cells)
    assert (released.pairs, released.dropped) == ((), Counter())


@given(st.lists(PAIRS, max_size=5))
def test_pairs_written_and_read_are_the_same(pairs):
    released = read(plan_file(pairs), "file", 9.0)
    assert list(released.pairs) == sorted(pairs, key=lambda pair: bool(pair.caption))
    assert (released.workflows, released.dropped) == ((), Counter())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["correct", "text-only"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from([*RECORD, *PAIR, "text-only", "usage_count"]), inner, max_size=4)
    ),
)


@given(st.text() | JSON.map(json.dumps) | JSON.map(lambda value: nested(RECORD | {"x": value}, value)))
def test_whatever_is_read_is_read_or_refused(text):
    with suppress(InputError):
        read(text, "file", 9.0)
