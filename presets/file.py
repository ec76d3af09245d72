"""Reads the packaged presets file and a user's own beside it, and checks both: `load` is the only way to a catalog."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import tomli
from pydantic import ValidationError

from numerics.errors import ConfigurationError
from numerics.presets.checks import Origin, ResolvedPreset, check_names, flatten
from numerics.presets.problems import Problem, explain, report
from numerics.presets.schema import DeclaredReduction, PresetFile

# The repository root in a checkout, the package folder in a wheel, where package-data puts the file.
PACKAGED: Final = Path(__file__).resolve().parent.parent / "presets.toml"

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
        for file, origin in ((self.user, "user"), (self.packaged, "package")):
            if file is not None and name in getattr(file, kind):
                return "user" if origin == "user" else "package"
        raise KeyError(name)

    def model_names(self) -> list[str]:
        """The models of both files, sorted."""
        return sorted({*self.packaged.models, *(self.user.models if self.user else ())})


def load(path: str | os.PathLike[str] | None = None) -> Catalog:
    """The packaged file, joined with the user's file at `path`.

    Files are read again when their time of change or size differs. Raises ConfigurationError with a line for each
    problem, `FILE:LINE: KEY: what came; what is legal; nearest name`.
    """
    packaged = _packaged(*_stamp(PACKAGED))
    return packaged if path is None else _joined(packaged, *_stamp(path))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a presets file, for editors that complete and check TOML."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **PresetFile.model_json_schema()}


Stamp = tuple[str, int, int]


def _stamp(path: str | os.PathLike[str]) -> Stamp:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{os.fspath(path)}: cannot be read: {_words(error)}") from None
    return os.fspath(path), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=2)
def _packaged(path: str, mtime_ns: int, size: int) -> Catalog:
    text = _read(path)
    file = _parse(text, path)
    reductions, presets, problems = flatten(file, "package", {}, {})
    problems += check_names(file, reductions, presets)
    if problems:
        raise ConfigurationError(report(problems, path, text))
    return Catalog(MappingProxyType(reductions), MappingProxyType(presets), file)


@lru_cache(maxsize=16)
def _joined(packaged: Catalog, path: str, mtime_ns: int, size: int) -> Catalog:
    text = _read(path)
    file = _parse(text, path)
    reductions, presets, problems = flatten(file, "user", packaged.reductions, packaged.presets)
    problems += check_names(file, reductions, presets)
    if problems:
        raise ConfigurationError(report(problems, path, text))
    return Catalog(MappingProxyType(reductions), MappingProxyType(presets), packaged.packaged, file, Path(path))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {_words(error)}") from None


def _words(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _parse(text: str, path: str) -> PresetFile:
    try:
        declared = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}:{error.lineno}: not valid TOML: {error.msg} (column {error.colno})") from None
    try:
        return PresetFile.model_validate(declared)
    except ValidationError as error:
        problems: list[Problem] = explain(error)
        raise ConfigurationError(report(problems, path, text)) from None
