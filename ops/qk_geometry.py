"""How the tensors of the Q/K ops lie in memory, and how their heads are cut into tiles."""

from collections.abc import Sequence
from math import prod

from torch import Tensor

from numerics.ops.launch import MAX_BATCH, MAX_ROWS, no_kernel_for
from numerics.ops.qk_tile import fits_tokens
from numerics.ops.reduction import order_of
from numerics.presets.schema import Numerics

MAX_ELEMENTS = 256  # that one thread of an order may own, since the kernel adds them one by one
FEW_BYTES = 1 << 20  # that smaller tiles spread over more multiprocessors
Strides = tuple[int, int, int]  # of batch, token and head


def why_not(q: Tensor, k: Tensor, rope_table: Tensor | None, numerics: Numerics) -> str | None:
    """Why the kernel does not take these tensors; None where it does."""
    if reason := no_kernel_for(q.device, q.dtype):
        return reason
    for name, x in (("q", q), ("k", k)):
        if reason := _strided_heads(name, x, numerics):
            return reason
    return None if rope_table is None else _strided_table(rope_table, q.shape[:-2])


def _strided_heads(name: str, x: Tensor, numerics: Numerics) -> str | None:
    """Why the kernel does not read x [..., heads, head_dim] in place; None where it does."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        return f"{name} has stride {x.stride(-1)} within a head"
    if x.shape[-1] % 2:
        return f"{name} has heads of {x.shape[-1]} elements, an odd number"
    if x.ndim == 4 and len(x) > MAX_BATCH:
        return f"{name} has a batch of {len(x)}, more than {MAX_BATCH}"
    rows = prod(x.shape[:-1])
    if rows > MAX_ROWS:
        return f"{name} has {rows} rows, more than {MAX_ROWS}"
    order = order_of(numerics, x.shape[-1], rows)
    if not isinstance(order, str) and order.passes * order.vector > MAX_ELEMENTS:
        return f"the reduction gives {order.passes * order.vector} elements to one thread, more than {MAX_ELEMENTS}"
    return None


def _strided_table(table: Tensor, leading: Sequence[int]) -> str | None:
    """Why the kernel does not read the table in place; None where it does. leading: [tokens] or [batch, tokens]."""
    if table.stride(-1) != 1:
        return f"rope_table has stride {table.stride(-1)} within a row"
    if table.ndim == 3 and len(leading) == 1 and not _is_one_run(table.shape[:2], table.stride()[:2]):
        return "rope_table has a batch of rows that are not evenly apart, and q has no batch"
    return None


def one_batch(xs: Sequence[Tensor], table: Tensor) -> tuple[int, int, tuple[list[Strides], tuple[int, int]]]:
    """Batch, tokens, and the strides of each x and (batch, token) of the table; as one batch element where they allow.

    xs: [tokens, heads, D] or [batch, tokens, heads, D], all alike but for the heads and, in the joint op, the tokens.
    """
    if xs[0].ndim == 3:
        token_head = [(x.stride(0), x.stride(1)) for x in xs]
        return 1, xs[0].shape[0], ([(0, *strides) for strides in token_head], (0, table.stride(-2)))
    batch, tokens = xs[0].shape[:2]
    strides = [(x.stride(0), x.stride(1), x.stride(2)) for x in xs]
    table_strides = strides_of_table(table, tokens)
    runs = [_is_one_run((batch, x.shape[1]), x.stride()[:2]) and x.shape[1] == tokens for x in xs]
    if batch == 1 or (all(runs) and _is_one_run((batch, tokens), table_strides)):
        return 1, batch * tokens, ([(0, token, head) for _, token, head in strides], (0, table_strides[1]))
    return batch, tokens, (strides, table_strides)


def strides_of_table(table: Tensor, tokens: int) -> tuple[int, int]:
    """Of batch and token, for batch elements of so many tokens; a table that a batch shares has batch stride 0."""
    if table.ndim == 3:
        return table.stride(0), table.stride(1)
    return 0 if len(table) == tokens else table.stride(0) * tokens, table.stride(0)


def count_tiles(tokens: int, heads: int, rows: int) -> int:
    """Tiles of one tensor of one batch element, as the kernels count them."""
    return tokens * -(-heads // rows) if fits_tokens(heads, rows) else -(-tokens * heads // rows)


def tile_of(
    heads: Sequence[int], head_dim: int, element_size: int, tokens: int, *, interleaved: bool
) -> tuple[int, int]:
    """Heads a tile, and warps: the fastest of those measured on an H200. No bit depends on them."""
    row = _row_bytes(head_dim, element_size)
    if not interleaved:  # an exchange between threads leaves fewer registers, and two warps hide its latency
        rows = 2048 // row if all(n % 8 == 0 for n in heads) else 4096 // row
        return max(1, rows), 2
    few = tokens * sum(heads) * row < FEW_BYTES
    return max(1, (1024 if few else 2048) // row), 1


def wave_of(rows: int, num_warps: int, head_dim: int, element_size: int) -> int:
    """How many rows the threads hold at once, each 16 bytes, where each reads what rows share for itself; 0 elsewhere.

    As measured on an H200: two warps of few rows gain by it, one warp or more rows lose.
    """
    row = _row_bytes(head_dim, element_size)
    if num_warps == 1 or rows * row > num_warps * 1024:
        return 0
    return min(rows, max(1, num_warps * 512 // row))


def _row_bytes(head_dim: int, element_size: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length()) * element_size


def _is_one_run(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two dimensions are evenly spaced, as if they were one."""
    return shape[0] == 1 or shape[1] == 0 or strides[0] == shape[1] * strides[1]
