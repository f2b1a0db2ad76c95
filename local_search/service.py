"""The service over an index: `POST /retrieve`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from local_search.index import QUERY_CHARACTERS, Index
from mia.errors import SearchUnavailable
from mia.runtime.app import create_service
from mia.wire.search import RetrieveRequest, RetrieveResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fastapi import Response
    from prometheus_client.metrics_core import Metric

    from mia.runtime.settings import SearchServiceSettings

DEFAULT_TOPK = 3
MAX_TOPK = 50
JOB = 16  # queries that a thread takes at once: handing over one takes as long as searching a small corpus


def create_app(settings: SearchServiceSettings, index: Index | None = None) -> FastAPI:
    """Build the search service; without an open index it opens one, and refuses to start if that does not fit."""
    router = APIRouter()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Off the event loop, for a corpus or index of another time than the build's is read as a whole.
        opened = await asyncio.to_thread(Index.open, settings) if index is None else index
        with closing(opened), Search(opened, settings) as search:
            app.state.search = search
            app.state.metrics.registry.register(search)
            yield
            app.state.metrics.registry.unregister(search)

    # Base URLs that end in a slash, and clients that add one, are in use.
    @router.post("/retrieve/", include_in_schema=False)
    @router.post("//retrieve", include_in_schema=False)
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


class Search(Collector):
    """An index asked from the event loop: in threads of a bounded pool, unless the answer is known."""

    def __init__(self, index: Index, settings: SearchServiceSettings) -> None:
        self.index = index
        self._seconds = settings.seconds
        self._threads = ThreadPoolExecutor(settings.threads)
        # Rows and scores, and not documents: small, and a corpus that changed is still noticed.
        self._find = lru_cache(settings.answers)(index.find)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def answer(self, queries: Sequence[str], limit: int) -> list[list[tuple[dict[str, Any], float]]]:
        """Search for every query. Raises SearchUnavailable when that takes longer than the deadline."""
        run = asyncio.get_running_loop().run_in_executor
        jobs = [queries[first : first + JOB] for first in range(0, len(queries), JOB)]
        try:
            async with asyncio.timeout(self._seconds):
                done = await asyncio.gather(*(run(self._threads, self._search, job, limit) for job in jobs))
        except TimeoutError as cause:
            raise SearchUnavailable(
                f"{len(queries)} queries were not answered within {self._seconds:g} s.",
                service="local_search",
                remedy="Send fewer queries at once, or raise MIA_SEARCH_SECONDS.",
            ) from cause
        return list(chain.from_iterable(done))

    def _search(self, queries: Sequence[str], limit: int) -> list[list[tuple[dict[str, Any], float]]]:
        return [self.index.read(self._find(query[:QUERY_CHARACTERS], limit)) for query in queries]

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers that `/metrics` shows."""
        known = self._find.cache_info()
        answers = CounterMetricFamily("mia_search_answers", "Answers, known before or searched for.", labels=["known"])
        answers.add_metric(["yes"], known.hits)
        answers.add_metric(["no"], known.misses)
        yield answers
