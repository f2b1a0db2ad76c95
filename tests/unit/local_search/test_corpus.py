"""Lines of a corpus as documents."""

import json

import pytest

from local_search.corpus import Documents, Report, parse
from mia.errors import StorageError


def line(**fields):
    return json.dumps(fields).encode()


def test_title_and_text_come_from_contents():
    assert parse(line(id="1", contents='"Aba"\nA city.\nIn Nigeria.', kind="city")) == {
        "id": "1",
        "contents": '"Aba"\nA city.\nIn Nigeria.',
        "kind": "city",
        "title": "Aba",
        "text": "A city.\nIn Nigeria.",
    }


def test_given_title_and_text_are_kept():
    document = parse(line(contents='"A"\nb', title="T", text="t"))
    assert (document["title"], document["text"]) == ("T", "t")


def test_contents_come_from_title_and_text():
    assert parse(line(title="Aba", text="A city."))["contents"] == '"Aba"\nA city.'


def test_contents_of_one_line_are_a_title():
    assert (parse(line(contents="Aba"))["title"], parse(line(contents="Aba"))["text"]) == ("Aba", "")


def test_half_characters_and_bytes_that_are_no_utf8_are_replaced():
    assert parse(b'{"contents": "a\\ud800b \\ud83d\\ude00"}')["title"] == "a?b 😀"
    assert parse(b'{"contents": "a\xffb"}')["title"] == "a�b"
    assert parse(b'\xef\xbb\xbf{"contents": "first"}')["title"] == "first"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"id": "1"}', "without text"),
        (b'{"contents": " \\n"}', "without text"),
        (b'{"contents": 7}', "without text"),
        (b'{"contents": "a", "id": [1]}', "id"),
        (b'{"contents": "a", "score": NaN}', "JSON cannot carry"),
        (b'{"contents": "a", "deep": [{"x": -Infinity}]}', "JSON cannot carry"),
        (b'{"contents": "a", "score": 1e999}', "JSON cannot carry"),
        (b'{"contents": "a", "count": ' + b"1" * 5000 + b"}", "JSON cannot carry"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(data, reason):
    with pytest.raises(ValueError, match=reason):
        parse(data)


def test_a_report_is_one_clear_message():
    report = Report(lines=9, unusable={"not JSON": [1, 2, 3, 4, 5, 6], "without text": [8]}, duplicates=[9])
    assert report.usable == 2
    assert str(report) == (
        "7 of 9 lines cannot be found: 6 not JSON (lines 1, 2, 3, 4, 5, ...), 1 without text (line 8). "
        "1 repeat an id, and are kept (line 9)."
    )
    assert str(Report(lines=9)) == ""


def test_a_file_changed_under_its_reader_is_noticed(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"contents": "a"}\n')
    documents = Documents(path, [0, 18])
    assert documents[0]["title"] == "a"
    documents.check()
    path.write_bytes(b"")
    for read in (documents.check, lambda: documents[0]):
        with pytest.raises(StorageError, match="changed"):
            read()
    documents.close()


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError):
        Documents(tmp_path / "none", [0])
