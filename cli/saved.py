"""Saved output of `numerics show --json`: read back, and compared setting by setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numerics.cli import words
from numerics.cli.render import grid, heading
from numerics.errors import ConfigurationError
from numerics.measure.result import records
from numerics.presets.vocabulary import KNOBS

if TYPE_CHECKING:
    from rich.console import RenderableType

Setting = dict[str, Any]
Difference = dict[str, Any]  # op, model, on (the capability of a `when` row), what, a, b
Place = tuple[str, str | None, str | None]  # op, model, on

COMMAND: Final = "numerics show --json"
# What is compared beside the knobs, in this order. Sources are not: who set a value does not change it.
FIELDS: Final = ("capability", "preset", "modified", "min_tokens", "reference")
NEEDED: Final = ("op", "model", "capability", "preset", "numerics", "min_tokens", "fingerprint")
NAMES: Final = ("model", "op", "preset", "fingerprint")


def read(path: Path) -> list[Setting]:
    """The settings in a saved file. Raises ConfigurationError if it is not one."""
    found = records(path, COMMAND, NEEDED, how="")
    for index, setting in enumerate(found):
        parts: list[Any] = [setting, *_when(setting)]
        for each in parts:
            if missing := [key for key in NEEDED if not isinstance(each, dict) or key not in each]:
                raise ConfigurationError(f"{path}: record {index}: not from {COMMAND}: no {missing[0]!r}")
            of_any_model = each["model"] is None
            if wrong := [key for key in NAMES[of_any_model:] if not isinstance(each[key], str)]:
                raise ConfigurationError(f"{path}: record {index}: {wrong[0]}: got {each[wrong[0]]!r}, not a name")
            if not isinstance(each["numerics"], dict):
                raise ConfigurationError(f"{path}: record {index}: numerics: got {each['numerics']!r}, not a table")
    return found


def differences(a: list[Setting], b: list[Setting]) -> list[Difference]:
    """What differs between two lists of settings: where, which value, and both values."""
    left, right = dict(_flat(a)), dict(_flat(b))
    found: list[Difference] = []
    for place in dict.fromkeys((*left, *right)):
        if place in left and place in right:
            found += [difference(place, *each) for each in _changed(left[place], right[place])]
        else:
            present = ("present" if place in side else None for side in (left, right))
            found.append(difference(place, "setting", *present))
    return found


def difference(place: Place, what: str, a: Any, b: Any) -> Difference:
    """One difference, as it stands in JSON."""
    op, model, on = place
    return {"op": op, "model": model, "on": on, "what": what, "a": a, "b": b}


def _changed(a: Setting, b: Setting) -> Iterator[tuple[str, Any, Any]]:
    yield from ((field, a.get(field), b.get(field)) for field in FIELDS if a.get(field) != b.get(field))
    left, right = a["numerics"], b["numerics"]
    knobs = [knob for knob in dict.fromkeys((*KNOBS, *left, *right)) if left.get(knob) != right.get(knob)]
    yield from ((knob, left.get(knob), right.get(knob)) for knob in knobs)
    if a["fingerprint"] != b["fingerprint"] and not knobs:
        # All names are equal, so that a declaration behind one of them is not.
        yield "fingerprint", a["fingerprint"], b["fingerprint"]


def _flat(settings: list[Setting]) -> Iterator[tuple[Place, Setting]]:
    for setting in settings:
        op, model = setting["op"], setting["model"]
        yield (op, model, None), setting
        for row in _when(setting):
            yield (op, model, row["capability"]), row


def _when(setting: Any) -> list[Setting]:
    rows = setting.get("when", []) if isinstance(setting, Mapping) else []
    return rows if isinstance(rows, list) else []


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: list[Difference]) -> Iterator[RenderableType]:
    """Differences by family; models that differ alike stand together."""
    places: dict[Place, list[tuple[str, str]]] = {}
    for each in found:
        change = f"{words.value(each['a'])} -> {words.value(each['b'])}"
        places.setdefault((each["op"], each["model"], each["on"]), []).append((each["what"], change))
    alike: dict[tuple[Any, ...], list[str]] = {}
    for (op, model, on), changes in places.items():
        name = (model or "any other model") + (f" on {on}" if on else "")
        alike.setdefault((op, *changes), []).append(name)
    for (op, *changes), models in alike.items():
        yield ""
        yield heading(op, f": {words.listed(models)}")
        yield grid(changes)
