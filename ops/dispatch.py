"""Which numerics hold for a call, and which implementation computes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.ops.inputs import word
from numerics.ops.reduction import order_of
from numerics.presets.schema import Numerics
from numerics.presets.vocabulary import OPS
from numerics.resolve import Resolution, resolve

AnyNumerics = Resolution | Numerics | str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a call needs of a resolution."""

    numerics: Numerics
    min_tokens: int = 0


def settings_for(
    op: str,
    numerics: AnyNumerics,
    *,
    device: torch.device,
    dtype: torch.dtype,
    table_dtype: torch.dtype | None = None,
    width: int | None = None,
    rows: Sequence[int] = (),
) -> Settings:
    """The numerics of a call: given, of a preset by name, or (None) those in force now without a model.

    width, rows: of each norm that the unfused chain would call; none for an op without a norm.

    Raises:
        ConfigurationError: no such preset, settings of another family, or something left to resolve while compiling.
        RequirementError: a condition of the preset or of its reduction does not hold for the call.
    """
    if isinstance(numerics, Numerics):
        for count in rows:
            if width is not None:
                order_of(numerics, width, count)
        return Settings(numerics)
    if not isinstance(numerics, Resolution):
        if torch.compiler.is_compiling():
            raise ConfigurationError(
                f"{op}: got numerics={numerics!r} while compiling; files and environment are read outside a graph: "
                f"pass numerics=resolve({OPS[op]!r}, ...), resolved before"
            )
        numerics = resolve(op, preset=numerics)
    if numerics.op != OPS[op]:
        raise ConfigurationError(f"{op}: got the settings of {numerics.op}; legal: those of {OPS[op]}")
    bound = numerics.bind(capability_of(device))
    table = None if table_dtype is None else word(table_dtype)
    norms: Sequence[int | None] = rows or (None,)
    for norm in norms:
        bound.check_call(width=width, rows=norm, dtype=word(dtype), rope_table_dtype=table)
    return Settings(bound.numerics, bound.min_tokens)


@cache
def capability_of(device: torch.device) -> str | None:
    """`cuda:9.0` or `hip:gfx942` for a GPU; None for a device that has no capability, such as a CPU."""
    if device.type != "cuda":
        return None
    if torch.version.hip is not None:
        return "hip:" + torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda:{major}.{minor}"


def kernel_takes(op: str, like: Tensor) -> bool:  # noqa: ARG001  # no op has a kernel yet
    """Whether a fused kernel would compute the op for tensors like this one."""
    return False


def dispatch(
    op: str,  # noqa: ARG001  # names the kernel
    reference: Callable[..., Any],
    settings: Settings,
    *args: Any,
    tokens: int,  # noqa: ARG001  # compared with min_tokens
    **kwargs: Any,
) -> Any:
    """Compute a validated call: the one place where a fused kernel takes over from the reference."""
    return reference(*args, **kwargs, numerics=settings.numerics)
