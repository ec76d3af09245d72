"""What is wrong with a presets file, a line for each: file, line, key, what came, what is legal, the nearest name."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from numerics.errors import nearest
from numerics.presets.locate import Key, line, lines
from numerics.presets.schema import PresetFile, Setting
from numerics.presets.vocabulary import FAMILIES

BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
LONGEST_VALUE: Final = 80
NAMES: Final = "letters, digits and _, not starting with a digit"
KEY_ERROR: Final = "[key]"  # how Pydantic ends the place of an error about the key of a table, not about its value


class Problem(NamedTuple):
    """One thing that is wrong, and the key that it is wrong about."""

    key: Key
    message: str


def report(problems: Iterable[Problem], path: str, text: str) -> str:
    """The problems in the order of the file, `FILE:LINE: KEY: MESSAGE` each."""
    known = lines(text)
    found = []
    for key, message in dict.fromkeys(problems):
        # A setting may be the name of a preset alone; then there is no key `preset`.
        written = key[:-1] if key[-1] == "preset" and key not in known else key
        found.append((line(written, known), f"{dotted(written)}: {message}"))
    return "\n".join(f"{path}:{number}: {words}" for number, words in sorted(found))


def dotted(key: Key) -> str:
    """A key as TOML writes it, with list elements as [0], [1], ..."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{quoted(part)}" for part in key]
    return "".join(parts).removeprefix(".")


def quoted(name: str) -> str:
    """One part of a key as TOML writes it: bare where that can be read."""
    return name if BARE.fullmatch(name) else json.dumps(name)


def explain(error: ValidationError, declared: Mapping[str, Any]) -> list[Problem]:
    """The problems that a validation error of a presets file stands for.

    Pydantic reports every branch of a union; here a field has one message, whatever its branches say.
    """
    details = error.errors(include_url=False)
    unknown = [_place(detail["loc"]).key for detail in details if detail["type"] == "extra_forbidden"]
    problems = []
    for detail in details:
        place = _place(detail["loc"])
        if detail["type"] == "missing" and _is_misspelt(place.key, unknown):
            continue
        problems.append(Problem(place.key, _message(detail, place, declared)))
    return problems


class _Place(NamedTuple):
    key: Key  # without the names that Pydantic gives to branches of a union
    table: type[BaseModel]  # the innermost table around it
    field: FieldInfo | None  # its field there, if it has one
    kind: Any  # the type that is legal there


def _place(location: tuple[int | str, ...]) -> _Place:
    key: Key = ()
    table: type[BaseModel] = PresetFile
    field: FieldInfo | None = None
    kind: Any = PresetFile
    for part in location:
        if part == KEY_ERROR:
            break
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            table = kind
            field = table.model_fields.get(str(part))
            inner = None if field is None else field.annotation
        elif get_origin(kind) is dict:
            field = None
            inner = get_args(kind)[1]
        elif get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
            inner = get_args(kind)[0]
        else:
            break
        key = (*key, part)
        kind = _plain(inner)
    return _Place(key, table, field, kind)


def _plain(kind: Any) -> Any:
    """A type without its constraints, and without None where that is all that makes it a union."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    branches = [branch for branch in get_args(kind) if branch is not type(None)]
    return _plain(branches[0]) if _is_union(kind) and len(branches) == 1 else kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _is_misspelt(missing: Key, unknown: list[Key]) -> bool:
    names = [str(key[-1]) for key in unknown if key[:-1] == missing[:-1]]
    return bool(difflib.get_close_matches(str(missing[-1]), names, n=1))


def _message(detail: ErrorDetails, place: _Place, declared: Mapping[str, Any]) -> str:
    name = str(place.key[-1]) if place.key else ""
    if detail["loc"][-1:] == (KEY_ERROR,):
        if detail["type"] == "literal_error":
            return f"no such family{nearest(name, FAMILIES)}"
        return f"not a legal name; legal: {NAMES}" + (", or ENGINE:NAME" if place.key[0] == "models" else "")
    if detail["type"] == "extra_forbidden":
        return f"no such key{nearest(name, place.table.model_fields)}"
    if detail["type"] == "missing":
        return f"not given; legal: {_legal(place)}"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    value = _value(declared, place.key, detail["input"])
    return f"got {_shown(value)}; legal: {_legal(place)}{_near(value, place.kind)}"


def _legal(place: _Place) -> str:
    if get_origin(place.kind) is Literal:
        *others, last = [_shown(choice) for choice in get_args(place.kind)]
        return f"{', '.join(others)} or {last}"
    if place.kind is bool:
        return "true or false"
    if isinstance(place.kind, type) and issubclass(place.kind, BaseModel):
        table = f"a table of {', '.join(place.kind.model_fields)}"
        return f"the name of a preset, or {table}" if place.kind is Setting else table
    if place.field is not None and place.field.description:
        return place.field.description
    if get_origin(place.kind) is dict:
        return "a table"
    return "text in quotes" if place.kind is str else "a list of tables"


def _near(value: object, kind: Any) -> str:
    branches = get_args(kind) if _is_union(kind) else (kind,)
    choices = [choice for branch in branches if get_origin(branch) is Literal for choice in get_args(branch)]
    names = [choice for choice in choices if isinstance(choice, str)]
    close = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"; nearest: {_shown(close[0])}" if close else ""


def _value(declared: Any, key: Key, otherwise: object) -> object:
    for part in key:
        try:
            declared = declared[part]
        except (KeyError, IndexError, TypeError):
            return otherwise
    return declared


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
