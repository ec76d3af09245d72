"""The sum of the squares of a row in a declared order of additions, and the mean made of it, in eager torch."""

from typing import Any, Literal

from torch import Tensor, autograd
from torch.nn.functional import pad

from numerics.errors import RequirementError
from numerics.ops.arithmetic import divide, exact_fma, is_exact_product, multiply
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
        return numerics.rms_norm_reduction.order(width, max(rows, 1))  # none are checked like one
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
        return _across(_within(x.reshape(-1, order.width), order), order).reshape(x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0][..., None] * (2 * x), None


def _within(rows: Tensor, order: Order) -> Tensor:
    """[R, N] -> [R, threads]: what each thread makes of its own vectors."""
    vectors = rows.unflatten(-1, (order.vectors, order.vector))
    sums = rows.new_zeros((order.slots, rows.shape[0], order.threads))
    for number, block in enumerate(vectors.split(order.threads, dim=1)):
        # A last block with fewer vectors than threads leaves the sums of the other threads as they are.
        held = sums[..., : block.shape[1]]
        if order.inner == "pairs":
            squares = block * block
            held[0] += _fold((squares[..., 0::2] + squares[..., 1::2]).unbind(-1))
            continue
        contract = order.square == "fma" and not is_exact_product(block, block)
        for element, x in enumerate(block.unbind(-1)):
            slot = held[(number * order.vector + element) % order.slots]
            slot.copy_(exact_fma(x, x, slot) if contract else slot + x * x)
    return _fold(sums.unbind(0))


def _across(threads: Tensor, order: Order) -> Tensor:
    """[R, threads] -> [R]: lanes, then warps, or the other way round. Missing lanes and warps are zeros."""
    warps = -(-order.threads // WARP)
    lanes = pad(threads, (0, warps * WARP - order.threads)).unflatten(-1, (warps, WARP))
    if order.first == "lanes":
        return _combine(_combine(lanes, order.lanes), order.warps)
    return _combine(_combine(lanes.transpose(-1, -2), order.warps), order.lanes)


def _combine(x: Tensor, how: str) -> Tensor:
    """[..., n] -> [...]: `fold`, `adjacent` or `halves`."""
    if how == "fold":
        return _fold(x.unbind(-1))
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = pad(x, (0, size - x.shape[-1]))
    while (half := x.shape[-1] // 2) > 0:
        x = x[..., :half] + x[..., half:] if how == "halves" else x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def _fold(parts: tuple[Tensor, ...]) -> Tensor:
    """Left to right."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
