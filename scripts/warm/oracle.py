"""What an oracle says in each role: right searches, and the kinds of failure that a Planner must notice and mend."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warm.compare import WORDS, weigh
from warm.world import Hop, World, invent, renamed

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    Edit = Callable[[dict[str, Any]], dict[str, Any] | None]

NO_ANSWER = "no answer"
FAILURES = ("cut", "wrong answer", "wrong entity", "wrong relation", "misplanned", "unsupported", "gave up")


@dataclass(frozen=True)
class Turn:
    """One reply of the Executor. What comes back must hold `needs` (a title, a fact) and must not hold `lacks`."""

    text: str
    learn: bool = True
    needs: tuple[str, str] | None = None
    lacks: tuple[str, str] | None = None


@dataclass
class Script:
    """What is said about one question; `edits` change what the search brings."""

    kind: str
    question: str
    answers: tuple[str, ...]
    plan: str
    turns: list[Turn]
    reflection: str
    plan_learn: bool = True
    revised: str = ""
    revised_turns: list[Turn] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """How a question ends once its facts are found: the last step of the plan, the words, and the answer."""

    step: str
    asked: str
    words: str
    answer: str
    wrong: tuple[str, ...]


class Oracle:
    """Writes the scripts of questions."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance

    def right(self, row: dict[str, Any], *, retry: bool = False, invented: bool = False) -> Script | None:
        """Return a script that finds the answer; with a bad query on the way, or with facts that nothing else tells."""
        hops = self.world.hops(row)
        edits: list[Edit] = []
        row = dict(row)
        if invented:
            changed = self._invented(row, hops)
            if changed is None:
                return None
            row, hops, edits = changed
        ending = self._ending(row, hops)
        turns = self._searches(hops, self.chance.randrange(len(hops)) if retry else None)
        turns.append(Turn(f"Found: {hops[-1].object}. {ending.words}<answer>{ending.answer}</answer>"))
        kind = "invented" if invented else "retry" if retry else "right"
        check = self._check(ending, [hop.object for hop in hops], ending.answer)
        return Script(kind, row["question"], tuple(row["answers"]), self._plan(hops, ending), turns, check, edits=edits)

    def untold(self, row: dict[str, Any]) -> Script | None:
        """Return a script of a question that the corpus does not answer."""
        found = self.world.unanswerable(row)
        if found is None:
            return None
        hops, after = found
        return self._without(row["question"], hops, row["reason"], [], [*hops, *after])

    def removed(self, row: dict[str, Any], *, passage: bool) -> Script | None:
        """Return a script of an answerable question from whose corpus a fact, or its whole passage, is missing."""
        hops = self.world.hops(row)
        if "comparison" in row["type"]:
            return None
        place = self.chance.randrange(len(hops))
        gone = hops[place]
        if self.world.title(gone).casefold() in row["question"].casefold() and place:
            return None

        def edit(document: dict[str, Any]) -> dict[str, Any] | None:
            if document["id"] != gone.document:
                return document
            if passage:
                return None
            kept = [part for part in re.split(r"(?<=[.])\s+(?=[A-Z])", document["text"]) if gone.object not in part]
            return _retold(document, " ".join(kept))

        reason = "unknown_entity" if passage else "not_recorded"
        untold = [*hops[:place], renamed(gone, "")]
        return self._without(row["question"], untold, reason, [edit], hops)

    def failing(self, row: dict[str, Any], kind: str) -> Script | None:
        """Return a script whose first attempt fails in one of the `FAILURES`, and whose second finds the answer."""
        hops = self.world.hops(row)
        ending = self._ending(row, hops)
        made = getattr(self, f"_{kind.replace(' ', '_')}")(row, hops, ending)
        if made is None:
            return None
        turns, reflection, revised, after, plan = made
        script = Script(
            kind,
            row["question"],
            tuple(row["answers"]),
            plan or self._plan(hops, ending),
            [Turn(turn.text, learn=False, needs=turn.needs) for turn in turns],
            f"<think>Asked: {ending.asked}. {reflection}</think>\nyes",
            plan_learn=not plan,
            revised=revised,
            revised_turns=after,
        )
        return None if _answer(turns[-1]) in row["answers"] and kind != "unsupported" else script

    # The kinds of failure: (turns, what the reflection says, revised plan, turns after it, a wrong plan).

    def _cut(self, row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        if len(hops) == 1:
            return None
        place = self.chance.randrange(1, len(hops))
        answer = hops[place - 1].object
        if "comparison" in row["type"]:
            place = len(hops) // 2
            answer = self.chance.choice((ending.answer, *ending.wrong))
        turns = [*self._searches(hops[:place]), Turn(f"Found: {hops[place - 1].object}. <answer>{answer}</answer>")]
        notes = self._notes([*[hop.object for hop in hops[:place]], "not searched"])
        return turns, notes, *self._again(hops, place, ending), ""

    def _wrong_answer(self, row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        wrong = [each for each in ending.wrong if each not in row["answers"]]
        if not wrong:
            return None
        answer = self.chance.choice(wrong)
        turns = [*self._searches(hops), Turn(f"Found: {answer}. <answer>{answer}</answer>")]
        notes = f"{self._notes([hop.object for hop in hops])} {ending.words}Answer {answer}: not what was found."
        revised = f"1. Take the answer from what is found: {ending.step or self.world.asked(hops[-1], hops[-1].said)}."
        after = [Turn(f"Found: {hops[-1].object}. {ending.words}<answer>{ending.answer}</answer>")]
        return turns, notes, revised, after, ""

    def _wrong_entity(self, row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        place = self.chance.randrange(len(hops))
        hop = hops[place]
        named = {each.subject for each in hops}
        others = [
            other for name, other in sorted(self.world.facts[hop.kind, hop.relation].items()) if name not in named
        ]
        if not others:
            return None
        taken = [self.chance.choice(others)]
        for after in hops[place + 1 :]:
            followed = self.world.facts[after.kind, after.relation].get(taken[-1].object)
            if followed is None or "comparison" in row["type"]:
                break
            taken.append(followed)
        answer = taken[-1].object
        if "comparison" in row["type"]:
            answer = self.chance.choice((*ending.wrong, ending.answer))
        turns = [
            *self._searches([*hops[:place], *taken]),
            Turn(f"Found: {taken[-1].object}. <answer>{answer}</answer>"),
        ]
        told = [*[each.object for each in hops[:place]], f"searched {taken[0].said}, not {hop.said}"]
        return turns, self._notes(told), *self._again(hops, place, ending), ""

    def _wrong_relation(self, _row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        place = self.chance.randrange(len(hops))
        hop = hops[place]
        other = self._other_relation(hop)
        if other is None:
            return None
        turns = [
            *self._searches([*hops[:place], other]),
            Turn(f"Found: {other.object}. <answer>{other.object}</answer>"),
        ]
        told = [*[each.object for each in hops[:place]], f"searched {other.label}, not {hop.label}"]
        return turns, self._notes(told), *self._again(hops, place, ending), ""

    def _misplanned(self, row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        other = self._other_relation(hops[-1])
        if other is None or "comparison" in row["type"]:
            return None
        wrong = [*hops[:-1], other]
        turns = [*self._searches(wrong), Turn(f"Found: {other.object}. <answer>{other.object}</answer>")]
        plan = self._plan(wrong, Ending("", "", "", "", ()))
        return turns, f"Planned: {other.label}.", *self._again(hops, len(hops) - 1, ending), plan

    def _unsupported(self, _row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        answer = self.chance.choice((ending.answer, *ending.wrong))
        turns = [Turn(f"I know this. <answer>{answer}</answer>")]
        return turns, self._notes(["not searched"]), *self._again(hops, 0, ending), ""

    def _gave_up(self, _row: dict[str, Any], hops: list[Hop], ending: Ending) -> Any:
        place = self.chance.randrange(len(hops))
        hop = hops[place]
        bad = Turn(_call(f"{_found(hops, place)}Step {place + 1}: {self._asked(hop)}.", self._bad(hop)))
        turns = [*self._searches(hops[:place]), bad, Turn(f"Not found. <answer>{NO_ANSWER}</answer>")]
        turns[-2] = Turn(bad.text, lacks=(self.world.title(hop), hop.object))
        told = [*[each.object for each in hops[:place]], "not found after one search"]
        return turns, self._notes(told), *self._again(hops, place, ending), ""

    def _again(self, hops: list[Hop], place: int, ending: Ending) -> tuple[str, list[Turn]]:
        """Return the plan from a hop on, and its turns."""
        rest = hops[place:]
        turns = self._searches(rest)
        turns.append(Turn(f"Found: {rest[-1].object}. {ending.words}<answer>{ending.answer}</answer>"))
        return self._plan(rest, ending), turns

    def _without(
        self, question: str, hops: list[Hop], reason: str, edits: list[Edit], planned: Sequence[Hop] = ()
    ) -> Script:
        last = hops[-1]
        plan = self._plan(list(planned or hops), Ending("", "", "", "", ()))
        turns = self._searches(hops[:-1])
        begin = f"{_found(hops, len(hops) - 1)}Step {len(hops)}: {self._asked(last)}."
        title = self.world.title(last) if last.document else last.subject
        if reason == "unknown_entity":
            turns.append(Turn(_call(begin, last.query), lacks=(title, "")))
            name = re.sub("^the ", "", last.subject)
            turns.append(Turn(_call(f"No passage on {last.said}. Search again.", name), lacks=(title, "")))
            end, note = f"No passage on {last.said}.", "no passage"
        else:
            turns.append(Turn(_call(begin, last.query), needs=(title, "")))
            single = reason == "false_premise"
            end = "There is not just one." if single else f"The passage does not tell the {last.label}."
            note = "not just one" if single else "not told"
        turns.append(Turn(f"{end} <answer>{NO_ANSWER}</answer>"))
        asked = Ending("", (planned or hops)[-1].label, "", NO_ANSWER, ())
        check = self._check(asked, [*[hop.object for hop in hops[:-1]], note], NO_ANSWER)
        return Script(f"untold: {reason}", question, (), plan, turns, check, edits=edits)

    def _invented(self, row: dict[str, Any], hops: list[Hop]) -> tuple[dict[str, Any], list[Hop], list[Edit]] | None:
        """Give the facts that decide a question other objects, in the passages too."""
        compared = row["type"] != "unanswerable" and "comparison" in row["type"]
        if compared and row["answers"][0] in ("yes", "no"):
            return None
        places = [len(hops) // 2 - 1, len(hops) - 1] if compared else [len(hops) - 1]
        edits: list[Edit] = []
        for place in places:
            old, value = hops[place], ""
            value = self._number(old.object) if compared else invent(old, self.world, self.chance)
            if value == old.object or value.casefold() in row["question"].casefold():
                return None
            hops[place] = renamed(old, value)
            edits.append(_replacing(old, value))
        if not compared:
            return row | {"answers": [hops[-1].object]}, hops, edits
        before = self.world.hops(row)
        two = values_of(before), values_of(hops)
        if two[1][0] == two[1][1]:
            return None
        names = names_of(row)
        was = weigh(names, two[0]).larger
        right = names.index(right_of(row, names))
        now = weigh(names, two[1]).larger
        answer = names[now if right == was else 1 - now]
        return row | {"answers": [answer], "larger": right == was}, hops, edits

    def _number(self, text: str) -> str:
        """Return a number like one of the corpus: of another length at times, and near at times."""
        if "°" in text:
            return f"{self.chance.uniform(0, 69):.2f}°{self.chance.choice('NS')}"
        digits = len(re.sub(r"[^\d]", "", text.partition(".")[0]))
        size = max(1, digits + self.chance.choice((-1, 0, 0, 0, 1)))
        number = self.chance.randrange(10 ** (size - 1), 10**size)
        return f"{number:,}" if "," in text or (size > 4 and digits > 4) else str(number)

    def _ending(self, row: dict[str, Any], hops: list[Hop]) -> Ending:
        last = hops[-1]
        if "comparison" not in row["type"]:
            others = {other.object for other in self.world.facts[last.kind, last.relation].values()} - {last.object}
            wrong = (*(hop.object for hop in hops[:-1]), *self.chance.sample(sorted(others), min(3, len(others))))
            return Ending("", last.label, "", row["answers"][0], wrong)
        names, values = names_of(row), values_of(hops)
        if row["answers"][0] in ("yes", "no"):
            same = row["answers"][0]
            words = (
                f"{names[0]}: {values[0]}, {names[1]}: {values[1]}. {'The same' if same == 'yes' else 'Not the same'}. "
            )
            return Ending(
                f"Say yes or no: is the {last.label} the same for {names[0]} and {names[1]}",
                f"same {last.label}",
                words,
                same,
                ("no" if same == "yes" else "yes",),
            )
        weighed = weigh(names, values)
        right = right_of(row, names)
        word = WORDS[last.relation][0 if names[weighed.larger] == right else 1]
        other = names[1 - names.index(right)]
        words = f"{weighed.words} With the {word}: {right}. "
        step = f"Choose between {names[0]} and {names[1]}: the one with the {word}"
        return Ending(step, word, words, right, (other,))

    def _plan(self, hops: list[Hop], ending: Ending) -> str:
        steps: list[str] = []
        for place, hop in enumerate(hops):
            follows = place and hops[place - 1].object == hop.subject
            subject = f"that {self.world.noun(hops[place - 1])}" if follows else hop.said
            steps.append(f"Find the {self.world.asked(hop, subject)}")
        steps += [ending.step] if ending.step else []
        return "\n".join(f"{number}. {step}." for number, step in enumerate(steps, 1))

    def _searches(self, hops: Sequence[Hop], retry: int | None = None) -> list[Turn]:
        """Return a search for each hop, told with what the one before it found; one after a bad one at `retry`."""
        turns: list[Turn] = []
        for place, hop in enumerate(hops):
            wanted = self.world.title(hop), hop.object
            begin = f"{_found(hops, place)}Step {place + 1}: {self._asked(hop)}."
            if place == retry:
                turns.append(Turn(_call(begin, self._bad(hop)), learn=False, lacks=wanted))
                begin = f"Not found. Step {place + 1} again: {self._asked(hop)}."
            turns.append(Turn(_call(begin, hop.query), needs=wanted))
        return turns

    def _bad(self, hop: Hop) -> str:
        """Return a query that misses: the wrong words, half a name, or no name at all."""
        words = hop.subject.split()
        return self.chance.choice(
            (hop.label, f"{words[0][: max(3, len(words[0]) // 2)]} {hop.label}", f"the {hop.kind}")
        )

    def _asked(self, hop: Hop) -> str:
        return self.world.asked(hop, hop.said)

    def _other_relation(self, hop: Hop) -> Hop | None:
        found = self.world.of_subject[hop.kind, hop.subject]
        others = [other for name, other in sorted(found.items()) if name != hop.relation and other.object != hop.object]
        return self.chance.choice(others) if others else None

    def _notes(self, found: Sequence[str]) -> str:
        return " ".join(f"{number}. {each}." for number, each in enumerate(found, 1))

    def _check(self, ending: Ending, found: Sequence[str], answer: str) -> str:
        words = f"Asked: {ending.asked}. {self._notes(found)} {ending.words}Answer {answer}: as found."
        return f"<think>{words}</think>\nno"


def _call(thought: str, query: str) -> str:
    call = {"name": "search", "arguments": {"query_list": [query]}}
    return f"{thought}\n<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def _found(hops: Sequence[Hop], place: int) -> str:
    return f"Found: {hops[place - 1].object}. " if place else ""


def _answer(turn: Turn) -> str:
    return turn.text.rpartition("<answer>")[2].removesuffix("</answer>")


def names_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return what the two sides of a comparison are called in an answer."""
    anchors = [re.sub(r" \(U\.S\. state\)$", "", title) for title in row["anchors"]]
    return anchors[0], anchors[1]


def values_of(hops: Sequence[Hop]) -> tuple[str, str]:
    """Return what the two sides of a comparison are found to be."""
    return hops[len(hops) // 2 - 1].object, hops[-1].object


def right_of(row: dict[str, Any], names: tuple[str, str]) -> str:
    """Return the side that is the answer."""
    answers = {answer.casefold() for answer in row["answers"]}
    return next((name for name in names if name.casefold() in answers), names[0])


def _replacing(hop: Hop, value: str) -> Edit:
    whole = re.compile(rf"(?<![\w.]){re.escape(hop.object)}(?!\w)")

    def edit(document: dict[str, Any]) -> dict[str, Any]:
        if document["id"] != hop.document:
            return document
        return _retold(document, whole.sub(lambda _: value, document["text"]))

    return edit


def _retold(document: dict[str, Any], text: str) -> dict[str, Any]:
    return document | {"text": text, "contents": f'"{document["title"]}"\n{text}'}
