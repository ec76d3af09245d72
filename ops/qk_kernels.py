"""The Triton kernels of the Q/K ops: which tile of which tensor a program computes."""

from __future__ import annotations

from numerics.ops.language import tl, triton
from numerics.ops.qk_tile import _copy_tile, _count_tiles, _norm_rope_tile


@triton.jit
def _qk_norm_rope_kernel(
    q_ptr,
    k_ptr,
    q_weight_ptr,
    k_weight_ptr,
    table_ptr,
    q_out_ptr,
    k_out_ptr,
    tokens,  # of one batch element
    q_stride_batch,
    q_stride_token,
    q_stride_head,
    k_stride_batch,
    k_stride_token,
    k_stride_head,
    table_stride_batch,
    table_stride_token,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WAVE: tl.constexpr,
    Q_RMS_NORM_REDUCTION: tl.constexpr,
    K_RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_Q_WEIGHT: tl.constexpr,
    HAS_K_WEIGHT: tl.constexpr,
):
    """Grid: the tiles of q, then those of k; the batch."""
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    q_tiles = _count_tiles(tokens, Q_HEADS, ROWS)
    table_ptr += batch * table_stride_batch
    if tile < q_tiles:
        _norm_rope_tile(
            q_ptr + batch * q_stride_batch, q_weight_ptr, table_ptr,
            q_out_ptr + batch * tokens * (Q_HEADS * HEAD_DIM), tile, tokens,
            q_stride_token, q_stride_head, table_stride_token, eps, Q_HEADS, HEAD_DIM, ROTARY_DIM, ROWS, WAVE,
            Q_RMS_NORM_REDUCTION, ROUNDING_POINTS, ROPE_ROTATION, INTERLEAVED, HAS_Q_WEIGHT,
        )  # fmt: skip
    else:
        _norm_rope_tile(
            k_ptr + batch * k_stride_batch, k_weight_ptr, table_ptr,
            k_out_ptr + batch * tokens * (K_HEADS * HEAD_DIM), tile - q_tiles, tokens,
            k_stride_token, k_stride_head, table_stride_token, eps, K_HEADS, HEAD_DIM, ROTARY_DIM, ROWS, WAVE,
            K_RMS_NORM_REDUCTION, ROUNDING_POINTS, ROPE_ROTATION, INTERLEAVED, HAS_K_WEIGHT,
        )  # fmt: skip


@triton.jit
def _joint_qkv_norm_rope_kernel(
    text_q_ptr,
    text_k_ptr,
    text_v_ptr,
    image_q_ptr,
    image_k_ptr,
    image_v_ptr,
    text_q_weight_ptr,
    text_k_weight_ptr,
    image_q_weight_ptr,
    image_k_weight_ptr,
    table_ptr,
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    text_tokens,  # of one batch element
    image_tokens,
    text_start,  # first token of the text in the joint sequence
    image_start,
    text_q_stride_batch,
    text_q_stride_token,
    text_q_stride_head,
    text_k_stride_batch,
    text_k_stride_token,
    text_k_stride_head,
    text_v_stride_batch,
    text_v_stride_token,
    text_v_stride_head,
    image_q_stride_batch,
    image_q_stride_token,
    image_q_stride_head,
    image_k_stride_batch,
    image_k_stride_token,
    image_k_stride_head,
    image_v_stride_batch,
    image_v_stride_token,
    image_v_stride_head,
    table_stride_batch,
    table_stride_token,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WAVE: tl.constexpr,
    TEXT_Q_RMS_NORM_REDUCTION: tl.constexpr,
    TEXT_K_RMS_NORM_REDUCTION: tl.constexpr,
    IMAGE_Q_RMS_NORM_REDUCTION: tl.constexpr,
    IMAGE_K_RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_TEXT_Q_WEIGHT: tl.constexpr,
    HAS_TEXT_K_WEIGHT: tl.constexpr,
    HAS_IMAGE_Q_WEIGHT: tl.constexpr,
    HAS_IMAGE_K_WEIGHT: tl.constexpr,
):
    """Grid: the text's tiles of q, k and v, then the image's; the batch."""
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    text_tiles = _count_tiles(text_tokens, Q_HEADS, ROWS) + 2 * _count_tiles(text_tokens, K_HEADS, ROWS)
    table_ptr += batch * table_stride_batch
    start = batch * (text_tokens + image_tokens)
    if tile < text_tiles:
        _stream_tile(
            text_q_ptr + batch * text_q_stride_batch, text_k_ptr + batch * text_k_stride_batch,
            text_v_ptr + batch * text_v_stride_batch, text_q_weight_ptr, text_k_weight_ptr,
            table_ptr + tl.cast(text_start, tl.int64) * table_stride_token, q_out_ptr, k_out_ptr, v_out_ptr,
            start + text_start, tile, text_tokens, text_q_stride_token, text_q_stride_head, text_k_stride_token,
            text_k_stride_head, text_v_stride_token, text_v_stride_head, table_stride_token, eps,
            Q_HEADS, K_HEADS, HEAD_DIM, ROTARY_DIM, ROWS, WAVE, TEXT_Q_RMS_NORM_REDUCTION, TEXT_K_RMS_NORM_REDUCTION,
            ROUNDING_POINTS, ROPE_ROTATION, INTERLEAVED, HAS_TEXT_Q_WEIGHT, HAS_TEXT_K_WEIGHT,
        )  # fmt: skip
    else:
        _stream_tile(
            image_q_ptr + batch * image_q_stride_batch, image_k_ptr + batch * image_k_stride_batch,
            image_v_ptr + batch * image_v_stride_batch, image_q_weight_ptr, image_k_weight_ptr,
            table_ptr + tl.cast(image_start, tl.int64) * table_stride_token, q_out_ptr, k_out_ptr, v_out_ptr,
            start + image_start, tile - text_tiles, image_tokens, image_q_stride_token, image_q_stride_head,
            image_k_stride_token, image_k_stride_head, image_v_stride_token, image_v_stride_head,
            table_stride_token, eps,
            Q_HEADS, K_HEADS, HEAD_DIM, ROTARY_DIM, ROWS, WAVE, IMAGE_Q_RMS_NORM_REDUCTION, IMAGE_K_RMS_NORM_REDUCTION,
            ROUNDING_POINTS, ROPE_ROTATION, INTERLEAVED, HAS_IMAGE_Q_WEIGHT, HAS_IMAGE_K_WEIGHT,
        )  # fmt: skip


@triton.jit
def _stream_tile(
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    k_weight_ptr,
    table_ptr,
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    start,  # token of the joint sequence, over the batch, int64
    tile,
    tokens,
    q_stride_token,
    q_stride_head,
    k_stride_token,
    k_stride_head,
    v_stride_token,
    v_stride_head,
    table_stride_token,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WAVE: tl.constexpr,
    Q_RMS_NORM_REDUCTION: tl.constexpr,
    K_RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_Q_WEIGHT: tl.constexpr,
    HAS_K_WEIGHT: tl.constexpr,
):
    q_tiles = _count_tiles(tokens, Q_HEADS, ROWS)
    k_tiles = _count_tiles(tokens, K_HEADS, ROWS)
    if tile < q_tiles:
        _norm_rope_tile(
            q_ptr, q_weight_ptr, table_ptr, q_out_ptr + start * (Q_HEADS * HEAD_DIM), tile, tokens,
            q_stride_token, q_stride_head, table_stride_token, eps, Q_HEADS, HEAD_DIM, ROTARY_DIM, ROWS, WAVE,
            Q_RMS_NORM_REDUCTION, ROUNDING_POINTS, ROPE_ROTATION, INTERLEAVED, HAS_Q_WEIGHT,
        )  # fmt: skip
    elif tile < q_tiles + k_tiles:
        _norm_rope_tile(
            k_ptr, k_weight_ptr, table_ptr, k_out_ptr + start * (K_HEADS * HEAD_DIM), tile - q_tiles, tokens,
            k_stride_token, k_stride_head, table_stride_token, eps, K_HEADS, HEAD_DIM, ROTARY_DIM, ROWS, WAVE,
            K_RMS_NORM_REDUCTION, ROUNDING_POINTS, ROPE_ROTATION, INTERLEAVED, HAS_K_WEIGHT,
        )  # fmt: skip
    else:
        _copy_tile(
            v_ptr, v_out_ptr + start * (K_HEADS * HEAD_DIM), tile - q_tiles - k_tiles, tokens,
            v_stride_token, v_stride_head, K_HEADS, HEAD_DIM, ROWS,
        )  # fmt: skip
