"""Settings to objects: the only place that chooses implementations."""

from __future__ import annotations

import hashlib
import unicodedata
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mia.agent import Agent
from mia.clients.chat import ChatModels, Endpoint
from mia.clients.search import SearchTool
from mia.errors import ConfigError, InputError, ModelUnavailable, SearchUnavailable
from mia.executor.react import Budget, ReactExecutor
from mia.executor.render import Renderer
from mia.judge.truth import TruthJudge
from mia.memory.bank import Bank
from mia.memory.compress import ExtractiveCompressor, ModelCompressor, TraceCompressor
from mia.memory.describe import Describer
from mia.memory.manager import Manager
from mia.memory.nothing import NoMemory
from mia.memory.recall import RecallRule
from mia.memory.storage import Storage
from mia.planner.dialogue import DialoguePlanner, PlanBudget, PlannerReflector
from mia.rewards.planner import planner_reward
from mia.runtime.encoder import load_encoder
from mia.runtime.http import Service, is_loopback
from mia.runtime.images import ImageStore
from mia.text import clean
from mia.transcript import fitted, record
from mia.types import Question

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from pathlib import Path

    from mia.memory.compress import Compressor
    from mia.protocols import Encoder, Listener, Memory, Role
    from mia.runtime.settings import RoleSettings
    from mia.types import Episode, Event, Truth

MAX_QUESTION = 8000


class Silence:
    """A Listener for runs that nobody watches."""

    def on(self, event: Event) -> None:
        """Let it pass."""


def images(settings: RoleSettings) -> ImageStore:
    """Return the store that image bytes live in."""
    return ImageStore(settings.home / "images", settings.max_pixels)


def question(settings: RoleSettings, text: str, *, id: str = "", image_files: Iterable[Path] = ()) -> Question:  # noqa: A002
    """Make a question of what a person typed or a data set holds.

    Raises:
        InputError: it is empty, longer than 8,000 characters, or not text; an image is no image.
    """
    text = clean(text).strip()
    if not text:
        raise InputError("The question is empty.", remedy='Ask something: mia ask "Which country is Aba in?"')
    if len(text) > MAX_QUESTION:
        raise InputError(
            f"The question has {len(text):,} characters; {MAX_QUESTION:,} are the most.",
            remedy="Ask the question alone; put long material into the search corpus.",
        )
    odd = sum(char == "\ufffd" or (unicodedata.category(char) == "Cc" and not char.isspace()) for char in text)
    if odd * 10 > len(text):
        raise InputError("The question is not text but binary data.", remedy="Pass the question as UTF-8 text.")
    store = images(settings)
    refs = []
    for path in image_files:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"The image {path} cannot be read: {error.strerror}.", remedy="Check the path.") from error
        refs.append(store.add(data))
    content = "\0".join([text, *(ref.sha256 for ref in refs)])
    return Question(id=id or hashlib.sha256(content.encode()).hexdigest()[:16], text=text, images=tuple(refs))


def model_url(settings: RoleSettings, role: Role) -> str:
    """Return the base URL of the model that plays a role."""
    own: str = getattr(settings, f"{role}_url")
    named = settings.model if settings.model.startswith(("http://", "https://")) else ""
    return own or named or f"http://127.0.0.1:{settings.model_port}/v1"


@asynccontextmanager
async def models(settings: RoleSettings, roles: Iterable[Role]) -> AsyncIterator[ChatModels]:
    """Connect to the models of the roles that are played; one connection per distinct URL."""
    async with AsyncExitStack() as stack:
        by_url: dict[str, Endpoint] = {}
        endpoints: dict[Role, Endpoint] = {}
        for role in roles:
            url = model_url(settings, role)
            if url not in by_url:
                by_url[url] = _endpoint(settings, url)
                stack.push_async_callback(by_url[url].service.aclose)
                await by_url[url].connect()
            endpoints[role] = by_url[url]
        yield ChatModels(endpoints, images(settings).data_url)


async def served(settings: RoleSettings) -> dict[str, str]:
    """Return the model behind each role, as its server names it: what a run is made by."""
    roles = _roles(settings)
    async with models(settings, roles) as chat:
        return {role: chat.model(role) for role in roles}


def _endpoint(settings: RoleSettings, url: str) -> Endpoint:
    """Make the endpoint of a URL. Our token goes to this machine only, a key to other machines only."""
    place = urlsplit(url)
    ours = is_loopback(place.hostname or "")
    key = settings.openai_key if place.hostname == "api.openai.com" and settings.openai_key else settings.model_key
    service = Service(
        "model",
        url,
        error=ModelUnavailable,
        token=settings.token if ours else key,
        remedy="Start it with `mia serve model`." if ours else "Check that the server runs and the URL is right.",
    )
    name = settings.model_name if url == model_url(settings, "planner") else ""
    return Endpoint(service, model=name, profile=settings.profile, window=settings.window, vision=settings.vision)


def storage(settings: RoleSettings, encoder: Encoder | None = None) -> Storage:
    """Open the durable memory: without an encoder for looking at and editing, with one for adding too."""
    return Storage(settings.memory_path, encoder.id if encoder else None)


def encoder(settings: RoleSettings) -> Encoder:
    """Load what turns questions into vectors."""
    return load_encoder(settings.encoder, settings.encoder_device)


@contextmanager
def memory(settings: RoleSettings, chat: ChatModels) -> Iterator[Memory]:
    """Open the Memory that the settings name."""
    if settings.memory == "none":
        yield NoMemory()
        return
    vectors = encoder(settings)
    rule = RecallRule(
        score=settings.score,
        each=settings.recall_each,
        floor=settings.recall_floor,
        exclude_same_question=settings.benchmark,
        by_category=settings.categories == "model",
    )
    bank = Bank.open(settings.memory_path, vectors)
    captions = settings.caption == "auto" and settings.vision
    describer = Describer(chat, bank.storage, captions=captions, categories=rule.by_category)
    with closing(Manager(bank, vectors, _compressor(settings, chat), rule, describer)) as kept:
        yield kept


def _compressor(settings: RoleSettings, chat: ChatModels) -> Compressor:
    if settings.compression == "extractive":
        return ExtractiveCompressor()
    modelled = settings.compression == "model"
    counter = chat.counter("manager" if modelled else "planner")
    shown = plan_budget(settings, chat.window("planner")).memory_tokens
    tokens = chat.window("manager") // 2 if modelled else shown

    def trace(episode: Episode) -> str:
        render = partial(record, episode)
        return fitted(render, tokens, each=tokens // 4, count=counter.count, cut=counter.cut)

    if not modelled:
        return TraceCompressor(trace)
    return ModelCompressor(chat, trace, seconds=settings.turn_seconds)


@asynccontextmanager
async def agent(
    settings: RoleSettings, *, answer_key: Mapping[str, Truth] | None = None, listener: Listener | None = None
) -> AsyncIterator[Agent]:
    """Build the agent of one process and take it down again. Without an answer key nothing is judged.

    Raises:
        ModelUnavailable: no model server answers (SearchUnavailable appears when a search is made).
        StorageError: the memory cannot be opened.
    """
    listener = listener or Silence()
    async with AsyncExitStack() as stack:
        chat = await stack.enter_async_context(models(settings, _roles(settings)))
        service = Service(
            "search",
            settings.search_url,
            error=SearchUnavailable,
            token=settings.token,
            remedy="Start it with `mia serve search`, or set MIA_SEARCH_URL.",
        )
        stack.push_async_callback(service.aclose)
        tools = [SearchTool(service, settings.topk)]
        specs = [tool.spec for tool in tools]
        plans, turns = plan_budget(settings, chat.window("planner")), budget(settings, chat.window("executor"))
        instructions = Renderer(specs, settings.format).instructions
        _check_window(chat.window("executor"), chat.counter("executor").count(instructions), plans, turns)
        judge = None
        if answer_key is not None and settings.judge != "none":
            judge = TruthJudge(answer_key, chat if settings.judge == "truth" else None)
        yield Agent(
            stack.enter_context(memory(settings, chat)),
            DialoguePlanner(chat, specs, plans, chat.counter("planner")),
            ReactExecutor(chat, tools, turns, chat.counter("executor"), listener, settings.format),
            PlannerReflector() if settings.max_replans else None,
            judge,
            planner_reward if judge and settings.max_replans else None,
            listener,
        )


def _check_window(window: int, system: int, plans: PlanBudget, turns: Budget) -> None:
    """Refuse budgets under which the Executor would have to answer at once, without a single search."""
    needed = system + plans.plan_tokens + turns.observation_tokens + 2 * turns.turn_tokens
    if needed > window:
        raise ConfigError(
            f"One search needs up to {needed} tokens by the budgets, and the Executor's window has {window}.",
            remedy="Lower MIA_PLAN_TOKENS, MIA_TURN_TOKENS or MIA_OBSERVATION_TOKENS, or serve a longer window.",
        )


def _roles(settings: RoleSettings) -> list[Role]:
    """Name the roles that a model plays by these settings."""
    roles: list[Role] = ["planner", "executor"]
    if settings.judge == "truth":
        roles.append("judge")
    if settings.memory != "none" and "model" in (settings.compression, settings.categories):
        roles.append("manager")
    return roles


def budget(settings: RoleSettings, window: int) -> Budget:
    """Return what the Executor may spend in a window."""
    return Budget(
        calls=settings.max_calls,
        turn_tokens=settings.turn_tokens or min(window // 8, 4096),
        observation_tokens=settings.observation_tokens or min(window // 8, 2048),
        turn_seconds=settings.turn_seconds,
        seconds=settings.episode_seconds,
        temperature=settings.temperature,
    )


def plan_budget(settings: RoleSettings, window: int) -> PlanBudget:
    """Return what the Planner may spend in a window."""
    return PlanBudget(
        plan_tokens=settings.plan_tokens or min(window // 8, 4096),
        memory_tokens=settings.memory_tokens or min(window // 8, 2048),
        observation_tokens=settings.observation_tokens or min(window // 8, 512),
        seconds=settings.turn_seconds,
        temperature=settings.temperature,
        replan_if_unclear=settings.replan_if_unclear,
    )
