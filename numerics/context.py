"""Settings of a piece of code (`use`) and of the process (`configure`)."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, Unpack

from numerics import environment
from numerics.errors import ConfigurationError
from numerics.layers import KnobArguments, Layer, checked_layer, family_of
from numerics.presets.file import Catalog, load
from numerics.presets.vocabulary import Family
from numerics.resolution import Resolution


@dataclass(eq=False)
class Configuration:
    """The catalog in force, who named the user's file, and what was resolved from it, which lives as long."""

    catalog: Catalog
    set_by: Literal["configure", "NUMERICS_CONFIG"] | None  # None: the packaged file alone
    resolutions: dict[object, Resolution] = field(default_factory=dict)


_stack: ContextVar[tuple[tuple[Family | None, Layer], ...]] = ContextVar("numerics.use", default=())
_configured: Configuration | None = None
_from_environment: dict[str | None, Configuration] = {}


@contextmanager
def use(
    preset: str | None = None,
    *,
    op: str | None = None,
    min_tokens: int | None = None,
    **knobs: Unpack[KnobArguments],
) -> Iterator[None]:
    """Set a preset, knobs or min_tokens for what is resolved inside the `with`, in one family or in all.

    Stronger than files and environment, weaker than arguments of a call; inside another `use` the inner one is the
    stronger. Knobs without a preset keep the preset below. Seen by this thread or asyncio task, and by tasks that
    it starts; other threads, the backward threads of autograd among them, do not see it. Also a decorator.

    Args:
        preset: name of a preset.
        op: a family, or one of its ops; all families without it.
        min_tokens: tokens below which a model keeps its own chain.
        **knobs: rms_norm_reduction, enable_fp_fusion, rounding_points, rope_rotation.

    Raises:
        ConfigurationError: on entering; nothing is given, or a name or value is not legal.
    """
    given = tuple((knob, value) for knob, value in knobs.items() if value is not None)
    location = f"numerics.use at {_caller(sys._getframe(1))}"
    if preset is None and min_tokens is None and not given:
        raise ConfigurationError(f"{location}: nothing is given; name a preset, a knob or min_tokens")
    layer = checked_layer(Layer("context", location, preset, given, min_tokens))  # type: ignore[arg-type]  # checked
    layer.check_names(configuration().catalog)
    token = _stack.set((*_stack.get(), (None if op is None else family_of(op), layer)))
    try:
        yield
    finally:
        _stack.reset(token)


def layers(family: Family) -> tuple[Layer, ...]:
    """The layers of the enclosing `use`s for a family, weakest (outermost) first."""
    stack = _stack.get()
    return tuple(layer for only, layer in stack if only is None or only == family) if stack else ()


def state() -> tuple[object, object]:
    """What `use` and `configure` have set, to compare with what they had set before."""
    return _configured, _stack.get()


def configure(path: str | os.PathLike[str] | None) -> None:
    """Name the user's presets file for the whole process; None goes back to NUMERICS_CONFIG.

    Code that names a file is stronger than the variable. The file is read here, and not again before the next
    `configure`; the one that NUMERICS_CONFIG names is read when it is first needed, and not again before `configure`.

    Raises:
        ConfigurationError: the file cannot be read or is not legal; the configuration in force stays.
    """
    global _configured  # noqa: PLW0603  # one configuration a process is what this sets
    if path is not None and not os.fspath(path):
        raise ConfigurationError("configure(''): name a file, or None to go back to NUMERICS_CONFIG")
    configured = None if path is None else Configuration(load(path), "configure")
    _from_environment.clear()
    _configured = configured


def configuration() -> Configuration:
    """The configuration in force. Raises ConfigurationError if the file that NUMERICS_CONFIG names is not legal."""
    if _configured is not None:
        return _configured
    path = environment.config()
    found = _from_environment.get(path)
    if found is None:
        found = _from_environment[path] = _load(path)
    return found


def _load(path: str | None) -> Configuration:
    if path is None:
        return Configuration(load(), None)
    try:
        return Configuration(load(path), "NUMERICS_CONFIG")
    except ConfigurationError as error:
        raise ConfigurationError(f"the file that {environment.CONFIG} names: {error}") from None


def _caller(frame: FrameType | None) -> str:
    """`serve.py:41`, outside of contextlib, which enters the generator."""
    while frame is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    return "?" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
