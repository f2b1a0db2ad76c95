"""One run on disk: `manifest.json` says how it was made, `episodes.jsonl` holds one episode a line."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
from datetime import UTC, datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

import mia
from mia.errors import InputError, StorageError
from mia.text import to_json
from mia.types import Episode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SCHEMA = 1


def new_id(kind: str) -> str:
    """Return a run id that sorts by time and does not repeat: `ask-20260131-120000-1f3a90c2`."""
    return f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs, settings each by their own name."""
    old, new = ({**flat, **flat.get("settings", {})} for flat in (before, now))
    return sorted(name for name in old.keys() | new.keys() if name != "settings" and old.get(name) != new.get(name))


def code_hash() -> str:
    """Return one hash over the package's sources."""
    root = Path(str(files(mia)))
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class RunFolder:
    """A folder of one run. Appended episodes survive a crash; a torn last line is dropped when it is opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._episodes = path / "episodes.jsonl"

    @cached_property
    def id(self) -> str:
        """The run's id, by which its episodes are known to every memory: no other run has it, whatever its folder."""
        return str(self.manifest["id"])

    @property
    def manifest(self) -> dict[str, Any]:
        """What `create` wrote."""
        try:
            found = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.path} is not a run folder.", remedy="Name a folder that holds manifest.json."
            ) from error
        return dict(found)

    @classmethod
    def create(cls, path: Path, made_by: Mapping[str, Any], id: str = "") -> RunFolder:  # noqa: A002
        """Make the folder with its manifest, or go on with one made by the same settings, prompts, data and code.

        A new run takes `id`, or else one made of the folder's name.

        Raises:
            InputError: the folder holds a run that was made differently, so going on would mix two experiments.
        """
        run = cls(path)
        made_by = json.loads(json.dumps(made_by, ensure_ascii=False, default=str))
        if (path / "manifest.json").exists():
            before = run.manifest
            changed = _differences(
                {**before.get("made_by", {}), "code": before.get("code")}, {**made_by, "code": code_hash()}
            )
            if changed:
                raise InputError(
                    f"The run in {path} was made with other {', '.join(changed)}.",
                    remedy="Name a new folder, or go back to what it was made with.",
                )
            run._mend()
            return run
        manifest = {
            "schema": _SCHEMA,
            "id": id or f"{path.name}-{secrets.token_hex(4)}",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": mia.__version__,
            "python": platform.python_version(),
            "code": code_hash(),
            "made_by": made_by,
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            partial = path / "manifest.json.partial"
            partial.write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
            partial.replace(path / "manifest.json")
        except OSError as error:
            raise StorageError(f"The run folder {path} cannot be written: {error}.", remedy="Set MIA_HOME.") from error
        return run

    def append(self, episode: Episode) -> None:
        """Add one episode; on return it is on disk."""
        try:
            with self._episodes.open("ab") as file:
                file.write(to_json(episode.model_dump(mode="json")).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self._episodes} cannot be written: {error}.", remedy="Free space and resume."
            ) from error

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes in the order they were added.

        Raises:
            StorageError: a whole line is not an episode of this version.
        """
        if not self._episodes.exists():
            return
        with self._episodes.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield Episode.model_validate_json(line)
                except ValidationError as error:
                    raise StorageError(
                        f"Line {number} of {self._episodes} is not an episode.", remedy="Restore or remove that line."
                    ) from error

    def _mend(self) -> None:
        """Cut off what a crash left of a last line, so that the next one does not grow out of it."""
        if not self._episodes.exists():
            return
        with self._episodes.open("rb+") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
            file.truncate(whole)
