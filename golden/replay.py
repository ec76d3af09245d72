"""Compute a golden case again, count the elements that differ, and find the knobs that its bytes can see."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from numerics import ops
from numerics.errors import RequirementError
from numerics.golden.arrays import load
from numerics.golden.captured import CASES
from numerics.golden.cases import ROTATION, Case
from numerics.ops.reduction import order_of
from numerics.ops.stages import rotate, store
from numerics.presets.checks import ResolvedPreset
from numerics.presets.schema import DeclaredReduction, Numerics, Reduction
from numerics.presets.vocabulary import FAMILIES, ROUNDING_POINTS, Knob

# Arguments with a row for each row of the call; the others are shared by the rows.
BY_ROW: Final = ("x", "residual", "branch", "other", "indices")
RESULTS: Final = {
    "fused_qk_norm_rope": ("q", "k"),
    "fused_add_rms_norm": ("out", "residual"),
    "indexed_gate_rms_norm_scale_shift": ("residual", "modulated"),
}


def cases_of(preset: ResolvedPreset, reductions: Mapping[str, DeclaredReduction]) -> list[Case]:
    """The cases that the preset must return, the fewest elements first; none where it has no reference."""
    if preset.reference is None:
        return []
    numerics = preset.numerics(reductions)
    found = [case for case in CASES if case.is_of(preset.reference) and case.meets(preset.requires, numerics)]
    return sorted(found, key=lambda case: case.rows * case.width)


def run(case: Case, numerics: Numerics, device: str = "cpu", *, by_reference: bool = False) -> dict[str, Tensor]:
    """The results of the op by name, as many rows as the arrays hold. by_reference: of its eager reference.

    The op sees as many rows as the provider did; on a CPU fewer, where the order of additions is the same.
    Raises RequirementError where the numerics have no order for these rows.
    """
    rows = _fewest_rows(case, numerics) if device == "cpu" else case.rows
    given = _arguments(case, rows, device)
    if case.op == ROTATION:
        return {"out": _rotation(numerics, **given)}
    if by_reference and "head_dim" in given:
        width = given.pop("head_dim")
        given |= {name: given[name].unflatten(-1, (-1, width)) for name in "qk" if given[name].ndim == 2}
    op = f"{case.op.removesuffix('_')}_reference" if by_reference else case.op
    results = getattr(ops, op)(**given, numerics=numerics)
    names = RESULTS.get(case.op, ("out",))
    found = dict(zip(names, results if len(names) > 1 else (results,), strict=True))
    return {name: found[name][: len(load()[array])].reshape_as(load()[array]) for name, array in case.outputs.items()}


def _fewest_rows(case: Case, numerics: Numerics) -> int:
    held = len(load()[next(iter(case.outputs.values()))])
    if case.has_norm and order_of(numerics, case.width, held) != order_of(numerics, case.width, case.rows):
        return case.rows
    return min(held, case.rows)


def _arguments(case: Case, rows: int, device: str) -> dict[str, Any]:
    given: dict[str, Any] = {name: load()[array].to(device, copy=True) for name, array in case.inputs.items()}
    if "cos" in given:
        half = (case.rotary_dim or case.width) // 2
        cos, sin = (given.pop(name)[:, :half] for name in ("cos", "sin"))
        if case.table_row is not None:
            cos, sin = (x[case.table_row].expand(len(given["q"]), half) for x in (cos, sin))
        given["rope_table"] = torch.cat((cos, sin), -1)
        given |= {"interleaved": case.interleaved}
    if "q" in given:
        given["head_dim"] = case.width
    for name in given.keys() & set(BY_ROW):
        given[name] = torch.cat([given[name]] * -(-rows // len(given[name])))[:rows]
    if case.has_norm:
        given["eps"] = case.eps
    return given


def compare(case: Case, results: Mapping[str, Tensor]) -> dict[str, int]:
    """How many elements of each result differ from the provider's."""
    return {name: differing(results[name].cpu(), load()[array]) for name, array in case.outputs.items()}


def differing(x: Tensor, golden: Tensor) -> int:
    """How many bit patterns differ; computed NaNs are equal to each other, zeros of different sign are not."""
    bits = {2: torch.int16, 4: torch.int32}[golden.element_size()]
    unequal = x.view(bits) != golden.view(bits)
    return int((unequal & ~(x.isnan() & golden.isnan())).sum())


# --- What the bytes can see -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breakage:
    """A Numerics with one thing changed."""

    knob: Knob
    change: str
    numerics: Numerics


def breakages(numerics: Numerics, reductions: Mapping[str, Reduction]) -> Iterator[Breakage]:
    """Each knob broken, one at a time: the reduction by every other one and its mean, each point toggled, the rotation.

    `enable_fp_fusion` is not among them: a CPU never contracts, and a preset with a reference never allows it.
    """
    own = numerics.rms_norm_reduction
    others: dict[str, Reduction] = {name: other for name, other in reductions.items() if other != own}
    if not isinstance(own, str):
        mean = "divide" if own.mean == "multiply" else "multiply"
        others[f"mean = {mean}"] = own.model_copy(update={"mean": mean})
    for change, reduction in others.items():
        yield Breakage("rms_norm_reduction", change, _with(numerics, rms_norm_reduction=reduction))
    for point in ROUNDING_POINTS:
        points = {*numerics.rounding_points} ^ {point}
        change = f"{'with' if point in points else 'without'} {point}"
        yield Breakage("rounding_points", change, _with(numerics, rounding_points=tuple(points)))
    rotation = "separate" if numerics.rope_rotation == "complex" else "complex"
    yield Breakage("rope_rotation", rotation, _with(numerics, rope_rotation=rotation))


def witness(breakage: Breakage, cases: Iterable[Case]) -> Case | None:
    """The first case whose bytes change, or None where these cases cannot see the breakage."""
    return next((case for case in cases if _sees(case, breakage)), None)


def _sees(case: Case, breakage: Breakage) -> bool:
    try:
        return _reads(case, breakage) and any(compare(case, run(case, breakage.numerics)).values())
    except RequirementError:  # an order that is not declared for these rows
        return False


def _reads(case: Case, breakage: Breakage) -> bool:
    if breakage.knob == "rms_norm_reduction":
        return case.has_norm
    if breakage.knob == "rope_rotation":
        return case.family == "fused_qk_norm_rope"
    return breakage.change.split()[-1] in FAMILIES[case.family]


def _with(numerics: Numerics, **changes: object) -> Numerics:
    return Numerics(**{**{name: getattr(numerics, name) for name in Numerics.model_fields}, **changes})


def _rotation(numerics: Numerics, rope_table: Tensor, x: Tensor, interleaved: bool, **_: Any) -> Tensor:
    cos, sin = rope_table.chunk(2, -1)
    return store(rotate(x[:, None].float(), cos, sin, interleaved, x.dtype, numerics)[:, 0], x.dtype)
