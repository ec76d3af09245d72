"""Version ranges of the form `>=0.20,<0.34`: dotted numbers and four comparisons, nothing that needs interpretation."""

import operator
import re
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator

OPERATORS: Final[dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
RANGE: Final = "comparisons joined by commas, such as '>=0.20,<0.34'"
CLOSED_RANGE: Final = f"a lower and an upper bound, as {RANGE}"
CLAUSE = re.compile(r"(>=|<=|>|<)(\d+(?:\.\d+)*)")
RELEASE = re.compile(r"\d+(?:\.\d+)*")


def clauses(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The clauses of a range. Raises ValueError on any other text."""
    found = []
    for part in text.split(","):
        match = CLAUSE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is no version range; write {RANGE}")
        found.append((match[1], release(match[2])))
    return found


def release(version: str) -> tuple[int, ...]:
    """The release numbers of a version, without trailing zeros: '2.11.0+cu130' -> (2, 11)."""
    match = RELEASE.match(version)
    if match is None:
        raise ValueError(f"{version!r} is no version number")
    numbers = [int(part) for part in match[0].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def admits(text: str, version: str) -> bool:
    """Whether the range holds for the version. Pre-releases and local labels count as their release."""
    return all(OPERATORS[name](release(version), bound) for name, bound in clauses(text))


def can_hold(text: str) -> bool:
    """Whether any version is in the range."""
    lower = max((bound for name, bound in clauses(text) if name.startswith(">")), default=(0,))
    upper = min((bound for name, bound in clauses(text) if name.startswith("<")), default=None)
    if upper is None or lower < upper:
        return True
    return lower == upper and all(name in (">=", "<=") for name, bound in clauses(text) if bound == lower)


def _range(text: str) -> str:
    if not can_hold(text):
        raise ValueError(f"no version is in {text!r}")
    return text


def _closed(text: str) -> str:
    names = [name for name, _ in clauses(text)]
    if not any(name.startswith(">") for name in names) or not any(name.startswith("<") for name in names):
        raise ValueError(f"{text!r} is open; give a lower and an upper bound, such as '>=0.20,<0.34'")
    return text


VersionRange = Annotated[str, AfterValidator(_range)]
ClosedVersionRange = Annotated[str, AfterValidator(_range), AfterValidator(_closed)]
