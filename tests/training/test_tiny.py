"""The tiny model: a tokenizer that loses nothing, a vocabulary of just its size, a warm start on replies alone."""

import asyncio
import random
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

torch = pytest.importorskip("torch", reason="the packages of the extra `train` are not installed")
transformers = pytest.importorskip("transformers", reason="the packages of the extra `train` are not installed")
pytest.importorskip("pyarrow")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
from smoke import rehearsal, tiny, warm  # noqa: E402
from smoke.world import SmokeWorld  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # those of other packages are theirs


@pytest.fixture(scope="module")
def plays():
    async def few(stage):
        await stage.remember()
        found = await rehearsal.plays(stage, 8, random.Random(0))
        return found._replace(right=found.right[:16])

    with rehearsal.opened(SmokeWorld(ROOT / "data" / "worldfacts")) as stage:
        return asyncio.run(few(stage))


@pytest.fixture(scope="module")
def tokenizer(plays):
    return tiny.build_tokenizer(warm.texts(plays))


@pytest.fixture
def model(tokenizer):
    return tiny.build_model(tokenizer, 0)


def test_every_text_of_the_dialogues_comes_back_as_it_was(plays, tokenizer):
    for messages in (*plays.mixed, *(each for probe in plays.validation for each in probe)):
        lines = [{"role": message.role, "content": message.text} for message in messages]
        text = tokenizer.apply_chat_template(lines, tokenize=False)
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text
        assert len(ids) < 1200


@given(some.data())
def test_every_text_of_known_pieces_comes_back_as_it_was(tokenizer, data):
    known = sorted(tokenizer.get_vocab())
    text = "".join(data.draw(some.lists(some.sampled_from(known), max_size=20)))
    assume(set(tiny.pieces(text)) <= {*known})
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@given(some.text())
def test_pieces_joined_are_the_text(text):
    assert "".join(tiny.pieces(text)) == text


def test_what_is_not_known_is_one_mark(tokenizer):
    assert tokenizer("Quetzalcoatl")["input_ids"] == [tokenizer.unk_token_id]


def test_the_vocabulary_holds_what_the_trainer_needs(tokenizer, model):
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer) == model.lm_head.out_features
    assert len(tokenizer.encode("\n", add_special_tokens=False)) == 1
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
    for piece in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "yes", "no", "search", "unknown"):
        assert tokenizer.unk_token_id not in tokenizer.encode(piece)


def test_a_saved_model_is_the_same_read_back(plays, tokenizer, model, tmp_path):
    tiny.save(tmp_path, model, tokenizer)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = plays.mixed[0][1].text
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (again.chat_template, again.eos_token, again.pad_token) == (tokenizer.chat_template, tiny.END, tiny.PAD)
    assert again.decode(again(text)["input_ids"]) == text
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.tensor([tokenizer(text)["input_ids"]])
    assert torch.equal(read(tokens).logits, model(tokens).logits)
    assert read.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_lesson_is_the_replies_and_their_ends(plays, tokenizer):
    messages = plays.validation[0].wrong
    lesson = warm.lesson(tokenizer, messages)
    said = [message.text + tiny.END for message in messages if message.role == "assistant"]
    assert [tokenizer.decode(lesson.tokens[reply.start : reply.stop]) for reply in lesson.replies] == said


def test_log_probabilities_are_those_of_each_dialogue_alone(plays, tokenizer, model):
    lessons = [warm.lesson(tokenizer, messages) for messages in plays.mixed[:4]]
    with torch.no_grad():
        found = iter(warm.log_probabilities(model, lessons))
        for lesson in lessons:
            told = model(torch.tensor([lesson.tokens])).logits[0].log_softmax(-1)
            for reply in lesson.replies:
                alone = [told[place - 1, lesson.tokens[place]] for place in reply]
                assert torch.allclose(next(found), torch.stack(alone), atol=1e-5)
    assert next(found, None) is None


def test_training_is_the_same_for_a_seed_and_learns(plays, tokenizer):
    lessons = [warm.lesson(tokenizer, messages) for messages in plays.right]

    def trained():
        model = tiny.build_model(tokenizer, 1)
        return model, warm.train(model, [lessons[:4]] * 12)

    (one, losses), (other, again) = trained(), trained()
    assert losses == again
    assert losses[-1] < losses[0] - 1
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_odds_are_worked_out_from_the_probabilities(plays, tokenizer, model):
    odds = warm.odds(warm.Warm(model, tokenizer), plays.validation[:1])
    lessons = [warm.lesson(tokenizer, messages) for messages in plays.validation[0]]
    with torch.no_grad():
        plan, content, same, doubted, again, _, doubting, revised = (
            reply.sum().exp().item() for reply in warm.log_probabilities(model, lessons)
        )
    assert odds.plan == pytest.approx(plan) == pytest.approx(same)
    assert odds.plain == pytest.approx(content + doubted)
    final = plan * (content + (1 - content) * again) + (1 - plan) * doubting * revised
    assert odds.final == pytest.approx(final)
    decision = plan * content + (1 - plan) * doubting
    assert odds.reward == pytest.approx(0.7 * final + 0.2 * plan + 0.05 * decision + 0.05 * odds.plain)
