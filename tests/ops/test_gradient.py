"""Gradients: those of the reference with the numerics of the forward, whose bytes do not know of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import numerics
from numerics import ops
from numerics.errors import ConfigurationError, InputError
from numerics.ops import dispatch, rms_norm, telemetry
from numerics.presets.schema import Numerics

Arguments = Callable[..., dict[str, Any]]
Builder = Callable[..., Numerics]
SameBits = Callable[[Tensor, Tensor], bool]

POINTS = ("qk_norm", "rope_product", "gate_product", "residual", "norm", "one_plus_scale", "scaled", "normalized")


def wanting(call: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, of which every floating-point tensor requires a gradient."""
    return {
        name: arg.detach().clone().requires_grad_() if isinstance(arg, Tensor) and arg.is_floating_point() else arg
        for name, arg in call.items()
    }


def leaves(call: dict[str, Any]) -> list[Tensor]:
    return [arg for arg in call.values() if isinstance(arg, Tensor) and arg.requires_grad]


def outputs(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def run(op: str, call: dict[str, Any], given: Any) -> tuple[Tensor, ...]:
    if op == "indexed_scale_shift_":
        call = call | {"x": call["x"] * 1}  # it cannot write into a leaf
    return outputs(getattr(ops, op)(**call, numerics=given))


def reference(op: str, call: dict[str, Any], given: Numerics) -> tuple[Tensor, ...]:
    return outputs(getattr(ops, f"{op.rstrip('_')}_reference")(**call, numerics=given))


@pytest.mark.parametrize("rotation", ["separate", "complex"])
def test_float64_passes_a_gradient_check(every_op: str, rotation: str, build: Builder, arguments: Arguments) -> None:
    call = wanting(arguments(every_op, 2, torch.float64))
    names = [name for name, arg in call.items() if isinstance(arg, Tensor) and arg.requires_grad]
    given = build(*POINTS, rope_rotation=rotation)
    assert torch.autograd.gradcheck(
        lambda *tensors: run(every_op, call | dict(zip(names, tensors, strict=True)), given),
        tuple(call[name] for name in names),
        fast_mode=True,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("preset_name", ["vllm_cuda", "diffusers_complex", "fast"])
def test_gradients_are_those_of_the_reference_chain(
    every_op: str, preset_name: str, dtype: torch.dtype, preset: Callable[[str], Numerics], arguments: Arguments,
    same_bits: SameBits,
) -> None:  # fmt: skip
    given, found = preset(preset_name), wanting(arguments(every_op, 5, dtype))
    made = run(every_op, found, given)
    grads = [torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(dtype) for out in made]
    torch.autograd.backward(made, grads)
    expected = wanting(arguments(every_op, 5, dtype))
    torch.autograd.backward(reference(every_op, expected, given), grads)
    for name, arg in found.items():
        if isinstance(arg, Tensor) and arg.requires_grad:
            assert arg.grad is not None, name
            assert same_bits(arg.grad, expected[name].grad), name


def test_requiring_a_gradient_changes_no_byte_of_the_forward(
    every_op: str, preset: Callable[[str], Numerics], arguments: Arguments, same_bits: SameBits
) -> None:
    call = arguments(every_op)
    made = run(every_op, wanting(call), preset("vllm_cuda"))
    assert all(out.requires_grad for out in made)
    with torch.no_grad():
        assert all(
            same_bits(a.detach(), b) for a, b in zip(made, run(every_op, call, preset("vllm_cuda")), strict=True)
        )


def test_a_gradient_does_not_choose_another_way(every_op: str, build: Builder, arguments: Arguments) -> None:
    ways = []
    for call in (arguments(every_op), wanting(arguments(every_op))):
        telemetry.reset_dispatch_counts()
        run(every_op, call, build())
        ways.append({(way.fused, way.reason) for way in telemetry.dispatch_counts()})
    assert ways[0] == ways[1]


@pytest.mark.parametrize("wanted", ["x", "weight"])
def test_one_gradient_alone_is_the_same_gradient(
    wanted: str, build: Builder, arguments: Arguments, same_bits: SameBits
) -> None:
    both, one = wanting(arguments("rms_norm")), arguments("rms_norm")
    one[wanted] = one[wanted].requires_grad_()
    for call in (both, one):
        rms_norm(**call, numerics=build()).backward(torch.ones(6, 32, dtype=torch.bfloat16))
    assert same_bits(one[wanted].grad, both[wanted].grad)
    assert [name for name, arg in one.items() if isinstance(arg, Tensor) and arg.grad is not None] == [wanted]


def test_an_expanded_gradient_is_the_same_as_a_dense_one(
    every_op: str, build: Builder, arguments: Arguments, same_bits: SameBits
) -> None:
    found, expected = wanting(arguments(every_op)), wanting(arguments(every_op))
    for call, dense in ((found, False), (expected, True)):
        made = run(every_op, call, build(*POINTS))
        one = torch.ones((), dtype=torch.bfloat16)
        grads = [torch.ones(out.shape, dtype=out.dtype) if dense else one.expand(out.shape) for out in made]
        torch.autograd.backward(made, grads)
    assert all(same_bits(a.grad, b.grad) for a, b in zip(leaves(found), leaves(expected), strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("used", [0, 1])
def test_an_output_that_nothing_used_adds_nothing(
    used: int, build: Builder, arguments: Arguments, same_bits: SameBits
) -> None:
    found, expected = wanting(arguments("fused_add_rms_norm")), wanting(arguments("fused_add_rms_norm"))
    run("fused_add_rms_norm", found, build())[used].sum().backward()
    made = reference("fused_add_rms_norm", expected, build())
    made[used].sum().backward()
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert same_bits(a.grad, torch.zeros_like(a) if b.grad is None else b.grad)  # type: ignore[arg-type]


def test_gradients_of_a_view_have_its_shape_and_share_no_memory(build: Builder, arguments: Arguments) -> None:
    call = arguments("fused_add_rms_norm")
    wide = call["x"].repeat(1, 3).requires_grad_()
    total = call["residual"].clone().requires_grad_()
    made = run("fused_add_rms_norm", call | {"x": wide[:, 32:64], "residual": total}, build())
    made[1].sum().backward()
    assert wide.grad is not None
    assert total.grad is not None
    assert wide.grad[:, 32:64].eq(1).all()
    assert wide.grad[:, :32].eq(0).all()
    total.grad.zero_()
    assert wide.grad[:, 32:64].eq(1).all()


def test_a_second_derivative_is_refused(build: Builder, arguments: Arguments) -> None:
    call = wanting(arguments("rms_norm"))
    (grad,) = torch.autograd.grad(rms_norm(**call, numerics=build()).sum(), call["x"], create_graph=True)
    with pytest.raises(InputError, match="rms_norm: its gradient cannot be differentiated again"):
        grad.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_compiled_gradients_are_those_of_eager(
    every_op: str, backend: str, preset: Callable[[str], Numerics], arguments: Arguments, same_bits: SameBits
) -> None:
    torch.compiler.reset()
    found, expected, given = wanting(arguments(every_op)), wanting(arguments(every_op)), preset("vllm_cuda")
    compiled = torch.compile(lambda call: run(every_op, call, given), fullgraph=True, backend=backend)
    for made in (compiled(found), run(every_op, expected, given)):
        torch.autograd.backward(made, [torch.ones_like(out) for out in made])
    assert all(same_bits(a.grad, b.grad) for a, b in zip(leaves(found), leaves(expected), strict=True))  # type: ignore[arg-type]


# --- Activation checkpointing -----------------------------------------------------------------------------------------


@pytest.fixture
def _fresh() -> None:
    dispatch.forget_used()


def through(x: Tensor, weight: Tensor, given: Any = None) -> Tensor:
    """What follows the norm keeps its result, so that its gradient tells the numerics of the norm."""
    y: Tensor = rms_norm(x, weight, 1e-6, numerics=given).square()
    return y


def gradient(call: dict[str, Any], preset: str, *, given: Any = None, reentrant: bool | None = None) -> Tensor:
    """Of x, with the forward inside of `use(preset)` and the backward outside of it; None: without a checkpoint."""
    x: Tensor = call["x"].clone().requires_grad_()
    with numerics.use(preset=preset):
        if reentrant is None:
            y = through(x, call["weight"], given)
        else:
            y = checkpoint(through, x, call["weight"], given, use_reentrant=reentrant)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    return x.grad


REENTRANT = pytest.mark.parametrize("reentrant", [True, False])


@pytest.mark.usefixtures("_fresh")
@REENTRANT
def test_a_recomputed_forward_uses_the_settings_that_were_in_force(
    reentrant: bool, arguments: Arguments, same_bits: SameBits
) -> None:
    call = arguments("rms_norm", 40)
    expected = gradient(call, "vllm_cuda", given="vllm_native")
    assert not same_bits(gradient(call, "vllm_native", given="vllm_cuda"), expected)
    assert same_bits(gradient(call, "vllm_native", reentrant=reentrant), expected)


@pytest.mark.usefixtures("_fresh")
@REENTRANT
def test_a_recomputed_forward_is_refused_where_several_settings_were_in_force(
    reentrant: bool, arguments: Arguments
) -> None:
    call = arguments("rms_norm", 40)
    gradient(call, "vllm_cuda", reentrant=reentrant)
    words = r"rms_norm: got numerics=None in a backward.*used vllm_cuda and vllm_native so far.*pass numerics=resolve"
    with pytest.raises(ConfigurationError, match=words):
        gradient(call, "vllm_native", reentrant=reentrant)


@REENTRANT
def test_a_recomputed_forward_uses_the_settings_that_it_was_given(
    reentrant: bool, arguments: Arguments, same_bits: SameBits
) -> None:
    call = arguments("rms_norm", 40)
    for given in ("vllm_native", "vllm_cuda", numerics.resolve("rms_norm", preset="vllm_native")):
        expected = gradient(call, "fast", given=given)
        assert same_bits(gradient(call, "fast", given=given, reentrant=reentrant), expected)


def test_a_backward_uses_the_numerics_of_its_forward(build: Builder, arguments: Arguments, same_bits: SameBits) -> None:
    call = arguments("rms_norm", 40)
    x = call["x"].clone().requires_grad_()
    with numerics.use(preset="vllm_native"):
        y = rms_norm(x, call["weight"], 1e-6)
    with numerics.use(preset="vllm_cuda"):
        y.backward(torch.ones_like(y))
    other = call["x"].clone().requires_grad_()
    made = reference("rms_norm", call | {"x": other}, numerics.resolve("rms_norm", preset="vllm_native").numerics)
    made[0].backward(torch.ones_like(y))
    assert x.grad is not None
    assert other.grad is not None
    assert same_bits(x.grad, other.grad)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own dual tensors
def test_a_dual_tensor_is_refused_rather_than_losing_its_tangent() -> None:
    x = torch.ones(2, 128, dtype=torch.bfloat16)
    with forward_ad.dual_level(), pytest.raises(InputError, match="rms_norm: got a dual tensor; legal: plain tensors"):
        rms_norm(forward_ad.make_dual(x, x), None, 1e-6, numerics="bf16_affine")
    with forward_ad.dual_level():
        assert rms_norm(x, None, 1e-6, numerics="bf16_affine").shape == x.shape
