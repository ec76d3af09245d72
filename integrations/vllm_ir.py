"""The fused norms as a provider of vLLM's IR ops, which vLLM uses where its own ir_op_priority names it."""

import hashlib
import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.integrations.installed import Installed
from numerics.ops import norm
from numerics.ops.dispatch import capability_of
from numerics.ops.inputs import word
from numerics.ops.registry import Op
from numerics.resolution import Resolution
from numerics.resolve import resolve

LOG: Final = logging.getLogger("vllm.plugins.numerics")
PROVIDER: Final = "numerics"
# Of each op: the model whose settings it takes. The two add their squares in different orders in vLLM.
MODELS: Final = {"rms_norm": "vllm:rms_norm", "fused_add_rms_norm": "vllm:fused_add_rms_norm"}

_active: list[Installed] = []  # at most one
_lock: Final = Lock()  # of two threads that install, one does


def install() -> Installed:
    """Register the provider `numerics` of vLLM's rms_norm and fused_add_rms_norm.

    vLLM calls it where its priority says so: `--ir-op-priority.rms_norm numerics`. Settings are resolved here, once.
    Tensors that it does not take go to the next provider of the priority: those that are not on CUDA, that have another
    dtype than the weight or one that the preset does not allow, and norms of a part of a row.

    Raises:
        ConfigurationError: vLLM is not installed or has no IR ops, or a file or variable is not legal.
        RequirementError: a condition of a preset does not hold for this process.
    """
    with _lock:
        return _active[0] if _active else _installed()


def _installed() -> Installed:
    registry, found = _registry()
    settings = {name: resolve("fused_rms_norm", model) for name, model in MODELS.items()}
    installed = Installed(f"vllm {found}", {(MODELS[name], "fused_rms_norm"): each for name, each in settings.items()})
    LOG.info("numerics: provider of IR ops in %s, settings %s", installed.engine, installed.fingerprint)
    for line in installed.lines():
        LOG.info("numerics: %s", line)
    for name, numerics in settings.items():
        path, op = f"vllm.ir.ops.{name}", registry[name]
        implementation, supports = MAKE[name](numerics, _dtypes(numerics))
        if reason := _registered(op, implementation, supports, numerics):
            LOG.warning("numerics: %s gets no provider: %s", path, reason)
            installed.keep(path, reason)
            continue
        installed.replace(path, partial(_undo, op))
        LOG.info("numerics: provider %r of %s; to use it: --ir-op-priority.%s %s", PROVIDER, path, name, PROVIDER)
    _active.append(installed)
    installed.at_end(_active.clear)
    return installed


def active() -> Installed | None:
    """The record of what is installed in this process."""
    return _active[0] if _active else None


def _registry() -> tuple[dict[str, Any], str]:
    """The IR ops of vLLM by name, and its version."""
    try:
        found = version("vllm")
    except PackageNotFoundError:
        raise ConfigurationError("vllm: nothing to install in: the package vllm is not installed") from None
    try:
        from vllm import ir  # its ops register themselves
    except ImportError as error:
        raise ConfigurationError(
            f"vllm {found}: it has no IR ops that a provider could be registered for: {error}"
        ) from error
    return {name: getattr(ir.ops, name, None) for name in MODELS}, found


def _on_cuda() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def _registered(
    op: Any, implementation: Callable[..., Any], supports: Callable[..., bool], numerics: Resolution
) -> str | None:
    """Register an implementation. Returns why that cannot be; None where it was done."""
    if op is None:
        return "vLLM has no such op"
    if PROVIDER in op.impls:
        return f"another provider {PROVIDER!r} is registered"
    try:
        made = op.register_impl(PROVIDER, supported=_on_cuda(), supports_args=supports)(implementation)
    except ValueError as error:  # the signature of vLLM's op is another
        return str(error)
    # vLLM's keys of compiled graphs know an implementation by its source alone; the settings decide as well.
    key = hashlib.sha256(f"{made.uuid()} {numerics.key}".encode()).hexdigest()
    made.uuid = lambda: key
    return None


def _undo(op: Any) -> bool:
    found = op.impls.pop(PROVIDER, None)
    op._priority_impls = [each for each in op._priority_impls if each is not found]
    return found is not None


def _dtypes(numerics: Resolution) -> frozenset[torch.dtype]:
    """The activations that the preset takes on every capability."""
    rows = (numerics, *(row for _, row in numerics.when))
    return frozenset(
        dtype
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        if all(row.requires.dtype is None or word(dtype) in row.requires.dtype for row in rows)
    )


# --- Implementations --------------------------------------------------------------------------------------------------
# With the names, annotations and defaults of vLLM's own, which it compares.


def _is_symbolic(x: Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in x.shape)


def _traced(op: Op, numerics: Resolution, x: Tensor, *more: Any) -> Any:
    """The custom op, for a graph of vLLM's that is lowered: how many rows it will have is seen when it runs."""
    bound = numerics.bind(capability_of(x.device))
    width: Any = x.shape[-1]  # or a SymInt
    bound.check_call(width=width if isinstance(width, int) else None, rows=None, dtype=word(x.dtype))
    return op.call(x, *more, bound.min_tokens, bound.numerics.text)


def _rms_norm(
    numerics: Resolution, dtypes: frozenset[torch.dtype]
) -> tuple[Callable[..., Tensor], Callable[..., bool]]:
    def rms_norm(
        x: Tensor,
        weight: Tensor | None,
        epsilon: float,
        variance_size: int | None = None,  # noqa: ARG001  # None, or `supports` says no
    ) -> Tensor:
        if _is_symbolic(x):
            return _traced(norm.NORM, numerics, x, weight, epsilon)  # type: ignore[no-any-return]
        return norm.rms_norm(x, weight, epsilon, numerics=numerics)

    def supports(
        x: Tensor,
        weight: Tensor | None,
        epsilon: float,  # noqa: ARG001  # any
        variance_size: int | None = None,
    ) -> bool:
        return variance_size is None and x.is_cuda and x.dtype in dtypes and (weight is None or weight.dtype == x.dtype)

    return rms_norm, supports


def _fused_add_rms_norm(
    numerics: Resolution, dtypes: frozenset[torch.dtype]
) -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., bool]]:
    def fused_add_rms_norm(
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,
        variance_size: int | None = None,  # noqa: ARG001  # None, or `supports` says no
    ) -> tuple[Tensor, Tensor]:
        if _is_symbolic(x):
            return _traced(norm.ADD_NORM, numerics, x, x_residual, weight, epsilon)  # type: ignore[no-any-return]
        return norm.fused_add_rms_norm(x, x_residual, weight, epsilon, numerics=numerics)

    def supports(
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,  # noqa: ARG001  # any
        variance_size: int | None = None,
    ) -> bool:
        return (
            variance_size is None
            and x.is_cuda
            and x.dtype in dtypes
            and x_residual.dtype == x.dtype
            and (weight is None or weight.dtype == x.dtype)
        )

    return fused_add_rms_norm, supports


MAKE: Final[dict[str, Callable[..., Any]]] = {"rms_norm": _rms_norm, "fused_add_rms_norm": _fused_add_rms_norm}
