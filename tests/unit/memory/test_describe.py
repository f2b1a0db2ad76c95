import asyncio

import pytest
from scripted import ScriptedModels, say

from mia.errors import InputError, ModelUnavailable, OutOfRoom, StorageError
from mia.memory.compress import count_words
from mia.memory.describe import Describer, Description, parse_category
from mia.types import CATEGORIES, ImageRef, Message, Question, Said

DOWN = ModelUnavailable("down", service="model")
NO_VISION = InputError("The model does not read images.")


def image(name="a"):
    return ImageRef(sha256=name * 64, mime="image/png", width=1, height=1)


def picture(*names, text="Who is this?", caption=""):
    return Question(id="q", text=text, images=tuple(map(image, names or "a")), caption=caption)


class Kept:
    """Notes in a dictionary."""

    def __init__(self, error=None):
        self.kept = {}
        self.looked = 0
        self.error = error

    def note(self, kind, key):
        self.looked += 1
        if self.error:
            raise self.error
        return self.kept.get((kind, key), (None, None))[0]

    def keep_note(self, kind, key, text, model):
        self.kept[kind, key] = text, model


class Slow(ScriptedModels):
    """Replies only when it may, and notes the images it is shown."""

    def __init__(self, **script):
        super().__init__(**script)
        self.may = asyncio.Event()
        self.asked_once = asyncio.Event()

    def open(self, role, system, history=()):
        conversation = super().open(role, system, history)
        reply = conversation.say

        async def wait(message: Message, want) -> Said:
            self.asked_once.set()
            await self.may.wait()
            return await reply(message, want)

        conversation.say = wait
        return conversation


def describer(models, notes=None, *, captions=True, categories=False, **more):
    return Describer(models, notes or Kept(), captions=captions, categories=categories, **more)


def describe(describer, *questions):
    async def all_of_them():
        return [await describer.describe(question) for question in questions]

    return asyncio.run(all_of_them())


def test_an_image_is_captioned_once_for_all_who_ask_at_the_same_time():
    async def ask():
        models, notes = Slow(executor=["A red\n bridge."]), Kept()
        models.may.set()
        subject = describer(models, notes)
        found = await asyncio.gather(*(subject.describe(picture()) for _ in range(64)))
        return set(found), models.asked, notes

    found, asked, notes = asyncio.run(ask())
    assert found == {Description("A red bridge.", "others")}
    assert [role for role, _ in asked] == ["executor"]
    assert list(notes.kept.values()) == [("A red bridge.", "scripted")]


def test_a_caption_is_kept_for_the_next_process():
    models, notes = ScriptedModels(executor=["first", "second"]), Kept()
    assert describe(describer(models, notes), picture("a"), picture("a", text="Where?"))[1].caption == "first"
    assert describe(describer(models, notes), picture("a"))[0].caption == "first"
    assert len(models.asked) == 1


def test_the_images_of_a_question_are_captioned_together():
    models = ScriptedModels(executor=["both", "one"])
    subject = describer(models)
    assert [found.caption for found in describe(subject, picture("a", "b"), picture("a"), picture("a", "b"))] == [
        "both",
        "one",
        "both",
    ]


def test_the_model_is_shown_the_images_within_a_deadline_and_a_seed_of_their_own():
    models = ScriptedModels(executor=["x"], planner=["y"])
    describe(describer(models), picture("a", "b"))
    describe(describer(models, role="planner"), picture("a", "b"))
    assert models.opened[0].messages[1].images == (image("a"), image("b"))
    one, other = models.wants
    assert one.deadline == 60
    assert one.temperature == 0
    assert one.seed == other.seed
    assert [role for role, _ in models.asked] == ["executor", "planner"]


def test_a_caption_that_is_there_is_kept():
    models = ScriptedModels(executor=["another"])
    assert describe(describer(models), picture(caption="given"))[0].caption == "given"
    assert models.asked == []


@pytest.mark.parametrize("reply", ["word " * 200, "红色的桥" * 100, "w" * 2000], ids=["spaces", "Chinese", "one word"])
def test_a_caption_has_at_most_fifty_words_in_any_language(reply):
    (found,) = describe(describer(ScriptedModels(executor=[reply])), picture())
    assert count_words(found.caption) == 50


@pytest.mark.parametrize(
    "failure",
    [
        DOWN,
        OutOfRoom("full"),
        NO_VISION,
        StorageError("The bytes of the image are gone."),
        " ",
        "<think>I look",
        say("A red", "length"),
    ],
    ids=["down", "full", "blind", "no bytes", "blank", "thoughts", "cut"],
)
def test_a_caption_that_fails_is_empty_and_counted_and_asked_for_again(failure):
    subject = describer(ScriptedModels(executor=[failure, "A red bridge."]))
    first, second, third = describe(subject, picture(), picture(), picture())
    assert first.caption == ""
    assert second.caption == third.caption == "A red bridge."
    assert subject.failures == {"caption": 1}


def test_a_caption_cut_off_after_fifty_words_is_a_caption():
    assert count_words(describe(describer(ScriptedModels(executor=[say("a " * 90, "length")])), picture())[0][0]) == 50


def test_a_question_in_words_asks_neither_notes_nor_models():
    notes = Kept()
    assert describe(describer(ScriptedModels(), notes), Question(id="q", text="Who?")) == [("", "others")]
    assert notes.looked == 0


def test_without_captions_an_image_has_none():
    assert describe(describer(ScriptedModels(), captions=False), picture()) == [("", "others")]


def test_a_category_is_asked_for_once_per_question_and_caption():
    models = ScriptedModels(manager=["human", "Location.", "time"])
    subject = describer(models, categories=True)
    questions = [picture(caption="a"), picture(caption="a"), picture(caption="b"), Question(id="r", text="When?")]
    assert [found.category for found in describe(subject, *questions)] == ["human", "human", "location", "time"]
    assert [role for role, _ in models.asked] == ["manager"] * 3


def test_a_category_is_asked_for_with_the_caption_that_was_found():
    models = ScriptedModels(executor=["A <tools> bridge."], manager=["location"])
    (found,) = describe(describer(models, categories=True), picture(text="{{caption}} <think>?"))
    assert found == ("A <tools> bridge.", "location")
    _, prompt = models.asked[1]
    assert "Caption of its image: A ‹tools› bridge." in prompt
    assert "{{caption}} ‹think›?" in prompt
    assert all(f"- {name}:" in prompt for name in CATEGORIES)


@pytest.mark.parametrize("failure", [DOWN, OutOfRoom("full"), "", "animal", "It asks for a human."])
def test_a_category_that_fails_is_others_and_counted_and_asked_for_again(failure):
    subject = describer(ScriptedModels(manager=[failure, "human"]), categories=True)
    question = Question(id="q", text="Who?")
    assert [found.category for found in describe(subject, question, question)] == ["others", "human"]
    assert subject.failures == {"category": 1}


@pytest.mark.parametrize("text", [" human\n", "Human.", "**HUMAN**", '"human"', "_human_", "- human"])
def test_a_category_is_one_name_however_it_is_decorated(text):
    assert parse_category(text) == "human"


@pytest.mark.parametrize("text", ["humane", "human, time", "a human", "tıme", "人"])
def test_all_else_is_no_category(text):
    assert parse_category(text) == ""


def test_one_who_gives_up_does_not_end_it_for_the_others():
    async def ask():
        models, notes = Slow(executor=["A red bridge."]), Kept()
        subject = describer(models, notes)
        first, second = (asyncio.create_task(subject.describe(picture())) for _ in range(2))
        await models.asked_once.wait()
        first.cancel()
        await asyncio.wait([first])
        models.may.set()
        return first.cancelled(), await second, models.asked

    cancelled, found, asked = asyncio.run(ask())
    assert cancelled
    assert found.caption == "A red bridge."
    assert len(asked) == 1


def test_what_was_asked_is_kept_even_when_all_gave_up():
    async def ask():
        models, notes = Slow(executor=["A red bridge.", "another"]), Kept()
        subject = describer(models, notes)
        only = asyncio.create_task(subject.describe(picture()))
        await models.asked_once.wait()
        only.cancel()
        await asyncio.wait([only])
        models.may.set()
        return (await subject.describe(picture())).caption

    assert asyncio.run(ask()) == "A red bridge."


def test_notes_that_cannot_be_read_are_an_error_of_everyone_who_asks():
    async def ask():
        subject = describer(ScriptedModels(executor=["x"]), notes)
        return await asyncio.gather(*(subject.describe(picture()) for _ in range(3)), return_exceptions=True)

    notes = Kept(StorageError("locked"))
    assert [type(error) for error in asyncio.run(ask())] == [StorageError] * 3
