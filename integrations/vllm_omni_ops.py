"""Functions that stand in for vLLM-Omni's: its own off CUDA, ours on it, with settings that were resolved before."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from numerics import ops
from numerics.errors import RequirementError
from numerics.ops.dispatch import capability_of
from numerics.ops.tracing import reads_rounded_table
from numerics.resolution import Resolution

Function = Callable[..., Any]


def why_unknown(name: str, found: object, layer: str) -> str | None:
    """Why ours cannot stand in for what a module has under this name; None where it can.

    layer: the module of vLLM-Omni that defines the function.
    """
    if torch.version.hip is not None:
        return "torch is built for ROCm, where vLLM-Omni runs its own chains"
    if found is None:
        return "the module has no such name"
    if not inspect.isfunction(found):
        return f"it is a {type(found).__name__}, no function"
    if found.__module__ != layer:
        return f"it is {found.__module__}.{found.__qualname__}, not the function of {layer}"
    theirs, ours = _signature(found), _expected(name)
    if theirs != ours:
        return f"its signature is {theirs}, not {ours}, which ours was written for"
    return None


def is_ours(x: object) -> bool:
    """Whether ours computes a call with these activations: on CUDA alone."""
    return isinstance(x, Tensor) and x.is_cuda


def stand_in(
    name: str, original: Function, found: Resolution | RequirementError, module: str, *, rounds_table: bool
) -> Function:
    """Ours for tensors on CUDA, the original for all others.

    found: the settings, or the error that each call on CUDA is to raise. module: that imports the function; there it
    pickles by name. rounds_table: whether the model hands over a float32 rotation table where its own chain rounds it.
    """
    first = next(iter(inspect.signature(original).parameters))
    if isinstance(found, RequirementError):
        ours = _refusing(found)
    elif rounds_table:
        ours = _with_rounded_table(getattr(ops, name), found)
    else:
        ours = functools.partial(getattr(ops, name), numerics=found)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get(first)
        return (ours if is_ours(x) else original)(*args, **kwargs)

    function.__module__ = module
    return function


def threshold(original: Function, min_tokens: int, module: str) -> Function:
    """The tokens below which a model keeps its own chain: as the settings say, not as the model does."""

    @functools.wraps(original)
    def function(default: int) -> int:  # noqa: ARG001  # the model's own threshold
        return min_tokens

    function.__module__ = module
    return function


def _expected(name: str) -> inspect.Signature:
    """The signature in vLLM-Omni 0.30: that of ours without `numerics`."""
    if name == "fused_qk_norm_rope_min_tokens":
        return inspect.Signature([inspect.Parameter("default", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    return _signature(getattr(ops, name), without="numerics")


def _signature(function: Function, without: str = "") -> inspect.Signature:
    """Names, kinds and defaults; annotations do not matter."""
    kept = [each for each in inspect.signature(function).parameters.values() if each.name != without]
    return inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in kept])


def _refusing(error: RequirementError) -> Function:
    def refuse(*_: object, **__: object) -> Any:
        raise RequirementError(*error.args)

    return refuse


def _with_rounded_table(op: Function, numerics: Resolution) -> Function:
    def fused(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, rope_table: Tensor, eps: float, **keywords: Any
    ) -> Any:
        if reads_rounded_table(numerics.key, capability_of(q.device)):
            rope_table = rope_table.to(q.dtype)
        return op(q, k, q_weight, k_weight, rope_table, eps, **keywords, numerics=numerics)

    return fused
