import pytest

from mia.executor.arguments import fit

SEARCH = {
    "type": "object",
    "properties": {"query_list": {"type": "array", "items": {"type": "string"}}, "topk": {"type": "integer"}},
    "required": ["query_list"],
}
CLOSED = SEARCH | {"additionalProperties": False}


@pytest.mark.parametrize("schema", [{}, {"type": "object"}])
def test_a_schema_without_names_takes_any(schema):
    assert fit({"a": 1}, schema) == {"a": 1}


def test_arguments_that_fit_stay_as_they_are():
    assert fit({"query_list": ["a"], "topk": 3}, CLOSED) == {"query_list": ["a"], "topk": 3}


def test_a_single_value_for_a_list_is_a_list_of_one():
    assert fit({"query_list": "a"}, CLOSED) == {"query_list": ["a"]}


def test_an_open_schema_leaves_other_names_to_the_tool():
    assert fit({"query": "a"}, SEARCH) == {"query": "a"}


@pytest.mark.parametrize(
    ("arguments", "schema", "reason"),
    [
        ({"query": "a"}, CLOSED, "there is no argument 'query'; there is: 'query_list', 'topk'"),
        ({}, SEARCH, "the argument 'query_list' is missing"),
        ({"query_list": 3}, SEARCH, "the argument 'query_list' must be of the type array of string"),
        ({"query_list": ["a", 3]}, SEARCH, "the argument 'query_list' must be of the type array of string"),
        ({"query_list": ["a"], "topk": "3"}, SEARCH, "the argument 'topk' must be of the type integer"),
        ({"query_list": ["a"], "topk": True}, SEARCH, "the argument 'topk' must be of the type integer"),
        ({"i": "1"}, {"properties": {"i": {"type": "string", "enum": ["0"]}}}, "the argument 'i' must be one of '0'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_what_would(arguments, schema, reason):
    assert fit(arguments, schema) == reason
