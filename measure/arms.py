"""An arm: one way to compute a case, ready to be called again and again; and how its bytes are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from numerics import ops
from numerics.measure.inputs import Inputs
from numerics.resolve import Resolution

INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Arm:
    """A call without arguments. One that writes into its own copies of the inputs can make them new."""

    call: Callable[[], Any]
    renew: Callable[[], object] | None = None

    def results(self) -> tuple[Tensor, ...]:
        """What a call returns for the inputs as they were made. Memory that a call leaves alone holds NaN."""
        if self.renew is not None:
            self.renew()
            return tuple(result.clone() for result in as_tuple(self.call()))
        poison(as_tuple(self.call()))  # whose memory the allocator gives to the next call
        return as_tuple(self.call())


class AbsentError(Exception):
    """There is no such arm here; the message says why."""


def ours(inputs: Inputs, settings: Resolution, *, given: bool = True) -> Arm:
    """The public op. given: pass the settings; otherwise they are those in force, which each call looks up."""
    op = getattr(ops, inputs.case.op)
    arguments = inputs.arguments(table_dtype_of(settings))
    numerics = settings if given else None
    if not inputs.case.op.endswith("_"):
        return Arm(lambda: op(**arguments, numerics=numerics))
    x = arguments.pop("x")
    own = x.clone()
    return Arm(lambda: op(own, **arguments, numerics=numerics), renew=lambda: own.copy_(x))


def specification(inputs: Inputs, settings: Resolution) -> Arm:
    """The eager reference of the op, on the device of the inputs."""
    reference = getattr(ops, f"{inputs.case.op.removesuffix('_')}_reference")
    arguments = inputs.arguments(table_dtype_of(settings))
    return Arm(lambda: reference(**arguments, numerics=settings.numerics))


def table_dtype_of(settings: Resolution) -> torch.dtype:
    """The dtype of the rotation table that the preset asks for: the activation dtype unless it says float32."""
    return torch.float32 if settings.requires.rope_table_dtype == "float32" else torch.bfloat16


def copy(inputs: Inputs) -> Arm:
    """A device copy that reads and writes as many bytes as the op, together."""
    source = torch.randn(inputs.case.moved_bytes // 4, device=inputs.device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return Arm(lambda: target.copy_(source))


# --- Bytes ------------------------------------------------------------------------------------------------------------


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    """Tensors, from a call that returns one or several."""
    return (results,) if isinstance(results, Tensor) else tuple(results)


def poison(results: Sequence[Tensor]) -> None:
    """Fill with NaN what a call returned, so that an element which the next one does not write is seen."""
    for result in results:
        result.fill_(torch.nan)


def differing(a: Sequence[Tensor], b: Sequence[Tensor]) -> int:
    """How many elements have other bits; all of them where shapes or dtypes do not agree."""
    if [(x.shape, x.dtype) for x in a] != [(x.shape, x.dtype) for x in b]:
        return elements(b)
    return sum(int((_bits(x) != _bits(y)).sum()) for x, y in zip(a, b, strict=True))


def elements(results: Sequence[Tensor]) -> int:
    """Of all results."""
    return sum(result.numel() for result in results)


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(INTEGERS[x.element_size()])
