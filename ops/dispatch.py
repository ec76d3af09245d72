"""Which numerics hold for a call, and which implementation computes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.ops.inputs import word
from numerics.ops.reduction import order_of
from numerics.ops.registry import Key, Op
from numerics.ops.telemetry import Dispatch, record
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
    like: Tensor,
    dtype: torch.dtype | None = None,
    table_dtype: torch.dtype | None = None,
    width: int | None = None,
    rows: Sequence[int] = (),
) -> Settings:
    """The numerics of a call: given, of a preset by name, or (None) those in force now without a model.

    like: the activations, or a tensor on their device, with their dtype. width, rows: of each norm that the unfused
    chain would call; none for an op without a norm.

    Raises:
        ConfigurationError: no such preset, settings of another family, or something left to resolve while compiling.
        RequirementError: a condition of the preset or of its reduction does not hold for the call.
    """
    bound = in_force(op, numerics, like)
    if not isinstance(bound, Resolution):
        for count in rows:
            if width is not None:
                order_of(bound, width, count)
        return Settings(bound)
    table = None if table_dtype is None else word(table_dtype)
    norms: Sequence[int | None] = rows or (None,)
    for norm in norms:
        bound.check_call(width=width, rows=norm, dtype=word(dtype or like.dtype), rope_table_dtype=table)
    return Settings(bound.numerics, bound.min_tokens)


def in_force(op: str, numerics: AnyNumerics, like: object) -> Resolution | Numerics:
    """The numerics given, or resolved now, bound to the device of a tensor. Raises as `settings_for` does."""
    if isinstance(numerics, Numerics):
        return numerics
    if not isinstance(numerics, Resolution):
        if torch.compiler.is_compiling():
            raise ConfigurationError(
                f"{op}: got numerics={numerics!r} while compiling; files and environment are read outside a graph: "
                f"pass numerics=resolve({OPS[op]!r}, ...), resolved before"
            )
        numerics = resolve(op, preset=numerics)
    if numerics.op != OPS[op]:
        raise ConfigurationError(f"{op}: got the settings of {numerics.op}; legal: those of {OPS[op]}")
    return numerics.bind(capability_of(like.device) if isinstance(like, Tensor) else None)


@cache
def capability_of(device: torch.device) -> str | None:
    """`cuda:9.0` or `hip:gfx942` for a GPU; None for a device that has no capability, such as a CPU."""
    if device.type != "cuda":
        return None
    if torch.version.hip is not None:
        return "hip:" + torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda:{major}.{minor}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call would take the fused kernel, and if not, why."""

    fused: bool
    reason: str = ""


def dispatch(op: Op, settings: Settings, *args: Any, key: Key | None = None) -> Any:
    """Compute a validated call: by the custom op, or where a gradient is wanted by the differentiable reference.

    key: under which calls that look like this one may be remembered.
    """
    if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        record(Dispatch(op.name, fused=False, reason="an input requires grad"))
        return op.reference(*args, numerics=settings.numerics)
    made = op.call(*args, settings.min_tokens, settings.numerics.text)
    if key is not None:
        op.accept(key, *args, settings.min_tokens, settings.numerics.text)
    return made
