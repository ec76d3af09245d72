"""The gradients of the custom ops: a backward computes the reference again, with the numerics of its forward."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from numerics.errors import InputError
from numerics.presets.schema import Numerics

Reference = Callable[..., Any]


def register(
    library: torch.library.Library,
    name: str,
    schema: str,  # of the arguments before min_tokens and numerics
    outputs: int,
    reference: Reference,
    parse: Callable[[str], Numerics],
) -> None:
    """Define the op `NAME_backward`, which a graph can hold without looking inside, and the autograd formula of NAME.

    An op that writes into an argument has none: its caller differentiates one that does not.
    """
    grads = "".join(f"Tensor? grad_{i}, " for i in range(outputs))
    backward = f"{name}_backward"
    library.define(f"{backward}({grads}{schema}, bool[] wanted, str numerics) -> Tensor[]")
    library.impl(backward, partial(_compute, outputs, reference, parse), "CompositeExplicitAutograd")
    library._register_fake(backward, partial(_fake, outputs))
    torch.library.register_autograd(f"{library.ns}::{backward}", partial(_refuse, name), lib=library)
    call = getattr(getattr(torch.ops, library.ns), backward).default
    torch.library.register_autograd(f"{library.ns}::{name}", partial(_backward, call), setup_context=_save, lib=library)


def _save(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:  # noqa: ARG001  # torch passes it by its name
    *call, _min_tokens, ctx.numerics = inputs
    ctx.save_for_backward(*[arg for arg in call if isinstance(arg, Tensor)])
    ctx.others = [None if isinstance(arg, Tensor) else (arg,) for arg in call]
    ctx.set_materialize_grads(False)


def _backward(call: Callable[..., list[Tensor]], ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = iter(ctx.saved_tensors)
    args = [next(tensors) if other is None else other[0] for other in ctx.others]
    wanted = [bool(needed) for needed in ctx.needs_input_grad[: len(args)]]
    found = iter(call(*grads, *args, wanted, ctx.numerics))
    return (*[next(found) if want else None for want in wanted], None, None)


def _compute(outputs: int, reference: Reference, parse: Callable[[str], Numerics], *args: Any) -> list[Tensor]:
    """The gradients of the arguments that are wanted."""
    grads, inputs, wanted, text = args[:outputs], args[outputs:-2], args[-2], args[-1]
    # A kernel runs below autograd, which is let in again.
    with (
        torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False),
        torch.enable_grad(),
    ):
        call = [
            arg.detach().requires_grad_(want) if isinstance(arg, Tensor) else arg
            for arg, want in zip(inputs, wanted, strict=True)
        ]
        made = reference(*call, numerics=parse(text))
    outs = made if isinstance(made, tuple) else (made,)
    pairs = [(out, grad) for out, grad in zip(outs, grads, strict=True) if grad is not None and out.requires_grad]
    leaves = [arg for arg, want in zip(call, wanted, strict=True) if want]
    found = torch.autograd.grad(
        [out for out, _ in pairs], leaves, [grad for _, grad in pairs], allow_unused=True, materialize_grads=True
    )
    # An op returns no tensor twice, none that came in, and each with canonical strides.
    return [torch.empty(grad.shape, dtype=grad.dtype, device=grad.device).copy_(grad) for grad in found]


def _fake(outputs: int, *args: Any) -> list[Tensor]:
    call, wanted = args[outputs:-2], args[-2]
    return [arg.new_empty(arg.shape) for arg, want in zip(call, wanted, strict=True) if want]


def _refuse(name: str, *_: object) -> NoReturn:
    raise InputError(f"{name}: its gradient cannot be differentiated again")
