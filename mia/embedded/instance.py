"""One llama.cpp server inside this process, over one file of weights, at a port that only the router knows."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

from mia.errors import ConfigError, InputError
from mia.runtime.http import Service
from mia.runtime.settings import export

if TYPE_CHECKING:
    from pathlib import Path

    from mia.runtime.settings import ModelServiceSettings

PROMPT_CACHE_MIB = 1024  # llama.cpp would take up to 8 GiB of memory for prompts that it may see again
WARNINGS = 2  # llama.cpp's verbosity: errors and warnings
LISTING_SECONDS = 30.0


class Instance:
    """llama.cpp over one file of weights. It is loaded when it is first asked for, and ends with the process."""

    def __init__(self, weights: Path, threads: int, settings: ModelServiceSettings) -> None:
        self.weights = weights
        self._threads = threads
        self._settings = settings
        self._server: Any = None
        self._loading = asyncio.Lock()

    @property
    def running(self) -> bool:
        """Whether the weights are loaded."""
        return self._server is not None

    async def address(self) -> str:
        """Return the base URL, once the weights are loaded.

        Raises:
            ConfigError: xllamacpp is missing, or the window is longer than the model's.
            InputError: llama.cpp cannot load the weights.
        """
        async with self._loading:
            if self._server is None:
                server = await asyncio.to_thread(self._load)
                await self._check_window(server.listening_address)
                self._server = server
        address: str = self._server.listening_address
        return address

    def _load(self) -> Any:
        library = load_library()
        try:
            return library.Server(self._parameters(library))
        except RuntimeError as error:
            raise InputError(
                f"llama.cpp cannot serve {self.weights}: {error}",
                remedy="The log gives its reason. A damaged file must be removed and fetched again.",
            ) from error

    def _parameters(self, library: Any) -> Any:
        settings = self._settings
        parameters = library.CommonParams()
        parameters.model.path = str(self.weights)
        parameters.model_alias = {self.weights.stem}  # what an answer says of itself
        parameters.hostnames, parameters.port = ["127.0.0.1"], 0
        # Whoever finds the port is asked for the token here as well.
        parameters.api_keys = [settings.token.get_secret_value()] if settings.token else []
        parameters.n_parallel = settings.slots
        parameters.n_ctx = settings.window * settings.slots  # llama.cpp divides it among the slots
        parameters.fit_params = False  # a window that does not fit into memory is an error, not a smaller window
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = self._threads
        parameters.cache_ram_mib = PROMPT_CACHE_MIB
        parameters.verbosity = WARNINGS
        parameters.use_jinja = parameters.endpoint_metrics = parameters.offline = True
        parameters.ui = False
        parameters.cors_origins = ""  # no web page may talk to it from a browser
        return parameters

    async def _check_window(self, address: str) -> None:
        """Refuse a window that llama.cpp has cut to the length that the model was trained with."""
        service = Service("model", address, token=self._settings.token)
        try:
            listed = await service.get("/v1/models", deadline=LISTING_SECONDS)
        finally:
            await service.aclose()
        window = listed["data"][0]["meta"]["n_ctx"]
        if window < self._settings.window:
            raise ConfigError(
                f"The model's window is {window} tokens, not the {self._settings.window} asked for.",
                remedy=f"Set MIA_WINDOW to at most {window}.",
            )


def load_library() -> Any:
    """Return xllamacpp, loaded so that its threads sleep while they wait for each other.

    OpenMP reads its environment once, when it is loaded. Threads that spin instead slow a busy machine tenfold.

    Raises:
        ConfigError: it is not installed, or cannot be loaded.
    """
    export(OMP_WAIT_POLICY="passive")
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ConfigError(
            f"The model server's library cannot be loaded: {error}.",
            remedy="Run ./install.sh embedded. If libgomp is what is missing, install the system package libgomp1.",
        ) from error
