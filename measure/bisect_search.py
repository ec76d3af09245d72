"""Which differences between two settings move the result of a target: the order of the arms, and the verdict."""

from collections.abc import Sequence
from typing import Final

from numerics.measure.bisect import NOTHING, Bisection, Side
from numerics.measure.bisect_arms import Turned
from numerics.measure.bisect_compare import Difference, is_within, size
from numerics.measure.bisect_minimal import minimal, pairs
from numerics.measure.bisect_use import NOT_HERE, UNKNOWN
from numerics.measure.result import Record

SIDES: Final[tuple[Side, ...]] = ("a", "b")
PAIR: Final = 2


def searched(bisection: Bisection) -> Record:
    """The verdict, after as many arms as it takes.

    A and B run first, in turns. Where each repeats itself and they differ, every difference is turned by itself. If
    none gives B's result, all that moved something are turned together, or all there are; ddmin makes the set small;
    and if more than a pair is left, the pairs are tried.
    """
    if not bisection.atoms:
        return _verdict(bisection, "equal", "A and B say the same")
    for again in range(1, bisection.question.controls + 1):
        for turned in (NOTHING, bisection.all):
            arm = bisection.arm(turned, again)
            if arm["status"] != "ok":
                return _verdict(bisection, "undecided", f"{arm['name']}: {arm['status']}: {arm['reason']}")
    if moving := [side for side in SIDES if not _repeats(bisection, side)]:
        return _verdict(bisection, "undecided", _moves(bisection, moving))
    why = unused(bisection)
    seen = [index for index in sorted(bisection.all) if index not in why]
    if bisection.is_equal(bisection.arm(bisection.all), "a"):
        if any(bisection.atoms[index].applies for index in seen) and _is_recorded(bisection):
            return _verdict(bisection, "equal", "A and B give the same result")
        reasons = sorted(set(why.values())) or [UNKNOWN]
        return _verdict(bisection, "undecided", f"no difference took effect: {'; '.join(reasons)}")
    return _explained(bisection, *_candidates(bisection, seen))


def unused(bisection: Bisection) -> dict[int, str]:
    """The differences that the target cannot have seen, and why; none where nothing was recorded."""
    if not _is_recorded(bisection):
        return {}
    with_a = {tuple(place) for place in bisection.arm(NOTHING)["used"]}
    found = {}
    for index, reason in bisection.arm(bisection.all)["without_effect"].items():
        if bisection.atoms[int(index)].place not in with_a or reason.startswith("overridden"):
            found[int(index)] = reason
        elif bisection.question.target.in_process:
            found[int(index)] = NOT_HERE
    return found


def noise(bisection: Bisection, side: Side) -> list[Difference]:
    """How far the later runs of A or B are from the first."""
    turned = bisection.all if side == "b" else NOTHING
    again = range(2, bisection.question.controls + 1)
    return [found for each in again if (found := bisection.arm(turned, each)[f"from_{side}"]) is not None]


def _repeats(bisection: Bisection, side: Side) -> bool:
    return all(is_within(each, bisection.question.tolerance) for each in noise(bisection, side))


def _moves(bisection: Bisection, sides: Sequence[Side]) -> str:
    """That a control is not reproducible, by how much, and whether A and B are farther apart than that."""
    own = max(size(each) for side in sides for each in noise(bisection, side))
    both = size(bisection.arm(bisection.all)["from_a"])
    who = " and ".join(side.upper() for side in sides)
    hint = "a --tolerance between them would ask about the rest" if both > own else "nothing beside it can be seen"
    return f"not reproducible: runs of {who} are up to {own:g} apart, A and B {both:g}; {hint}"


def _is_recorded(bisection: Bisection) -> bool:
    return any(bisection.arm(turned)["used"] for turned in (NOTHING, bisection.all))


def _candidates(bisection: Bisection, seen: Sequence[int]) -> tuple[list[int], list[int]]:
    """Differences that, turned together, give B's result; and those of them that are worth turning one by one.

    The fewest that suffice: those that the target saw and that can change bytes, or all in the places that it resolved
    (a program may read more than the ops do), or all there are.
    """
    applying = [index for index in seen if bisection.atoms[index].applies]
    for some in (applying, seen):
        bisection.expected = len(bisection.arms) + len(some) + 2
        if some and bisection.is_b(frozenset(some)):
            return list(some), list(some)
    return sorted(bisection.all), list(seen)


def _explained(bisection: Bisection, candidates: Sequence[int], singles: Sequence[int]) -> Record:
    alone = {index: bisection.arm(frozenset({index})) for index in singles}
    if hits := [index for index, arm in alone.items() if bisection.is_equal(arm, "b")]:
        return _confirmed(bisection, frozenset(hits[:1]), hits[1:], singles)
    movers = [index for index, arm in alone.items() if arm["status"] == "ok" and not bisection.is_equal(arm, "a")]
    start = movers if len(movers) >= PAIR and bisection.is_b(frozenset(movers)) else candidates
    found = frozenset(minimal(start, bisection.is_b))
    if len(found) > PAIR:
        tried = pairs(singles, frozenset(movers))
        bisection.expected = len(bisection.arms) + len(tried)
        found = next((pair for pair in tried if bisection.is_b(pair)), found)
    return _confirmed(bisection, found, [], singles)


def _confirmed(bisection: Bisection, found: Turned, others: Sequence[int], singles: Sequence[int]) -> Record:
    """The verdict on a set, once it has given B's result a second time."""
    if found != bisection.all and not bisection.is_b(found, 2):
        arm = bisection.arm(found, 2)
        what = f"{arm['status']}: {arm['reason']}" if arm["status"] != "ok" else "and did not give B's result again"
        return _verdict(bisection, "undecided", f"not reproducible: the smallest set ran a second time, {what}")
    smaller = [frozenset({index}) for index in singles] if len(found) >= PAIR else []
    smaller += pairs(singles, NOTHING) if len(found) > PAIR else []
    known = {tuple(arm["turned"]): arm["status"] for arm in bisection.arms}
    silent = sum(known.get(tuple(sorted(each))) != "ok" for each in smaller)
    beyond = [index for index in sorted(found) if not bisection.atoms[index].applies or index not in singles]
    return {
        **_verdict(bisection, "explained", ""),
        "smallest": sorted(found),
        "others": list(others),  # differences that by themselves give B's result as well
        "smaller_without_verdict": silent,
        "unexpected": beyond,  # members that no op of this package reads, or whose place was not seen in use
    }


def _verdict(bisection: Bisection, result: str, reason: str) -> Record:
    """What each verdict has: `explained`, `equal` or `undecided`, and why."""
    ran = {(tuple(arm["turned"]), arm["run"]) for arm in bisection.arms}
    both = all((tuple(sorted(turned)), 1) in ran for turned in (NOTHING, bisection.all))
    return {
        "kind": "verdict",
        "result": result,
        "reason": reason,
        "without_effect": {str(index): why for index, why in unused(bisection).items()} if both else {},
        "smallest": [],
        "others": [],
        "smaller_without_verdict": 0,
        "unexpected": [],
    }
