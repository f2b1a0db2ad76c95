"""Terms in any language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search.terms import terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cities of Nigeria", ["citi", "nigeria"]),
        ("São PAULO’s Ｔｏｗｅｒ", ["sao", "paulo", "tower"]),
        ("法国的首都", ["法国", "国的", "的首", "首都"]),
        ("龙", ["龙"]),
        ("2024年奥运会 in Paris", ["2024", "pari", "年奥", "奥运", "运会"]),
        ("がくせい", ["がく", "くせ", "せい"]),
        ("서울에서", ["서울", "울에", "에서"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("Москва́", ["москва"]),
        ("the of and", []),
        (" \t\n—!?", []),
        ("", []),
    ],
)
def test_a_text_becomes_these_terms(text, expected):
    assert terms(text) == expected


@given(st.text(alphabet=st.characters()))
def test_any_text_has_terms_that_can_be_kept(text):
    assert all(term and not term.isspace() for term in terms(text))
