"""The custom ops `torch.ops.numerics.*`: each calls its kernel where that can run, and its reference elsewhere.

An op carries its numerics as canonical text, so that a graph shows them in words and every compile cache has them in
its key.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from numerics.environment import checks_indices
from numerics.ops import gradient
from numerics.ops.inputs import check_range
from numerics.ops.launch import Launch
from numerics.ops.telemetry import FEW_TOKENS, Dispatch, record
from numerics.presets.schema import Numerics

LIBRARY = torch.library.Library("numerics", "DEF")
REMEMBERED_CALLS = 4096
TABLES = ("shift", "scale", "gate")  # whose rows are indexed
SMALLEST_EPS = 2.0**-80
SCALARS = (bool, int, float, type(None))
PLAIN = (Tensor, torch.nn.Parameter)  # no subclass that means something else

Key = tuple[Any, ...]
Prepare = Callable[..., Launch | str]  # a launch for calls like this one, or the reason why there is none
parse = lru_cache(maxsize=256)(Numerics.parse)


class Op:
    """A custom op of tensors and settings, which end with `int min_tokens, str numerics`."""

    def __init__(
        self,
        name: str,
        schema: str,  # of the arguments before min_tokens
        returns: str,
        *,
        reference: Callable[..., Any],
        prepare: Prepare,
        tokens: Callable[..., int],
        fake: Callable[..., Any],
    ) -> None:
        self.name = name
        self.reference = reference
        self._prepare = prepare
        self._tokens = tokens
        self._returns = returns != "()"
        names = [argument.split()[-1] for argument in schema.split(", ")]
        self._indices = names.index("indices") if "indices" in names else None
        self._eps = names.index("eps") if "eps" in names else None
        self._tables = {name: place for place, name in enumerate(names) if name in TABLES}
        self._fused = Dispatch(name, fused=True)
        self._plans: dict[Key, Launch | Dispatch] = {}
        self._accepted: dict[Key, Launch] = {}
        LIBRARY.define(f"{name}({schema}, int min_tokens, str numerics) -> {returns}")
        LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")
        LIBRARY._register_fake(name, fake)  # the decorator of torch.library looks for the caller's module
        if self._returns:
            gradient.register(LIBRARY, name, schema, returns.count("Tensor"), reference, parse)
        self.call = getattr(torch.ops.numerics, name).default

    def recall(self, args: tuple[Any, ...], *more: Any) -> tuple[Key | None, Launch | None]:
        """What names a call of the public op, and its launch if such a call was accepted and fused before.

        args: as of the custom op, before min_tokens; more: what else was looked at to accept the call, its numerics
        among it. No name for a call that something else watches, such as a compiler or autograd: it takes the long way.
        """
        if _is_watched() or (self._indices is not None and checks_indices()):
            return None, None
        grad = torch.is_grad_enabled()
        looks: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind in PLAIN:
                if (
                    arg.layout is not torch.strided
                    or arg.is_neg()  # a view whose values are the negatives of what memory holds
                    or arg._is_zerotensor()  # it has no memory
                    or (grad and arg.requires_grad)
                ):
                    return None, None
                looks.append((arg.shape, arg.stride(), arg.dtype, arg.device, arg.data_ptr() & 15))
            elif kind in SCALARS:
                looks.append(arg)
            else:
                return None, None
        key = (*looks, *more)
        return key, self._accepted.get(key)

    def accept(self, key: Key, *args: Any) -> None:
        """Remember that a call was accepted, if it is fused. args: as of the custom op."""
        plan = self.plan(*args)
        # A CPU looks at the indices in each call.
        if isinstance(plan, Launch) and (self._indices is None or args[0].device.type != "cpu"):
            if len(self._accepted) >= REMEMBERED_CALLS:
                self._accepted.clear()
            self._accepted[key] = plan

    def fused(self, launch: Launch, args: tuple[Any, ...]) -> Any:
        """Run the launch of an accepted call."""
        record(self._fused)
        made = launch(args)
        return made[0] if len(made) == 1 else made or None

    def plan(self, *args: Any) -> Launch | Dispatch:
        """The launch for such a call, or the way that it goes instead. `args` as of the custom op."""
        key = tuple([_look(arg) if isinstance(arg, Tensor) else arg for arg in args])
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= REMEMBERED_CALLS:
                self._plans.clear()
            plan = self._plans[key] = self._planned(*args)
        return plan

    def _planned(self, *args: Any) -> Launch | Dispatch:
        *call, min_tokens, text = args
        eps = None if self._eps is None else call[self._eps]
        prepared = unfused(self._tokens(*call), min_tokens, eps) or self._prepare(*call, numerics=parse(text))
        if isinstance(prepared, Launch):
            prepared.gathered = tuple(place for place, arg in enumerate(call) if _is_column(arg))
            prepared = prepared.too_large_for(call[0].device) or prepared
        return Dispatch(self.name, fused=False, reason=prepared) if isinstance(prepared, str) else prepared

    def _run(self, *args: Any) -> Any:
        if self._indices is not None and checks_indices() and not _is_capturing(args[self._indices]):
            check_range(args[self._indices], {name: args[place] for name, place in self._tables.items()})
        plan = self.plan(*args)
        if isinstance(plan, Launch):
            return self.fused(plan, args)
        record(plan)
        made = self.reference(*args[:-2], numerics=parse(args[-1]))
        return made if self._returns else None


def _is_watched() -> bool:
    """Whether a call must go through torch's dispatcher: a compiler, a mode or a transform looks on."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0  # as torch.library.custom_op asks
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _is_column(arg: Any) -> bool:
    """Whether a weight or indices do not lie in one run."""
    return isinstance(arg, Tensor) and arg.ndim == 1 and len(arg) > 1 and arg.stride(0) != 1


def _is_capturing(x: Tensor) -> bool:
    """Whether a CUDA graph is captured, while which nothing can be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def few_tokens(tokens: int, min_tokens: int) -> str | None:
    """Why a call of so few tokens is not fused; None where it may be."""
    return f"{FEW_TOKENS} {min_tokens}" if tokens < min_tokens else None


def unfused(tokens: int, min_tokens: int, eps: float | None) -> str | None:
    """Why a call is not fused, whatever its tensors look like; None where it may be. eps: None where there is none."""
    return few_tokens(tokens, min_tokens) or small_eps(eps)


def small_eps(eps: float | None) -> str | None:
    """Why a norm with such an eps is not fused; None where it may be.

    A GPU's reciprocal square root takes a subnormal number for zero, and kernels add exact squares without rounding
    them, which differs for those below 2**-134. Neither can be seen beside an eps of at least this.
    """
    return f"eps is below {SMALLEST_EPS}" if eps is not None and eps < SMALLEST_EPS else None


def _look(x: Tensor) -> tuple[Any, ...]:
    """All that a plan may depend on. Reading 16 bytes at once needs an address that 16 divides."""
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15
