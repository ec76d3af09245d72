"""A function of a user's module, by `module:function`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numerics.errors import ConfigurationError, nearest


def file_of(name: str) -> Path | None:
    """Where the module of a function lies, which is not imported; None where that cannot be told from its name."""
    within = Path(*name.partition(":")[0].split("."))
    folders = [Path.cwd(), *map(Path, sys.path)]
    files = [folder / each for folder in folders for each in (within.with_suffix(".py"), within / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def imported(name: str, argument: str) -> Callable[..., Any]:
    """The function; the current folder counts, as with `python -m`. argument: whose value the name is, for messages.

    Raises ConfigurationError, from the exception of a module that fails while it is imported, or where there is no such
    function.
    """
    module_name, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module that fails while it is imported is no callable either
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{argument}: module {module_name!r} cannot be imported: {reason}") from error
    found = getattr(module, function, None)
    if not callable(found):
        names = [each for each in vars(module) if callable(getattr(module, each))]
        raise ConfigurationError(
            f"{argument}: module {module_name!r} has no function {function!r}{nearest(function, names)}"
        )
    known: Callable[..., Any] = found
    return known
