"""Launching a Triton kernel: what is decided once for calls that look alike, and the little that is done for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from numerics.ops.language import HAS_TRITON

MAX_ROWS = 2**31 - 1  # rows are counted in 32 bits; addresses are 64 bits wide
MAX_BATCH = 65_535  # the second dimension of a grid
NPU_ROWS = 65_535  # of one launch, by the device's grid


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (`TRITON_INTERPRET=1`), on a CPU."""
    if not HAS_TRITON:
        return False
    from triton import knobs  # noqa: PLC0415  # only where it is installed

    return bool(knobs.runtime.interpret)


def no_kernel_for(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no kernel runs on a device for a dtype; None where one does."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if dtype == torch.float64:
        return "float64 is for gradient checks"
    if device.type in ("cuda", "npu") or (device.type == "cpu" and interpreted()):
        return None
    return f"no kernel for device {device.type!r}"


@dataclass(slots=True)
class Launch:
    """One kernel with everything but the tensors. Calls that look alike share it."""

    kernel: Any  # a function decorated by triton.jit: pointers of inputs and outputs, then scalars, then constexprs
    inputs: tuple[int | None, ...]  # which arguments of the op the kernel reads, in its own order
    outputs: tuple[Sequence[int] | int | None, ...]  # a shape to allocate, an argument to write in place, or nothing
    returns: tuple[int, ...]  # which outputs the op returns, in order
    programs: int
    batch: int  # second dimension of the grid
    scalars: tuple[int | float, ...]
    constants: dict[str, Any]
    num_warps: int
    enable_fp_fusion: bool
    _compiled: Any = field(default=None, init=False)

    def __call__(self, args: Sequence[Any]) -> tuple[Tensor, ...]:
        """Launch for the arguments of the op. New outputs have the canonical strides of their shape."""
        like: Tensor = args[0]
        made = [
            None
            if output is None
            else args[output]
            if isinstance(output, int)
            else torch.empty(output, dtype=like.dtype, device=like.device)
            for output in self.outputs
        ]
        if self.programs * self.batch > 0:
            pointers = [None if place is None else args[place] for place in self.inputs]
            if like.is_cuda and like.device.index != torch.cuda.current_device():
                with torch.cuda.device(like.device):
                    self._launch(pointers + made)
            else:
                self._launch(pointers + made)
        return tuple([made[place] for place in self.returns])  # type: ignore[misc]  # what is returned exists

    def _launch(self, pointers: list[Tensor | None]) -> None:
        if self._compiled is None:
            self._compiled = self.kernel[(self.programs, self.batch)](
                *pointers,
                *self.scalars,
                **self.constants,
                num_warps=self.num_warps,
                enable_fp_fusion=self.enable_fp_fusion,
            )
        else:  # past the just-in-time compiler, which would look at every argument again
            self._compiled[(self.programs, self.batch, 1)](*pointers, *self.scalars, *self.constants.values())
