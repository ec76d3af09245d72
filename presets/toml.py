"""Writes tables of a presets file."""

import json
from collections.abc import Mapping
from typing import Any


def table(header: str, fields: Mapping[str, Any], comment: str = "") -> str:
    """`[header]` and its fields. A part of the header that is no bare key comes quoted."""
    lines = [f"[{header}]" + (f"  # {comment}" if comment else "")]
    return "\n".join([*lines, *(f"{key} = {value(each)}" for key, each in fields.items())])


def value(given: Any) -> str:
    """Text, a number, a boolean, a list or a table, on one line."""
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, list | tuple):
        return f"[{', '.join(map(value, given))}]"
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{text(key)} = {value(each)}" for key, each in given.items()) + " }"
    return text(given) if isinstance(given, str) else str(given)


def text(given: str) -> str:
    """A basic string, which is also a quoted key."""
    return json.dumps(given, ensure_ascii=False).replace("\x7f", "\\u007f")
