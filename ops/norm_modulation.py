"""RMSNorm and adaptive layer norm's scale and shift, alone and after a gated residual."""

from torch import Tensor

from numerics.ops import stages
from numerics.ops.arithmetic import round_at
from numerics.ops.dispatch import AnyNumerics, dispatch
from numerics.ops.inputs import check_alike, check_eps, check_weight
from numerics.ops.modulation import check_rows, modulation_settings, rows_at
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
        indices: [rows] int32 or int64, below groups; on a GPU that is not checked.
        eps: added to the mean of the squares.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force.

    Returns:
        [rows, N] in the dtype of x, contiguous.

    Raises:
        InputError: a tensor has a shape, dtype, device or layout that the op does not take.
        RequirementError: a condition of the preset does not hold for these tensors.
        ConfigurationError: no such preset, or settings of another family.
    """
    op, tables = "rms_norm_indexed_scale_shift", {"shift": shift, "scale": scale}
    check_rows("x", x, indices, tables)
    check_weight("weight", weight, "x", x, x.shape[1])
    check_eps(eps)
    settings = modulation_settings(op, numerics, x, tables, normed=True)
    reference = rms_norm_indexed_scale_shift_reference
    out: Tensor = dispatch(op, reference, settings, x, weight, shift, scale, indices, eps, tokens=len(x))
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
        indices: [rows] int32 or int64, below groups; on a GPU that is not checked.
        eps: added to the mean of the squares.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force. The rounding point
            `residual` says whether the norm reads the sum as it is returned, or unrounded.

    Returns:
        (residual, modulated), both [rows, N] in the dtype of residual, contiguous.

    Raises:
        InputError, RequirementError, ConfigurationError: as `rms_norm_indexed_scale_shift`.
    """
    op, tables = "indexed_gate_rms_norm_scale_shift", {"gate": gate, "shift": shift, "scale": scale}
    check_rows("residual", residual, indices, tables)
    check_alike("branch", branch, "residual", residual, residual.shape)
    check_weight("weight", weight, "residual", residual, residual.shape[1])
    check_eps(eps)
    settings = modulation_settings(op, numerics, residual, tables, normed=True)
    reference = indexed_gate_rms_norm_scale_shift_reference
    tensors = (residual, gate, branch, weight, shift, scale, indices)
    out: tuple[Tensor, Tensor] = dispatch(op, reference, settings, *tensors, eps, tokens=len(residual))
    return out
