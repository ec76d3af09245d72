"""Adaptive layer norm's tables, which rows index, applied to activations: scale and shift, and gated residual."""

from typing import Any

import torch
from torch import Tensor

from numerics.errors import InputError, RequirementError
from numerics.ops import stages
from numerics.ops.arithmetic import upcast
from numerics.ops.dispatch import AnyNumerics, Settings, dispatch, in_force, settings_for
from numerics.ops.inputs import check_activation, check_alike, check_indices, check_modulation, word
from numerics.ops.registry import Op
from numerics.ops.row_launch import RowPlan
from numerics.ops.stages import modulate, store
from numerics.presets.schema import Numerics
from numerics.presets.vocabulary import RoundingPoint

FORM = "[rows, N]"
# PyTorch rounds there unless a float32 table promotes the product.
ROUNDED: dict[str, tuple[RoundingPoint, ...]] = {"scale": ("one_plus_scale", "scaled"), "gate": ("gate_product",)}


def indexed_scale_shift_reference(
    x: Tensor,  # [rows, N]
    shift: Tensor,  # [groups, N]
    scale: Tensor,  # [groups, N]
    indices: Tensor,  # [rows]
    *,
    numerics: Numerics,
) -> Tensor:  # [rows, N]
    """The specification of `indexed_scale_shift_`, which writes this into x."""
    out = modulate(upcast(x), rows_at(shift, indices), rows_at(scale, indices), x.dtype, numerics)
    return store(out, x.dtype)


def indexed_gate_reference(
    x: Tensor,  # [rows, N]
    gate: Tensor,  # [groups, N]
    other: Tensor,  # [rows, N]
    indices: Tensor,  # [rows]
    *,
    numerics: Numerics,
) -> Tensor:  # [rows, N]
    """The specification of `indexed_gate`."""
    return store(stages.gate(x, rows_at(gate, indices), other, x.dtype, numerics), x.dtype)


def rows_at(table: Tensor, indices: Tensor) -> Tensor:
    """The row of the table that each row indexes: [groups, N], [rows] -> [rows, N]."""
    return table.index_select(0, indices)


def indexed_scale_shift_(
    x: Tensor, shift: Tensor, scale: Tensor, indices: Tensor, *, numerics: AnyNumerics = None
) -> Tensor:
    """Write x * (1 + scale[i]) + shift[i], with i = indices[row], into x and return x.

    Args:
        x: [rows, N], bfloat16, float16, float32 or float64, any strides, no two elements of which share memory;
            the tables lie elsewhere, which is not checked.
        shift: [groups, N] in the dtype of x or float32.
        scale: [groups, N] in the dtype of x, or float32 where the numerics do not round `one_plus_scale` and `scaled`.
        indices: [rows] int32 or int64, below groups, which a GPU checks with NUMERICS_CHECK_INDICES=1.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force.

    Raises:
        InputError: a tensor has a shape, dtype, device or layout that the op does not take.
        RequirementError: a condition of the preset does not hold for these tensors.
        ConfigurationError: no such preset, or settings of another family.
    """
    numerics = in_force(SCALE_SHIFT.name, numerics, x)
    args = (x, shift, scale, indices)
    key, launch = SCALE_SHIFT.recall(args, numerics)
    if launch is not None:
        SCALE_SHIFT.fused(launch, args)
        return x
    op, tables = SCALE_SHIFT.name, {"shift": shift, "scale": scale}
    check_rows("x", x, indices, tables)
    if _overlaps_itself(x):
        raise InputError(
            f"x: got strides {list(x.stride())} for shape {list(x.shape)}; elements that share memory cannot be "
            "written to: pass x.clone()"
        )
    settings = modulation_settings(op, numerics, x, tables, normed=False)
    if torch.is_grad_enabled() and any(each.requires_grad for each in (x, shift, scale)):
        # Autograd keeps the x that the gradient of scale reads.
        return x.copy_(dispatch(SCALED, settings, x.clone(), shift, scale, indices))
    dispatch(SCALE_SHIFT, settings, *args, key=key)
    return x


def indexed_gate(x: Tensor, gate: Tensor, other: Tensor, indices: Tensor, *, numerics: AnyNumerics = None) -> Tensor:
    """Gated residual: x + gate[i] * other with i = indices[row].

    Args:
        x: [rows, N] bfloat16, float16, float32 or float64, any strides.
        gate: [groups, N] in the dtype of x, or float32 where the numerics do not round `gate_product`.
        other: as x.
        indices: [rows] int32 or int64, below groups, which a GPU checks with NUMERICS_CHECK_INDICES=1.
        numerics: as for `indexed_scale_shift_`.

    Returns:
        [rows, N] in the dtype of x, contiguous.

    Raises:
        InputError, RequirementError, ConfigurationError: as `indexed_scale_shift_`.
    """
    numerics = in_force(GATE.name, numerics, x)
    args = (x, gate, other, indices)
    key, launch = GATE.recall(args, numerics)
    if launch is not None:
        return GATE.fused(launch, args)  # type: ignore[no-any-return]
    op, tables = GATE.name, {"gate": gate}
    check_rows("x", x, indices, tables)
    check_alike("other", other, "x", x, x.shape)
    settings = modulation_settings(op, numerics, x, tables, normed=False)
    out: Tensor = dispatch(GATE, settings, *args, key=key)
    return out


def _overlaps_itself(x: Tensor) -> bool:
    """Whether elements of [rows, N] share memory, or lie so that it is not plain to see that they do not."""
    (rows, width), (down, across) = x.shape, x.stride()
    if (across > 0 and down > across * (width - 1)) or (down > 0 and across > down * (rows - 1)):
        return False  # row by row, or column by column; a compiler that does not know the rows decides by the first
    if rows > 1 and width > 1:
        return True
    return (rows > 1 and down == 0) or (width > 1 and across == 0)


def check_rows(name: str, x: Tensor, indices: Tensor, tables: dict[str, Tensor]) -> None:
    """Refuse activations, tables or indices that do not belong together."""
    check_activation(name, x, FORM, (2,))
    for table_name, table in tables.items():
        check_modulation(table_name, table, name, x)
    check_indices(indices, len(x), tables)


def modulation_settings(
    op: str, numerics: AnyNumerics, x: Tensor, tables: dict[str, Tensor], *, normed: bool
) -> Settings:
    """The numerics of a call. Raises RequirementError also where they round what float32 tables promote."""
    width, rows = (x.shape[1], [len(x)]) if normed else (None, ())
    settings = settings_for(op, numerics, like=x, width=width, rows=rows)
    for name, points in ROUNDED.items():
        rounded = [point for point in points if point in settings.rounding_points]
        if rounded and name in tables and tables[name].dtype != x.dtype:
            raise RequirementError(
                f"{name}: got {word(tables[name].dtype)}; legal: {word(x.dtype)}, that of the activations, since the "
                f"numerics round {' and '.join(rounded)}, which PyTorch does not where {name} is float32"
            )
    return settings


# --- Custom ops -------------------------------------------------------------------------------------------------------


def _write_scale_shift(x: Tensor, *args: Any, numerics: Numerics) -> None:
    x.copy_(indexed_scale_shift_reference(x, *args, numerics=numerics))


SCALE_SHIFT = Op(
    "indexed_scale_shift_",
    "Tensor(a!) x, Tensor shift, Tensor scale, Tensor indices",
    "()",
    reference=_write_scale_shift,
    prepare=RowPlan(x=0, shift=1, scale=2, indices=3, in_place=True),
    tokens=lambda x, *_: len(x),
    fake=lambda *_: None,
)
SCALED = Op(  # the same into a new tensor, for autograd
    "indexed_scale_shift",
    "Tensor x, Tensor shift, Tensor scale, Tensor indices",
    "Tensor",
    reference=indexed_scale_shift_reference,
    prepare=RowPlan(x=0, shift=1, scale=2, indices=3),
    tokens=lambda x, *_: len(x),
    fake=lambda x, *_: x.new_empty(x.shape),
)
GATE = Op(
    "indexed_gate",
    "Tensor x, Tensor gate, Tensor other, Tensor indices",
    "Tensor",
    reference=indexed_gate_reference,
    prepare=RowPlan(x=0, gate=1, branch=2, indices=3),
    tokens=lambda x, *_: len(x),
    fake=lambda x, *_: x.new_empty(x.shape),
)
