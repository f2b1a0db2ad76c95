"""What holds for any text of a model, tried with made and with random texts."""

import json
import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mia.lenient import Unclear, read
from mia.text import Answer, Malformed, Prose, clean, disarm, parse_turn, split_thoughts
from mia.types import ToolCall

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "<tool_response>", "```json"]
MARKS = list("{}[]()\"'“”｛｝：，:,=\\`0-. \n\x00\ud800é漢👍") + [
    '"name": "s"',
    '"arguments": {}',
    "s(q=",
    "true",
    "NaN",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
ARGUMENTS = st.dictionaries(st.text(), VALUES, max_size=4)
OPENING = st.sampled_from(["<think>", "<Think>", "<thinking>", "◁think▷", "[THINK]"])
CLOSING = st.sampled_from(["</think>", "</THINK>", "</thinking>", "◁/think▷", "[/THINK]"])
TURNS = [
    'I look. <tool_call>{"name": "search", "arguments": {"q": ["a b"]}}</tool_call>',
    "<answer>a b</answer>",
    "a b",
]


def cleaned(value):
    if isinstance(value, dict):
        return {clean(name): cleaned(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [cleaned(entry) for entry in value]
    return clean(value) if isinstance(value, str) else value


def test_no_text_of_twenty_thousand_makes_the_parser_raise():
    draw = random.Random(5)
    for _ in range(20_000):
        text = "".join(draw.choices(TAGS + MARKS, k=draw.randrange(40)))
        assert isinstance(parse_turn(split_thoughts(text)[1]), ToolCall | Answer | Malformed | Prose), text


@given(st.text(st.characters(), max_size=200))
def test_no_text_in_a_call_makes_the_parser_raise(text):
    parse_turn(text)
    turn = parse_turn(f"<tool_call>{text}</tool_call>")
    assert isinstance(turn, Malformed) or turn.model_dump_json()


@given(st.text(min_size=1).filter(lambda name: name.strip() == name), ARGUMENTS, st.booleans())
@settings(max_examples=300)
def test_a_call_as_asked_is_read_as_it_was_meant(name, arguments, escaped):
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=escaped)
    assume(disarm(written) == written)  # a tag within a string ends the call
    turn = parse_turn(f"<tool_call>\n{written}\n</tool_call>")
    assert turn == ToolCall(name=clean(name), arguments=cleaned(arguments))


@given(VALUES)
@settings(max_examples=300)
def test_what_is_json_already_is_read_as_json_reads_it(value):
    assert read(json.dumps(value, ensure_ascii=False)) == [value]
    assert read(json.dumps(value)) == [value]


@given(VALUES, st.data())
def test_no_text_cut_off_is_completed(value, data):
    written = json.dumps({"name": "s", "arguments": {"q": value}}, ensure_ascii=False)
    cut = data.draw(st.integers(0, len(written) - 1))
    assert not isinstance(parse_turn(f"<tool_call>{written[:cut]}"), ToolCall)
    try:
        read(written[:cut], ended=False)
    except Unclear:
        return
    assert not written[:cut].strip()


@given(
    st.sampled_from(TURNS),
    st.lists(st.tuples(st.integers(0, 80), OPENING, st.booleans(), CLOSING), min_size=1, max_size=4),
)
def test_what_stands_in_thoughts_only_never_gets_out(turn, inserts):
    for place, opening, nested, closing in sorted(inserts, reverse=True):
        thoughts = f"{opening}SECRET{closing}"
        thoughts = f"{opening}SECRET{thoughts}SECRET{closing}" if nested else thoughts
        turn = f"{turn[:place]}{thoughts}{turn[place:]}"
    assert "SECRET" not in repr(parse_turn(split_thoughts(turn)[1]))


@given(st.sampled_from(TURNS), st.text(max_size=30), OPENING, CLOSING)
def test_a_reply_is_thoughts_up_to_the_closing_tag_and_from_an_opening_one_on(turn, noise, opening, closing):
    assert "SECRET" not in split_thoughts(f"{disarm(noise)}SECRET{closing}{turn}")[1]
    assert "SECRET" not in split_thoughts(f"{turn}{opening}SECRET{disarm(noise)}")[1]
    assert split_thoughts(f"{opening}{turn}") == (turn, "")
