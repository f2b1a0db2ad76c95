import pytest

from mia.judge.match import matches
from mia.types import Truth


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("paris", "Paris"),
        ("The Netherlands.", "Netherlands"),
        ("1160000", "1,160,000"),
        ("1 160 000", "1,160,000"),
        ("São Tomé", "Sao Tome"),
        ("ﬁnland", "Finland"),
        ("“Ada”", "Ada"),
        ("+506", "+506"),
        ("−5", "-5"),
        ("東京。", "東京"),
        ("UTC+1", "utc+1"),
        ("A", "A"),
        ("THE", "the"),
        ("Ἀθῆναι", "Αθηναι"),
    ],
)
def test_the_same_answer_in_another_form_matches(answer, right):
    assert matches(answer, Truth(answers=(right,)))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("I do not know", "no"),
        ("It is Paris", "Paris"),
        ("", "Paris"),
        (".", "."),
        ("506", "-506"),
        ("+506", "506"),
        ("12", "1,2"),
        ("Paris or Lyon", "Paris"),
        ("バリ", "パリ"),
        ("10²", "102"),
        (".5", "5"),
        ("Day of the Dead", "Day of Dead"),
    ],
)
def test_another_answer_does_not_match(answer, right):
    assert not matches(answer, Truth(answers=(right,)))


def test_an_alias_matches():
    assert matches("Ivory Coast", Truth(answers=("Côte d'Ivoire", "Ivory Coast")))


def test_no_truth_matches_nothing():
    assert not matches("x", Truth())


def test_saying_that_there_is_no_answer_is_right_where_there_is_none():
    assert matches("There is no answer.", Truth(unanswerable=True))
    assert not matches("There is no answer.", Truth(answers=("Paris",)))
