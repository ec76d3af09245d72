"""Declared orders against their providers' kernels, played through step by step: threads, shuffles, shared memory."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from numerics.presets.file import load
from numerics.presets.order import Order, same_tree, tree

REDUCTIONS = load().reductions
ROWS = 64
WARP = 32

Squares = NDArray[np.float32]  # [rows, width]
Sums = NDArray[np.float32]  # [rows]
Threads = NDArray[np.float32]  # [rows, threads]


def squares(width: int) -> Squares:
    """Squares of bfloat16 numbers, exact in float32, on which orders of addition differ."""
    x = np.random.default_rng(width).standard_normal((ROWS, width)).astype(np.float32)
    x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return x * x


def evaluate(order: Order, row: Squares) -> Sums:
    return tree(order, leaf=lambda i: row[:, i], add=np.add)


def owned(row: Squares, vector: int, threads: int) -> Iterator[tuple[int, Squares]]:
    """Each thread and its elements, a vector at a time: [rows, vector]."""
    for t in range(threads):
        for start in range(t * vector, row.shape[1], threads * vector):
            yield t, row[:, start : start + vector]


def folded(row: Squares, vector: int, threads: int) -> Threads:
    total = np.zeros((len(row), threads), np.float32)
    for t, elements in owned(row, vector, threads):
        for i in range(vector):
            total[:, t] = total[:, t] + elements[:, i]
    return total


def shuffled_down(lanes: Threads, distances: list[int]) -> Sums:
    """Lane 0 after shfl.down, which gives a lane its own value where none stands at that distance: not added here."""
    for distance in distances:
        count = lanes.shape[1]
        added = lanes.copy()
        for lane in range(count - distance):
            added[:, lane] = lanes[:, lane] + lanes[:, lane + distance]
        lanes = added
    return lanes[:, 0]


def butterfly(lanes: Threads, distances: list[int]) -> Sums:
    """Lane 0 after shfl.xor over 32 lanes, those without a value holding zero."""
    padded = np.zeros((len(lanes), WARP), np.float32)
    padded[:, : lanes.shape[1]] = lanes
    for distance in distances:
        padded = padded + padded[:, [lane ^ distance for lane in range(WARP)]]
    return padded[:, 0]


def warps_of(lanes: Threads) -> list[Threads]:
    return [lanes[:, start : start + WARP] for start in range(0, lanes.shape[1], WARP)]


def halved(sums: Threads) -> Sums:
    """Shared memory: the upper half of the values added to the lower half, until one is left."""
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


UP, DOWN = [1, 2, 4, 8, 16], [16, 8, 4, 2, 1]


def cub_block_reduce(lanes: Threads) -> Sums:
    first, *others = [shuffled_down(warp, UP) for warp in warps_of(lanes)]
    for other in others:
        first = first + other
    return first


def vllm_rms_norm(row: Squares, rows: int, widest: int = 8) -> Sums:
    vector = math.gcd(widest, row.shape[1])
    return cub_block_reduce(folded(row, vector, min(row.shape[1] // vector, 1024 if rows < 256 else 256)))


def vllm_rms_norm_0_11(row: Squares, _rows: int) -> Sums:
    return cub_block_reduce(folded(row, 1, min(row.shape[1], 1024)))


def vllm_fused_add_rms_norm(row: Squares, rows: int) -> Sums:
    threads = min(row.shape[1], 1024 if rows < 256 else 256)  # more than there are vectors in narrow rows
    total = np.zeros((len(row), threads), np.float32)
    for t, e in owned(row, 8, threads):
        pairs = [e[:, i] + e[:, i + 1] for i in (0, 2, 4, 6)]
        total[:, t] = total[:, t] + (((pairs[0] + pairs[1]) + pairs[2]) + pairs[3])
    return cub_block_reduce(total)


def aten_mean(row: Squares, rows: int, distances: list[int] = DOWN) -> Sums:
    width = row.shape[1]
    vector = 4 if width >= 128 else 1
    block_width = min(WARP, _floor_pow2(min(width // vector, 512)))
    block_height = min(_floor_pow2(min(rows, 512)), 512 // block_width)
    block_width = min(_floor_pow2(min(width // vector, 512)), 512 // block_height)
    accumulators = np.zeros((len(row), block_width, 4), np.float32)
    seen = [0] * block_width
    for t, elements in owned(row, vector, block_width):
        for i in range(vector):
            slot = seen[t] % 4
            accumulators[:, t, slot] = accumulators[:, t, slot] + elements[:, i]
            seen[t] += 1
    a, b, c, d = (accumulators[:, :, slot] for slot in range(4))
    lanes = ((a + b) + c) + d
    while lanes.shape[1] > WARP:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return shuffled_down(lanes, distances)


def aten_mean_wide(row: Squares, _rows: int) -> Sums:
    total = np.zeros((len(row), 512, 4), np.float32)
    for t, elements in owned(row, 4, 512):
        total[:, t] = total[:, t] + elements
    lanes = ((total[:, :, 0] + total[:, :, 1]) + total[:, :, 2]) + total[:, :, 3]
    return halved(np.stack([shuffled_down(warp, DOWN) for warp in warps_of(lanes)], axis=1))


def _floor_pow2(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def aten_rms_norm(row: Squares, _rows: int, distances: list[int] = DOWN) -> Sums:
    warps = warps_of(folded(row, 4, 128))
    return halved(np.stack([shuffled_down(warp, distances) for warp in warps], axis=1))


def flashinfer(row: Squares, _rows: int, distances: list[int] = UP) -> Sums:
    width = row.shape[1]
    threads = next(t for most, t in ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128)) if width <= most)
    warps = warps_of(folded(row, math.gcd(8, width), threads))
    return butterfly(np.stack([butterfly(warp, distances) for warp in warps], axis=1), distances)


def flashinfer_cuda(row: Squares, _rows: int) -> Sums:
    vector = math.gcd(8, row.shape[1])
    threads = -(-min(1024, row.shape[1] // vector) // WARP) * WARP
    warps = warps_of(folded(row, vector, threads))
    return butterfly(np.stack([butterfly(warp, DOWN) for warp in warps], axis=1), DOWN)


def one_warp(row: Squares, _rows: int) -> Sums:
    return butterfly(folded(row, row.shape[1] // WARP, WARP), DOWN)


# --- Comparison -------------------------------------------------------------------------------------------------------

KERNELS: dict[str, tuple[Callable[[Squares, int], Sums], list[int]]] = {
    "vllm_cuda": (vllm_rms_norm, [64, 96, 120, 128, 256, 1000, 3072, 3840, 5376, 9000]),
    "vllm_cuda_float32": (lambda row, rows: vllm_rms_norm(row, rows, widest=4), [64, 128, 5376]),
    "vllm_cuda_128": (vllm_rms_norm, [128]),
    "vllm_cuda_batch_invariant": (lambda row, _: vllm_rms_norm(row, 1), [128, 5376]),
    "vllm_cuda_0_11": (vllm_rms_norm_0_11, [64, 96, 128, 3072]),
    "vllm_cuda_add": (vllm_fused_add_rms_norm, [64, 96, 128, 256, 3072, 5376]),
    "aten_mean": (aten_mean, [3, 64, 96, 127, 128, 256, 3072, 3840, 5376]),
    "aten_mean_2_9": (lambda row, rows: aten_mean(row, rows, UP), [64, 96, 128, 256, 5376]),
    "aten_mean_wide": (aten_mean_wide, [8192]),
    "aten_rms_norm": (aten_rms_norm, [64, 96, 128, 256, 3072, 5376]),
    "apex": (lambda row, rows: aten_rms_norm(row, rows, UP), [64, 128, 256, 4096]),
    "flashinfer": (flashinfer, [64, 96, 128, 256, 3072, 5376]),
    "flashinfer_cuda": (flashinfer_cuda, [64, 128, 256, 4096]),
    "quack": (lambda row, rows: flashinfer(row, rows, DOWN), [64, 96, 128, 256, 3072, 5376]),
    "sglang_qk_norm": (one_warp, [64, 128, 256]),
    "sglang_rms_norm": (flashinfer_cuda, [512, 4096]),
}


@pytest.mark.parametrize(
    ("name", "width"), [(name, width) for name, (_, widths) in KERNELS.items() for width in widths]
)
def test_the_declared_order_adds_as_the_kernel_does(name: str, width: int) -> None:
    reduction = REDUCTIONS[name]
    row = squares(width)
    for rows in (1, 2, 5, 8, 15, 16, 255, 256):
        if name == "aten_mean_wide" and rows < 16:
            continue
        expected = KERNELS[name][0](row, rows)
        found = evaluate(reduction.order(width, rows), row)
        assert np.array_equal(found.view(np.int32), expected.view(np.int32)), rows


@pytest.mark.parametrize("name", ["vllm_cuda", "aten_mean", "aten_rms_norm", "flashinfer", "quack", "vllm_cuda_add"])
def test_these_rows_tell_wrong_orders_apart(name: str) -> None:
    row = squares(5376)
    found = {other: evaluate(REDUCTIONS[other].order(5376, 256), row) for other in KERNELS if _holds(other, 5376)}
    for other, sums in found.items():
        if other != name and not same_tree(REDUCTIONS[other].order(5376, 256), REDUCTIONS[name].order(5376, 256)):
            assert (sums != found[name]).any(), other


def _holds(name: str, width: int) -> bool:
    try:
        REDUCTIONS[name].order(width, 256)
    except ValueError:
        return False
    return True
