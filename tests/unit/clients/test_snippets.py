import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia.clients.snippets import GAP, snippet

FRANCE = (
    "France is a country in Europe. Public holidays include Armistice Day. Its capital is Paris. "
    "The official currency is the Euro. It shares land borders with Spain and Italy."
)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("France capital", "Its capital is Paris."),
        ("which currency has France", "The official currency is the Euro."),
        ("France bordering country land", "It shares land borders with Spain and Italy."),
    ],
)
def test_the_sentence_that_was_asked_for_is_kept(query, told):
    assert told in snippet(FRANCE, query, 12, known="France")


def test_sentences_stay_in_order_and_gaps_are_marked_once():
    seen = snippet(FRANCE, "capital, currency", 12, known="France")
    assert seen == f"{GAP} Its capital is Paris. The official currency is the Euro. {GAP}"


def test_what_fits_is_left_as_it_is():
    assert snippet(FRANCE, "capital", 100) == FRANCE
    assert snippet("One sentence of many words, which is all that this passage has.", "zzz", 2).startswith("One")


def test_a_sentence_does_not_end_at_an_initial_or_a_title():
    text = "It was found by J. Swan on St. Helena. He was glad. Nothing else is known of that day at all."
    assert snippet(text, "who found it", 9) == f"It was found by J. Swan on St. Helena. {GAP}"


def test_accents_and_endings_do_not_matter():
    text = "Découverte en 1802. Elle a brûlé en 1900. Le maire habite ici depuis toujours."
    assert snippet(text, "annee de la decouverte", 3) == f"Découverte en 1802. {GAP}"


def test_scripts_without_spaces_are_read_by_pairs():
    text = "北京是中国的首都。那里的人口很多。长城在北方的山上。"
    assert snippet(text, "中国首都", 5) == f"北京是中国的首都。 {GAP}"


@given(st.text(), st.text(), st.integers(1, 50))
def test_no_text_is_refused_and_none_is_made_up(text, query, words):
    assert all(word in text for word in snippet(text, query, words).split() if word != GAP)
