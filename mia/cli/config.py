"""`mia config`: every setting as it is resolved here."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mia.runtime.settings import (
    AgentServiceSettings,
    MemoryServiceSettings,
    ModelServiceSettings,
    RoleSettings,
    SearchServiceSettings,
    Settings,
    load,
    names,
)

_KINDS: dict[str, type[Settings]] = {
    "roles": RoleSettings,
    "serve model": ModelServiceSettings,
    "serve search": SearchServiceSettings,
    "serve memory": MemoryServiceSettings,
    "serve agent": AgentServiceSettings,
}


def config(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Show every setting: its environment name, its value here, and whether that is the default. Secrets are masked."""
    resolved = {title: load(kind) for title, kind in _KINDS.items()}
    if as_json:
        values = {title: settings.model_dump(mode="json") for title, settings in resolved.items()}
        Console().print_json(json.dumps(values, ensure_ascii=False))
        return
    for title, settings in resolved.items():
        table = Table("setting", "value", "meaning", title=title, title_justify="left")
        for name, choices in names(type(settings)).items():
            if title != "roles" and name in RoleSettings.model_fields and name not in type(settings).__annotations__:
                continue  # the table of the roles has it
            value, field = getattr(settings, name), type(settings).model_fields[name]
            style = "" if value == field.default else "bold green"
            table.add_row(" or ".join(choices), Text(str(value), style=style), field.description)
        Console().print(table)
    Console().print("Values in bold green are set here; the others are defaults.")
