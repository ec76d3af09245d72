"""The environment as a source of settings: which variables exist and how their text is read.

Nothing is read at import. Blank is unset, surrounding blanks are stripped, names are case-sensitive. A value is
`PRESET,knob=value,...`, where either part may be missing: knobs alone keep the preset of weaker sources. Elements of a
list join with `+`; the empty list is `none`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from numerics.errors import ConfigurationError, nearest
from numerics.layers import EMPTY_LIST, Layer, checked_layer
from numerics.presets.vocabulary import FAMILIES, KNOBS, MAX_TOKENS, Family

CONFIG: Final = "NUMERICS_CONFIG"
STRICT: Final = "NUMERICS_STRICT"
CHECK_INDICES: Final = "NUMERICS_CHECK_INDICES"
INSTALL: Final = "NUMERICS_INSTALL"
ENGINES: Final = ("vllm_omni", "vllm")  # what INSTALL can name; 1 is the first
RECORD: Final = "NUMERICS_RECORD"
MAX_EDITS: Final = 2  # a variable this close to a known one is a slip of the pen
BLANKS: Final = " \t\r\n"
# The mapping below os.environ, where this Python has it: read on every call, never written.
_SET: Final[Mapping[bytes, bytes] | None] = getattr(os.environ, "_data", None) if os.name == "posix" else None
DIGITS: Final = re.compile(r"[0-9]+")


class Variables(NamedTuple):
    """The names of a family's variables, or their text."""

    numerics: str | None
    min_tokens: str | None


VARIABLES: Final[dict[Family, Variables]] = {
    family: Variables(f"VLLM_OMNI_{family.upper()}_NUMERICS", f"VLLM_OMNI_{family.upper()}_MIN_TOKENS")
    for family in FAMILIES
}
KNOWN: Final = (
    *(name for names in VARIABLES.values() for name in names if name),
    CONFIG,
    STRICT,
    CHECK_INDICES,
    RECORD,
    INSTALL,
)


_RAW_NAMES: Final = {
    family: tuple(os.fsencode(name) for name in (*names, CONFIG) if name) for family, names in VARIABLES.items()
}


def text(name: str) -> str | None:
    """The variable without surrounding blanks; None if it is unset or blank."""
    if _SET is not None and os.fsencode(name) not in _SET:
        return None  # the usual case, which os.environ.get answers in a microsecond: by an exception
    value = os.environ.get(name)
    return None if value is None else value.strip(BLANKS) or None


def texts(family: Family) -> Variables:
    """The text of the family's variables, not yet parsed."""
    names = VARIABLES[family]
    return Variables(text(names.numerics or ""), text(names.min_tokens or ""))


def raw(family: Family) -> tuple[bytes | str | None, ...]:
    """All that resolving a family reads here, unparsed: equal while no variable changes, and quick to ask for."""
    if _SET is None:
        return (*texts(family), config())
    get = _SET.get
    return tuple([get(name) for name in _RAW_NAMES[family]])


def read(family: Family) -> tuple[Layer, ...]:
    """What the environment says about the family: at most one layer a variable. Raises ConfigurationError."""
    return parse(family, texts(family))


def parse(family: Family, values: Variables) -> tuple[Layer, ...]:
    """The layers of these texts. Raises ConfigurationError, naming the variable and what is legal."""
    names, layers = VARIABLES[family], []
    if values.numerics is not None and names.numerics is not None:
        layers.append(_numerics(names.numerics, values.numerics))
    if values.min_tokens is not None and names.min_tokens is not None:
        layers.append(_min_tokens(names.min_tokens, values.min_tokens))
    return tuple(layers)


def config() -> str | None:
    """The path of the user's file, or None."""
    return text(CONFIG)


def record() -> str | None:
    """The path of the file to which each new resolution is added, or None."""
    return text(RECORD)


def strict() -> bool:
    """Whether an op that cannot take its fused kernel raises. Raises ConfigurationError for anything but 1 or 0."""
    return _flag(STRICT)


def checks_indices() -> bool:
    """Whether ops read indices on a GPU to see their range. Raises ConfigurationError for anything but 1 or 0."""
    return _flag(CHECK_INDICES)


def installs() -> tuple[str, ...]:
    """The engines that our plugin of vLLM installs the ops in: none unless asked for.

    Raises ConfigurationError for anything but 1, 0, or names of engines joined by commas.
    """
    value = text(INSTALL) or "0"
    if value in ("0", "1"):
        return ENGINES[: int(value)]
    named = [name.strip(BLANKS) for name in value.split(",")]
    for name in named:
        if name not in ENGINES:
            known = nearest(name, ENGINES)
            raise ConfigurationError(
                f"{INSTALL}={value!r}: {name!r} is no engine{known}; write 1 for {ENGINES[0]}, 0 or nothing for none, "
                "or names joined by commas"
            )
    return tuple(name for name in ENGINES if name in named)


def _flag(name: str) -> bool:
    value = text(name)
    if value not in (None, "0", "1"):
        raise ConfigurationError(f"{name}={value!r}: write 1, or 0 or nothing")
    return value == "1"


def near_misses() -> Iterator[tuple[str, str]]:
    """Variables that are set, not known, and within two edits of a known one, each with that one."""
    for name, value in os.environ.items():
        if name in KNOWN or not value.strip(BLANKS):
            continue
        for known in KNOWN:
            if _edits(name, known) <= MAX_EDITS:
                yield name, known


def check_names() -> None:
    """Raises ConfigurationError if the name of a variable nearly is a known one, which nothing would read."""
    if problems := [f"{name}: no such variable; nearest: {known}" for name, known in near_misses()]:
        raise ConfigurationError("\n".join([*problems, f"Known: {', '.join(KNOWN)}"]))


def check() -> None:
    """Raises ConfigurationError if any variable of this package is misspelt or has an illegal value."""
    check_names()
    strict()
    checks_indices()
    installs()
    for family in FAMILIES:
        read(family)


def _numerics(name: str, value: str) -> Layer:
    preset: str | None = None
    knobs: dict[str, object] = {}
    who = f"(environment, {name})"
    for position, part in enumerate(value.split(",")):
        knob, equals, setting = (piece.strip(BLANKS) for piece in part.partition("="))
        if not equals and position == 0 and knob:
            preset = knob
        elif not equals or not knob:
            raise ConfigurationError(
                f"{part.strip(BLANKS)!r} in {value!r} {who}: write PRESET,knob=value,...; knobs: {', '.join(KNOBS)}"
            )
        elif knob in knobs:
            raise ConfigurationError(f"{knob} in {value!r} {who}: stands twice")
        else:
            knobs[knob] = _knob(knob, setting, who)
    return checked_layer(Layer("environment", name, preset, tuple(knobs.items())))  # type: ignore[arg-type]  # checked


def _knob(knob: str, value: str, who: str) -> object:
    if not value:
        hint = f"; an empty list is {EMPTY_LIST}" if knob == "rounding_points" else ""
        raise ConfigurationError(f"{knob} {who}: has no value{hint}")
    if knob == "enable_fp_fusion":
        return {"true": True, "false": False}.get(value, value)
    if knob == "rounding_points":
        return [] if value == EMPTY_LIST else [point.strip(BLANKS) for point in value.split("+")]
    return value


def _min_tokens(name: str, value: str) -> Layer:
    if DIGITS.fullmatch(value) is None or len(value) > len(str(MAX_TOKENS)):
        legal = f"write a number in the digits 0 to 9, at most {MAX_TOKENS}"
        raise ConfigurationError(f"min_tokens {value!r} (environment, {name}): {legal}")
    return Layer("environment", name, min_tokens=int(value))


def _edits(a: str, b: str) -> int:
    """Insertions, deletions and replacements between two texts, counted to MAX_EDITS + 1."""
    if abs(len(a) - len(b)) > MAX_EDITS:
        return MAX_EDITS + 1
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        above, row = row, [i]
        for j, right in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (left != right)))
        if min(row) > MAX_EDITS:  # it never falls again
            break
    return min(row[-1], MAX_EDITS + 1)
