"""What `apply` puts in the place of something else, and how it takes that back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol

from torch import nn

Place = tuple[dict[str, Any], str]  # where a forward is kept: a namespace, and under which name


class Swap(Protocol):
    """One replaced part of a model."""

    def stands(self) -> bool:
        """Whether ours is in its place."""

    def install(self) -> None:
        """Put ours in."""

    def restore(self) -> bool:
        """Put the stock one back; False where something else stands there by now, which is left alone."""


@dataclass(frozen=True)
class SwappedProcessor:
    """An attention processor."""

    attention: Any
    stock: Any
    ours: Any

    def stands(self) -> bool:
        """As the protocol has it."""
        return self.attention.processor is self.ours

    def install(self) -> None:
        """As the protocol has it."""
        self.attention.set_processor(self.ours)

    def restore(self) -> bool:
        """As the protocol has it."""
        if self.stands():
            self.attention.set_processor(self.stock)
        return self.attention.processor is self.stock


@dataclass(frozen=True)
class SwappedForward:
    """The forward of one instance, innermost: what wraps it, wraps ours."""

    module: nn.Module
    ours: Any

    def stands(self) -> bool:
        """As the protocol has it."""
        return self._place() is not None

    def install(self) -> None:
        """As the protocol has it."""
        place = place_of_own(self.module)
        assert place is not None  # or this swap would not have been made
        namespace, name = place
        namespace[name] = self.ours

    def restore(self) -> bool:
        """As the protocol has it."""
        place = self._place()
        if place is None:
            return place_of_own(self.module) is not None
        namespace, name = place
        if namespace is self.module.__dict__ and name == "forward":
            del namespace[name]
        else:
            namespace[name] = MethodType(type(self.module).forward, self.module)
        return True

    def _place(self) -> Place | None:
        return _place(self.module, lambda forward: forward is self.ours)


def place_of_own(module: nn.Module) -> Place | None:
    """Where a module keeps the forward of its class: by itself, or under hooks of diffusers or accelerate.

    None where something else replaced it.
    """
    if "forward" not in module.__dict__:
        return module.__dict__, "forward"
    own = type(module).forward
    return _place(module, lambda forward: isinstance(forward, MethodType) and forward.__func__ is own)


def _place(module: nn.Module, is_wanted: Callable[[Any], bool]) -> Place | None:
    namespace = module.__dict__
    places = [(namespace, "forward"), (namespace, "_old_forward")]  # the second is accelerate's
    for reference in getattr(namespace.get("_diffusers_hook"), "_fn_refs", ()):
        places += [(vars(reference), "original_forward"), (vars(reference), "forward")]
    return next((place for place in places if is_wanted(place[0].get(place[1]))), None)
