"""A function of a user's module, by `module:function`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numerics.errors import ConfigurationError, nearest


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
    except Exception as error:  # a module that fails while it is imported is no callable either
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
