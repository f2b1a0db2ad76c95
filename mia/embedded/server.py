"""The small model server of one machine: llama.cpp's OpenAI API for every role behind one port, in this process.

Each distinct file of weights has a llama.cpp of its own, as llama.cpp neither batches nor keeps its prompts across
adapters; roles of the same weights share one. Each may use all cores: roles often wait for one another, threads sleep
while they wait, and two that work at once cost a few hundredths more than with half of the cores each. All of them and
the router are this one process, so nothing of it outlives the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Never

from aiohttp import web

from mia.embedded.adapters import ROLES, merge, roles
from mia.embedded.instance import Instance, load_library
from mia.embedded.model import DEFAULT, resolve
from mia.embedded.router import Router
from mia.errors import ConfigError
from mia.runtime.http import is_loopback
from mia.runtime.logging import configure

if TYPE_CHECKING:
    from pathlib import Path

    from mia.runtime.settings import ModelServiceSettings

logger = logging.getLogger(__name__)

FIRST = "executor"  # loaded at once, as no run is without it; the other instances are loaded when first asked for


def serve_model(settings: ModelServiceSettings) -> Never:
    """Serve the configured model until SIGTERM or SIGINT ends the process.

    Raises:
        ConfigError: xllamacpp is missing, the address is taken, an adapter cannot be had, or the window is longer than
            the model's.
        InputError: llama.cpp cannot load the weights, or an adapter does not fit them.
    """
    load_library()
    with _claim(settings.host, settings.port) as listener:
        weights = weights_by_name(settings)
        configure()
        if settings.token is None and not is_loopback(settings.host):
            logger.warning("open to other machines without a token: set MIA_TOKEN", extra={"host": settings.host})
        # Nothing here outlives the process, so both signals may end it at once, even while weights are loading.
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, signal.SIG_DFL)
        asyncio.run(_serve(settings, weights, listener))


def weights_by_name(settings: ModelServiceSettings) -> dict[str, Path]:
    """Return the weights behind each name that is served: the roles, and the model as it comes.

    Adapters are merged into copies of the weights, unless that is done already. Errors as for `serve_model`.
    """
    base = resolve(settings.model, settings.folder)
    folders = roles(settings.adapters, settings.model)
    found = {role: merge(base, folders[role], settings.folder) if role in folders else base for role in ROLES}
    found.setdefault(settings.model if settings.model == DEFAULT else base.stem, base)
    return found


async def _serve(settings: ModelServiceSettings, weights: dict[str, Path], listener: socket.socket) -> Never:
    threads = settings.threads or len(os.sched_getaffinity(0))
    instances = {path: Instance(path, threads, settings) for path in weights.values()}
    served = {name: instances[path] for name, path in weights.items()}
    await served[FIRST].address()
    router = Router(served, window=settings.window, token=settings.token)
    runner = web.AppRunner(router.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    host, port = listener.getsockname()[:2]
    told = {name: path.name for name, path in weights.items()}
    facts = {"slots": settings.slots, "threads": threads, "window": settings.window}
    logger.info("ready", extra={"host": host, "port": port, "models": told, **facts})
    while True:
        await asyncio.Event().wait()


def _claim(host: str, port: int) -> socket.socket:
    """Take the address before time goes into loading weights; until they are loaded, connections are refused."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The model server cannot listen at {host}:{port}: {error.strerror or error}.",
            remedy="Stop what listens there, or set HOST and MODEL_PORT (0 takes a free port).",
        ) from error
    return listener
