"""RMSNorm, and RMSNorm of a sum that is kept as the next residual."""

from math import prod

from torch import Tensor

from numerics.ops.arithmetic import round_at, upcast
from numerics.ops.dispatch import AnyNumerics, dispatch, in_force, settings_for
from numerics.ops.inputs import check_activation, check_alike, check_eps, check_weight
from numerics.ops.registry import Op
from numerics.ops.row_launch import RowPlan
from numerics.ops.stages import normalize, store
from numerics.presets.schema import Numerics

ANY_RANK = None


def rms_norm_reference(
    x: Tensor,  # [..., N]
    weight: Tensor | None,  # [N]
    eps: float,
    *,
    numerics: Numerics,
) -> Tensor:  # [..., N]
    """The specification of `rms_norm`."""
    return store(normalize(x, weight, eps, rows_of(x), x.dtype, numerics), x.dtype)


def fused_add_rms_norm_reference(
    x: Tensor,  # [..., N]
    residual: Tensor,  # [..., N]
    weight: Tensor | None,  # [N]
    eps: float,
    *,
    numerics: Numerics,
) -> tuple[Tensor, Tensor]:  # [..., N] each
    """The specification of `fused_add_rms_norm`."""
    total = upcast(x) + upcast(residual)
    normed = round_at("residual", total, x.dtype, numerics)
    out = normalize(normed, weight, eps, rows_of(x), x.dtype, numerics)
    return store(out, x.dtype), store(total, x.dtype)


def rows_of(x: Tensor) -> int:
    """The rows that an unfused norm of the last dimension sees."""
    return prod(x.shape[:-1])


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, numerics: AnyNumerics = None) -> Tensor:
    """RMSNorm over the last dimension: x / sqrt(mean(x * x) + eps) * weight (Zhang and Sennrich, 2019).

    Args:
        x: [..., N] bfloat16, float16, float32 or float64, any strides.
        weight: [N] in the dtype and on the device of x, or None for no multiplication.
        eps: added to the mean of the squares.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force.

    Returns:
        [..., N] in the dtype of x, contiguous.

    Raises:
        InputError: a tensor has a shape, dtype, device or layout that the op does not take.
        RequirementError: a condition of the preset does not hold for these tensors.
        ConfigurationError: no such preset, or settings of another family.
    """
    numerics = in_force(NORM.name, numerics, x)
    key, launch = NORM.recall((x, weight, eps), numerics)
    if launch is not None:
        return NORM.fused(launch, (x, weight, eps))  # type: ignore[no-any-return]
    check_activation("x", x, "[..., N]", ANY_RANK)
    check_weight("weight", weight, "x", x, x.shape[-1])
    check_eps(eps)
    settings = settings_for("rms_norm", numerics, like=x, width=x.shape[-1], rows=[rows_of(x)])
    out: Tensor = dispatch(NORM, settings, x, weight, eps, key=key)
    return out


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, *, numerics: AnyNumerics = None
) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, and the sum itself.

    Args:
        x: [..., N] bfloat16, float16, float32 or float64, any strides.
        residual: the same shape, dtype and device; it is not written to.
        weight: [N] in the dtype and on the device of x, or None.
        eps: added to the mean of the squares.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force. The rounding point
            `residual` says whether the norm reads the sum as it is returned, or unrounded.

    Returns:
        (out, residual), both [..., N] in the dtype of x, contiguous.

    Raises:
        InputError, RequirementError, ConfigurationError: as `rms_norm`.
    """
    numerics = in_force(ADD_NORM.name, numerics, x)
    args = (x, residual, weight, eps)
    key, launch = ADD_NORM.recall(args, numerics)
    if launch is not None:
        return ADD_NORM.fused(launch, args)  # type: ignore[no-any-return]
    check_activation("x", x, "[..., N]", ANY_RANK)
    check_alike("residual", residual, "x", x, x.shape)
    check_weight("weight", weight, "x", x, x.shape[-1])
    check_eps(eps)
    settings = settings_for("fused_add_rms_norm", numerics, like=x, width=x.shape[-1], rows=[rows_of(x)])
    out: tuple[Tensor, Tensor] = dispatch(ADD_NORM, settings, *args, key=key)
    return out


# --- Custom ops -------------------------------------------------------------------------------------------------------


NORM = Op(
    "rms_norm",
    "Tensor x, Tensor? weight, float eps",
    "Tensor",
    reference=rms_norm_reference,
    prepare=RowPlan(x=0, weight=1, eps=2),
    tokens=lambda x, *_: rows_of(x),
    fake=lambda x, *_: x.new_empty(x.shape),
)
ADD_NORM = Op(
    "fused_add_rms_norm",
    "Tensor x, Tensor residual, Tensor? weight, float eps",
    "(Tensor, Tensor)",
    reference=fused_add_rms_norm_reference,
    prepare=RowPlan(x=0, branch=1, weight=2, eps=3),
    tokens=lambda x, *_: rows_of(x),
    fake=lambda x, *_: (x.new_empty(x.shape), x.new_empty(x.shape)),
)
