"""RMSNorm of the heads of q and k, then RoPE."""

from math import prod

from torch import Tensor

from numerics.errors import InputError
from numerics.ops.arithmetic import round_at
from numerics.ops.dispatch import AnyNumerics, Decision, dispatch, in_force, settings_for
from numerics.ops.inputs import check_activation, check_alike, check_eps, check_flag, check_weight
from numerics.ops.launch import Launch
from numerics.ops.norm import rows_of
from numerics.ops.qk_geometry import count_tiles, one_batch, tile_of, wave_of, why_not
from numerics.ops.qk_kernels import _qk_norm_rope_kernel
from numerics.ops.reduction import order_of
from numerics.ops.registry import Op, parse, unfused
from numerics.ops.rope_table import MAX_HEAD_DIM, check_table, table_rows
from numerics.ops.stages import normalize, rotate, store
from numerics.presets.schema import Numerics

FORM = "[tokens, heads, head_dim], [batch, tokens, heads, head_dim], or [tokens, heads * head_dim] with head_dim given"


def fused_qk_norm_rope_reference(
    q: Tensor,  # [tokens, heads, D] or [batch, tokens, heads, D]
    k: Tensor,  # the same with its own number of heads
    q_weight: Tensor | None,  # [D]
    k_weight: Tensor | None,  # [D]
    rope_table: Tensor,  # [tokens, r], [batch * tokens, r] or [batch, tokens, r]
    eps: float,
    interleaved: bool = False,
    *,
    numerics: Numerics,
) -> tuple[Tensor, Tensor]:  # as q and k
    """The specification of `fused_qk_norm_rope`."""
    q_normed = normalize_heads(q, q_weight, eps, numerics)
    k_normed = normalize_heads(k, k_weight, eps, numerics)
    cos, sin = table_rows(rope_table, q)
    q_out = rotate(q_normed, cos, sin, interleaved, q.dtype, numerics)
    k_out = rotate(k_normed, cos, sin, interleaved, k.dtype, numerics)
    return store(q_out, q.dtype), store(k_out, k.dtype)


def normalize_heads(
    x: Tensor,  # [..., heads, D]
    weight: Tensor | None,  # [D]
    eps: float,
    numerics: Numerics,
) -> Tensor:  # [..., heads, D] float32
    """What the rotation reads."""
    return round_at("qk_norm", normalize(x, weight, eps, rows_of(x), x.dtype, numerics), x.dtype, numerics)


def fused_qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    rope_table: Tensor,
    eps: float,
    *,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    numerics: AnyNumerics = None,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of each head of q and k, then RoPE on its first rotary_dim elements (Su et al., 2021).

    Args:
        q: [tokens, heads, head_dim] or [batch, tokens, heads, head_dim], or [tokens, heads * head_dim] with head_dim
            given; bfloat16, float16, float32 or float64, any strides; head_dim at most 256.
        k: the same form, dtype and device, with its own number of heads.
        q_weight: [head_dim] in the dtype and on the device of q, or None for no multiplication.
        k_weight: the same.
        rope_table: [cos | sin], rotary_dim / 2 columns each, in the dtype of q or float32: [tokens, rotary_dim], which
            a batch shares, [batch * tokens, rotary_dim] or [batch, tokens, rotary_dim].
        eps: added to the mean of the squares.
        head_dim: of q and k; checked against their last dimension.
        rotary_dim: checked against the columns of rope_table.
        interleaved: rotate the pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force.

    Returns:
        (q, k) in the shapes and the dtype of q and k, contiguous. A token whose row of the table is (cos 1, sin
        -0.0) throughout, as packing appends it, is normalized and not rotated.

    Raises:
        InputError: a tensor has a shape, dtype, device or layout that the op does not take.
        RequirementError: a condition of the preset does not hold for these tensors.
        ConfigurationError: no such preset, or settings of another family.
    """
    numerics = in_force(OP.name, numerics, q)
    args = (q, k, q_weight, k_weight, rope_table, eps, interleaved)
    key, launch = OP.recall(args, head_dim, rotary_dim, numerics)
    if launch is not None:
        return _shaped(q, k, OP.fused(launch, args))
    q_heads, k_heads = _heads("q", q, head_dim), _heads("k", k, head_dim)
    *leading, _, width = q_heads.shape
    check_alike("k", k_heads, "q", q_heads, (*leading, k_heads.shape[-2], width))
    check_weight("q_weight", q_weight, "q", q, width)
    check_weight("k_weight", k_weight, "q", q, width)
    check_table(rope_table, "q", q, leading, width, rotary_dim)
    check_eps(eps)
    check_flag("interleaved", interleaved)
    settings = settings_for(
        "fused_qk_norm_rope",
        numerics,
        like=q,
        table_dtype=rope_table.dtype,
        width=width,
        rows=[rows_of(q_heads), rows_of(k_heads)],
    )
    made = dispatch(OP, settings, q_heads, k_heads, q_weight, k_weight, rope_table, eps, interleaved, key=key)
    return _shaped(q, k, made)


def _shaped(q: Tensor, k: Tensor, made: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return made if q.ndim > 2 else (made[0].view(q.shape), made[1].view(k.shape))


def can_fuse(
    q: Tensor,
    k: Tensor,
    rope_table: Tensor | None = None,
    eps: float | None = None,
    *,
    numerics: AnyNumerics = None,
) -> Decision:
    """Whether `fused_qk_norm_rope` would run its kernel for these tensors, which need not hold their values yet.

    eps: the one that the op will get; without it, one that is not too small for the kernel is assumed.

    Raises RequirementError where the preset's conditions do not hold, as the op does.
    """
    if eps is not None:
        check_eps(eps)
    table_dtype = None if rope_table is None else rope_table.dtype
    rows = [rows_of(q), rows_of(k)]
    settings = settings_for(OP.name, numerics, like=q, table_dtype=table_dtype, width=q.shape[-1], rows=rows)
    tokens = prod(q.shape[:-2])
    reason = unfused(tokens, settings.min_tokens, eps) or why_not(q, k, rope_table, parse(settings.text))
    return Decision(fused=reason is None, reason=reason or "")


def check_head_dim(name: str, head_dim: int) -> None:
    """Refuse heads that the kernels cannot hold."""
    if head_dim > MAX_HEAD_DIM:
        raise InputError(f"{name}: got heads of {head_dim} elements; legal: at most {MAX_HEAD_DIM}")


def _heads(name: str, x: Tensor, head_dim: int | None) -> Tensor:
    """[..., heads, head_dim], of whatever form came."""
    if head_dim is not None and head_dim < 1:
        raise InputError(f"head_dim: got {head_dim}; legal: the elements of a head, 1 to {MAX_HEAD_DIM}")
    check_activation(name, x, FORM, (2, 3, 4) if head_dim else (3, 4))
    width = x.shape[-1] if head_dim is None else head_dim
    if x.ndim == 2 and x.shape[1] % width == 0:
        x = x.unflatten(1, (-1, width))
    if x.shape[-1] != width:
        raise InputError(f"{name}: got shape {list(x.shape)}; legal: {FORM}; head_dim is {head_dim}")
    check_head_dim(name, width)
    return x


# --- Custom op --------------------------------------------------------------------------------------------------------


def _prepare(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    rope_table: Tensor,
    eps: float,
    interleaved: bool,
    *,
    numerics: Numerics,
) -> Launch | str:
    if reason := why_not(q, k, rope_table, numerics):
        return reason
    batch, tokens, ((q_strides, k_strides), table_strides) = one_batch((q, k), rope_table)
    q_heads, k_heads, width = q.shape[-2], k.shape[-2], q.shape[-1]
    rows, num_warps = tile_of((q_heads, k_heads), width, q.element_size(), batch * tokens, interleaved=interleaved)
    return Launch(
        kernel=_qk_norm_rope_kernel,
        inputs=(0, 1, 2, 3, 4),
        outputs=(q.shape, k.shape),
        returns=(0, 1),
        programs=count_tiles(tokens, q_heads, rows) + count_tiles(tokens, k_heads, rows),
        batch=batch,
        scalars=(tokens, *q_strides, *k_strides, *table_strides, eps),
        constants={
            "Q_HEADS": q_heads,
            "K_HEADS": k_heads,
            "HEAD_DIM": width,
            "ROTARY_DIM": rope_table.shape[-1],
            "ROWS": rows,
            "WAVE": wave_of(rows, num_warps, width, q.element_size()),
            "Q_RMS_NORM_REDUCTION": order_of(numerics, width, rows_of(q)),
            "K_RMS_NORM_REDUCTION": order_of(numerics, width, rows_of(k)),
            "ROUNDING_POINTS": numerics.rounding_points,
            "ROPE_ROTATION": numerics.rope_rotation,
            "INTERLEAVED": interleaved,
            "HAS_Q_WEIGHT": q_weight is not None,
            "HAS_K_WEIGHT": k_weight is not None,
        },
        num_warps=num_warps,
        enable_fp_fusion=numerics.enable_fp_fusion,
    )


def _fake(q: Tensor, k: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


OP = Op(
    "fused_qk_norm_rope",
    "Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor rope_table, float eps, bool interleaved",
    "(Tensor, Tensor)",
    reference=fused_qk_norm_rope_reference,
    prepare=_prepare,
    tokens=lambda q, *_: prod(q.shape[:-2]),
    fake=_fake,
)
