"""The device code that both Q/K ops share: norm and rotation of a tile of heads, and the copy of a tile of V."""

from __future__ import annotations

from numerics.ops.language import ceil_pow2, contains, field, tl, triton
from numerics.ops.qk_rotation import (
    _cos_sin,
    _for_each_row,
    _is_identity,
    _is_marked,
    _read_shared,
    _rotate_halves,
    _rotate_neighbours,
)
from numerics.ops.reduction import _across, _mean, _sum_from_memory, _within
from numerics.ops.stages import _normalize, _round_at
from numerics.presets.order import Order


@triton.jit
def _norm_rope_tile(
    x_ptr,  # of one batch element: tokens x_stride_token apart, heads x_stride_head, elements 1
    weight_ptr,
    table_ptr,  # of its first token
    out_ptr,  # of its first token, heads HEAD_DIM apart
    tile,
    tokens,  # of this batch element
    x_stride_token,
    x_stride_head,
    table_stride_token,
    eps,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WAVE: tl.constexpr,  # see _read_shared
    RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """Normalize and rotate up to ROWS heads, each read and written once, in whole cache lines."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    HALF: tl.constexpr = ROTARY_DIM // 2
    ONE_TOKEN: tl.constexpr = fits_tokens(HEADS, ROWS)
    BLOCK: tl.constexpr = ceil_pow2(HEAD_DIM)
    WHOLE: tl.constexpr = HEADS % ROWS == 0 and BLOCK == HEAD_DIM and ONE_TOKEN
    PARTIAL: tl.constexpr = ROTARY_DIM < HEAD_DIM
    # Two products of 16-bit numbers are exact in float32, so one rounding of their sum is all that any order makes.
    EXACT_PRODUCTS: tl.constexpr = (
        dtype.primitive_bitwidth == 16
        and table_ptr.dtype.element_ty.primitive_bitwidth == 16
        and contains(ROUNDING_POINTS, "qk_norm")
        and not contains(ROUNDING_POINTS, "rope_product")
    )

    token, head, live = _rows_of_tile(tile, tokens, HEADS, ROWS)
    x_row = x_ptr + token * x_stride_token + head.to(tl.int64) * x_stride_head
    table_row = table_ptr + token * table_stride_token
    marked = _is_marked(table_row, live, HALF, ONE_TOKEN)
    column = tl.arange(0, BLOCK)[None, :]
    x = _load(x_row + column, live & (column < HEAD_DIM), WHOLE)
    # The table is read before the sum, across which the compiler moves no reads, and brought into place after it.
    c, s = _cos_sin(table_row, live, WAVE, BLOCK, HALF, ONE_TOKEN, INTERLEAVED)
    y = _normalized(
        x, x_row, weight_ptr, live, eps, HEAD_DIM, ROWS, WAVE, RMS_NORM_REDUCTION, ROUNDING_POINTS, HAS_WEIGHT
    )
    if ONE_TOKEN:
        N: tl.constexpr = BLOCK // 2 if INTERLEAVED else BLOCK
        c, s = _for_each_row(c, ROWS, WAVE, N), _for_each_row(s, ROWS, WAVE, N)
    else:
        c, s = c.to(tl.float32), s.to(tl.float32)
    if INTERLEAVED:
        out = _rotate_neighbours(
            y, c, s, ROWS, BLOCK, HALF, PARTIAL, EXACT_PRODUCTS, dtype, ROUNDING_POINTS, ROPE_ROTATION
        )
    else:
        out = _rotate_halves(y, c, s, ROWS, BLOCK, HALF, PARTIAL, EXACT_PRODUCTS, dtype, ROUNDING_POINTS, ROPE_ROTATION)
    out_row = out_ptr + (token * HEADS + head) * HEAD_DIM
    _store(out_row + column, out, live & (column < HEAD_DIM), WHOLE)
    if marked:
        # Rare, so computed again rather than kept: holding both results would leave registers for fewer programs.
        tl.debug_barrier()
        x = _load(x_row + column, live & (column < HEAD_DIM), WHOLE)
        y = _normalized(
            x, x_row, weight_ptr, live, eps, HEAD_DIM, ROWS, WAVE, RMS_NORM_REDUCTION, ROUNDING_POINTS, HAS_WEIGHT
        )
        same = _is_identity(table_row, live, HALF, ONE_TOKEN)
        tl.store(out_row + column, y.to(dtype), mask=live & (column < HEAD_DIM) & same)


@triton.jit
def _count_tiles(tokens, HEADS: tl.constexpr, ROWS: tl.constexpr):
    if fits_tokens(HEADS, ROWS):
        return tokens * ((HEADS + ROWS - 1) // ROWS)
    else:
        return tl.cdiv(tokens * HEADS, ROWS)


@triton.jit
def _rows_of_tile(tile, tokens, HEADS: tl.constexpr, ROWS: tl.constexpr):
    """Token, head and whether there is such a row, each [ROWS, 1]; the token is a scalar where a tile has but one."""
    if fits_tokens(HEADS, ROWS):
        TILES: tl.constexpr = (HEADS + ROWS - 1) // ROWS
        SHARE: tl.constexpr = (HEADS + TILES - 1) // TILES  # heads of a tile
        place = tl.arange(0, ROWS)[:, None]
        head = tile % TILES * SHARE + place
        return (tile // TILES).to(tl.int64), head, (place < SHARE) & (head < HEADS)
    else:
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        return (row // HEADS).to(tl.int64), row % HEADS, row < tokens * HEADS


@triton.jit
def _normalized(
    x,
    x_row,
    weight_ptr,
    live,
    eps,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WAVE: tl.constexpr,
    RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """[ROWS, ceil_pow2(HEAD_DIM)] float32: what the rotation reads."""
    dtype: tl.constexpr = x_row.dtype.element_ty
    BLOCK: tl.constexpr = ceil_pow2(HEAD_DIM)
    element = tl.arange(0, BLOCK)
    weight = 0.0
    if HAS_WEIGHT:
        weight = _for_each_row(_read_shared(weight_ptr, element, element < HEAD_DIM, WAVE, BLOCK), ROWS, WAVE, BLOCK)
    if RMS_NORM_REDUCTION == "triton":
        mean = tl.sum(x * x, axis=1) / HEAD_DIM
    else:
        if in_registers(RMS_NORM_REDUCTION):
            VECTOR: tl.constexpr = field(RMS_NORM_REDUCTION, "vector")
            THREADS: tl.constexpr = BLOCK // VECTOR
            vectors = tl.reshape(x, (ROWS * THREADS, VECTOR))
            sums = _within((vectors,), ROWS * THREADS, RMS_NORM_REDUCTION, dtype.primitive_bitwidth == 16)
            total = _across(tl.reshape(sums, (ROWS, THREADS)), ROWS, THREADS, RMS_NORM_REDUCTION)
        else:
            total = _sum_from_memory(x_row, live, ROWS, RMS_NORM_REDUCTION)
        mean = _mean(total, HEAD_DIM, RMS_NORM_REDUCTION)
    rstd = tl.rsqrt(mean + eps)[:, None]
    y = _normalize(x, rstd, weight, dtype, ROUNDING_POINTS, HAS_WEIGHT)
    return _round_at("qk_norm", y, dtype, ROUNDING_POINTS)


@triton.jit
def _copy_tile(
    x_ptr,
    out_ptr,
    tile,
    tokens,
    x_stride_token,
    x_stride_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Copy up to ROWS heads, bit for bit."""
    token, head, live = _rows_of_tile(tile, tokens, HEADS, ROWS)
    column = tl.arange(0, ceil_pow2(HEAD_DIM))[None, :]
    mask = live & (column < HEAD_DIM)
    x = tl.load(x_ptr + token * x_stride_token + head.to(tl.int64) * x_stride_head + column, mask=mask)
    tl.store(out_ptr + (token * HEADS + head) * HEAD_DIM + column, x, mask=mask)


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


# --- Questions answered at compile time -------------------------------------------------------------------------------


@triton.constexpr_function
def fits_tokens(heads: int, rows: int) -> bool:
    """Whether tiles of one token each leave at most a fifth of their rows empty; else a tile may span tokens."""
    tiles = -(-heads // rows)
    return 5 * heads >= 4 * tiles * rows


@triton.constexpr_function
def in_registers(order: Order) -> bool:
    """Whether a tensor [rows, width] in its natural layout can be reshaped into vectors of threads."""
    return order.passes == 1 and order.vector & (order.vector - 1) == 0
