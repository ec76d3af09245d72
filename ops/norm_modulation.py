"""RMSNorm and adaptive layer norm's scale and shift, alone and after a gated residual."""

from torch import Tensor

from numerics.ops import stages
from numerics.ops.arithmetic import round_at
from numerics.ops.dispatch import AnyNumerics, dispatch, in_force
from numerics.ops.inputs import check_alike, check_eps, check_weight
from numerics.ops.modulation import check_rows, modulation_settings, rows_at
from numerics.ops.registry import Op
from numerics.ops.row_launch import RowPlan
from numerics.ops.stages import modulate, normalize, store
from numerics.presets.schema import Numerics


def rms_norm_indexed_scale_shift_reference(
    x: Tensor,  # [rows, N]
    weight: Tensor | None,  # [N]
    shift: Tensor,  # [groups, N]
    scale: Tensor,  # [groups, N]
    indices: Tensor,  # [rows]
    eps: float,
    *,
    numerics: Numerics,
) -> Tensor:  # [rows, N]
    """The specification of `rms_norm_indexed_scale_shift`."""
    normed = normalize(x, weight, eps, len(x), x.dtype, numerics)
    out = modulate(normed, rows_at(shift, indices), rows_at(scale, indices), x.dtype, numerics)
    return store(out, x.dtype)


def indexed_gate_rms_norm_scale_shift_reference(
    residual: Tensor,  # [rows, N]
    gate: Tensor,  # [groups, N]
    branch: Tensor,  # [rows, N]
    weight: Tensor | None,  # [N]
    shift: Tensor,  # [groups, N]
    scale: Tensor,  # [groups, N]
    indices: Tensor,  # [rows]
    eps: float,
    *,
    numerics: Numerics,
) -> tuple[Tensor, Tensor]:  # [rows, N] each
    """The specification of `indexed_gate_rms_norm_scale_shift`."""
    dtype = residual.dtype
    total = stages.gate(residual, rows_at(gate, indices), branch, dtype, numerics)
    normed = normalize(round_at("residual", total, dtype, numerics), weight, eps, len(total), dtype, numerics)
    out = modulate(normed, rows_at(shift, indices), rows_at(scale, indices), dtype, numerics)
    return store(total, dtype), store(out, dtype)


def rms_norm_indexed_scale_shift(
    x: Tensor,
    weight: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    indices: Tensor,
    eps: float,
    *,
    numerics: AnyNumerics = None,
) -> Tensor:
    """RMSNorm of each row, then norm * (1 + scale[i]) + shift[i] with i = indices[row].

    Args:
        x: [rows, N] bfloat16, float16, float32 or float64, any strides.
        weight: [N] in the dtype and on the device of x, or None for no multiplication.
        shift: [groups, N] in the dtype of x or float32.
        scale: [groups, N] in the dtype of x, or float32 where the numerics do not round `one_plus_scale` and `scaled`.
        indices: [rows] int32 or int64, below groups, which a GPU checks with NUMERICS_CHECK_INDICES=1.
        eps: added to the mean of the squares.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force.

    Returns:
        [rows, N] in the dtype of x, contiguous.

    Raises:
        InputError: a tensor has a shape, dtype, device or layout that the op does not take.
        RequirementError: a condition of the preset does not hold for these tensors.
        ConfigurationError: no such preset, or settings of another family.
    """
    numerics = in_force(NORM_SCALE_SHIFT.name, numerics, x)
    args = (x, weight, shift, scale, indices, eps)
    key, launch = NORM_SCALE_SHIFT.recall(args, numerics)
    if launch is not None:
        return NORM_SCALE_SHIFT.fused(launch, args)  # type: ignore[no-any-return]
    op, tables = NORM_SCALE_SHIFT.name, {"shift": shift, "scale": scale}
    check_rows("x", x, indices, tables)
    check_weight("weight", weight, "x", x, x.shape[1])
    check_eps(eps)
    settings = modulation_settings(op, numerics, x, tables, normed=True)
    out: Tensor = dispatch(NORM_SCALE_SHIFT, settings, *args, key=key)
    return out


def indexed_gate_rms_norm_scale_shift(
    residual: Tensor,
    gate: Tensor,
    branch: Tensor,
    weight: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    indices: Tensor,
    eps: float,
    *,
    numerics: AnyNumerics = None,
) -> tuple[Tensor, Tensor]:
    """Gated residual, residual + gate[i] * branch, and RMSNorm, scale and shift of it.

    Args:
        residual: [rows, N] bfloat16, float16, float32 or float64, any strides; it is not written to.
        gate: [groups, N] in the dtype of residual, or float32 where the numerics do not round `gate_product`.
        branch: as residual.
        weight: [N] in the dtype and on the device of residual, or None.
        shift: as for `rms_norm_indexed_scale_shift`.
        scale: the same.
        indices: [rows] int32 or int64, below groups, which a GPU checks with NUMERICS_CHECK_INDICES=1.
        eps: added to the mean of the squares.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force. The rounding point
            `residual` says whether the norm reads the sum as it is returned, or unrounded.

    Returns:
        (residual, modulated), both [rows, N] in the dtype of residual, contiguous.

    Raises:
        InputError, RequirementError, ConfigurationError: as `rms_norm_indexed_scale_shift`.
    """
    numerics = in_force(GATE_NORM_SCALE_SHIFT.name, numerics, residual)
    args = (residual, gate, branch, weight, shift, scale, indices, eps)
    key, launch = GATE_NORM_SCALE_SHIFT.recall(args, numerics)
    if launch is not None:
        return GATE_NORM_SCALE_SHIFT.fused(launch, args)  # type: ignore[no-any-return]
    op, tables = GATE_NORM_SCALE_SHIFT.name, {"gate": gate, "shift": shift, "scale": scale}
    check_rows("residual", residual, indices, tables)
    check_alike("branch", branch, "residual", residual, residual.shape)
    check_weight("weight", weight, "residual", residual, residual.shape[1])
    check_eps(eps)
    settings = modulation_settings(op, numerics, residual, tables, normed=True)
    out: tuple[Tensor, Tensor] = dispatch(GATE_NORM_SCALE_SHIFT, settings, *args, key=key)
    return out


# --- Custom ops -------------------------------------------------------------------------------------------------------


NORM_SCALE_SHIFT = Op(
    "rms_norm_indexed_scale_shift",
    "Tensor x, Tensor? weight, Tensor shift, Tensor scale, Tensor indices, float eps",
    "Tensor",
    reference=rms_norm_indexed_scale_shift_reference,
    prepare=RowPlan(x=0, weight=1, shift=2, scale=3, indices=4, eps=5),
    tokens=lambda x, *_: len(x),
    fake=lambda x, *_: x.new_empty(x.shape),
)
GATE_NORM_SCALE_SHIFT = Op(
    "indexed_gate_rms_norm_scale_shift",
    "Tensor residual, Tensor gate, Tensor branch, Tensor? weight, Tensor shift, Tensor scale, Tensor indices, "
    "float eps",
    "(Tensor, Tensor)",
    reference=indexed_gate_rms_norm_scale_shift_reference,
    prepare=RowPlan(x=0, gate=1, branch=2, weight=3, shift=4, scale=5, indices=6, eps=7),
    tokens=lambda residual, *_: len(residual),
    fake=lambda residual, *_: (residual.new_empty(residual.shape), residual.new_empty(residual.shape)),
)
