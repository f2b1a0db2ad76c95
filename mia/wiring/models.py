"""Models: where they are, how they are connected to."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mia.clients.chat import ChatModels, Endpoint
from mia.errors import ModelUnavailable
from mia.runtime.http import Service, is_loopback
from mia.runtime.images import ImageStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from mia.protocols import Role
    from mia.runtime.settings import RoleSettings


def images(settings: RoleSettings) -> ImageStore:
    """Return the store that image bytes live in."""
    return ImageStore(settings.home / "images", settings.max_pixels)


def model_url(settings: RoleSettings, role: Role) -> str:
    """Return the base URL of the model that plays a role."""
    own: str = getattr(settings, f"{role}_url")
    named = settings.model if settings.model.startswith(("http://", "https://")) else ""
    return own or named or f"http://127.0.0.1:{settings.model_port}/v1"


@asynccontextmanager
async def models(settings: RoleSettings, roles: Iterable[Role]) -> AsyncIterator[ChatModels]:
    """Connect to the models of the roles that are played; one connection per URL, one endpoint per model there."""
    async with AsyncExitStack() as stack:
        services: dict[str, Service] = {}
        by_name: dict[tuple[str, str], Endpoint] = {}
        endpoints: dict[Role, Endpoint] = {}
        for role in roles:
            url = model_url(settings, role)
            if url not in services:
                services[url] = _model_service(settings, url)
                stack.push_async_callback(services[url].aclose)
            endpoint = _endpoint(settings, role, services[url])
            await endpoint.connect()
            endpoints[role] = by_name.setdefault((url, endpoint.model), endpoint)
        yield ChatModels(endpoints, images(settings).data_url)


def model_check(settings: RoleSettings, role: Role) -> Callable[[], Awaitable[None]]:
    """Return what raises ModelUnavailable when the model of a role does not answer."""

    async def check() -> None:
        service = _model_service(settings, model_url(settings, role))
        try:
            await service.get("/models", deadline=settings.turn_seconds)
        finally:
            await service.aclose()

    return check


def _model_service(settings: RoleSettings, url: str) -> Service:
    """Make the connection to a URL. Our token goes to this machine only, a key to other machines only."""
    place = urlsplit(url)
    ours = is_loopback(place.hostname or "")
    key = settings.openai_key if place.hostname == "api.openai.com" and settings.openai_key else settings.model_key
    return Service(
        "model",
        url,
        error=ModelUnavailable,
        token=settings.token if ours else key,
        remedy="Start it with `mia serve model`." if ours else "Check that the server runs and the URL is right.",
    )


def _endpoint(settings: RoleSettings, role: Role, service: Service) -> Endpoint:
    """Make the endpoint of a role: the model that is set for it, or else the one that bears its name, or else any."""
    own: str = getattr(settings, f"{role}_model")
    shared = settings.model_name if model_url(settings, role) == model_url(settings, "planner") else ""
    return Endpoint(
        service,
        role="" if own else role,
        model=own or shared,
        profile=settings.profile,
        window=settings.window,
        vision=settings.vision,
    )
