"""The processes that services.py loads, the clients' side of it, and its made-up questions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiohttp
from overhead import percentile
from rich.console import Console
from rich.progress import Progress

from mia.embedded.process import start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mia.embedded.process import Process

HERE = Path(__file__).parent
START_SECONDS = 60.0


class Scale(NamedTuple):
    """How much of everything."""

    clients: int = 64
    workflows: int = 10_000
    rounds: int = 3
    requests: int = 40  # of a client in a round
    turns: int = 6
    delay: float = 1.0
    saves: int = 40  # of a client
    kills: int = 4


QUICK = Scale(clients=8, workflows=200, rounds=1, requests=5, turns=3, delay=0.05, saves=12, kills=2)


class House:
    """The processes of one benchmark, which end with it, and the model that they share."""

    def __init__(self, folder: Path, scale: Scale, encoder: str) -> None:
        self.folder = folder
        self.scale = scale
        self.encoder = encoder
        self.model = ""
        self._stack = AsyncExitStack()
        # Twice a second: drawing takes time of the cores that are measured.
        self._progress = Progress(console=Console(stderr=True), refresh_per_second=2, transient=True)

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self._progress)
        answers = {f"({number})": f"answer {number}." for number in range(self.scale.clients)}
        model = [sys.executable, str(HERE.parent / "tests" / "standin.py"), "--delay", str(self.scale.delay)]
        model += ["--searches", str(self.scale.turns - 1), "--answers", json.dumps(answers)]
        _, port = await self.start("model", model)
        self.model = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def count(self, what: str, total: int) -> Callable[[], None]:
        """Show how far a work of so many pieces is; what this returns is called for each of them."""
        return partial(self._progress.advance, self._progress.add_task(what, total=total))

    def tell(self, what: str) -> None:
        """Say what has been done, also where no bar can be drawn."""
        self._progress.console.print(f"{time.strftime('%H:%M:%S')} {what}", highlight=False)

    async def start(self, name: str, command: Sequence[str]) -> tuple[Process, int]:
        """Start a process; return it and the port that a line of its output tells, bare or as our services log it."""
        log = self.folder / f"{name}.log"
        seen = log.stat().st_size if log.exists() else 0
        process = await self._stack.enter_async_context(await start(command, name=name, log=log))
        async with asyncio.timeout(START_SECONDS):
            while True:
                lines = log.read_bytes()[seen:].decode(errors="replace").splitlines()
                assert process.code is None, f"{name} ended: {lines[-20:]}"
                for line in lines:
                    if port := _port(line):
                        return process, port
                await asyncio.sleep(0.02)

    async def serve(self, name: str, *arguments: str, **settings: str) -> tuple[Process, str]:
        """Start a service of ours with these settings; return it and its base URL."""
        near = {"MIA_MODEL": self.model, "MIA_ENCODER": self.encoder, "MIA_HOME": str(self.folder)}
        variables = [f"{key}={value}" for key, value in (near | settings).items()]
        mia = str(Path(sys.executable).with_name("mia"))
        process, port = await self.start(name, ["env", *variables, mia, "serve", *arguments])
        return process, f"http://127.0.0.1:{port}"

    async def serve_memory(self, bank: Path, port: int = 0) -> tuple[Process, str]:
        """Start `mia serve memory`."""
        # A memory is made of an episode without a model: what is measured is the service.
        settings = {"MIA_MEMORY_PATH": str(bank), "MIA_COMPRESSION": "extractive"}
        return await self.serve("memory", "memory", "--port", str(port), **settings)


def _port(line: str) -> int:
    if line.isdigit():
        return int(line)
    entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
    return int(entry["port"]) if entry.get("message") == "ready" else 0


class Load(NamedTuple):
    """What clients at once saw: the seconds of each request, and those of all."""

    latencies: list[float]
    seconds: float

    @property
    def row(self) -> tuple[str, ...]:
        """Requests per second, and percentiles of the latency."""
        shares = (f"{percentile(self.latencies, share) * 1000:.1f}" for share in (0.5, 0.95, 0.99))
        return (f"{len(self.latencies) / self.seconds:.0f}", *shares)


def cpu_seconds(process: Process) -> float:
    """Return the time that a process has taken of the cores, by Linux's count."""
    fields = Path(f"/proc/{process.id}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def asked(number: int) -> str:
    """Return a question that no other number has."""
    chance = random.Random(number)
    syllables = [first + then for first in "bdfgklmnprstvz" for then in "aeiou"]
    names = ["".join(chance.choices(syllables, k=3)).title() for _ in range(4)]
    return "Which river of {} did {} cross before {} was founded in {}?".format(*names)


def session_of_clients() -> aiohttp.ClientSession:
    """Return what any number of clients at once send with."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120))


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> Any:
    """Return what a request brings. Raises AssertionError for any status but 200."""
    async with session.post(url, json=body) as response:
        text = await response.text()
        assert response.status == 200, f"{url} answered {response.status}: {text[:500]}"
        return json.loads(text)
