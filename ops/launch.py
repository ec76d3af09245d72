"""Launching a Triton kernel: what is decided once for calls that look alike, and the little that is done for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.ops.language import FOR_INTERPRETER, HAS_TRITON

MAX_ROWS = 2**31 - 2**16  # rows are counted in 32 bits, those of the last tile too; addresses are 64 bits wide
MAX_BATCH = 65_535  # the second dimension of a grid
NPU_ROWS = 65_535  # of one launch, by the device's grid


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (`TRITON_INTERPRET=1`), on a CPU.

    Raises ConfigurationError where that was asked for too late.
    """
    if not HAS_TRITON:
        return False
    from triton import knobs  # noqa: PLC0415  # only where it is installed

    asked = bool(knobs.runtime.interpret)
    if asked and not FOR_INTERPRETER:
        raise ConfigurationError(
            "TRITON_INTERPRET=1 came after numerics.ops was imported, when its kernels had been built for a GPU; "
            "set it before the import, or not at all"
        )
    return asked


def no_kernel_for(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no kernel runs on a device for a dtype; None where one does."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if dtype == torch.float64:
        return "float64 is for gradient checks"
    if device.type in ("cuda", "npu") or (device.type == "cpu" and interpreted()):
        return None
    return f"no kernel for device {device.type!r}"


def grid_limit(device: torch.device) -> int | None:
    """How many programs, or rows, one launch takes at most where the device says so."""
    return NPU_ROWS if device.type == "npu" else None


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
    gathered: tuple[int, ...] = ()  # arguments that the kernel reads as one run and that are none: copied first
    rows_per_program: int | None = None  # of a kernel whose scalars begin with its first row and the row after the last
    _run: Any = field(default=None, init=False)  # of the compiled kernel, once there is one
    _rest: tuple[Any, ...] = field(default=(), init=False)  # all arguments after the pointers

    def __call__(self, args: Sequence[Any]) -> tuple[Tensor, ...]:
        """Launch for the arguments of the op. New outputs have the canonical strides of their shape."""
        like: Tensor = args[0]
        if self.gathered:
            args = [arg.contiguous() if place in self.gathered else arg for place, arg in enumerate(args)]
        made = [self._output(output, args) for output in self.outputs]
        if self.programs * self.batch > 0:
            pointers = [None if place is None else args[place] for place in self.inputs]
            if like.is_cuda and like.device.index != torch.cuda.current_device():
                with torch.cuda.device(like.device):
                    self._launch(like, pointers + made)
            else:
                self._launch(like, pointers + made)
        return tuple([made[place] for place in self.returns])  # type: ignore[misc]  # what is returned exists

    @staticmethod
    def _output(output: Sequence[int] | int | None, args: Sequence[Any]) -> Tensor | None:
        if output is None:
            return None
        if isinstance(output, int):
            return args[output]  # type: ignore[no-any-return]
        for x in args[:2]:
            # The strides of a new contiguous tensor, not those of x, and faster than allocating by shape.
            if isinstance(x, Tensor) and x.shape == output:
                return torch.empty_like(x, memory_format=torch.contiguous_format)
        return torch.empty(output, dtype=args[0].dtype, device=args[0].device)

    def _launch(self, like: Tensor, pointers: list[Tensor | None]) -> None:
        if self._run is not None:  # past the just-in-time compiler, which would look at every argument again
            stream = torch._C._cuda_getCurrentRawStream(like.device.index)  # as compiled graphs do
            self._run(*pointers, *self._rest, stream=stream)
            return
        for programs, scalars in self._pieces(like.device):
            compiled = self.kernel[(programs, self.batch)](
                *pointers,
                *scalars,
                **self.constants,
                num_warps=self.num_warps,
                enable_fp_fusion=self.enable_fp_fusion,
            )
        if like.is_cuda and compiled is not None:
            self._run = compiled[(self.programs, self.batch, 1)]
            self._rest = (*self.scalars, *self.constants.values())

    def too_large_for(self, device: torch.device) -> str | None:
        """Why the device does not take the launch; None where it does."""
        limit = grid_limit(device)
        if limit is None or self.rows_per_program is not None or self.programs * self.batch <= limit:
            return None
        return f"{self.programs * self.batch} programs, more than the {limit} of one launch on {device.type!r}"

    def _pieces(self, device: torch.device) -> list[tuple[int, tuple[int | float, ...]]]:
        """Programs and scalars of each launch: one, but for kernels on rows where the device takes fewer rows."""
        limit = grid_limit(device)
        if limit is None or self.rows_per_program is None:
            return [(self.programs, self.scalars)]
        start, end, *others = self.scalars
        assert isinstance(start, int)
        assert isinstance(end, int)
        bounds = [(first, min(first + limit, end)) for first in range(start, end, limit)]
        return [(-(-(last - first) // self.rows_per_program), (first, last, *others)) for first, last in bounds]
