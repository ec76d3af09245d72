"""The device code of the rotation: the table's row of a token, and pairs side by side or half a head apart."""

from __future__ import annotations

import math

from numerics.ops.language import ceil_pow2, contains, tl, triton
from numerics.ops.stages import _negative, _rotate, _round_at


@triton.jit
def _read_shared(pointer, place, mask, WAVE: tl.constexpr, N: tl.constexpr):
    """[1 or WAVE, N]: what all rows of a tile share, at the N places.

    Read as a vector, each element is read once and handed to the threads of other rows: by shuffles in one warp, but
    through shared memory where there are more. With WAVE, as many rows as the threads hold at once, each thread reads
    for itself, which moves more bytes out of the L1 cache but nothing between threads.
    """
    if WAVE:
        place = tl.broadcast_to(place[None, :], (WAVE, N))
        return tl.load(pointer + place, mask=tl.broadcast_to(mask[None, :], (WAVE, N)), other=0.0)
    else:
        return tl.load(pointer + place, mask=mask, other=0.0)


@triton.jit
def _for_each_row(x, ROWS: tl.constexpr, WAVE: tl.constexpr, N: tl.constexpr):
    """What `_read_shared` read -> float32 [1 or ROWS, N], without a move between threads where they read a WAVE."""
    x = x.to(tl.float32)
    if WAVE:
        return tl.reshape(tl.broadcast_to(x[None, :, :], (ROWS // WAVE, WAVE, N)), (ROWS, N))
    else:
        return x[None, :]


@triton.jit
def _cos_sin(
    table_row,
    live,
    WAVE: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    ONE_TOKEN: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """As read [1, WAVE or ROWS, pairs, or elements where halves rotate]; 0 where nothing is rotated."""
    N: tl.constexpr = BLOCK // 2 if INTERLEAVED else BLOCK
    number = tl.arange(0, N)
    if INTERLEAVED:
        pair = number
        rotated = pair < HALF
    else:
        pair = tl.where(number < HALF, number, number - HALF)
        pair = tl.max_contiguous(tl.multiple_of(pair, grain(HALF)), grain(HALF))
        rotated = number < 2 * HALF
    if ONE_TOKEN:
        return (
            _read_shared(table_row, pair, rotated, WAVE, N),
            _read_shared(table_row + HALF, pair, rotated, WAVE, N),
        )
    else:
        mask = live & rotated[None, :]
        c = tl.load(table_row + pair[None, :], mask=mask, other=0.0)
        s = tl.load(table_row + HALF + pair[None, :], mask=mask, other=0.0)
        return c, s


@triton.jit
def _is_marked(table_row, live, HALF: tl.constexpr, ONE_TOKEN: tl.constexpr):
    """Whether some row of the tile begins as an identity row does: cos 1 and sin -0.0."""
    if ONE_TOKEN:
        return _is_one_and_minus_zero(tl.load(table_row), tl.load(table_row + HALF))
    else:
        c, s = tl.load(table_row, mask=live, other=0.0), tl.load(table_row + HALF, mask=live, other=0.0)
        marked = _is_one_and_minus_zero(c, s)
        return tl.max(tl.max(marked.to(tl.int32), axis=1), axis=0) == 1


@triton.jit
def _is_identity(table_row, live, HALF: tl.constexpr, ONE_TOKEN: tl.constexpr):
    """[1 or ROWS, 1]: whether a row of the table says cos 1 and sin -0.0 throughout."""
    pair = tl.arange(0, ceil_pow2(HALF))[None, :]
    mask = (pair < HALF) if ONE_TOKEN else live & (pair < HALF)
    c = tl.load(table_row + pair, mask=mask, other=1.0)
    s = tl.load(table_row + HALF + pair, mask=mask, other=-0.0)
    return tl.min(_is_one_and_minus_zero(c, s).to(tl.int32), axis=1)[:, None] == 1


@triton.jit
def _is_one_and_minus_zero(c, s):
    return (c.to(tl.float32) == 1.0) & (s.to(tl.float32).to(tl.int32, bitcast=True) == -2147483648)


@triton.jit
def _rotate_neighbours(
    y,
    c,
    s,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    PARTIAL: tl.constexpr,
    EXACT_PRODUCTS: tl.constexpr,
    dtype: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    ROPE_ROTATION: tl.constexpr,
):
    """Pairs (2i, 2i + 1) lie in one thread, which splits and joins them."""
    a, b = tl.split(tl.reshape(y, (ROWS, BLOCK // 2, 2)))
    if EXACT_PRODUCTS:
        real, imag = tl.fma(b, _negative(s), a * c), tl.fma(a, s, b * c)
    else:
        real, imag = _rotate(a, b, c, s, dtype, ROUNDING_POINTS, ROPE_ROTATION)
    if PARTIAL:
        rotated = tl.arange(0, BLOCK // 2)[None, :] < HALF
        real, imag = tl.where(rotated, real, a), tl.where(rotated, imag, b)
    return tl.reshape(tl.join(real, imag), (ROWS, BLOCK)).to(dtype)


@triton.jit
def _rotate_halves(
    y,
    c,
    s,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    PARTIAL: tl.constexpr,
    EXACT_PRODUCTS: tl.constexpr,
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

    column = tl.arange(0, BLOCK)[None, :]
    lower = column < HALF
    if EXACT_PRODUCTS:
        out = tl.fma(p, tl.where(lower, _negative(s), s), y * c)
    elif ROPE_ROTATION == "complex":
        product = _round_at(
            "rope_product", tl.where(lower, p, y) * tl.where(lower, _negative(s), c), dtype, ROUNDING_POINTS
        )
        out = tl.fma(tl.where(lower, y, p), tl.where(lower, c, s), product)
    else:
        out = _round_at("rope_product", y * c, dtype, ROUNDING_POINTS)
        out = out + _round_at("rope_product", p * tl.where(lower, _negative(s), s), dtype, ROUNDING_POINTS)
    if PARTIAL:
        out = tl.where(column < 2 * HALF, out, y)
    return out.to(dtype)


@triton.constexpr_function
def grain(half: int) -> int:
    """How many contiguous elements trade places together: at most eight, 16 bytes of a 16-bit dtype."""
    return math.gcd(8, half)
