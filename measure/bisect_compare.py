"""How far the result of one arm of `bisect` is from another's."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numerics.measure.arms import differing
from numerics.measure.bisect_target import Outcome
from numerics.measure.metrics import json_number, psnr

Difference = dict[str, Any]


def difference(found: Outcome, reference: Outcome) -> Difference:
    """As JSON values; numbers that JSON does not know are text.

    Of numbers `change`, found minus reference. Of tensors `elements`, `elements_differing` in any bit, `max_abs`, the
    lowest `psnr_db` of one tensor, and its name, `worst`; or `shapes`, where names, shapes or dtypes do not agree.
    """
    if found.tensors is None or reference.tensors is None:
        if found.value is None or reference.value is None:
            return {"shapes": "a number on one side and tensors on the other"}
        same = found.value == reference.value or (math.isnan(found.value) and math.isnan(reference.value))
        return {"change": json_number(0.0 if same else found.value - reference.value)}
    return _of_tensors(load(found.tensors), load(reference.tensors))


def load(path: Path) -> dict[str, Tensor]:
    """The tensors of an arm. They stay in the file until they are read."""
    kept: dict[str, Tensor] = torch.load(path, weights_only=True, mmap=True)["tensors"]
    return kept


def size(found: Difference) -> float:
    """The largest absolute difference, which a tolerance bounds."""
    return math.inf if "shapes" in found else abs(float(found["change"] if "change" in found else found["max_abs"]))


def is_within(found: Difference, tolerance: float) -> bool:
    """Whether two results count as equal: in every byte, or with nothing farther apart than the tolerance."""
    if found.get("elements_differing"):
        return tolerance > 0 and size(found) <= tolerance
    return size(found) <= tolerance


def _of_tensors(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Difference:
    left, right = (
        {name: f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" for name, x in side.items()}
        for side in (found, reference)
    )
    if left != right:
        name = next(each for each in (*left, *right) if left.get(each) != right.get(each))
        return {"shapes": f"{name or 'result'}: {left.get(name, 'none')}, not {right.get(name, 'none')}"}
    pairs = {name: (_real(x), _real(reference[name])) for name, x in found.items() if x.numel()}
    counts = {name: differing((x,), (y,)) for name, (x, y) in pairs.items()}
    changed = {name: pairs[name] for name, count in counts.items() if count}
    ratios = {name: psnr(x, y) for name, (x, y) in changed.items()}
    worst = min(ratios, key=lambda name: ratios[name] if math.isfinite(ratios[name]) else math.inf, default=None)
    return {
        "elements": sum(x.numel() for x in reference.values()),
        "elements_differing": sum(counts.values()),
        "max_abs": json_number(max((_max_abs(x, y) for x, y in changed.values()), default=0.0)),
        "psnr_db": json_number(math.inf if worst is None else ratios[worst]),
        "worst": worst or None,
    }


def _max_abs(x: Tensor, y: Tensor) -> float:
    """Equal infinities are no distance apart, and two NaN are not either."""
    distance = (x.double() - y.double()).abs()
    same = (x == y) | (x.isnan() & y.isnan())
    return distance.masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf).max().item()


def _real(x: Tensor) -> Tensor:
    """Real and imaginary parts as elements of their own."""
    return torch.view_as_real(x) if x.is_complex() else x
