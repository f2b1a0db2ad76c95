"""The arguments of a call against the JSON schema of its tool."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def fit(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | str:
    """Return the arguments as the tool declares them, or what is wrong with them.

    A single value for a list of such values is a list of one. A tool whose schema is open to other names reads those
    itself, so that beside one of them a required name may be missing.
    """
    declared: dict[str, Any] = schema.get("properties", {})
    others = [name for name in arguments if name not in declared]
    named = ", ".join(map(repr, declared)) or "none"
    if others and schema.get("additionalProperties") is False:
        return f"there is no argument {others[0][:64]!r}; there is: {named}"
    missing = [name for name in schema.get("required", ()) if name not in arguments]
    if missing and not others:
        return f"the argument {missing[0]!r} is missing"
    fitted = dict(arguments)
    for name, rule in declared.items():
        if name not in arguments:
            continue
        value = arguments[name]
        if rule.get("type") == "array" and not isinstance(value, list) and _is(value, rule.get("items", {})):
            value = fitted[name] = [value]
        if not _is(value, rule):
            return f"the argument {name!r} must be {_named(rule)}"
    return fitted


def _is(value: Any, rule: dict[str, Any]) -> bool:
    kinds = rule.get("type", list(_TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool):
        return "boolean" in kinds
    if not any(isinstance(value, _TYPES[kind]) for kind in kinds):
        return False
    if "enum" in rule and value not in rule["enum"]:
        return False
    return not isinstance(value, list) or all(_is(entry, rule.get("items", {})) for entry in value)


def _named(rule: dict[str, Any]) -> str:
    if "enum" in rule:
        return f"one of {', '.join(map(repr, rule['enum']))}"
    kinds = rule.get("type", "")
    name = kinds if isinstance(kinds, str) else " or ".join(kinds)
    inner = rule.get("items", {}).get("type")
    return f"of the type {name}" + (f" of {inner}" if inner else "")
