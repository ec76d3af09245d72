"""The errors that users of this package can cause, and the nearest legal name that a message offers."""

import difflib
from collections.abc import Iterable
from typing import Final

NEAR: Final = 0.7  # of the letters of both, those that they share in order


class NumericsError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigurationError(NumericsError, ValueError):
    """A file, a variable, a context or an argument names something that does not exist or cannot hold."""


class RequirementError(NumericsError, ValueError):
    """An exact preset was asked for where one of its conditions does not hold."""


class InputError(NumericsError, ValueError):
    """A tensor has a shape, dtype, device or layout that an op does not take."""


class NotFusedError(NumericsError, RuntimeError):
    """In strict mode (`NUMERICS_STRICT=1`), an op could not take its fused kernel."""


class MissingExtraError(NumericsError, ImportError):
    """A feature needs a package that is not installed; the message names the extra that brings it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; nearest: X. Known: A, B, C` for the end of a message, without the first part where nothing is near.

    Near is what a slip of the pen makes. Capitals do not count.
    """
    names = sorted(known)
    folded = {known_name.lower(): known_name for known_name in names}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=NEAR)
    near = f"; nearest: {folded[close[0]]}" if close else ""
    return f"{near}. Known: {', '.join(names) or 'none'}"
