"""What is served is what is trained: dialogues only grow, and a server tokenizes them as the trainer did.

vLLM itself does not run here. A stand-in does over HTTP what its /tokenize does with messages: it renders them by the
chat template and tokenizes the whole.
"""

import json
import random
from functools import cache

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import say
from served import served
from templates import ADDS_SYSTEM, DROPS_THOUGHTS, KEEP_THOUGHTS, render, tokenizer

from mia.executor.render import FORMATS, Renderer, forced, mend
from mia.types import Observation, Plan, Question, ToolSpec

PIECES = [
    "Paris",
    " tower",
    " 1889",
    "埃菲尔铁塔",
    "برج",
    "🗼",
    "👩‍👧",
    "é",
    "\n",
    "\n\n",
    "  ",
    "\t",
    "{",
    '"',
    ".",
    " don't",
    "0x9f",
]
TOOL = ToolSpec(name="search", description="查找 passages.", parameters={"type": "object"})
KINDS = {"qwen3": (KEEP_THOUGHTS, True), "qwen2.5": (ADDS_SYSTEM, False)}


def text(chance):
    return "".join(chance.choices(PIECES, k=chance.randint(1, 12)))


def dialogue(chance):
    """Return a dialogue of one of our formats, with thoughts, broken replies and a revised plan."""
    renderer = Renderer([TOOL], chance.choice(list(FORMATS)))
    plan = Plan(said=say("1. " + text(chance)))
    messages = [{"role": "system", "content": renderer.system}] if renderer.system else []
    asked = renderer.opening(Question(id="q", text=text(chance)), plan)
    for _ in range(chance.randint(1, 4)):
        thoughts = f"<think>\n{text(chance)}\n</think>\n\n" if chance.random() < 0.7 else ""
        call = f"<tool_call>\n{json.dumps({'name': 'search', 'arguments': text(chance)}, ensure_ascii=False)}\n</tool_call>"
        said = thoughts + chance.choice([call, f"<answer>{text(chance)}</answer>", "I " + text(chance)])
        messages += [{"role": asked.role, "content": asked.text}, {"role": "assistant", "content": said}]
        seen = Observation(text=chance.choice([text(chance), mend(text(chance))]))
        asked = chance.choice([renderer.observation(seen), renderer.revision(plan)])
        asked = forced(asked) if chance.random() < 0.2 else asked
    return [*messages, {"role": asked.role, "content": asked.text}]


@cache
def small(kind):
    chance = random.Random(0)
    texts = [render(KEEP_THOUGHTS, dialogue(chance), reply=True) for _ in range(50)]
    return tokenizer(texts, thinks=KINDS[kind][1])


def trained(kind, messages):
    """Return the ids of token append: each message rendered alone, replies as they were sampled."""
    template, _ = KINDS[kind]
    encode = small(kind).encode
    system = [{"role": "system", "content": "x"}]
    known = render(template, system, reply=False)
    first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
    ids = encode(render(template, messages[:first], reply=True)).ids
    for said, answer in zip(messages[first::2], messages[first + 1 :: 2], strict=True):
        ids += encode(said["content"]).ids
        ids += encode("<|im_end|>\n" + render(template, [*system, answer], reply=True).removeprefix(known)).ids
    return ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_tokenizes_a_thousand_dialogues_to_the_trainers_ids(kind):
    def tokenize(request):
        body = json.loads(request.content)
        whole = render(KINDS[kind][0], body["messages"], reply=body["add_generation_prompt"])
        ids = small(kind).encode(whole).ids
        return httpx.Response(200, json={"count": len(ids), "tokens": ids})

    chance = random.Random(5)
    with served(tokenize) as url, httpx.Client(base_url=url) as client:
        for _ in range(1000):
            messages = dialogue(chance)
            body = {"model": "qwen", "messages": messages, "add_generation_prompt": True, "add_special_tokens": False}
            assert client.post("/tokenize", json=body).json()["tokens"] == trained(kind, messages)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_parted_by_special_tokens_so_no_merge_crosses_them(kind):
    model = small(kind)
    special = {model.token_to_id("<|im_start|>"), model.token_to_id("<|im_end|>")}
    for piece in PIECES:
        ids = model.encode(f"{piece}<|im_end|>\n<|im_start|>user\n{piece}").ids
        assert model.encode(piece).ids == ids[: ids.index(min(special & set(ids), key=ids.index))]


def test_the_one_border_without_a_special_token_is_before_a_reply_and_only_a_newline_there_merges():
    encode = small("qwen3").encode
    prompt = "<|im_start|>assistant\n"
    for piece in PIECES:
        apart = encode(prompt).ids + encode(piece).ids
        if "\n" not in piece:
            assert encode(prompt + piece).ids == apart
    assert encode(prompt + "\n\nx").ids != encode(prompt).ids + encode("\n\nx").ids


said = st.tuples(st.text(), st.text()).map(lambda parts: f"<think>\n{parts[0]}\n</think>\n\n{parts[1]}") | st.text()
turns = st.lists(st.tuples(st.text(), said), min_size=1, max_size=6)


@given(system=st.text(), turns=turns)
def test_a_dialogue_rendered_with_its_thoughts_only_grows(system, turns):
    messages = [{"role": "system", "content": system}]
    for asked, reply in turns:
        messages.append({"role": "user", "content": asked})
        before = render(KEEP_THOUGHTS, messages, reply=True)
        messages.append({"role": "assistant", "content": reply})
        after = render(KEEP_THOUGHTS, [*messages, {"role": "user", "content": "next"}], reply=True)
        assert after.startswith(before + reply + "<|im_end|>\n")


def test_a_template_that_drops_earlier_thoughts_edits_what_was_said():
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n<answer>Ada</answer>"},
    ]
    revised = {"role": "user", "content": "The answer so far is withdrawn."}
    for template, grows in ((DROPS_THOUGHTS, False), (KEEP_THOUGHTS, True)):
        before = render(template, messages, reply=False)
        assert render(template, [*messages, revised], reply=True).startswith(before) is grows


def test_images_stand_where_the_message_has_them_and_no_empty_thoughts_are_added():
    parts = [{"type": "text", "text": "Look: "}, {"type": "image_url"}, {"type": "text", "text": "Who?"}]
    assert render(KEEP_THOUGHTS, [{"role": "user", "content": parts}], reply=True) == (
        "<|im_start|>user\nLook: <|vision_start|><|image_pad|><|vision_end|>Who?<|im_end|>\n<|im_start|>assistant\n"
    )
