"""A bank of its own for each test, and a Manager over it."""

from contextlib import closing

import pytest
from episodes import managed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.sqlite"


@pytest.fixture
def manager(path):
    with closing(managed(path)) as manager:
        yield manager
