"""Prompts as Markdown, one file each, filled in one pass: text that is put in is never read for slots again."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from mia.errors import ConfigError

_SLOT = re.compile(r"\{\{(\w+)\}\}")


@cache
def template(name: str) -> str:
    """Return the text of a prompt file, without the final newline."""
    return files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8").removesuffix("\n")


def fill(name: str, /, **slots: str) -> str:
    """Fill a prompt's `{{slots}}`.

    Raises:
        ConfigError: a slot of the file is not given, or one given is not in the file.
    """
    text = template(name)
    wanted = set(_SLOT.findall(text))
    if wanted != set(slots):
        odd = ", ".join(sorted(wanted ^ set(slots)))
        raise ConfigError(f"Prompt {name}.md does not match its slots: {odd}.", remedy="Correct the prompt file.")
    return _SLOT.sub(lambda match: slots[match.group(1)], text)


def fingerprint() -> str:
    """Return one hash over all prompt files: a run's record of what was asked."""
    digest = hashlib.sha256()
    for entry in sorted(files(__name__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".md"):
            digest.update(entry.name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()
