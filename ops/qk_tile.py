"""The device code that both Q/K ops share: norm and rotation of a tile of heads, and the copy of a tile of V."""

from __future__ import annotations

import math

from numerics.ops.language import ceil_pow2, contains, field, tl, triton
from numerics.ops.reduction import _across, _mean, _within
from numerics.ops.stages import _normalize, _rotate, _round_at
from numerics.presets.order import Order


@triton.jit
def _norm_rope_tile(
    x_ptr,  # of one batch element: tokens x_stride_token apart, heads x_stride_head, elements 1
    weight_ptr,
    table_ptr,  # of its first token
    out_ptr,  # of its first token, rows HEAD_DIM apart
    first,  # row of the tile; row = token * HEADS + head
    rows,  # of this batch element
    x_stride_token,
    x_stride_head,
    table_stride_token,
    eps,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """Normalize and rotate ROWS heads, each read and written once, in whole cache lines."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    BLOCK: tl.constexpr = ceil_pow2(HEAD_DIM)
    HALF: tl.constexpr = ROTARY_DIM // 2
    ONE_TOKEN: tl.constexpr = HEADS % ROWS == 0  # then the tile is also full
    WHOLE: tl.constexpr = ONE_TOKEN and BLOCK == HEAD_DIM

    row = first + tl.arange(0, ROWS)
    live = (row < rows)[:, None]
    token = (row // HEADS).to(tl.int64)[:, None]
    x_row = x_ptr + token * x_stride_token + (row % HEADS).to(tl.int64)[:, None] * x_stride_head
    # One row of the table for the tile is read as a vector, which then needs no move; else one for each head.
    table_row = (
        (table_ptr + (first // HEADS).to(tl.int64) * table_stride_token)
        if ONE_TOKEN
        else (table_ptr + token * table_stride_token)
    )
    column = tl.arange(0, BLOCK)[None, :]
    mask = live & (column < HEAD_DIM)

    x = _load(x_row + column, mask, WHOLE)
    if RMS_NORM_REDUCTION == "triton":
        mean = tl.sum(x * x, axis=1) / HEAD_DIM
    else:
        if in_registers(RMS_NORM_REDUCTION):
            VECTOR: tl.constexpr = field(RMS_NORM_REDUCTION, "vector")
            THREADS: tl.constexpr = BLOCK // VECTOR
            sums = _within((tl.reshape(x, (ROWS * THREADS, VECTOR)),), ROWS * THREADS, RMS_NORM_REDUCTION)
            total = _across(tl.reshape(sums, (ROWS, THREADS)), ROWS, THREADS, RMS_NORM_REDUCTION)
        else:
            total = _sum_from_memory(x_row, row < rows, ROWS, RMS_NORM_REDUCTION)
        mean = _mean(total, HEAD_DIM, RMS_NORM_REDUCTION)
    rstd = tl.rsqrt(mean + eps)[:, None]
    element = tl.arange(0, BLOCK)
    weight = _load(weight_ptr + element, element < HEAD_DIM, BLOCK == HEAD_DIM)[None, :] if HAS_WEIGHT else 0.0
    y = _normalize(x, rstd, weight, dtype, ROUNDING_POINTS, HAS_WEIGHT)
    y = _round_at("qk_norm", y, dtype, ROUNDING_POINTS)

    if INTERLEAVED:
        out = _rotate_neighbours(
            y, table_row, live, ROWS, BLOCK, HALF, ONE_TOKEN, dtype, ROUNDING_POINTS, ROPE_ROTATION
        )
    else:
        out = _rotate_halves(y, table_row, live, ROWS, BLOCK, HALF, ONE_TOKEN, dtype, ROUNDING_POINTS, ROPE_ROTATION)
    _store(out_ptr + row.to(tl.int64)[:, None] * HEAD_DIM + column, out, mask, WHOLE)


@triton.jit
def _rotate_neighbours(
    y,
    table_row,
    live,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    ONE_TOKEN: tl.constexpr,
    dtype: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
):
    """Pairs (2i, 2i + 1) lie in one thread, which splits and joins them."""
    a, b = tl.split(tl.reshape(y, (ROWS, BLOCK // 2, 2)))
    pair = tl.arange(0, BLOCK // 2)
    c, s = _cos_sin(table_row, pair, pair < HALF, live, HALF, ONE_TOKEN)
    if ONE_TOKEN:
        if tl.max(_is_identity(c, s).to(tl.int32)) == 1:
            out = y.to(dtype)
        else:
            real, imag = _rotate(a, b, c, s, dtype, ROUNDING_POINTS, ROPE_ROTATION)
            out = tl.reshape(tl.join(real, imag), (ROWS, BLOCK)).to(dtype)
        return out
    else:
        real, imag = _rotate(a, b, c, s, dtype, ROUNDING_POINTS, ROPE_ROTATION)
        out = tl.reshape(tl.join(real, imag), (ROWS, BLOCK))
        return tl.where(_is_identity(c, s), y, out).to(dtype)


@triton.jit
def _rotate_halves(
    y,
    table_row,
    live,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    ONE_TOKEN: tl.constexpr,
    dtype: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
):
    """Pairs (i, i + HALF): each thread fetches the partners of its elements from another thread of its warp.

    Whole runs of GRAIN elements trade places, so the exchange is along one axis. With x the own element and p its
    partner, the lower half becomes x * c - p * s and the upper half p * s + x * c.
    """
    GRAIN: tl.constexpr = grain(HALF)
    GRAINS: tl.constexpr = BLOCK // GRAIN
    number = tl.arange(0, GRAINS)
    partner = tl.where(number < HALF // GRAIN, number + HALF // GRAIN, number - HALF // GRAIN)
    partner = tl.where(number < 2 * (HALF // GRAIN), partner, number)
    x = tl.reshape(y, (ROWS, GRAINS, GRAIN))
    if contains(ROUNDING_POINTS, "qk_norm") and dtype.primitive_bitwidth == 16 and GRAIN > 1:
        # Rounded to 16 bits, two elements travel in one word.
        words = tl.reshape(x.to(dtype).to(tl.int16, bitcast=True), (ROWS, GRAINS, GRAIN // 2, 2))
        even, odd = tl.split(words)
        word = (odd.to(tl.int32) << 16) | (even.to(tl.int32) & 0xFFFF)
        word = tl.gather(word, tl.broadcast_to(partner[None, :, None], (ROWS, GRAINS, GRAIN // 2)), axis=1)
        even = word.to(tl.int16).to(dtype, bitcast=True)
        odd = (word >> 16).to(tl.int16).to(dtype, bitcast=True)
        p = tl.reshape(tl.join(even, odd), (ROWS, BLOCK)).to(tl.float32)
    else:
        p = tl.gather(x, tl.broadcast_to(partner[None, :, None], (ROWS, GRAINS, GRAIN)), axis=1)
        p = tl.reshape(p, (ROWS, BLOCK))

    lower = tl.arange(0, BLOCK)[None, :] < HALF
    element = tl.arange(0, BLOCK)
    pair = tl.where(element < HALF, element, element - HALF)
    c, s = _cos_sin(table_row, pair, element < 2 * HALF, live, HALF, ONE_TOKEN)
    if ONE_TOKEN:
        if tl.max(_is_identity(c, s).to(tl.int32)) == 1:
            out = y.to(dtype)
        else:
            out = _rotate_half(y, p, c, s, lower, dtype, ROUNDING_POINTS, ROPE_ROTATION).to(dtype)
        return out
    else:
        out = _rotate_half(y, p, c, s, lower, dtype, ROUNDING_POINTS, ROPE_ROTATION)
        return tl.where(_is_identity(c, s), y, out).to(dtype)


@triton.jit
def _rotate_half(y, p, c, s, lower, dtype: tl.constexpr, ROUNDING_POINTS: tl.constexpr, ROPE_ROTATION: tl.constexpr):
    if ROPE_ROTATION == "complex":
        product = _round_at("rope_product", tl.where(lower, p, y) * tl.where(lower, -s, c), dtype, ROUNDING_POINTS)
        return tl.fma(tl.where(lower, y, p), tl.where(lower, c, s), product)
    else:
        out = _round_at("rope_product", y * c, dtype, ROUNDING_POINTS)
        return out + _round_at("rope_product", p * tl.where(lower, -s, s), dtype, ROUNDING_POINTS)


@triton.jit
def _copy_tile(
    x_ptr,
    out_ptr,
    first,
    rows,
    x_stride_token,
    x_stride_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, ceil_pow2(HEAD_DIM))[None, :]
    mask = (row < rows)[:, None] & (column < HEAD_DIM)
    offset = (row // HEADS).to(tl.int64) * x_stride_token + (row % HEADS).to(tl.int64) * x_stride_head
    x = tl.load(x_ptr + offset[:, None] + column, mask=mask)
    tl.store(out_ptr + row.to(tl.int64)[:, None] * HEAD_DIM + column, x, mask=mask)


# --- Parts ------------------------------------------------------------------------------------------------------------


@triton.jit
def _load(pointer, mask, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(pointer).to(tl.float32)
    else:
        return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, x, mask, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(pointer, x)
    else:
        tl.store(pointer, x, mask=mask)


@triton.jit
def _cos_sin(table_row, pair, rotated, live, HALF: tl.constexpr, ONE_TOKEN: tl.constexpr):
    """[1 or ROWS, len(pair)]; what is not rotated reads as identity."""
    if ONE_TOKEN:
        c = tl.load(table_row + pair, mask=rotated, other=1.0)[None, :]
        s = tl.load(table_row + HALF + pair, mask=rotated, other=-0.0)[None, :]
    else:
        mask = live & rotated[None, :]
        c = tl.load(table_row + pair[None, :], mask=mask, other=1.0)
        s = tl.load(table_row + HALF + pair[None, :], mask=mask, other=-0.0)
    return c.to(tl.float32), s.to(tl.float32)


@triton.jit
def _is_identity(c, s):
    """[1 or ROWS, 1]: whether a token is not rotated: its row of the table says cos 1 and sin -0.0 throughout."""
    pairs = (c == 1.0) & (s.to(tl.int32, bitcast=True) == -2147483648)
    return tl.min(pairs.to(tl.int32), axis=1)[:, None] == 1


@triton.jit
def _sum_from_memory(x_row, live, ROWS: tl.constexpr, ORDER: tl.constexpr):
    """[ROWS] for any order: each thread's vectors are read again, from the cache. x_row: pointers [ROWS, 1]."""
    WIDTH: tl.constexpr = field(ORDER, "width")
    VECTOR: tl.constexpr = field(ORDER, "vector")
    THREADS: tl.constexpr = field(ORDER, "threads")
    LANES: tl.constexpr = ceil_pow2(THREADS)
    ELEMENTS: tl.constexpr = ceil_pow2(VECTOR)
    thread = tl.arange(0, LANES)[None, :, None]
    element = tl.arange(0, ELEMENTS)[None, None, :]
    passes = ()
    for p in tl.static_range(field(ORDER, "passes")):
        column = (p * THREADS + thread) * VECTOR + element
        mask = live[:, None, None] & (thread < THREADS) & (element < VECTOR) & (column < WIDTH)
        x = tl.load(x_row[:, :, None] + column, mask=mask, other=0.0).to(tl.float32)
        passes = passes + (tl.reshape(x, (ROWS * LANES, ELEMENTS)),)
    return _across(tl.reshape(_within(passes, ROWS * LANES, ORDER), (ROWS, LANES)), ROWS, LANES, ORDER)


# --- Questions answered at compile time -------------------------------------------------------------------------------


@triton.constexpr_function
def grain(half: int) -> int:
    """How many contiguous elements trade places together: at most eight, 16 bytes of a 16-bit dtype."""
    return math.gcd(8, half)


@triton.constexpr_function
def in_registers(order: Order) -> bool:
    """Whether a tensor [rows, width] in its natural layout can be reshaped into vectors of threads."""
    return order.passes == 1 and order.vector & (order.vector - 1) == 0
