from importlib.resources import files

import pytest

from mia.errors import ConfigError
from mia.prompts import fill, fingerprint, template


def test_text_put_into_a_slot_is_not_read_for_slots_again():
    assert "{{plan}}" in fill("executor_text", question="What is {{plan}}?", plan="1. look")


def test_a_missing_or_unknown_slot_is_refused():
    with pytest.raises(ConfigError, match="plan"):
        fill("executor_text", question="q")
    with pytest.raises(ConfigError, match="odd"):
        fill("executor_text", question="q", plan="p", odd="x")


def test_braces_of_json_in_a_prompt_are_left_alone():
    assert '{"name": "search"' in fill("executor_system", tools="t")


def test_the_fingerprint_is_stable():
    assert fingerprint() == fingerprint()


def test_no_prompt_holds_a_stray_tag_of_another_role():
    for entry in files("mia.prompts").iterdir():
        if entry.name.endswith(".md") and not entry.name.startswith("executor"):
            assert "<tool_call>" not in template(entry.name.removesuffix(".md"))
