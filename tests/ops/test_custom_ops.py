"""The custom ops as torch sees them: schemas, fakes, what they return and write."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from numerics.ops import registry
from numerics.presets.schema import Numerics

Arguments = Callable[..., dict[str, Any]]
Builder = Callable[..., Numerics]

BF16 = torch.bfloat16
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def overload(name: str) -> Any:
    return getattr(torch.ops.numerics, name).default


def positional(op: Any, call: dict[str, Any], given: Numerics) -> tuple[Any, ...]:
    """The arguments in the order of the schema."""
    defaults = {"image_first": False, "min_tokens": 0, "numerics": given.text}
    return tuple({**defaults, **call}[argument.name] for argument in op._schema.arguments)


def strided(call: dict[str, Any]) -> dict[str, Any]:
    """The same values, each tensor a slice of a wider one."""
    return {
        name: arg.repeat_interleave(2, 0)[::2] if isinstance(arg, Tensor) and arg.ndim > 1 else arg
        for name, arg in call.items()
    }


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("grad", [False, True])
def test_every_op_passes_the_checks_of_torch(
    every_op: str, layout: str, grad: bool, build: Builder, arguments: Arguments
) -> None:
    call = arguments(every_op)
    call = strided(call) if layout == "strided" else call
    name = "indexed_scale_shift" if grad and every_op == "indexed_scale_shift_" else every_op
    op = overload(name)
    args = positional(op, call, build("qk_norm", "residual"))
    if grad:
        args = tuple(a.requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    assert set(torch.library.opcheck(op, args, test_utils=CHECKS).values()) == {"SUCCESS"}


def test_every_backward_passes_the_checks_of_torch(every_op: str, build: Builder, arguments: Arguments) -> None:
    name = every_op.rstrip("_")
    forward, backward = overload(name), overload(f"{name}_backward")
    args = positional(forward, arguments(every_op), build("qk_norm", "residual"))
    made = forward(*args)
    grads = [torch.ones_like(out) for out in (made if isinstance(made, tuple) else (made,))]
    *call, _, text = args
    wanted = [isinstance(arg, Tensor) and arg.is_floating_point() for arg in call]
    for choice in (wanted, [want and place != 0 for place, want in enumerate(wanted)]):
        checks = torch.library.opcheck(backward, (*grads, *call, choice, text), test_utils=CHECKS)
        assert set(checks.values()) == {"SUCCESS"}
        assert len(backward(*grads, *call, choice, text)) == sum(choice)


def test_an_op_without_tokens_passes_the_checks_of_torch(every_op: str, build: Builder, arguments: Arguments) -> None:
    op = overload(every_op)
    args = positional(op, arguments(every_op, 0), build())
    assert set(torch.library.opcheck(op, args, test_utils=CHECKS[:3]).values()) == {"SUCCESS"}


def test_a_fake_has_the_strides_of_the_real_thing(every_op: str, build: Builder, arguments: Arguments) -> None:
    op = overload(every_op.rstrip("_") if every_op == "indexed_scale_shift_" else every_op)
    args = positional(op, strided(arguments(every_op)), build())
    real = op(*args)
    with FakeTensorMode() as mode:
        fake = op(*[mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args])
    for a, b in zip(*[out if isinstance(out, tuple) else (out,) for out in (real, fake)], strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert a.is_contiguous()


def test_a_schema_ends_with_min_tokens_and_the_numerics_in_words(every_op: str) -> None:
    last = [(argument.name, str(argument.type)) for argument in overload(every_op)._schema.arguments[-2:]]
    assert last == [("min_tokens", "int"), ("numerics", "str")]


def test_only_the_op_whose_name_says_so_writes_into_an_argument(every_op: str) -> None:
    written = [argument.name for argument in overload(every_op)._schema.arguments if argument.is_write]
    assert written == (["x"] if every_op.endswith("_") else [])


def test_numerics_are_parsed_once(build: Builder) -> None:
    text = build("qk_norm").text
    assert registry.parse(text) is registry.parse(text)
    assert registry.parse(text) == build("qk_norm")
