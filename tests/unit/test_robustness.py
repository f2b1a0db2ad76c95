"""Every rule in docs/robustness.md names a test that there is."""

import re
from pathlib import Path

UNIT = Path(__file__).parent
DOCUMENT = UNIT.parents[1].joinpath("docs", "robustness.md").read_text("utf-8")
TESTS = {
    path.relative_to(UNIT).as_posix(): set(re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    for path in UNIT.rglob("test_*.py")
}


def test_every_test_that_a_rule_names_is_there():
    names = set(re.findall(r"\b(test_\w+)\b(?!\.py)", DOCUMENT))
    assert len(names) > 50
    assert names - set().union(*TESTS.values()) == set()


def test_every_file_that_a_rule_names_holds_the_test_named_with_it():
    for file, name in re.findall(r"([\w/]*test_\w+\.py)(?:::(test_\w+))?", DOCUMENT):
        assert file in TESTS
        assert not name or name in TESTS[file]


def test_every_rule_names_a_test():
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    tables = DOCUMENT.split("| --- | --- | --- |\n")[1:]
    rules = [row for table in tables for row in table.partition("\n\n")[0].splitlines() if row in rows]
    named = [row for row in rules if re.search(r"`[^`]+` \||the same|[\d.]+, [\d.]+ \|", row.rsplit(" | ", 1)[1])]
    assert named == rules
