"""`numerics check`: presets files, the environment, and the settings in force against saved ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerics import environment
from numerics.capability import checked as capability_checked
from numerics.capability import current
from numerics.cli import saved
from numerics.cli.render import Unwrapped, heading
from numerics.cli.show import resolved, selected
from numerics.context import configuration
from numerics.errors import ConfigurationError, RequirementError
from numerics.presets.file import PACKAGED, load
from numerics.presets.vocabulary import FAMILIES
from numerics.resolve import resolve

if TYPE_CHECKING:
    from rich.console import RenderableType


def checked(files: list[Path], fingerprint: Path | None, capability: str | None) -> dict[str, Any]:
    """The problems of the files and of the environment; without a file also of the settings in force.

    Raises ConfigurationError for a path that cannot be read, and for a saved file that is none.
    """
    if capability is not None:
        capability_checked(capability)
    _open(files)
    environs = environment_problems()
    return {
        "files": {str(path): _file_problems(path) for path in files},
        "environment": environs,
        "settings": None if files or fingerprint else settings_problems(environs),
        "drift": None if fingerprint is None else _drift_values(fingerprint, capability),
    }


def has_problems(found: dict[str, Any]) -> bool:
    """Whether anything is wrong, or has drifted."""
    drifted = bool(found["drift"] and found["drift"]["differences"])
    return drifted or bool(found["environment"] or found["settings"]) or any(found["files"].values())


def environment_problems() -> list[str]:
    """Misspelt variables, and illegal values of those that are read."""
    found = [f"{name}: no such variable; nearest: {known}" for name, known in environment.near_misses()]
    readers: list[Callable[[], object]] = [environment.strict, environment.checks_indices, environment.installs]
    readers += [partial(environment.read, each) for each in FAMILIES]
    for read in readers:
        try:
            read()
        except ConfigurationError as error:
            found += str(error).splitlines()
    return found


def settings_problems(environs: list[str]) -> list[str] | None:
    """Why settings in force are refused: by a file, or this machine. None if the environment alone refuses them."""
    try:
        entries = selected(None, None)
    except ConfigurationError as error:  # the user's file itself
        return str(error).splitlines()
    if environs:  # with a variable misspelt nothing resolves, and each setting would repeat it
        return None
    _, refused = resolved(entries, None)
    return list(dict.fromkeys(line for error in refused for line in str(error).splitlines()))


def drift(path: Path, capability: str | None) -> list[saved.Difference]:
    """What differs between saved settings (a) and those now in force (b).

    The capability is the given one, else that of this machine, else, where there is none, the saved one.
    """
    before = saved.read(path)
    where = capability or current()
    now: list[saved.Setting] = []
    refused: list[saved.Difference] = []
    for setting in before:
        try:
            found = resolve(setting["op"], setting["model"], capability=where or setting["capability"])
        except (ConfigurationError, RequirementError) as error:
            place = (setting["op"], setting["model"], None)
            refused.append(saved.difference(place, "setting", "present", f"refused: {error}"))
        else:
            now.append(found.to_dict())
    gone = {(each["op"], each["model"]) for each in refused}
    return refused + [each for each in saved.differences(before, now) if (each["op"], each["model"]) not in gone]


def _drift_values(path: Path, capability: str | None) -> dict[str, Any]:
    return {"saved": str(path), "differences": drift(path, capability)}


def _open(paths: list[Path]) -> None:
    refused = []
    for path in paths:
        try:
            path.open("rb").close()
        except OSError as error:
            refused.append(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}")
    if refused:
        raise ConfigurationError("\n".join(refused))


def _file_problems(path: Path) -> list[str]:
    try:
        load(None if path.samefile(PACKAGED) else path)
    except ConfigurationError as error:
        return str(error).splitlines()
    return []


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> Iterator[RenderableType]:
    """What the command found, for people: problems as they stand, one a line, so that editors can jump to them."""
    for path, problems in found["files"].items():
        yield Unwrapped("\n".join(problems) or f"{path}: fine")
    yield Unwrapped("\n".join(found["environment"]) or "environment: fine")
    if found["settings"] is not None:
        yield Unwrapped("\n".join(found["settings"]) or _in_force())
    if found["drift"] is not None:
        path = found["drift"]["saved"]
        if not found["drift"]["differences"]:
            yield Unwrapped(f"{path}: the settings in force are the saved ones")
        else:
            yield heading(f"{path}: the settings in force differ", " (saved -> now)")
            yield from saved.page(found["drift"]["differences"])


def _in_force() -> str:
    file = configuration().catalog.user_path
    return f"settings in force: fine ({'no file of your own' if file is None else file})"
