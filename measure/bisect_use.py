"""Whether what an arm of `bisect` turned took effect: what its target resolved says so."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from numerics.measure.bisect_settings import CONDITIONS, Atom, text_of
from numerics.presets.vocabulary import KNOBS

NEVER: Final = "never used by the target"
NOT_HERE: Final = "resolved by an earlier arm and kept since; leave out --in-process"
UNKNOWN: Final = (
    "the target resolved nothing that was recorded: it does not use this package, or another release of it, or its "
    "processes do not see NUMERICS_RECORD"
)

Resolved = Sequence[Mapping[str, Any]]  # resolutions in their JSON form


def used(*arms: Resolved) -> list[list[str | None]]:
    """The places that any of the arms resolved, as [op, model]."""
    return [list(place) for place in dict.fromkeys((each["op"], each["model"]) for arm in arms for each in arm)]


def without_effect(atoms: Iterable[tuple[int, Atom]], resolved: Resolved, *, otherwise: str = NEVER) -> dict[int, str]:
    """The differences that the target cannot have seen turned, and why. otherwise: where it resolved no such place."""
    found = {}
    for index, atom in atoms:
        here = [each for each in resolved if (each["op"], each["model"]) == atom.place]
        if not here:
            found[index] = otherwise
        elif atom.what != CONDITIONS and not any(text_of(atom.what, each) == atom.b for each in here):
            found[index] = f"overridden by {_who(atom, here[0])}"
    return found


def _who(atom: Atom, resolved: Mapping[str, Any]) -> str:
    """The source of the value in force: the knob's own where there is one, or the preset's."""
    knob = atom.what if atom.what in (*KNOBS, "min_tokens") else "rounding_points"
    source = resolved["sources"].get(knob) or resolved["sources"]["preset"]
    return f"{source['source']}, {source['location']}"
