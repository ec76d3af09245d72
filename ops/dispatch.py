"""Which numerics hold for a call, and which implementation computes it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from numerics import context, environment
from numerics.errors import ConfigurationError, InputError
from numerics.ops import tracing
from numerics.ops.inputs import word
from numerics.ops.reduction import order_of
from numerics.ops.registry import Key, Op
from numerics.presets.schema import Numerics
from numerics.presets.vocabulary import OPS, Family, RoundingPoint
from numerics.requirements import check_environment
from numerics.resolve import Resolution, resolve

AnyNumerics = Resolution | Numerics | str | None

_used: defaultdict[Family, dict[str, Resolution]] = defaultdict(dict)  # by calls without numerics, by fingerprint
_now: dict[tuple[object, ...], Resolution] = {}  # what calls without numerics find, by all that decides it
REMEMBERED_SETTINGS = 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What a call needs of a resolution."""

    text: str  # of the numerics
    rounding_points: tuple[RoundingPoint, ...]
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
    chain would call; none for an op without a norm. While compiling, rows are not known yet: whether the order of
    additions is declared for them is seen when the op runs.

    Raises:
        ConfigurationError: no such preset, settings of another family, or something left to resolve while compiling.
        RequirementError: a condition of the preset or of its reduction does not hold for the call.
    """
    bound = in_force(op, numerics, like)
    table = None if table_dtype is None else word(table_dtype)
    if not isinstance(bound, Resolution):
        if not torch.compiler.is_compiling():
            for count in rows:
                if width is not None:
                    order_of(bound, width, count)
        return Settings(bound.text, bound.rounding_points)
    if torch.compiler.is_compiling():
        text, points, min_tokens = tracing.settings(
            bound.key, capability_of(like.device), word(dtype or like.dtype), table
        )
        tracing.check_spans(bound.key, capability_of(like.device), width, rows)
        return Settings(text, points, min_tokens)
    norms: Sequence[int | None] = rows or (None,)
    for norm in norms:
        bound.check_call(width=width, rows=norm, dtype=word(dtype or like.dtype), rope_table_dtype=table)
    return Settings(bound.numerics.text, bound.numerics.rounding_points, bound.min_tokens)


def in_force(op: str, numerics: AnyNumerics, like: object) -> Resolution | Numerics:
    """The numerics given, or resolved now, bound to the device of a tensor. Raises as `settings_for` does."""
    if isinstance(numerics, Numerics):
        return numerics
    if torch.compiler.is_compiling():
        return _given_to_a_compiler(op, numerics)
    if numerics is None:
        return _in_force_now(op, like)
    if not isinstance(numerics, Resolution):
        numerics = resolve(op, preset=numerics)
    if numerics.op != OPS[op]:
        raise ConfigurationError(_another_family(op, numerics.op))
    return numerics.bind(capability_of(like.device) if isinstance(like, Tensor) else None)


def _given_to_a_compiler(op: str, numerics: Resolution | str | None) -> Resolution:
    """The resolution as it came: `settings_for` binds it."""
    if not isinstance(numerics, Resolution):
        given = "None" if numerics is None else repr(numerics)
        tracing.refuse(
            f"{op}: got numerics={given} while compiling; files and environment are read outside a graph: "
            f"pass numerics=resolve('{OPS[op]}', ...), resolved before"
        )
    elif numerics.op != OPS[op]:
        tracing.refuse(_another_family(op, numerics.op))
    assert isinstance(numerics, Resolution)
    return numerics


def _another_family(op: str, family: Family) -> str:
    return f"{op}: got the settings of {family}; legal: those of {OPS[op]}"


def _in_force_now(op: str, like: object) -> Resolution:
    """The settings in force without a model. Resolved again when anything changed that could change them."""
    device = like.device if isinstance(like, Tensor) else None
    key = op, device, environment.raw(OPS[op]), context.state(), torch._C._current_graph_task_id() == -1
    bound = _now.get(key)
    if bound is None:
        if len(_now) >= REMEMBERED_SETTINGS:
            _now.clear()
        bound = _used_by_the_forward(op).bind(None if device is None else capability_of(device))
        if key[-1]:
            _now[key] = bound
    elif bound.requires.env:
        check_environment(bound.requires, bound.who)
    return bound


def _used_by_the_forward(op: str) -> Resolution:
    """What is in force now; in a backward, which computes a forward again, what that used.

    A checkpoint does so outside of the `with numerics.use(...)` that was around it, and on a GPU in another thread.
    Which of several settings the forward used cannot be told from here.
    """
    used = _used[OPS[op]]
    if not used or torch._C._current_graph_task_id() == -1:
        found = resolve(op)
        used[found.fingerprint] = found
        return found
    if len(used) > 1:
        raise ConfigurationError(
            f"{op}: got numerics=None in a backward, which computes again what a forward computed; calls without "
            f"numerics used {' and '.join(each.label for each in used.values())} so far, and it cannot be told which "
            f"of them this forward used: pass numerics=resolve({OPS[op]!r}, ...)"
        )
    return next(iter(used.values()))


def forget_used() -> None:
    """Forget what calls without numerics used, as a new process would."""
    _used.clear()
    _now.clear()


@torch.compiler.assume_constant_result
def capability_of(device: torch.device) -> str | None:
    """`cuda:9.0` or `hip:gfx942` for a GPU; None for a device that has no capability, such as a CPU."""
    return _capability(device)


@cache
def _capability(device: torch.device) -> str | None:
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


def _refuse_forward_mode(op: str, args: Sequence[Any]) -> None:
    """Refuse dual numbers: an op would return a value without its tangent."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    for arg in args:
        if isinstance(arg, Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
            raise InputError(f"{op}: got a dual tensor; legal: plain tensors, since derivatives go backwards only")


def dispatch(op: Op, settings: Settings, *args: Any, key: Key | None = None) -> Any:
    """Compute a validated call by the custom op. key: under which calls that look like this one may be remembered."""
    _refuse_forward_mode(op.name, args)
    made = op.call(*args, settings.min_tokens, settings.text)
    if key is not None:
        op.accept(key, *args, settings.min_tokens, settings.text)
    return made
