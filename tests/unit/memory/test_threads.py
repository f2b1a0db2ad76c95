import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import mia.memory.threads
from mia.errors import StorageError
from mia.memory.threads import waited


def test_what_a_call_brings_or_raises_is_passed_on():
    with ThreadPoolExecutor(1) as threads:
        assert asyncio.run(waited(threads, pow, 2, 5)) == 32
        assert asyncio.run(waited(None, pow, 2, 5)) == 32
        with pytest.raises(ZeroDivisionError):
            asyncio.run(waited(threads, pow, 0, -1))


def test_nothing_waits_for_a_disk_without_a_deadline(monkeypatch):
    monkeypatch.setattr(mia.memory.threads, "SECONDS", 0)
    hanging = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        try:
            with pytest.raises(StorageError, match="did not answer"):
                asyncio.run(waited(threads, hanging.wait))
        finally:
            hanging.set()
