"""Delta debugging: a small part of many differences that has an effect which all of them have."""

from collections.abc import Callable, Sequence
from itertools import combinations

Test = Callable[[frozenset[int]], bool]  # whether these, turned alone, have the effect


def minimal(items: Sequence[int], has_effect: Test) -> list[int]:
    """A part of items that has the effect and loses it without any one of its members.

    items: have it. This is ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE
    Transactions on Software Engineering 28(2), 2002. Where effects are not monotonic there may be a smaller part.
    """
    left, pieces = list(items), 2
    while len(left) >= 2:
        parts = [left[len(left) * at // pieces : len(left) * (at + 1) // pieces] for at in range(pieces)]
        smaller = next((part for part in parts if has_effect(frozenset(part))), None)
        if smaller is not None:
            left, pieces = smaller, 2
            continue
        rests = [[item for item in left if item not in part] for part in parts] if pieces > 2 else []
        rest = next((rest for rest in rests if has_effect(frozenset(rest))), None)
        if rest is not None:
            left, pieces = rest, max(pieces - 1, 2)
        elif pieces >= len(left):
            break
        else:
            pieces = min(2 * pieces, len(left))
    return left


def pairs(items: Sequence[int], first: frozenset[int]) -> list[frozenset[int]]:
    """Every pair; those that hold more of `first` come earlier."""
    found = [frozenset(pair) for pair in combinations(items, 2)]
    return sorted(found, key=lambda pair: -len(pair & first))
