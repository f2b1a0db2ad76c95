"""The `search` tool over a `/retrieve` service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mia.clients.snippets import snippet
from mia.errors import SearchUnavailable
from mia.text import clean
from mia.types import Observation, Source, ToolSpec
from mia.wire.search import Hit, RetrieveRequest, RetrieveResponse

if TYPE_CHECKING:
    from mia.runtime.http import Service
    from mia.wire.search import Document

_MAX_QUERIES = 4
_MAX_QUERY = 400
_ALIASES = ("query_list", "queries", "query")


class SearchTool:
    """Text search. Each call may hold several queries; each query brings `topk` passages.

    Args:
        service: a /retrieve service.
        topk: passages a query.
        words: words of each passage that are shown, those of the sentences that match the query; 0 shows it whole.
    """

    def __init__(self, service: Service, topk: int = 3, words: int = 0) -> None:
        self._service = service
        self._topk = topk
        self._words = words
        self.spec = ToolSpec(
            name="search",
            description="Searches a text collection; each query brings the best matching passages.",
            parameters={
                "type": "object",
                "properties": {
                    "query_list": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "One or more short, self-contained queries.",
                    }
                },
                "required": ["query_list"],
            },
        )

    async def call(self, arguments: dict[str, Any], deadline: float) -> Observation:
        """Search. Arguments that hold no query are answered with what to mend; a service that is down raises."""
        asked = _queries(arguments)
        queries = [query[:_MAX_QUERY] for query in asked[:_MAX_QUERIES]]
        if not queries:
            reason = 'The arguments of search must be {"query_list": ["..."]} with at least one query.'
            return Observation(text=reason, error=reason)
        body = RetrieveRequest(queries=queries, topk=self._topk, return_scores=True).model_dump()
        reply = await self._service.post("/retrieve", body, deadline=deadline)
        try:
            result = RetrieveResponse.model_validate(reply).result
            found = [[hit.document if isinstance(hit, Hit) else hit for hit in result[n]] for n in range(len(queries))]
        except (ValueError, IndexError) as error:
            raise SearchUnavailable(
                f"{self._service.url} answered with something that is not a search result.",
                service="search",
                status=200,
                retryable=False,
                remedy="Check that MIA_SEARCH_URL points at a /retrieve service.",
            ) from error
        seen = _observation(queries, found, self._words)
        return seen.model_copy(update={"text": _told(asked) + seen.text})


def _queries(arguments: dict[str, Any]) -> list[str]:
    value = next((arguments[name] for name in _ALIASES if name in arguments), None)
    values = value if isinstance(value, list) else [value]
    return [clean(query).strip() for query in values if isinstance(query, str) and query.strip()]


def _told(asked: list[str]) -> str:
    """Return what of the queries was not searched, in a first line that no budget cuts; nothing when all of it was."""
    parts = (
        [f"only the first {_MAX_QUERIES} of {len(asked)} queries were searched"] if len(asked) > _MAX_QUERIES else []
    )
    if any(len(query) > _MAX_QUERY for query in asked[:_MAX_QUERIES]):
        parts.append(f"of each query only the first {_MAX_QUERY} characters")
    return f"[{', '.join(parts)}]\n" if parts else ""


def _observation(queries: list[str], found: list[list[Document]], words: int) -> Observation:
    sources: dict[str, Source] = {}
    blocks = []
    for query, documents in zip(queries, found, strict=True):
        lines = [f"Results for: {query}"]
        for number, document in enumerate(documents, 1):
            title, text = _parts(document)
            text = snippet(text, query, words, known=title) if words else text
            lines.append(f"[{number}] {title}\n{text}")
            name = title if document.id is None else clean(str(document.id))
            sources.setdefault(name, Source(id=name, title=title))
        blocks.append("\n".join(lines if documents else [*lines, "Nothing was found."]))
    return Observation(text="\n=======\n".join(blocks), sources=tuple(sources.values()))


def _parts(document: Document) -> tuple[str, str]:
    """Return title and text: services of the released layout send both in `contents` alone."""
    head, _, body = document.contents.partition("\n")
    extra = document.model_extra or {}
    title, text = extra.get("title") or head.strip().strip('"'), extra.get("text") or body
    return clean(str(title)), clean(str(text))
