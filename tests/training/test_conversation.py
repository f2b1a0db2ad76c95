import asyncio
import random

import pytest

pytest.importorskip("verl")

from dialogues import KINDS, Sampled, dialogue, fast, policy

from mia.errors import ConfigError, InputError, ModelUnavailable, OutOfRoom
from mia.training.conversation import Generated, PolicyCounter, TokenModels
from mia.types import ImageRef, Message, Want

DIALOGUES = 150  # of each kind


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_on_is_what_was_sampled_within_what_would_be_served(kind):
    same = 0
    for seed in range(DIALOGUES):
        tokens, said, rendered = dialogue(kind, seed)
        assert len(tokens.response) == len(tokens.mask) == len(tokens.log_probs)
        learnt = [place for place, on in enumerate(tokens.mask) if on]
        assert [tokens.response[place] for place in learnt] == [each for new, _ in said for each in new]
        assert [tokens.log_probs[place] for place in learnt] == [each for _, log_probs in said for each in log_probs]
        assert all(probability == 0.0 for on, probability in zip(tokens.mask, tokens.log_probs, strict=True) if not on)
        # The served dialogue goes on to the end of the last turn, the trained one ends with its last sampled token.
        text = fast(kind).decode(tokens.ids, skip_special_tokens=False)
        assert rendered.startswith(text)
        assert rendered.removeprefix(text) in ("<|im_end|>\n", "\n")
        same += fast(kind).encode(text, add_special_tokens=False) == tokens.ids
    assert same > DIALOGUES / 3  # of the rest a reply was split otherwise, or begins with what joins a newline


def test_a_mask_that_is_one_off_is_noticed():
    tokens, said, _ = dialogue("qwen3", 1)
    shifted = [0, *tokens.mask[:-1]]
    assert [each for each, on in zip(tokens.response, shifted, strict=True) if on] != [
        e for new, _ in said for e in new
    ]


def say(conversation, text="Ask.", **want):
    return asyncio.run(conversation.say(Message(role="user", text=text), Want(max_tokens=8, **want)))


def opened(generate=None, **more):
    server = generate or Sampled("qwen3", random.Random(0))
    return TokenModels(policy("qwen3", server, **more), "planner").open("planner", "System.")


def test_a_message_that_does_not_fit_ends_the_dialogue_and_nothing_is_cut():
    conversation = opened(prompt_tokens=8)
    with pytest.raises(OutOfRoom):
        say(conversation, "A question of many more than eight tokens, which verl would cut off on the left.")
    assert conversation.messages == (Message(role="system", text="System."),)
    conversation = opened(response_tokens=12)
    say(conversation)
    before = conversation.tokens
    with pytest.raises(OutOfRoom):
        say(conversation, "And now one more message for which there is no room at all.")
    assert conversation.tokens == before
    assert len(before.response) <= 12


def test_a_reply_is_bounded_by_the_room_that_is_left():
    asked = []

    async def generate(ids, sampling):
        asked.append(sampling["max_tokens"])
        return Generated([5] * sampling["max_tokens"], [-1.0] * sampling["max_tokens"], aborted=False, version="3")

    conversation = opened(generate, response_tokens=5)
    said = say(conversation)
    assert asked == [5]
    assert (said.finish, said.new_tokens, said.version, conversation.room) == ("length", 5, "3", 0)


def test_constrained_output_images_and_other_roles_are_refused():
    conversation = opened()
    with pytest.raises(ConfigError, match="not constrained"):
        say(conversation, schema={"type": "object"})
    picture = ImageRef(sha256="0" * 64, mime="image/png", width=8, height=8)
    with pytest.raises(InputError):
        asyncio.run(conversation.say(Message(role="user", text="", images=(picture,)), Want(max_tokens=8)))
    models = TokenModels(policy("qwen3", None), "planner")
    with pytest.raises(ConfigError, match="executor"):
        models.open("executor", "")


def test_a_policy_that_does_not_reply_in_time_is_unavailable():
    async def generate(ids, sampling):
        await asyncio.sleep(30)

    with pytest.raises(ModelUnavailable):
        say(opened(generate), deadline=0.05)


def test_seeds_are_passed_on_where_they_are_wanted():
    seen = []

    async def generate(ids, sampling):
        seen.append(sampling.get("seed"))
        return Generated([5], [-1.0], aborted=False, version="")

    say(opened(generate), seed=7)
    say(opened(generate, seeded=True), seed=7)
    assert seen == [None, 7]


def test_counts_are_exact_and_cuts_fit():
    counter = PolicyCounter(fast("qwen3"))
    text = "The tower of Paris, 埃菲尔铁塔 🗼. " * 10
    for tokens in (0, 3, 10, 50, 10_000):
        cut = counter.cut(text, tokens)
        assert counter.count(cut) <= max(tokens, 0)
    assert counter.cut(text, 10_000) == text
