"""Random dialogues of a policy over verl's own builders, beside the full rendering of the same messages."""

from __future__ import annotations

import asyncio
import random
from functools import cache

from templates import ADDS_SYSTEM, KEEP_THOUGHTS, tokenizer
from transformers import PreTrainedTokenizerFast
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from mia.text import STOPS
from mia.training.conversation import Generated, Policy, TokenModels
from mia.types import Message, Want

PIECES = [
    "Paris",
    " tower",
    " 1889",
    "埃菲尔",
    "🗼",
    "é",
    "\n",
    "\n\n",
    "  ",
    "{",
    '"',
    ".",
    " don't",
    "yes",
    "1. Find ",
]
KINDS = {"qwen2": ADDS_SYSTEM, "qwen3": KEEP_THOUGHTS}


@cache
def fast(kind: str) -> PreTrainedTokenizerFast:
    made = tokenizer(["1. Find the tower of Paris.\n", "The answer is yes, 1889."] * 20, thinks=kind == "qwen3")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    wrapped.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    wrapped.chat_template = KINDS[kind]
    return wrapped


def policy(kind: str, generate, **more) -> Policy:
    ours = {"prompt_tokens": 10_000, "response_tokens": 10_000, "sampling": {"temperature": 1.0, "logprobs": True}}
    builder = create_continuous_token_builder(fast(kind), hf_model_type=kind)
    return Policy(builder=builder, tokenizer=fast(kind), generate=generate, **(ours | more))


def words(chance: random.Random, most: int = 6) -> str:
    return "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, most)))


class Sampled:
    """A rollout server that says what it is told, ended by the template's token, by a stop string, or cut off."""

    def __init__(self, kind: str, chance: random.Random) -> None:
        self.tokenizer, self.chance, self.said = fast(kind), chance, []

    async def __call__(self, ids, sampling):
        assert sampling["max_tokens"] > 0
        text, how = words(self.chance), self.chance.randrange(3)
        if how == 1 and "stop" in sampling:
            text += f'<tool_call>{{"name": "search"}}{self.chance.choice(sampling["stop"][:1])}'
        new = self.tokenizer.encode(text, add_special_tokens=False)
        if self.chance.random() < 0.2:  # not as a tokenizer would have split it
            new = [each for token in new for each in self.split(token)]
        new += [self.tokenizer.eos_token_id] if how == 0 else []
        new = new[: sampling["max_tokens"]]
        log_probs = [-self.chance.random() - 0.01 for _ in new]
        self.said.append((new, log_probs))
        return Generated(new, log_probs, aborted=False, version="1")

    def split(self, token: int) -> list[int]:
        pieces = list(self.tokenizer.convert_ids_to_tokens(token))
        ids = self.tokenizer.convert_tokens_to_ids(pieces)
        return ids if None not in ids and self.tokenizer.unk_token_id not in ids else [token]


def dialogue(kind: str, seed: int):
    """Return tokens, what was sampled, and the ids of the full rendering of a random dialogue."""
    chance = random.Random(seed)
    server = Sampled(kind, chance)
    models = TokenModels(policy(kind, server), "executor")
    conversation = models.open("executor", words(chance))

    async def talk():
        for turn in range(chance.randrange(1, 6)):
            text = words(chance, 20)
            text = f"<tool_response>\n{text}\n</tool_response>" if turn else text
            await conversation.say(Message(role="user", text=text), Want(max_tokens=64, stop=STOPS))

    asyncio.run(talk())
    said = [{"role": each.role, "content": each.text} for each in conversation.messages]
    return conversation.tokens, server.said, fast(kind).apply_chat_template(said, tokenize=False)
