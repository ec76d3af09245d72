"""RMSNorm of the heads of a text and an image stream, joined into one sequence, then RoPE."""

import torch
from torch import Tensor

from numerics.ops.dispatch import AnyNumerics, dispatch, in_force, settings_for
from numerics.ops.inputs import check_activation, check_alike, check_eps, check_flag, check_weight
from numerics.ops.launch import Launch
from numerics.ops.norm import rows_of
from numerics.ops.qk_geometry import count_tiles, strides_of_table, tile_of, wave_of, why_not
from numerics.ops.qk_kernels import _joint_qkv_norm_rope_kernel
from numerics.ops.qk_norm_rope import check_head_dim, normalize_heads
from numerics.ops.reduction import order_of
from numerics.ops.registry import Op
from numerics.ops.rope_table import check_table, table_rows
from numerics.ops.stages import rotate, store
from numerics.presets.schema import Numerics

FORM = "[batch, tokens, heads, head_dim]"


def fused_joint_qkv_norm_rope_reference(
    text_q: Tensor,  # [batch, text tokens, heads, D]
    text_k: Tensor,
    text_v: Tensor,
    image_q: Tensor,  # [batch, image tokens, heads, D]
    image_k: Tensor,
    image_v: Tensor,
    text_q_weight: Tensor | None,  # [D]
    text_k_weight: Tensor | None,
    image_q_weight: Tensor | None,
    image_k_weight: Tensor | None,
    rope_table: Tensor,  # [tokens, r], [batch * tokens, r] or [batch, tokens, r], in the order of the joined sequence
    eps: float,
    interleaved: bool,
    image_first: bool = False,
    *,
    numerics: Numerics,
) -> tuple[Tensor, Tensor, Tensor]:  # [batch, tokens, heads, D] each
    """The specification of `fused_joint_qkv_norm_rope`. Each stream is normalized as a tensor of its own."""

    def join(text: Tensor, image: Tensor) -> Tensor:
        return torch.cat((image, text) if image_first else (text, image), dim=1)

    q = join(
        normalize_heads(text_q, text_q_weight, eps, numerics),
        normalize_heads(image_q, image_q_weight, eps, numerics),
    )
    k = join(
        normalize_heads(text_k, text_k_weight, eps, numerics),
        normalize_heads(image_k, image_k_weight, eps, numerics),
    )
    cos, sin = table_rows(rope_table, q)
    q_out = rotate(q, cos, sin, interleaved, text_q.dtype, numerics)
    k_out = rotate(k, cos, sin, interleaved, text_q.dtype, numerics)
    return store(q_out, text_q.dtype), store(k_out, text_q.dtype), store(join(text_v, image_v), text_q.dtype)


def fused_joint_qkv_norm_rope(
    text_q: Tensor,
    text_k: Tensor,
    text_v: Tensor,
    image_q: Tensor,
    image_k: Tensor,
    image_v: Tensor,
    text_q_weight: Tensor | None,
    text_k_weight: Tensor | None,
    image_q_weight: Tensor | None,
    image_k_weight: Tensor | None,
    rope_table: Tensor,
    eps: float,
    *,
    interleaved: bool,
    image_first: bool = False,
    numerics: AnyNumerics = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Q/K norm of two streams, joined along the tokens, then RoPE; v is joined as it is.

    Args:
        text_q: [batch, text tokens, heads, head_dim] bfloat16, float16, float32 or float64, any strides.
        text_k: the same with its own number of heads.
        text_v: as text_k.
        image_q: [batch, image tokens, heads, head_dim], with the heads of text_q.
        image_k: as image_q with the heads of text_k.
        image_v: as image_k.
        text_q_weight: [head_dim] in the dtype and on the device of text_q, or None; the other weights: the same.
        text_k_weight: the same.
        image_q_weight: the same.
        image_k_weight: the same.
        rope_table: as for `fused_qk_norm_rope`, with a row for each token of the joined sequence, in its order.
        eps: added to the mean of the squares.
        interleaved: rotate the pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
        image_first: put the image tokens before the text tokens.
        numerics: a Resolution, a Numerics, the name of a preset, or None for the settings in force.

    Returns:
        (q, k, v), each [batch, text tokens + image tokens, heads, head_dim], contiguous. Either stream may be empty.

    Raises:
        InputError, RequirementError, ConfigurationError: as `fused_qk_norm_rope`.
    """
    numerics = in_force(OP.name, numerics, text_q)
    streams = (text_q, text_k, text_v, image_q, image_k, image_v)
    norms = (text_q_weight, text_k_weight, image_q_weight, image_k_weight)
    args = (*streams, *norms, rope_table, eps, interleaved, image_first)
    key, launch = OP.recall(args, numerics)
    if launch is not None:
        return OP.fused(launch, args)  # type: ignore[no-any-return]
    check_activation("text_q", text_q, FORM, (4,))
    check_activation("image_q", image_q, FORM, (4,))
    check_activation("text_k", text_k, FORM, (4,))
    batch, text_tokens, heads, width = text_q.shape
    image_tokens = image_q.shape[1]
    check_head_dim("text_q", width)
    check_alike("image_q", image_q, "text_q", text_q, (batch, image_tokens, heads, width))
    kv_heads = text_k.shape[2]
    for name, x in (("text_k", text_k), ("text_v", text_v)):
        check_alike(name, x, "text_q and text_k", text_q, (batch, text_tokens, kv_heads, width))
    for name, x in (("image_k", image_k), ("image_v", image_v)):
        check_alike(name, x, "image_q and text_k", text_q, (batch, image_tokens, kv_heads, width))
    weights = {"text_q": text_q_weight, "text_k": text_k_weight, "image_q": image_q_weight, "image_k": image_k_weight}
    for name, weight in weights.items():
        check_weight(f"{name}_weight", weight, "text_q", text_q, width)
    check_table(rope_table, "text_q", text_q, (batch, text_tokens + image_tokens), width, None)
    check_eps(eps)
    check_flag("interleaved", interleaved)
    check_flag("image_first", image_first)
    settings = settings_for(
        "fused_joint_qkv_norm_rope",
        numerics,
        like=text_q,
        table_dtype=rope_table.dtype,
        width=width,
        rows=[rows_of(x) for x in (text_q, text_k, image_q, image_k)],
    )
    out: tuple[Tensor, Tensor, Tensor] = dispatch(OP, settings, *args, key=key)
    return out


# --- Custom op --------------------------------------------------------------------------------------------------------


def _prepare(
    text_q: Tensor,
    text_k: Tensor,
    text_v: Tensor,
    image_q: Tensor,
    image_k: Tensor,
    image_v: Tensor,
    text_q_weight: Tensor | None,
    text_k_weight: Tensor | None,
    image_q_weight: Tensor | None,
    image_k_weight: Tensor | None,
    rope_table: Tensor,
    eps: float,
    interleaved: bool,
    image_first: bool,
    *,
    numerics: Numerics,
) -> Launch | str:
    batch, text_tokens, q_heads, width = text_q.shape
    image_tokens, kv_heads = image_q.shape[1], text_k.shape[2]
    tokens = text_tokens + image_tokens
    for stream, (q, k, v) in {"text": (text_q, text_k, text_v), "image": (image_q, image_k, image_v)}.items():
        if reason := why_not(q, k, None, numerics) or why_not(q, v, None, numerics):
            return f"{stream}: {reason}"
    if rope_table.stride(-1) != 1:
        return f"rope_table has stride {rope_table.stride(-1)} within a row"
    rows, num_warps = tile_of(
        (q_heads, kv_heads), width, text_q.element_size(), batch * tokens, interleaved=interleaved
    )

    tiles = [
        count_tiles(stream, heads, rows)
        for stream in (text_tokens, image_tokens)
        for heads in (q_heads, kv_heads, kv_heads)
    ]
    streams = (text_q, text_k, text_v, image_q, image_k, image_v)
    return Launch(
        kernel=_joint_qkv_norm_rope_kernel,
        inputs=tuple(range(11)),
        outputs=tuple((batch, tokens, heads, width) for heads in (q_heads, kv_heads, kv_heads)),
        returns=(0, 1, 2),
        programs=sum(tiles),
        batch=batch,
        scalars=(
            text_tokens,
            image_tokens,
            image_tokens if image_first else 0,
            0 if image_first else text_tokens,
            *(stride for x in streams for stride in x.stride()[:3]),
            *strides_of_table(rope_table, tokens),
            eps,
        ),
        constants={
            "Q_HEADS": q_heads,
            "K_HEADS": kv_heads,
            "HEAD_DIM": width,
            "ROTARY_DIM": rope_table.shape[-1],
            "ROWS": rows,
            "WAVE": wave_of(rows, num_warps, width, text_q.element_size()),
            **{
                f"{name}_RMS_NORM_REDUCTION": order_of(numerics, width, rows_of(x))
                for name, x in (("TEXT_Q", text_q), ("TEXT_K", text_k), ("IMAGE_Q", image_q), ("IMAGE_K", image_k))
            },
            "ROUNDING_POINTS": numerics.rounding_points,
            "ROPE_ROTATION": numerics.rope_rotation,
            "INTERLEAVED": interleaved,
            "HAS_TEXT_Q_WEIGHT": text_q_weight is not None,
            "HAS_TEXT_K_WEIGHT": text_k_weight is not None,
            "HAS_IMAGE_Q_WEIGHT": image_q_weight is not None,
            "HAS_IMAGE_K_WEIGHT": image_k_weight is not None,
        },
        num_warps=num_warps,
        enable_fp_fusion=numerics.enable_fp_fusion,
    )


def _fake(text_q: Tensor, text_k: Tensor, _text_v: Tensor, image_q: Tensor, *_: object) -> tuple[Tensor, ...]:
    batch, text_tokens, q_heads, width = text_q.shape
    tokens = text_tokens + image_q.shape[1]
    heads = (q_heads, text_k.shape[2], text_k.shape[2])
    return tuple(text_q.new_empty((batch, tokens, n, width)) for n in heads)


OP = Op(
    "fused_joint_qkv_norm_rope",
    "Tensor text_q, Tensor text_k, Tensor text_v, Tensor image_q, Tensor image_k, Tensor image_v, "
    "Tensor? text_q_weight, Tensor? text_k_weight, Tensor? image_q_weight, Tensor? image_k_weight, "
    "Tensor rope_table, float eps, bool interleaved, bool image_first",
    "(Tensor, Tensor, Tensor)",
    reference=fused_joint_qkv_norm_rope_reference,
    prepare=_prepare,
    tokens=lambda text_q, _k, _v, image_q, *_: text_q.shape[0] * (text_q.shape[1] + image_q.shape[1]),
    fake=_fake,
)
