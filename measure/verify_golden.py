"""A preset against the packaged bytes of its provider, and which changes of a knob those bytes can see."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from numerics.golden.arrays import load
from numerics.golden.cases import ROTATION, Case
from numerics.golden.replay import breakages, cases_of, run, witness
from numerics.measure.arms import poison
from numerics.measure.verify_tally import Results, Tally
from numerics.presets import properties
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import Catalog
from numerics.presets.schema import Numerics, Reduction

STAGE: Final = "fused_qk_norm_rope"  # the op to whose records a stage alone belongs


def golden_cases(catalog: Catalog, preset: ResolvedPreset, ops: Sequence[str]) -> list[Case]:
    """The cases of these ops that the preset must return."""
    return [case for case in cases_of(preset, catalog.reductions) if op_of(case) in ops]


def op_of(case: Case) -> str:
    """The op to whose records a case belongs."""
    return STAGE if case.op == ROTATION else case.op


def replayed(case: Case, numerics: Numerics, device: torch.device, *, by_reference: bool) -> Tally:
    """The op, or its eager reference, on the inputs of a case; its memory held NaN before."""
    where = str(device) if device.type != "cpu" else "cpu"
    poison(tuple(run(case, numerics, where, by_reference=by_reference).values()))
    results: Results = run(case, numerics, where, by_reference=by_reference)
    tally = Tally()
    tally.compare({name: x.cpu() for name, x in results.items()}, {name: load()[a] for name, a in case.outputs.items()})
    return tally


# --- What the bytes can see -------------------------------------------------------------------------------------------


def seen(
    reductions: Mapping[str, Reduction], numerics: Numerics, cases: list[Case]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For each knob, the changes that alter a byte of these cases, and those that do not.

    An order that is the same tree in all of them, or holds in none, is no change.
    """
    sees: dict[str, list[str]] = {}
    blind: dict[str, list[str]] = {}
    for breakage in breakages(numerics, reductions):
        if breakage.knob == "rms_norm_reduction" and not any(_part(numerics, breakage.numerics, cases)):
            continue
        side = blind if witness(breakage, cases) is None else sees
        side.setdefault(breakage.knob, []).append(breakage.change)
    return sees, blind


def _part(a: Numerics, b: Numerics, cases: list[Case]) -> Iterator[bool]:
    """For each case whether two orders are declared for its rows and are not the same there."""
    left, right = a.rms_norm_reduction, b.rms_norm_reduction
    for case in cases:
        if isinstance(left, str) or isinstance(right, str) or not properties.holds(right, case.width, case.rows):
            yield False
        else:
            yield not properties.same_bytes(left.order(case.width, case.rows), right.order(case.width, case.rows))
