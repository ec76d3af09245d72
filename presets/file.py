"""Reads the packaged presets file and a user's own beside it, and checks both: `load` is the way to a catalog."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import tomli
from pydantic import ValidationError

from numerics.errors import ConfigurationError, nearest
from numerics.presets.checks import Origin, ResolvedPreset, Unread, check_classes, check_settings, flatten
from numerics.presets.problems import Problem, explain, report
from numerics.presets.schema import DeclaredReduction, PresetFile

# The repository root in a checkout, the package folder in a wheel, where package-data puts the file.
PACKAGED: Final = Path(__file__).resolve().parent.parent / "presets.toml"

SYNTAX_ERROR: Final = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")

Kind = Literal["reductions", "presets", "ops", "models"]


@dataclass(frozen=True, eq=False)  # hashed by identity: loading twice gives the same object
class Catalog:
    """Everything that is declared. Reductions and presets of both files are joined, with `extends` applied.

    Settings of ops and models are not: `packaged` and `user` are layers of their own, which resolution keeps apart.
    """

    reductions: Mapping[str, DeclaredReduction]
    presets: Mapping[str, ResolvedPreset]
    packaged: PresetFile
    user: PresetFile | None = None
    user_path: Path | None = None

    def origin(self, kind: Kind, name: str) -> Origin:
        """Which file declares the name; the user's where both do (ops and models only). KeyError where neither does."""
        if self.user is not None and name in getattr(self.user, kind):
            return "user"
        if name in getattr(self.packaged, kind):
            return "package"
        raise KeyError(name)

    def model_names(self) -> list[str]:
        """The models of both files, sorted."""
        return sorted({*self.packaged.models, *(self.user.models if self.user else ())})

    def classes(self) -> dict[str, list[str]]:
        """The classes that models of either file are, each with the models that it is declared for, sorted."""
        found: dict[str, set[str]] = {}
        for file in filter(None, (self.packaged, self.user)):
            for model, entry in file.models.items():
                for each in entry.classes:
                    found.setdefault(each, set()).add(model)
        return {each: sorted(models) for each, models in sorted(found.items())}

    def model_named(self, name: str) -> str:
        """The model that is called so, or whose class is. Raises ConfigurationError for no model, and for several."""
        names, classes = self.model_names(), self.classes()
        if name in names:
            return name
        if name not in classes:
            raise ConfigurationError(f"model {name!r}: no such model{nearest(name, [*names, *classes])}")
        if len(classes[name]) > 1:
            raise ConfigurationError(f"model {name!r}: the class of {' and '.join(classes[name])}; name one of them")
        return classes[name][0]


def load(path: str | os.PathLike[str] | None = None) -> Catalog:
    """The packaged file, joined with the user's file at `path`.

    A file is read again when its time of change or its size differs. Raises ConfigurationError with a line for each
    problem, `FILE:LINE: KEY: what came; what is legal; the nearest name`.
    """
    packaged = _packaged(_stamp(PACKAGED))
    return packaged if path is None else _joined(packaged, _stamp(Path(path)))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a presets file, for editors that complete and check TOML."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **PresetFile.model_json_schema()}


class _Stamp(NamedTuple):
    """A state of a file. The inode tells files of one relative path in two folders apart."""

    path: Path
    inode: int
    mtime_ns: int
    size: int


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, error) from None
    return _Stamp(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _packaged(stamp: _Stamp) -> Catalog:
    file, reductions, presets = _checked(stamp.path, "package", {}, {})
    return Catalog(reductions, presets, file)


@lru_cache(maxsize=16)
def _joined(packaged: Catalog, stamp: _Stamp) -> Catalog:
    file, reductions, presets = _checked(stamp.path, "user", packaged.reductions, packaged.presets, packaged.packaged)
    return Catalog(reductions, presets, packaged.packaged, file, stamp.path)


def _checked(
    path: Path,
    origin: Origin,
    reductions_below: Mapping[str, DeclaredReduction],
    presets_below: Mapping[str, ResolvedPreset],
    *below: PresetFile,
) -> tuple[PresetFile, Mapping[str, DeclaredReduction], Mapping[str, ResolvedPreset]]:
    text = _read(path)
    declared = _parse(text, path)
    file, problems = _validated(declared)
    unread = Unread(*(frozenset(_names(declared, kind)) - {*getattr(file, kind)} for kind in Unread._fields))
    reductions, presets, wrong = flatten(file, origin, reductions_below, presets_below, unread)
    wrong += [*check_settings(file, reductions, presets, unread), *check_classes(file, below)]
    if problems := problems + wrong:
        raise ConfigurationError(report(problems, str(path), text))
    return file, MappingProxyType(reductions), MappingProxyType(presets)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # some editors of Windows put a mark in front
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ConfigurationError(f"{path}:{number}: not UTF-8 text: byte {byte:#04x}") from None


def _unreadable(path: Path, error: Exception) -> ConfigurationError:
    reason = error.strerror if isinstance(error, OSError) else None
    return ConfigurationError(f"{str(path)!r} cannot be read as a presets file: {reason or error}")


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number of thousands of digits, or nested without end
        raise ConfigurationError(f"{path}:{_syntax(str(error), text)}") from None


def _validated(declared: dict[str, Any]) -> tuple[PresetFile, list[Problem]]:
    """The tables that are legal each by itself, whose names can still be checked; and what is wrong with the others."""
    problems: list[Problem] = []
    while True:
        try:
            return PresetFile.model_validate(declared), problems
        except ValidationError as error:
            found = explain(error, declared)
        problems += found
        for kind, *table in {key[:2] for key, _ in found}:
            tables = declared.get(str(kind))
            if table and isinstance(tables, dict):
                declared = {**declared, str(kind): {name: each for name, each in tables.items() if name != table[0]}}
            else:
                declared = {name: each for name, each in declared.items() if name != kind}


def _names(declared: dict[str, Any], kind: str) -> Iterable[str]:
    tables = declared.get(kind)
    return tables if isinstance(tables, dict) else ()


def _syntax(words: str, text: str) -> str:
    match = SYNTAX_ERROR.fullmatch(words)
    last = text.count("\n") + 1
    if match is None:
        return f"{last}: not valid TOML: {words}"
    where = f" (column {match['column']})" if match["column"] else " (at the end of the file)"
    return f"{match['line'] or last}: not valid TOML: {match['what']}{where}"
