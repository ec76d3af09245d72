"""The Triton kernel of the ops on whole rows: residual or gated residual, RMSNorm, and indexed scale and shift."""

from __future__ import annotations

from numerics.ops.language import ceil_pow2, contains, tl, triton
from numerics.ops.reduction import _across, _mean, _sum_from_memory, _within, full
from numerics.ops.stages import _gate, _modulate, _normalize
from numerics.presets.order import Order


@triton.jit
def _row_kernel(
    x_ptr,  # the rows, or the residual that a branch is added to
    branch_ptr,
    gate_ptr,
    weight_ptr,
    shift_ptr,
    scale_ptr,
    index_ptr,
    total_ptr,  # out: the new residual
    out_ptr,
    first,  # row of program 0
    rows,  # up to the last of this launch
    x_stride,
    branch_stride,
    gate_stride,
    shift_stride,
    scale_stride,
    out_stride,
    eps,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    THREADS: tl.constexpr,  # of the order, or of the layout where there is none
    VECTOR: tl.constexpr,
    RMS_NORM_REDUCTION: tl.constexpr,
    ROUNDING_POINTS: tl.constexpr,
    BRANCH: tl.constexpr,  # "none", "add", "gate"
    HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_MODULATION: tl.constexpr,
):
    """ROWS rows, each cut into passes: pass p is the contiguous run of one vector for every thread.

    Where a row is cut as its order cuts it, each thread holds its own vectors and the sum needs no exchange but that of
    the order itself. An order of many short vectors would cost many short reads and writes: then whole vectors of the
    memory are held, and for the sum alone the row is read again, from the cache.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    # The squares of 16-bit numbers are exact in float32.
    EXACT: tl.constexpr = dtype.primitive_bitwidth == 16 and (BRANCH == "none" or contains(ROUNDING_POINTS, "residual"))
    SPAN: tl.constexpr = THREADS * VECTOR
    LANES: tl.constexpr = ceil_pow2(THREADS)
    ELEMENTS: tl.constexpr = ceil_pow2(VECTOR)
    PASSES: tl.constexpr = (WIDTH + SPAN - 1) // SPAN
    AGAIN: tl.constexpr = HAS_NORM and cut_otherwise(RMS_NORM_REDUCTION, THREADS, VECTOR)
    CACHE: tl.constexpr = "" if AGAIN and BRANCH == "none" else ".cg"

    row = first + tl.program_id(0).to(tl.int64) * ROWS
    if ROWS == 1:  # a scalar, so that addresses are one base and constant offsets
        live = tl.full((1, 1), 1, tl.int1)
        if BRANCH == "gate" or HAS_MODULATION:
            index = tl.load(index_ptr + row).to(tl.int64)
    else:
        row += tl.arange(0, ROWS)[:, None]
        live = row < rows
        if BRANCH == "gate" or HAS_MODULATION:
            index = tl.load(index_ptr + row, mask=live, other=0).to(tl.int64)
    place = tl.arange(0, LANES * ELEMENTS)[None, :]
    if VECTOR == ELEMENTS:
        within = place
        owned = place < SPAN
    else:
        within = place // ELEMENTS * VECTOR + place % ELEMENTS
        owned = (within < SPAN) & (place % ELEMENTS < VECTOR)

    # All reads of long streams come before the first write, which the compiler could not move them across. What is read
    # once bypasses the L1 cache, which is left to the vectors that every row reads.
    passes, branches = (), ()
    for p in tl.static_range(PASSES):
        column = p * SPAN + within
        mask = live & owned & (column < WIDTH)
        whole = full(p, ROWS, SPAN, LANES * ELEMENTS, WIDTH)
        passes = passes + (_read(x_ptr + row * x_stride + column, mask, whole, CACHE),)
        if BRANCH != "none":
            branches = branches + (_read(branch_ptr + row * branch_stride + column, mask, whole, ".cg"),)
    if BRANCH != "none":
        totals = ()
        for p in tl.static_range(PASSES):
            column = p * SPAN + within
            mask = live & owned & (column < WIDTH)
            whole = full(p, ROWS, SPAN, LANES * ELEMENTS, WIDTH)
            total, branch = passes[p].to(tl.float32), branches[p].to(tl.float32)
            if BRANCH == "gate":
                gate = _read(gate_ptr + index * gate_stride + column, mask, whole, "").to(tl.float32)
                total = _gate(total, gate, branch, dtype, ROUNDING_POINTS)
            else:
                total = total + branch
            rounded = total.to(dtype)
            _write(total_ptr + row * WIDTH + column, rounded, mask, whole)
            if contains(ROUNDING_POINTS, "residual"):
                totals = totals + (rounded,)
            else:
                totals = totals + (total,)
        passes = totals

    if HAS_NORM:
        if RMS_NORM_REDUCTION == "triton":
            squares = passes[0].to(tl.float32) * passes[0].to(tl.float32)
            for p in tl.static_range(1, PASSES):
                squares += passes[p].to(tl.float32) * passes[p].to(tl.float32)
            mean = tl.sum(squares, axis=1) / WIDTH
        else:
            if AGAIN:
                if BRANCH == "none":
                    again = x_ptr + row * x_stride
                else:  # what is normalized is what was written, since it is rounded
                    tl.debug_barrier()
                    again = total_ptr + row * WIDTH
                squares = _sum_from_memory(again + tl.full((ROWS, 1), 0, tl.int32), live, ROWS, RMS_NORM_REDUCTION)
            else:
                vectors = ()
                for p in tl.static_range(PASSES):
                    vectors = vectors + (tl.reshape(passes[p].to(tl.float32), (ROWS * LANES, ELEMENTS)),)
                threads = tl.reshape(_within(vectors, ROWS * LANES, RMS_NORM_REDUCTION, EXACT), (ROWS, LANES))
                squares = _across(threads, ROWS, LANES, RMS_NORM_REDUCTION)
            mean = _mean(squares, WIDTH, RMS_NORM_REDUCTION)
        rstd = tl.rsqrt(mean + eps)[:, None]

    if HAS_NORM or HAS_MODULATION:
        for p in tl.static_range(PASSES):
            column = p * SPAN + within
            mask = live & owned & (column < WIDTH)
            whole = full(p, ROWS, SPAN, LANES * ELEMENTS, WIDTH)
            y = passes[p].to(tl.float32)
            if HAS_NORM:
                weight = _read(weight_ptr + column, owned & (column < WIDTH), whole, "") if HAS_WEIGHT else y
                y = _normalize(y, rstd, weight.to(tl.float32), dtype, ROUNDING_POINTS, HAS_WEIGHT)
            if HAS_MODULATION:
                scale = _read(scale_ptr + index * scale_stride + column, mask, whole, "").to(tl.float32)
                shift = _read(shift_ptr + index * shift_stride + column, mask, whole, "").to(tl.float32)
                y = _modulate(y, shift, scale, dtype, ROUNDING_POINTS)
            _write(out_ptr + row * out_stride + column, y.to(dtype), mask, whole)


@triton.jit
def _read(pointer, mask, WHOLE: tl.constexpr, CACHE: tl.constexpr):
    if WHOLE:
        return tl.load(pointer, cache_modifier=CACHE)
    else:
        return tl.load(pointer, mask=mask, other=0.0, cache_modifier=CACHE)


@triton.jit
def _write(pointer, x, mask, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(pointer, x)
    else:
        tl.store(pointer, x, mask=mask)


@triton.constexpr_function
def cut_otherwise(order: Order | str, threads: int, vector: int) -> bool:
    """Whether the order gives its threads other elements than the layout does."""
    return not isinstance(order, str) and (order.threads, order.vector) != (threads, vector)
