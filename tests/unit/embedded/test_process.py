"""Real little processes, started, waited for and stopped."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mia.embedded.process import start
from mia.errors import ConfigError, UpstreamError

SERVER = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
STUBBORN_FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(child, flush=True)
while True:
    time.sleep(1)
"""


def python(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def comes(true):
    """Whether something becomes true; the patience is only for a machine that is very busy."""
    end = time.monotonic() + 30
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def gone(pid):
    return comes(lambda: not alive(pid))


def test_a_process_is_there_when_its_url_answers_and_gone_after_the_block(tmp_path):
    async def story():
        port = free_port()
        url = f"http://127.0.0.1:{port}/"
        async with await start(python(SERVER, str(port)), name="files", log=tmp_path / "log", url=url) as process:
            assert process.code is None
            assert alive(process.id)
        return process

    process = asyncio.run(story())
    assert process.code == -signal.SIGTERM
    assert "GET / HTTP" in (tmp_path / "log").read_text()


def test_a_process_that_dies_early_shows_the_end_of_its_log(tmp_path):
    code = "import sys; print('x' * 9); print('the reason: 没有', flush=True); sys.exit(3)"
    environment = {"PYTHONIOENCODING": "utf-8"}
    begun = start(
        python(code), name="model", log=tmp_path / "deep/log", url="http://127.0.0.1:9/", environment=environment
    )
    with pytest.raises(UpstreamError, match="ended with status 3") as caught:
        asyncio.run(begun)
    assert "the reason: 没有" in caught.value.message
    assert caught.value.service == "model"
    assert "deep/log" in caught.value.remedy


def test_a_process_that_never_answers_is_stopped_at_the_deadline(tmp_path):
    log = tmp_path / "log"
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(UpstreamError, match="did not answer"):
        asyncio.run(start(python(code), name="model", log=log, url=f"http://127.0.0.1:{free_port()}/", deadline=1))
    assert gone(int(log.read_text() or 0))


def test_a_whole_family_that_ignores_the_request_to_end_is_killed(tmp_path):
    async def story():
        log = tmp_path / "log"
        process = await start(python(STUBBORN_FAMILY), name="family", log=log)
        assert await asyncio.to_thread(comes, lambda: log.read_text().endswith("\n"))
        await process.stop(grace=0.2)
        return process, int(log.read_text())

    process, child = asyncio.run(story())
    assert process.code == -signal.SIGKILL
    assert gone(child)


def test_a_process_can_be_stopped_twice(tmp_path):
    async def story():
        process = await start(python("pass"), name="short", log=tmp_path / "log")
        await process.stop()
        await process.stop()
        return process.code

    assert asyncio.run(story()) in {0, -signal.SIGTERM}


def test_a_command_that_does_not_exist_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be started"):
        asyncio.run(start([str(tmp_path / "nothing")], name="nothing", log=tmp_path / "log"))


def test_a_process_ends_when_its_parent_is_killed(tmp_path):
    parent = f"""
import asyncio, os, pathlib, signal, sys
from mia.embedded.process import start
async def story():
    process = await start([sys.executable, "-c", "import time; time.sleep(600)"], name="child", log=pathlib.Path({str(tmp_path / "log")!r}))
    print(process.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(story())
"""
    done = subprocess.run(python(parent), capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout))
