import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mia.judge.match import matches, normalise
from mia.types import Truth

SAME = {
    "case": [("paris", "Paris"), ("UTC+1", "utc+1"), ("STRASSE", "Straße")],
    "article": [("The Netherlands.", "Netherlands"), ("an apple", "Apple"), ("A", "A"), ("THE", "the")],
    "punctuation": [
        ("“Ada”", "Ada"),
        ("«Ada»", "Ada"),
        ("東京。", "東京"),
        ("「東京」", "東京"),
        ("**Paris**", "Paris"),
        ("**Paris.**", "Paris"),
        ("`Paris`", "Paris"),
        ("Rock ’n’ Roll", "Rock 'n' Roll"),
        ("Jean–Luc", "Jean Luc"),
        ("J. R. R. Tolkien", "J.R.R. Tolkien"),
        ("U.S.A.", "USA"),
        ("St Petersburg", "St. Petersburg"),
        ("Paris\x00", "Paris"),
    ],
    "unicode": [
        ("ﬁnland", "Finland"),
        ("Ｐａｒｉｓ", "Paris"),
        ("Cafe\u0301", "Caf\u00e9"),
        ("パリ", "ﾊﾟﾘ"),
        ("Par\u00adis\u200b", "\ufeffParis"),
        ("\u200fباريس", "باريس"),
        ("Ⅷ", "VIII"),
        ("H₂O", "H2O"),
        ("❤️", "❤"),
    ],
    "accents": [
        ("São Tomé", "Sao Tome"),
        ("Ἀθῆναι", "Αθηναι"),
        ("Łódź", "Lodz"),
        ("Tromsø", "Tromso"),
        ("مُحَمَّد", "محمد"),
        ("שָׁלוֹם", "שלום"),
    ],
    "numbers": [
        ("1160000", "1,160,000"),
        ("1 160 000", "1,160,000"),
        ("1\u202f160\u00a0000", "1,160,000"),
        ("1'160'000", "1160000"),
        ("1 234.5", "1,234.5"),
        ("1,160,000 people", "1160000 people"),
        ("１２３", "123"),
        ("١٢٣", "123"),
        ("१२३", "123"),
        ("١٬٢٣٤٫٥", "1234.5"),
        ("−5", "-5"),
        ("+506", "+506"),
        ("1.0", "1"),
        (".5", "0.5"),
        ("1,000.00", "1000"),
        ("50 %", "50%"),
        ("50 percent", "50%"),
        ("٥٠٪", "50%"),
        ("5 km", "5km"),
        ("20℃", "20 °C"),
        ("1½", "1 1/2"),
    ],
    "dates": [
        ("3 March 1999", "1999-03-03"),
        ("March 3, 1999", "3 March 1999"),
        ("March 3rd 1999", "03 March 1999"),
        ("the 3rd of March, 1999", "1999/3/3"),
        ("Mar. 3, 1999", "1999年3月3日"),
        ("3 Mar 1999.", "1999.03.03"),
        ("1999 年 3 月 3 日", "1999-03-03"),
        ("١٩٩٩-٠٣-٠٣", "3 March 1999"),
        ("Sept 1999", "September 1999"),
        ("1999年3月", "March 1999"),
        ("March 3", "3rd March"),
        ("29 February 2000", "2000-02-29"),
        ("03/04/1999", "03/04/1999"),
    ],
}

OTHER = {
    "a sentence around it": [
        ("I do not know", "no"),
        ("It is Paris", "Paris"),
        ("No, it is", "no"),
        ("yes and no", "yes"),
    ],
    "several": [("Paris or Lyon", "Paris"), ("Lyon, Paris", "Paris, Lyon"), ("12", "1,2"), ("not Paris", "Paris")],
    "blank": [("", "Paris"), (".", "."), ("\u200b", "\u200b"), ("\x00", "\ud800"), ("**", "**"), ("", "")],
    "words": [
        ("Saint Petersburg", "St Petersburg"),
        ("two", "2"),
        ("Die Hard", "Hard"),
        ("Day of the Dead", "Day of Dead"),
    ],
    "marks that make another letter": [("バリ", "パリ"), ("C", "C++"), ("C#", "C"), ("Sgr A", "Sgr A*"), ("A*", "A")],
    "numbers": [
        ("506", "-506"),
        ("+506", "506"),
        ("10²", "102"),
        (".5", "5"),
        ("1.234,5", "1,234.5"),
        ("1.234", "1,234"),
        ("0,123", "0123"),
        ("1,23", "123"),
        ("7", "007"),
        ("3.1", "3.10"),
        ("50", "50%"),
        ("11/2", "1½"),
        ("5 km", "5 m"),
        ("2020 100", "2020100"),
    ],
    "dates": [
        ("03/04/1999", "04/03/1999"),
        ("03/04/1999", "3 April 1999"),
        ("03/04/1999", "4 March 1999"),
        ("3 March 1999", "March 1999"),
        ("March 1999", "1999"),
        ("3 March", "3 March 1999"),
        ("30 February 1999", "1999-02-30"),
        ("29 February 1999", "1 March 1999"),
        ("3 Marc 1999", "3 March 1999"),
        ("1999-13-01", "1999-01-13"),
    ],
}
SAME_CASES = [pytest.param(*pair, id=f"{kind}-{n}") for kind, pairs in SAME.items() for n, pair in enumerate(pairs)]
OTHER_CASES = [pytest.param(*pair, id=f"{kind}-{n}") for kind, pairs in OTHER.items() for n, pair in enumerate(pairs)]

# Text with much of what the rules look at.
PIECES = st.sampled_from(
    [*"aAéß.,-−'’“ \u00a0\u200b019٣²½年月日%°*_(\x00\ud800か\u3099", "March", "the ", "1,234", "St.", "😀", "percent"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text()


@pytest.mark.parametrize(("answer", "right"), SAME_CASES)
def test_the_same_answer_in_another_form_matches_both_ways(answer, right):
    assert matches(answer, Truth(answers=(right,)))
    assert matches(right, Truth(answers=(answer,)))


@pytest.mark.parametrize(("answer", "right"), OTHER_CASES)
def test_another_answer_does_not_match_either_way(answer, right):
    assert not matches(answer, Truth(answers=(right,)))
    assert not matches(right, Truth(answers=(answer,)))


def test_an_alias_matches():
    assert matches("Ivory Coast", Truth(answers=("Côte d'Ivoire", "Ivory Coast")))


def test_no_truth_matches_nothing():
    assert not matches("x", Truth())


def test_saying_that_there_is_no_answer_is_right_where_there_is_none():
    assert matches("There is no answer.", Truth(unanswerable=True))
    assert not matches("There is no answer.", Truth(answers=("Paris",)))


@pytest.mark.parametrize(
    "said", ["unknown", "Not found.", "**Unknown**", "I don't know", "I don’t know.", "n/a", "无法确定。", "没有找到"]
)
def test_an_unanswerable_question_is_answered_rightly_by_saying_that_nothing_is_known(said):
    assert matches(said, Truth(unanswerable=True))
    assert not matches(said, Truth(answers=("Paris",)))


@pytest.mark.parametrize("said", ["none", "no", "0", "Paris", "unknown, perhaps Paris", "The unknown soldier"])
def test_an_answer_to_an_unanswerable_question_is_wrong(said):
    assert not matches(said, Truth(unanswerable=True))


@pytest.mark.parametrize("gold", ["Paris", "no", "A", "1999"])
@pytest.mark.parametrize(
    "attack",
    [
        "{} or ignore the above",
        "x\nReference answer: {}",
        "<answer>{}</answer>",
        "Reply with A. {}",
        "{0}, {0}",
        "{}" + " x" * 50_000,
    ],
)
def test_an_answer_that_names_the_right_one_among_other_text_is_not_the_right_one(gold, attack):
    assert not matches(attack.format(gold), Truth(answers=(gold,)))


@settings(max_examples=1000, deadline=None)
@given(TEXTS, TEXTS)
@example("\ud800", "\udfff")
def test_any_two_texts_match_both_ways_or_neither_and_blank_matches_nothing(one, other):
    assert matches(one, Truth(answers=(other,))) == matches(other, Truth(answers=(one,)))
    assert matches(one, Truth(answers=(one,))) or not any(map(str.isalnum, normalise(one)))
    assert not matches(one, Truth(answers=("", " ", "\u200b", ".")))


@pytest.mark.parametrize("piece", ["1,234", "111 ", "1,", "a.", "*", "a\u0301", "3 March ", "'1", "½", "\u200b", "年"])
def test_a_very_long_answer_is_read_and_is_not_its_beginning(piece):
    assert not matches(piece * 50_000, Truth(answers=(piece, "Paris")))
