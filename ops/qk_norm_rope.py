"""RMSNorm of the heads of q and k, then RoPE."""

from math import prod

from torch import Tensor

from numerics.errors import InputError
from numerics.ops.arithmetic import round_at
from numerics.ops.dispatch import AnyNumerics, dispatch, settings_for
from numerics.ops.inputs import check_activation, check_alike, check_eps, check_weight
from numerics.ops.norm import rows_of
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
    *,
    interleaved: bool = False,
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
        (q, k) in the shapes and the dtype of q and k, contiguous. A pair whose cos is 1 and sin is 0 is the normalized
        pair, unchanged.

    Raises:
        InputError: a tensor has a shape, dtype, device or layout that the op does not take.
        RequirementError: a condition of the preset does not hold for these tensors.
        ConfigurationError: no such preset, or settings of another family.
    """
    q_heads, k_heads = _heads("q", q, head_dim), _heads("k", k, head_dim)
    *leading, _, width = q_heads.shape
    check_alike("k", k_heads, "q", q_heads, (*leading, k_heads.shape[-2], width))
    check_weight("q_weight", q_weight, "q", q, width)
    check_weight("k_weight", k_weight, "q", q, width)
    check_table(rope_table, "q", q, leading, width, rotary_dim)
    check_eps(eps)
    settings = settings_for(
        "fused_qk_norm_rope",
        numerics,
        device=q.device,
        dtype=q.dtype,
        table_dtype=rope_table.dtype,
        width=width,
        rows=[rows_of(q_heads), rows_of(k_heads)],
    )
    q_out, k_out = dispatch(
        "fused_qk_norm_rope",
        fused_qk_norm_rope_reference,
        settings,
        q_heads,
        k_heads,
        q_weight,
        k_weight,
        rope_table,
        eps,
        interleaved=interleaved,
        tokens=prod(leading),
    )
    return q_out.view(q.shape), k_out.view(k.shape)


def check_head_dim(name: str, head_dim: int) -> None:
    """Refuse heads that the kernels cannot hold."""
    if head_dim > MAX_HEAD_DIM:
        raise InputError(f"{name}: got heads of {head_dim} elements; legal: at most {MAX_HEAD_DIM}")


def _heads(name: str, x: Tensor, head_dim: int | None) -> Tensor:
    """[..., heads, head_dim], of whatever form came."""
    check_activation(name, x, FORM, (2, 3, 4) if head_dim else (3, 4))
    width = x.shape[-1] if head_dim is None else head_dim
    if x.ndim == 2 and x.shape[1] % width == 0:
        x = x.unflatten(1, (-1, width))
    if x.shape[-1] != width:
        raise InputError(f"{name}: got shape {list(x.shape)}; legal: {FORM}; head_dim is {head_dim}")
    check_head_dim(name, width)
    return x
