"""The contract of a search service: `POST /retrieve`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _encodable(value: Any) -> Any:
    """Replace half characters, which JSON escapes can carry and UTF-8 cannot."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


Query = Annotated[str, BeforeValidator(_encodable)]


class RetrieveRequest(BaseModel):
    """Queries to answer; `topk` null or 0 leaves the number of passages to the service."""

    queries: list[Query] = Field(max_length=4096)  # a training step asks for all its rollouts at once
    topk: int | None = Field(default=None, ge=0)
    return_scores: bool = False


class Document(BaseModel):
    """A passage: `contents` is its quoted title, a newline, and its text. Other keys of the corpus pass through."""

    model_config = ConfigDict(extra="allow")

    id: str | int | None = None
    contents: str


class Hit(BaseModel):
    """A passage with its score; more is better, and scores of different queries do not compare."""

    document: Document
    score: float


class RetrieveResponse(BaseModel):
    """Per query its passages, best first; with scores when the request asks for them."""

    result: list[list[Hit]] | list[list[Document]]
