"""Terms in any language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search.terms import LANGUAGES, STOP_WORDS, Analyzer, detect, number, whole

ENGLISH_AND_NONE = [Analyzer("english"), Analyzer("none")]
PROSE = {
    "english": "The river rises in the hills of the north and it flows to the sea near a town that is known for its port.",
    "german": "Der Fluss entspringt in den Bergen im Norden und er mündet bei einer Stadt, die für ihren Hafen bekannt ist, in das Meer.",
    "french": "La rivière prend sa source dans les collines du nord et elle se jette dans la mer près d'une ville qui est connue pour son port.",
    "spanish": "El río nace en las colinas del norte y desemboca en el mar cerca de una ciudad que es conocida por su puerto.",
    "italian": "Il fiume nasce nelle colline del nord e sfocia nel mare vicino a una città che è nota per il suo porto.",
    "portuguese": "O rio nasce nas colinas do norte e deságua no mar perto de uma cidade que é conhecida pelo seu porto.",
    "dutch": "De rivier ontspringt in de heuvels van het noorden en mondt uit in de zee bij een stad die bekend is om haar haven.",
    "russian": "Река начинается на холмах севера, и она впадает в море у города, который известен своим портом, как и многие.",
    "swedish": "Floden börjar i bergen i norr och den rinner ut i havet nära en stad som är känd för sin hamn.",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cities of Nigeria", ["citi", "nigeria"]),
        ("São PAULO’s Ｔｏｗｅｒ", ["sao", "paulo", "tower"]),
        ("法国的首都", ["法国", "国的", "的首", "首都"]),
        ("龙", ["龙"]),
        ("2024年奥运会 in Paris", ["2024", "pari", "年奥", "奥运", "运会"]),
        ("佐々木", ["佐々", "々木"]),
        ("二〇二六年", ["二〇", "〇二", "二六", "六年"]),
        ("がくせい", ["がく", "くせ", "せい"]),
        ("서울에서", ["서울", "울에", "에서"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("Москва́", ["москва"]),
        ("The Who", ["the", "who"]),
        ("Who won vitamin D?", ["won", "vitamin", "d"]),
        (" \t\n—!?", []),
        ("", []),
    ],
)
def test_a_text_becomes_these_terms(text, expected):
    assert Analyzer("english").terms(text) == expected


@given(st.text(alphabet=st.characters()))
def test_any_text_has_terms_that_can_be_kept(text):
    for analyzer in ENGLISH_AND_NONE:
        assert all(term and not term.isspace() for term in analyzer.terms(text))


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("german", "Die Häuser der Städte", ["haus", "stadt"]),
        ("french", "les écoles de l'État", ["ecol", "etat"]),
        ("russian", "в больших городах", ["больш", "город"]),
        ("none", "The cities", ["the", "cities"]),
    ],
)
def test_a_language_has_its_own_endings_and_stop_words(language, text, expected):
    assert Analyzer(language).terms(text) == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_makes_terms_of_any_text(language):
    assert len(Analyzer(language).terms("Zürich 東京 მთა")) == 3


def test_a_word_is_the_same_term_again():
    analyzer = Analyzer("english")
    assert analyzer.terms("Cities the cities") == ["citi", "citi"] == analyzer.terms("cities, city")


def test_a_full_store_of_known_words_begins_anew(monkeypatch):
    monkeypatch.setattr("local_search.terms.KNOWN_WORDS", 3)
    assert Analyzer("none").terms("a b c d e a b") == list("abcdeab")


@pytest.mark.parametrize("language", PROSE)
def test_the_language_of_prose_is_told(language):
    assert detect([PROSE[language]]) == language


@pytest.mark.parametrize("text", ["", "12 34", "河流发源于北方的山丘，在一座以港口闻名的城市附近入海。", "xyzzy plugh"])
def test_a_text_of_no_language_counts_as_english(text):
    assert detect([text]) == "english"


def test_stop_words_are_spelled_as_terms_are_looked_up():
    assert all(word == word.casefold() for words in STOP_WORDS.values() for word in words)


def test_terms_have_numbers_of_64_bits_and_titles_one_of_their_own():
    assert number("city") != number(whole(["city"]))
    assert all(0 <= number(term) < 1 << 64 for term in ("", "city", "城市", "\ud800"))
