"""The small model server of one machine: llama.cpp's OpenAI API over one GGUF file, in this process."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Never

from mia.embedded.model import DEFAULT, resolve
from mia.errors import ConfigError, InputError
from mia.runtime.http import Service, is_loopback
from mia.runtime.logging import configure
from mia.runtime.settings import export

if TYPE_CHECKING:
    from pathlib import Path

    from mia.runtime.settings import ModelServiceSettings

logger = logging.getLogger(__name__)

PROMPT_CACHE_MIB = 1024  # llama.cpp would take up to 8 GiB of memory for prompts that it may see again
WARNINGS = 2  # llama.cpp's verbosity: errors and warnings


def serve_model(settings: ModelServiceSettings) -> Never:
    """Serve the configured model until SIGTERM or SIGINT ends the process.

    Raises:
        ConfigError: xllamacpp is missing, the address is taken, or the window is longer than the model's.
        InputError: llama.cpp cannot load the weights.
    """
    library = _library()
    _claim(settings.host, settings.port)
    weights = resolve(settings.model, settings.folder)
    configure()
    if settings.token is None and not is_loopback(settings.host):
        logger.warning("open to other machines without a token: set MIA_TOKEN", extra={"host": settings.host})
    # Nothing here outlives the process, so both signals may end it at once, even while weights are loading.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_DFL)
    try:
        server = library.Server(_parameters(library, settings, weights))
    except RuntimeError as error:
        raise InputError(
            f"llama.cpp cannot serve {weights}: {error}",
            remedy="The lines above give its reason. A damaged file must be removed and fetched again.",
        ) from error
    address = server.listening_address
    _check_window(address, settings)
    served = {"address": address, "weights": str(weights), "slots": settings.slots, "window": settings.window}
    logger.info("ready", extra=served)
    while True:
        signal.pause()


def _library() -> Any:
    """Return xllamacpp, loaded so that its threads sleep while they wait for each other.

    OpenMP reads its environment once, when it is loaded. Threads that spin instead slow a busy machine tenfold.
    """
    export(OMP_WAIT_POLICY="passive")
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ConfigError(
            f"The model server's library cannot be loaded: {error}.",
            remedy="Run ./install.sh embedded. If libgomp is what is missing, install the system package libgomp1.",
        ) from error


def _claim(host: str, port: int) -> None:
    """Refuse an address that cannot be bound, before time goes into loading weights."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        raise ConfigError(
            f"The model server cannot listen at {host}:{port}: {error.strerror}.",
            remedy="Stop what listens there, or set HOST and MODEL_PORT (0 takes a free port).",
        ) from error


def _parameters(library: Any, settings: ModelServiceSettings, weights: Path) -> Any:
    """Return llama.cpp's parameters for the settings."""
    parameters = library.CommonParams()
    parameters.model.path = str(weights)
    parameters.model_alias = {settings.model if settings.model == DEFAULT else weights.stem}
    parameters.hostnames = [settings.host]
    parameters.port = settings.port
    parameters.api_keys = [settings.token.get_secret_value()] if settings.token else []
    parameters.n_parallel = settings.slots
    parameters.n_ctx = settings.window * settings.slots  # llama.cpp divides it among the slots
    parameters.fit_params = False  # a window that does not fit into memory is an error, not a smaller window
    threads = settings.threads or len(os.sched_getaffinity(0))
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_ram_mib = PROMPT_CACHE_MIB
    parameters.verbosity = WARNINGS
    parameters.use_jinja = parameters.endpoint_metrics = parameters.offline = True
    parameters.ui = False
    parameters.cors_origins = ""  # no web page may talk to it from a browser
    return parameters


def _check_window(address: str, settings: ModelServiceSettings) -> None:
    """Refuse a window that llama.cpp has cut to the length that the model was trained with."""
    listed = asyncio.run(_models(Service("model", address, token=settings.token)))
    window = listed["data"][0]["meta"]["n_ctx"]
    if window < settings.window:
        raise ConfigError(
            f"The model's window is {window} tokens, not the {settings.window} asked for.",
            remedy=f"Set MIA_WINDOW to at most {window}.",
        )


async def _models(service: Service) -> dict[str, Any]:
    try:
        return await service.get("/v1/models", deadline=30)
    finally:
        await service.aclose()
