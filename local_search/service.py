"""The service over an index: `POST /retrieve`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse

from local_search.index import Index
from mia.errors import SearchUnavailable
from mia.runtime.app import create_service
from mia.wire.search import RetrieveRequest, RetrieveResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fastapi import Response

    from mia.runtime.settings import SearchServiceSettings

DEFAULT_TOPK = 3
MAX_TOPK = 50
THREADS = 4
SEARCH_SECONDS = 30.0


def create_app(settings: SearchServiceSettings, index: Index | None = None) -> FastAPI:
    """Build the search service; without an open index it opens one, and refuses to start if that does not fit."""
    router = APIRouter()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Off the event loop, for the check reads the whole index.
        opened = await asyncio.to_thread(Index.open, settings) if index is None else index
        with closing(opened), ThreadPoolExecutor(THREADS) as threads:
            app.state.search = Search(opened, threads)
            yield

    @router.post("/retrieve", response_model=RetrieveResponse)
    async def retrieve(request: RetrieveRequest) -> Response:
        """Return the passages that fit each query best: 3 when `topk` is null or 0, 50 at most."""
        found = await app.state.search.answer(request.queries, min(request.topk or DEFAULT_TOPK, MAX_TOPK))
        # Documents leave as the corpus holds them; the model above is their documentation, not a second check.
        if request.return_scores:
            return JSONResponse({"result": [[{"document": d, "score": score} for d, score in each] for each in found]})
        return JSONResponse({"result": [[document for document, _ in each] for each in found]})

    async def check() -> None:
        app.state.search.index.check()

    app = create_service("local_search", settings, routers=[router], lifespan=lifespan, checks={"index": check})
    return app


class Search:
    """An index asked from the event loop, each query in a thread of a bounded pool."""

    def __init__(self, index: Index, threads: ThreadPoolExecutor) -> None:
        self.index = index
        self._threads = threads

    async def answer(self, queries: Sequence[str], limit: int) -> list[list[tuple[dict[str, Any], float]]]:
        """Search for every query. Raises SearchUnavailable when that takes longer than `SEARCH_SECONDS`."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                return await asyncio.gather(*(run(self._threads, self.index.search, each, limit) for each in queries))
        except TimeoutError as cause:
            raise SearchUnavailable(
                f"{len(queries)} queries were not answered within {SEARCH_SECONDS:g} s.",
                service="local_search",
                remedy="Send fewer queries at once.",
            ) from cause
