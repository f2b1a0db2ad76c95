"""What a service counts of its requests, in Prometheus' text format."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mia.runtime.limits import Slots

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The numbers of one app; each has its own registry, so that two apps in one process do not mix.

    The label `route` is the template, never the path, and `-` when no route was reached: label values stay few.
    """

    def __init__(self, slots: Slots) -> None:
        self.registry = CollectorRegistry()
        labels = ("route", "method")
        self.requests = Counter("mia_requests", "Requests answered.", (*labels, "status"), registry=self.registry)
        self.seconds = Histogram(
            "mia_request_seconds", "Seconds to answer.", labels, registry=self.registry, buckets=SECONDS
        )
        running = Gauge("mia_requests_in_flight", "Requests being worked on.", registry=self.registry)
        running.set_function(lambda: slots.running)
        waiting = Gauge("mia_requests_waiting", "Requests waiting for a slot.", registry=self.registry)
        waiting.set_function(lambda: slots.waiting)

    def render(self) -> Response:
        """Return all numbers as the body of `/metrics`."""
        return Response(generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class Measure:
    """Counts and times every request of an app."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on and note its status and seconds."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = time.perf_counter()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            return await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(route, method, status).inc()
            self.metrics.seconds.labels(route, method).observe(time.perf_counter() - started)
