"""`numerics verify`: every preset that claims a reference, computed on a CPU and compared with the provider's bytes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from numerics.cli import words
from numerics.cli.render import DIFFERENT, FINE, NOTHING_VERIFIED, heading, table
from numerics.errors import ConfigurationError, nearest
from numerics.golden.arrays import load
from numerics.golden.cases import Case
from numerics.golden.replay import breakages, cases_of, compare, differing, run, witness
from numerics.layers import family_of
from numerics.presets import properties
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import Catalog
from numerics.presets.schema import Numerics, Reduction

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor

VERIFIED: Final = "verified"
DIFFERS: Final = "differs"
UNSEEABLE: Final = "enable_fp_fusion"  # a CPU contracts nothing, and a preset with a reference never asks for it
Found = dict[str, Any]


def chosen(catalog: Catalog, names: Sequence[str]) -> list[ResolvedPreset]:
    """The presets of these names, or all that claim a reference. Raises ConfigurationError for an unknown name."""
    if not names:
        return [preset for preset in catalog.presets.values() if preset.reference is not None]
    for name in names:
        if name not in catalog.presets:
            raise ConfigurationError(f"preset {name!r}: no such preset{nearest(name, catalog.presets)}")
    return [catalog.presets[name] for name in dict.fromkeys(names)]


def verified(catalog: Catalog, preset: ResolvedPreset, op: str | None) -> Found:
    """What became of one preset, as JSON values. Without golden bytes, of this op if one is given, nothing did."""
    family = None if op is None else family_of(op)
    cases = [case for case in cases_of(preset, catalog.reductions) if family in (None, case.family)]
    reference = preset.reference
    found: Found = {
        "preset": preset.name,
        "reference": reference and {"provider": reference.provider, "versions": reference.versions},
        "status": words.DECLARED if reference else words.NO_CLAIM,
        "cases": len(cases),
        "rows": 0,
        "elements": 0,
        "differing": 0,
    }
    if not cases:
        return found
    numerics = preset.numerics(catalog.reductions)
    differences = []
    for case in cases:
        results = run(case, numerics)
        for output, count in compare(case, results).items():
            found["elements"] += results[output].numel()
            found["rows"] += results[output].numel() // case.width
            found["differing"] += count
            if count:
                differences.append(_first(case, output, results))
    found["status"] = DIFFERS if differences else VERIFIED
    found["differences"] = differences
    orders = {name: reduction.bits for name, reduction in catalog.reductions.items()}
    if not differences:  # a byte that differs anyway shows nothing
        found["sees"], found["cannot_see"] = _seen(orders, numerics, cases)
    return found


def exit_code(found: list[Found]) -> int:
    """1 if anything differs, 5 if nothing was compared."""
    if any(each["status"] == DIFFERS for each in found):
        return DIFFERENT
    return FINE if any(each["status"] == VERIFIED for each in found) else NOTHING_VERIFIED


def _first(case: Case, output: str, results: Mapping[str, Tensor]) -> dict[str, Any]:
    """The first element that differs, and both values."""
    computed, golden = results[output].flatten(), load()[case.outputs[output]].flatten()
    at = bisect_left(range(len(golden)), 1, key=lambda i: differing(computed[: i + 1], golden[: i + 1]))
    index: list[int] = []
    rest = at
    for size in reversed(results[output].shape):
        rest, position = divmod(rest, size)
        index.insert(0, position)
    return {
        "case": case.name,
        "output": output,
        "index": index,
        "provider": _json_number(golden[at].item()),
        "computed": _json_number(computed[at].item()),
    }


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no word for infinities and NaN


def _seen(
    reductions: Mapping[str, Reduction], numerics: Numerics, cases: list[Case]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For each knob, the changes that alter a byte of these cases, and those that do not.

    An order that is the same tree in all of them, or holds in none, is no change.
    """
    sees: dict[str, list[str]] = {}
    blind: dict[str, list[str]] = {}
    for breakage in breakages(numerics, reductions):
        if breakage.knob == "rms_norm_reduction" and not any(
            _parts(numerics, breakage.numerics, case) for case in cases
        ):
            continue
        side = blind if witness(breakage, cases) is None else sees
        side.setdefault(breakage.knob, []).append(breakage.change)
    return sees, blind


def _parts(a: Numerics, b: Numerics, case: Case) -> bool:
    """Whether two orders are declared for the rows of a case and are not the same there."""
    left, right = a.rms_norm_reduction, b.rms_norm_reduction
    if isinstance(left, str) or isinstance(right, str) or not properties.holds(right, case.width, case.rows):
        return False
    return not properties.same_bytes(left.order(case.width, case.rows), right.order(case.width, case.rows))


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: list[Found]) -> Iterator[RenderableType]:
    """Bytes, then differences, then what the bytes can see, then what was only declared."""
    compared = [each for each in found if each["cases"]]
    if compared:
        columns = ["preset", "reference", "cases", "rows", "elements", "differ"]
        yield table(columns, map(_counts, compared), whole=["preset"], right=columns[2:])
    for each in compared:
        if each["status"] == DIFFERS:
            yield ""
            yield heading(f"{each['preset']} differs", f" from {_claim(each)}")
            yield table(["  case", "output", "index", "provider", "computed"], map(_values, each["differences"]))
    if good := [each for each in compared if each["status"] == VERIFIED]:
        yield ""
        yield heading("What these bytes can see", ": a change of the knob changes at least one of them")
        yield table(["preset", "sees", "does not see"], map(_knobs, good), whole=["preset"])
    if rest := [each for each in found if not each["cases"]]:
        yield ""
        yield heading("Not verified", ": no golden bytes")
        yield table(["preset", "reference", ""], [(each["preset"], _claim(each), each["status"]) for each in rest])
    yield ""
    yield _summary(compared, rest)


def _summary(compared: list[Found], rest: list[Found]) -> str:
    good = sum(each["status"] == VERIFIED for each in compared)
    elements, differ = (sum(each[what] for each in compared) for what in ("elements", "differing"))
    bytes_differ = f"{differ} of {elements} elements differ"
    return f"{good} verified, {len(compared) - good} differ, {len(rest)} not verified; {bytes_differ}"


def _claim(each: Found) -> str:
    reference = each["reference"]
    return f"{reference['provider']} {reference['versions']}" if reference else words.NO_CLAIM


def _counts(each: Found) -> tuple[str, ...]:
    return each["preset"], _claim(each), *(str(each[what]) for what in ("cases", "rows", "elements", "differing"))


def _values(first: dict[str, Any]) -> tuple[str, ...]:
    index = f"[{', '.join(map(str, first['index']))}]"
    return f"  {first['case']}", first["output"], index, repr(first["provider"]), repr(first["computed"])


def _knobs(each: Found) -> tuple[str, str, str]:
    sees, blind = each["sees"], each["cannot_see"]
    seen, unseen = sees.get("rms_norm_reduction", []), blind.get("rms_norm_reduction", [])
    orders = [f"rms_norm_reduction ({len(seen)} of {len(seen) + len(unseen)} other orders)"] if seen else []
    return (
        each["preset"],
        words.listed([*orders, *_others(sees)]),
        words.listed([*_others(blind), UNSEEABLE, *(f"order {name}" for name in unseen)]),
    )


def _others(side: dict[str, list[str]]) -> Iterator[str]:
    yield from (knob for knob in side if knob == "rope_rotation")
    yield from (change.split()[-1] for change in side.get("rounding_points", []))
