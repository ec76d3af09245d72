"""Triton's decorators for a machine without Triton, where no kernel runs, and for type checkers.

Kernels are no typed Python: a tuple grows in a loop, and a branch that a constexpr rules out leaves names unbound.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from typing import no_type_check as jit

__all__ = ["constexpr_function", "jit"]

Function = TypeVar("Function", bound=Callable[..., Any])


def constexpr_function(function: Function) -> Function:
    """The function itself."""
    return function
