"""How fast turns are read, and that no text makes the parser raise.

python benchmarks/parsing.py [--fuzz 1000000] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter

from mia.text import parse_turn, split_thoughts

CALL = json.dumps(
    {"name": "search", "arguments": {"query_list": ["Who designed the Eiffel Tower?", "埃菲尔铁塔的设计师"]}},
    ensure_ascii=False,
)
TURNS = {
    "a call": f"I look for its designer first.\n<tool_call>{CALL}</tool_call>",
    "an answer": "The evidence is enough.\n<answer>Gustave Eiffel</answer>",
    "prose": "I should look for the designer of the tower before I answer.",
    "a call in single quotes (repaired)": f"<tool_call>{CALL.replace(chr(34), chr(39))}</tool_call>",
    "two calls (refused)": f"<tool_call>{CALL}{CALL.replace('Who', 'When')}</tool_call>",
}
LONG = {
    "an open bracket": "[",
    "a quote": '"',
    "an escape": "\\u",
    "a thinking tag": "<think>",
    "a split tag": "<<think></think>",
    "an opening tag": "<tool_call>",
    "an object": "{}",
    "a comma": ",",
    "a space": " ",
    "an object begun": '{"a":',
    "quotes in a string": 'a "b" ',
}
PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "<tool_response>", "```json"),
    *('{"name": "s", "arguments": {"q": ["a"]}}', '"name"', '"arguments"', "s(q=", "true", "None", "NaN", "1e999"),
    *"{}[]()\"'“”｛｝：，:,=\\`0-. \n\x00\ud800é漢👍ab",
]
FASTEST_WANTED = 50_000


def rate(text: str, seconds: float = 1.0) -> float:
    """Return turns read per second, thoughts taken off first."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for _ in range(200):
            parse_turn(split_thoughts(text)[1])
        count += 200
    return count / passed


def made(draw: random.Random) -> str:
    """Return a text that a model could be made to write: pieces at random, or a call with characters changed."""
    if draw.random() < 0.5:
        return "".join(draw.choices(PIECES, k=draw.randrange(40)))
    text = draw.choice(list(TURNS.values()))
    for _ in range(draw.randrange(1, 5)):
        place = draw.randrange(len(text))
        text = text[:place] + draw.choice(["", *PIECES]) + text[place + draw.randrange(3) :]
    return text


def main() -> None:
    """Print the tables; fail when a valid call is read too slowly."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fuzz", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    print("| turn | read per second |\n| --- | ---: |")
    rates = {name: rate(text) for name, text in TURNS.items()}
    for name, reached in rates.items():
        print(f"| {name} | {reached:,.0f} |")
    print("\n| 20,000 times | ms |\n| --- | ---: |")
    for name, piece in LONG.items():
        start = time.perf_counter()
        for text in (piece * 20_000, f"<tool_call>{piece * 20_000}</tool_call>"):
            parse_turn(split_thoughts(text)[1])
        print(f"| {name} | {(time.perf_counter() - start) * 1000:.1f} |")
    draw, kinds, start = random.Random(chosen.seed), Counter[str](), time.perf_counter()
    for _ in range(chosen.fuzz):
        turn = parse_turn(split_thoughts(made(draw))[1])
        kinds[f"{type(turn).__name__}{' repaired' if getattr(turn, 'repaired', False) else ''}"] += 1
    print(f"\n{chosen.fuzz:,} made texts in {time.perf_counter() - start:.0f} s, no exception: {dict(kinds)}")
    assert rates["a call"] >= FASTEST_WANTED, rates


if __name__ == "__main__":
    main()
