import pytest

from mia.runtime.files import write_whole


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, "one")
    write_whole(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, "one")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half a character: \ud800")
    with pytest.raises(OSError, match="No such file"):
        write_whole(tmp_path / "none" / "a.txt", "two")
    assert path.read_text(encoding="utf-8") == "one"
    assert list(tmp_path.iterdir()) == [path]
