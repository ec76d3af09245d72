"""The sum of the squares of a row in a declared order of additions, and the mean made of it: in torch and in Triton."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, autograd
from torch.nn.functional import pad

from numerics.errors import RequirementError
from numerics.ops.arithmetic import divide, exact_fma, is_exact_product, multiply
from numerics.ops.language import ceil_pow2, field, least, tl, triton
from numerics.presets.order import WARP, Order
from numerics.presets.schema import Numerics
from numerics.presets.vocabulary import OPEN_REDUCTION


def row_mean(
    x: Tensor,  # [..., N] float32
    rows: int,  # of the unfused norm
    numerics: Numerics,
) -> Tensor:  # [...] float32
    """The mean of the squares of each row. Raises RequirementError where the reduction is not declared for the rows."""
    order = order_of(numerics, x.shape[-1], rows)
    total = row_sum(x, order)
    if order != OPEN_REDUCTION and order.mean == "multiply":
        return multiply(total, x.shape[-1])
    return divide(total, x.shape[-1])  # a power of two is exact either way


def order_of(numerics: Numerics, width: int, rows: int) -> Order | Literal["triton"]:
    """The order in which the numerics add a row. Raises RequirementError, naming the condition that does not hold."""
    if numerics.rms_norm_reduction == OPEN_REDUCTION:
        return OPEN_REDUCTION
    try:
        return numerics.rms_norm_reduction.order(width, rows)
    except ValueError as error:
        raise RequirementError(f"rms_norm_reduction: {error}") from error


def row_sum(
    x: Tensor,  # [..., N] float32 or float64
    order: Order | Literal["triton"],
) -> Tensor:  # [...]
    """The sum of the squares of each row: in the declared order, or torch's own where the order is left open."""
    if order == OPEN_REDUCTION:
        return (x * x).sum(-1)
    return _RowSum.apply(x, order)  # type: ignore[no-any-return]  # torch does not type apply


class _RowSum(autograd.Function):
    """The gradient of a sum of squares is 2x in every order, so the additions need no graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Order) -> Tensor:
        ctx.save_for_backward(x)
        return across(within(x.reshape(-1, order.width), order), order).reshape(x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0][..., None] * (2 * x), None


def within(rows: Tensor, order: Order) -> Tensor:
    """[R, N] -> [R, threads]: what each thread makes of its own vectors."""
    vectors = rows.unflatten(-1, (order.vectors, order.vector))
    sums = rows.new_zeros((order.slots, rows.shape[0], order.threads))
    for number, block in enumerate(vectors.split(order.threads, dim=1)):
        # A last block with fewer vectors than threads leaves the sums of the other threads as they are.
        held = sums[..., : block.shape[1]]
        if order.inner == "pairs":
            even, odd = block[..., 0::2], block[..., 1::2]
            held[0] += fold(add_square(even * even, odd, order).unbind(-1))
            continue
        for element, x in enumerate(block.unbind(-1)):
            slot = held[(number * order.vector + element) % order.slots]
            slot.copy_(add_square(slot, x, order))
    return fold(sums.unbind(0))


def add_square(total: Tensor, x: Tensor, order: Order) -> Tensor:
    """The sum of total and x * x, with the rounding of the square that is declared."""
    if order.square == "fma" and not is_exact_product(x, x):
        return exact_fma(x, x, total)
    return total + x * x


def across(threads: Tensor, order: Order) -> Tensor:
    """[R, threads] -> [R]: lanes, then warps, or the other way round. Missing lanes and warps are zeros."""
    warps = -(-order.threads // WARP)
    lanes = pad(threads, (0, warps * WARP - order.threads)).unflatten(-1, (warps, WARP))
    if order.first == "lanes":
        return combine(combine(lanes, order.lanes), order.warps)
    return combine(combine(lanes.transpose(-1, -2), order.warps), order.lanes)


def combine(x: Tensor, how: str) -> Tensor:
    """[..., n] -> [...]: `fold`, `adjacent` or `halves`."""
    if how == "fold":
        return fold(x.unbind(-1))
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = pad(x, (0, size - x.shape[-1]))
    while (half := x.shape[-1] // 2) > 0:
        x = x[..., :half] + x[..., half:] if how == "halves" else x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def fold(parts: tuple[Tensor, ...]) -> Tensor:
    """Left to right."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# --- On the device ----------------------------------------------------------------------------------------------------
# `tl.sum` promises no order, but a sum over an axis of two is a + b on every version: the trees are made of such sums,
# and each is one shuffle. The elements that a thread holds are taken apart by reshape and `tl.split`, which moves
# nothing, and added one by one.


@triton.jit
def _columns(x, M: tl.constexpr, N: tl.constexpr):
    """[M, N] -> its N columns, each [M]; N is a power of two."""
    if N == 1:
        return (tl.reshape(x, (M,)),)
    else:
        even, odd = tl.split(tl.reshape(x, (M, N // 2, 2)))
        evens = _columns(even, M, N // 2)
        odds = _columns(odd, M, N // 2)
        columns = ()
        for i in tl.static_range(N // 2):
            columns = columns + (evens[i], odds[i])
        return columns


@triton.jit
def _add_square(total, x, ORDER: tl.constexpr, EXACT: tl.constexpr):
    if EXACT or field(ORDER, "square") == "fma":
        return tl.fma(x, x, total)
    else:
        return total + x * x


@triton.jit
def _within(passes, M: tl.constexpr, ORDER: tl.constexpr, EXACT: tl.constexpr):
    """[M] sums of squares of M threads. passes: for each vector of a thread [M, vector], zeros beyond the row.

    EXACT: the squares need no rounding, as those of 16-bit numbers, so that fusing them into the sum changes no bit.
    """
    VECTOR: tl.constexpr = field(ORDER, "vector")
    SLOTS: tl.constexpr = field(ORDER, "slots")
    PASSES: tl.constexpr = field(ORDER, "passes")
    if field(ORDER, "inner") == "fold" and SLOTS == VECTOR:  # element i of each vector goes to slot i
        slots = passes[0] * passes[0]
        for p in tl.static_range(1, PASSES):
            slots = _add_square(slots, passes[p], ORDER, EXACT)
        total = _combine_columns(_columns(slots, M, VECTOR), VECTOR, "fold")
    elif field(ORDER, "inner") == "pairs":
        for p in tl.static_range(PASSES):
            x = _columns(passes[p], M, ceil_pow2(VECTOR))
            squares = _add_square(x[0] * x[0], x[1], ORDER, EXACT)
            for i in tl.static_range(2, VECTOR, 2):
                squares = squares + _add_square(x[i] * x[i], x[i + 1], ORDER, EXACT)
            if p == 0:
                total = squares
            else:
                total = total + squares
    else:
        elements = ()
        for p in tl.static_range(PASSES):
            x = _columns(passes[p], M, ceil_pow2(VECTOR))
            for i in tl.static_range(VECTOR):
                elements = elements + (x[i],)
        for slot in tl.static_range(least(SLOTS, PASSES * VECTOR)):
            part = elements[slot] * elements[slot]
            for i in tl.static_range(slot + SLOTS, PASSES * VECTOR, SLOTS):
                part = _add_square(part, elements[i], ORDER, EXACT)
            if slot == 0:
                total = part
            else:
                total = total + part
    return total


@triton.jit
def _sum_from_memory(row_ptr, live, ROWS: tl.constexpr, ORDER: tl.constexpr):
    """[ROWS] for any order: what each thread owns is read again, from the cache. row_ptr, live: [ROWS, 1]."""
    WIDTH: tl.constexpr = field(ORDER, "width")
    VECTOR: tl.constexpr = field(ORDER, "vector")
    THREADS: tl.constexpr = field(ORDER, "threads")
    LANES: tl.constexpr = ceil_pow2(THREADS)
    ELEMENTS: tl.constexpr = ceil_pow2(VECTOR)
    EXACT: tl.constexpr = row_ptr.dtype.element_ty.primitive_bitwidth == 16
    thread = tl.arange(0, LANES)[None, :, None]
    element = tl.arange(0, ELEMENTS)[None, None, :]
    passes = ()
    for p in tl.static_range(field(ORDER, "passes")):
        column = (p * THREADS + thread) * VECTOR + element
        if full(p, ROWS, THREADS * VECTOR, LANES * ELEMENTS, WIDTH):
            x = tl.load(row_ptr[:, :, None] + column)
        else:
            mask = live[:, :, None] & (thread < THREADS) & (element < VECTOR) & (column < WIDTH)
            x = tl.load(row_ptr[:, :, None] + column, mask=mask, other=0.0)
        passes = passes + (tl.reshape(x.to(tl.float32), (ROWS * LANES, ELEMENTS)),)
    threads = tl.reshape(_within(passes, ROWS * LANES, ORDER, EXACT), (ROWS, LANES))
    return _across(threads, ROWS, LANES, ORDER)


@triton.jit
def _across(threads, ROWS: tl.constexpr, THREADS: tl.constexpr, ORDER: tl.constexpr):
    """[ROWS, THREADS] -> [ROWS]: lanes and warps. THREADS is a power of two; missing threads hold zeros."""
    LANES: tl.constexpr = field(ORDER, "lanes")
    WARPS: tl.constexpr = THREADS // 32
    if WARPS <= 1:
        return _combine(threads, ROWS, THREADS, LANES)
    elif field(ORDER, "first") == "lanes":
        warps = _combine(tl.reshape(threads, (ROWS * WARPS, 32)), ROWS * WARPS, 32, LANES)
        return _combine(tl.reshape(warps, (ROWS, WARPS)), ROWS, WARPS, field(ORDER, "warps"))
    else:
        warps = tl.reshape(tl.permute(tl.reshape(threads, (ROWS, WARPS, 32)), (0, 2, 1)), (ROWS * 32, WARPS))
        lanes = _combine(warps, ROWS * 32, WARPS, field(ORDER, "warps"))
        return _combine(tl.reshape(lanes, (ROWS, 32)), ROWS, 32, LANES)


@triton.jit
def _combine(x, M: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    """[M, N] -> [M]; N is a power of two."""
    if N == 1:
        return tl.reshape(x, (M,))
    elif HOW == "fold":
        return _combine_columns(_columns(x, M, N), N, HOW)
    elif HOW == "adjacent":
        return _combine(tl.sum(tl.reshape(x, (M, N // 2, 2)), axis=2), M, N // 2, HOW)
    else:
        return _combine(tl.sum(tl.reshape(x, (M, 2, N // 2)), axis=1), M, N // 2, HOW)


@triton.jit
def _combine_columns(columns, N: tl.constexpr, HOW: tl.constexpr):
    """N tensors of one shape -> their sum; N is a power of two unless they are folded."""
    if N == 1:
        return columns[0]
    elif HOW == "fold":
        total = columns[0]
        for i in tl.static_range(1, N):
            total = total + columns[i]
        return total
    else:
        sums = ()
        for i in tl.static_range(N // 2):
            if HOW == "adjacent":
                sums = sums + (columns[2 * i] + columns[2 * i + 1],)
            else:
                sums = sums + (columns[i] + columns[i + N // 2],)
        return _combine_columns(sums, N // 2, HOW)


@triton.jit
def _mean(total, WIDTH: tl.constexpr, ORDER: tl.constexpr):
    """The mean of WIDTH squares. `/` is not a correctly rounded division in Triton."""
    if field(ORDER, "mean") == "divide" and WIDTH & (WIDTH - 1) != 0:
        return tl.div_rn(total, tl.full(total.shape, WIDTH, tl.float32))
    else:  # a power of two is exact either way
        return total * (1.0 / WIDTH)


@triton.constexpr_function
def full(p: int, rows: int, span: int, block: int, width: int) -> bool:
    """Whether pass p of the only row, one span of a block, needs no mask."""
    return rows == 1 and (p + 1) * span <= width and block == span
