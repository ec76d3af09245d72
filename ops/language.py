"""Triton where it is installed; elsewhere stand-ins that let the modules with kernels be imported and read."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

HAS_TRITON = find_spec("triton") is not None

if TYPE_CHECKING or not HAS_TRITON:
    from numerics.ops import triton_stand_in as triton

    tl: Any = SimpleNamespace()
else:
    import triton
    import triton.language as tl

# Kernels are built for the interpreter or for a GPU when they are decorated, which is when numerics.ops is imported.
FOR_INTERPRETER = HAS_TRITON and not TYPE_CHECKING and bool(triton.knobs.runtime.interpret)

__all__ = ["FOR_INTERPRETER", "HAS_TRITON", "tl", "triton"]


@triton.constexpr_function
def field(order: Any, name: str) -> Any:
    """A field of an Order, at compile time."""
    return getattr(order, name)


@triton.constexpr_function
def contains(names: Any, name: str) -> bool:
    """Whether a tuple of names holds one, at compile time."""
    return name in names


@triton.constexpr_function
def ceil_pow2(n: int) -> int:
    """The smallest power of two that is not below n, at compile time."""
    return 1 << (n - 1).bit_length()


@triton.constexpr_function
def least(a: int, b: int) -> int:
    """The smaller number, at compile time."""
    return min(a, b)
