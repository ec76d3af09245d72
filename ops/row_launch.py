"""How the ops on whole rows are launched: where their tensors lie, and how many rows and warps a program takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from torch import Tensor

from numerics.ops.launch import MAX_ROWS, Launch, no_kernel_for
from numerics.ops.reduction import order_of
from numerics.ops.row_kernel import _row_kernel
from numerics.presets.order import Order
from numerics.presets.schema import Numerics

MAX_ELEMENTS = 256  # that one thread of an order may own, since the kernel adds them one by one
OPEN_THREADS, OPEN_VECTOR = 256, 8  # at most, where no order cuts the row
FEW_PASSES, VECTOR_BYTES = 4, 16  # an order with more passes of shorter vectors does not lay out the row
FULL_BLOCK = 2048  # elements that a program reads at once
FEW_ROWS = 512  # a program each, so that all multiprocessors have some


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Which argument of an op is what; called with the arguments, it answers with a launch or a reason."""

    x: int  # what is normalized, or the residual that a branch is added to
    branch: int | None = None
    gate: int | None = None  # multiplies the branch
    weight: int | None = None
    shift: int | None = None
    scale: int | None = None
    indices: int | None = None
    eps: int | None = None  # without it there is no norm
    in_place: bool = False  # write into x

    def __call__(self, *args: Any, numerics: Numerics) -> Launch | str:
        """The launch for such arguments of the op, or the reason why there is none."""
        x: Tensor = args[self.x]
        width, rows = x.shape[-1], prod(x.shape[:-1])
        tensors = {
            name: args[place]
            for name in ("x", "branch", "gate", "shift", "scale")
            if (place := getattr(self, name)) is not None
        }
        if reason := no_kernel_for(x.device, x.dtype) or _unevenly_spaced(tensors):
            return reason
        if rows > MAX_ROWS:
            return f"x has {rows} rows, more than {MAX_ROWS}"
        has_norm, has_modulation = self.eps is not None, self.scale is not None
        order: Order | Literal["triton"] = order_of(numerics, width, rows) if has_norm else "triton"
        if not isinstance(order, str) and order.passes * order.vector > MAX_ELEMENTS:
            return f"a row of {width} gives one thread of the reduction more than {MAX_ELEMENTS} elements"
        rounded = self.branch is None or "residual" in numerics.rounding_points
        threads, vector = _layout(order, width, x.element_size(), rounded=rounded)
        rows_per_program, num_warps = _geometry(
            width, rows, threads, vector, order, branched=self.branch is not None, modulated=has_modulation
        )
        strides = [
            _row_stride(tensors[name]) if name in tensors else 0 for name in ("x", "branch", "gate", "shift", "scale")
        ]
        return Launch(
            kernel=_row_kernel,
            inputs=(self.x, self.branch, self.gate, self.weight, self.shift, self.scale, self.indices),
            outputs=(
                None if self.branch is None else x.shape,
                self.x if self.in_place else x.shape if has_norm or has_modulation else None,
            ),
            returns=self._returns(),
            programs=-(-rows // rows_per_program),
            batch=1,
            scalars=(
                0,
                rows,
                *strides,
                strides[0] if self.in_place else width,
                args[self.eps] if self.eps is not None else 0.0,
            ),
            constants={
                "WIDTH": width,
                "ROWS": rows_per_program,
                "THREADS": threads,
                "VECTOR": vector,
                "RMS_NORM_REDUCTION": order,
                "ROUNDING_POINTS": numerics.rounding_points,
                "BRANCH": "none" if self.branch is None else "add" if self.gate is None else "gate",
                "HAS_NORM": has_norm,
                "HAS_WEIGHT": self.weight is not None and args[self.weight] is not None,
                "HAS_MODULATION": has_modulation,
            },
            num_warps=num_warps,
            enable_fp_fusion=numerics.enable_fp_fusion,
            rows_per_program=rows_per_program,
        )

    def _returns(self) -> tuple[int, ...]:
        """Of the outputs (total, out). An op that modulates returns the total first, one that only adds last."""
        if self.in_place:
            return ()
        if self.branch is None:
            return (1,)
        if self.eps is None:
            return (0,)
        return (1, 0) if self.gate is None else (0, 1)


def _geometry(
    width: int,
    rows: int,
    threads: int,
    vector: int,
    order: Order | Literal["triton"],
    *,
    branched: bool,
    modulated: bool,
) -> tuple[int, int]:
    """Rows a program, and warps: the fastest of those measured on an H200. No bit depends on them."""
    if not isinstance(order, str) and (order.threads, order.vector) != (threads, vector):
        # The row is read again for its sum: more warps than a pass of the order fills would read the same elements.
        return 1, 4 if branched else max(1, min(4, order.threads * order.vector // 64))
    block = _ceil_pow2(threads) * _ceil_pow2(vector)
    if threads * vector >= width and block < FULL_BLOCK:  # short rows share a program, unless there are few
        spread = max(1, rows // FEW_ROWS)
        together = min(2 * FULL_BLOCK // block, 1 << (spread.bit_length() - 1))
        return together, max(1, min(4, together * block // 256))
    if block == FULL_BLOCK and modulated and not branched:
        return 1, 4
    return 1, max(1, min(8, block // 256))


def _layout(order: Order | Literal["triton"], width: int, element_size: int, *, rounded: bool) -> tuple[int, int]:
    """Threads and vector that cut a row into passes. rounded: what is normalized is in memory as it is."""
    if isinstance(order, str) or (rounded and order.passes > FEW_PASSES and order.vector * element_size < VECTOR_BYTES):
        return _open_layout(width)
    return order.threads, order.vector


def _open_layout(width: int) -> tuple[int, int]:
    return min(OPEN_THREADS, _ceil_pow2(-(-width // OPEN_VECTOR))), OPEN_VECTOR


def _ceil_pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _unevenly_spaced(tensors: dict[str, Tensor]) -> str | None:
    """Why the kernel does not read the rows of some tensor in place; None where it does."""
    for name, x in tensors.items():
        if x.shape[-1] > 1 and x.stride(-1) != 1:
            return f"{name} has stride {x.stride(-1)} within a row"
        if _spacing(x.shape[:-1], x.stride()[:-1]) is None:
            return f"the rows of {name} are not evenly apart"
    return None


def _row_stride(x: Tensor) -> int:
    return _spacing(x.shape[:-1], x.stride()[:-1]) or 0


def _spacing(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """How far the rows of some leading dimensions are apart, taken as one dimension; None if unevenly."""
    spacing, count = 0, 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if count > 1 and stride != spacing * count:
            return None
        if count == 1:
            spacing = stride
        count *= size
    return spacing
