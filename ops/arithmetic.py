"""Exact arithmetic in eager torch: rounding points, the GPU's rsqrt on a CPU, fused multiply-add, true division."""

import lzma
from functools import cache
from importlib.resources import files
from typing import Any, Final

import torch
from torch import Tensor

from numerics.presets.schema import Numerics
from numerics.presets.vocabulary import RoundingPoint

ONE_BITS: Final = 0x3F800000  # float32 1.0
MANTISSA_BITS: Final = 23
SMALLEST_NORMAL: Final = 2.0**-126


def upcast(x: Tensor) -> Tensor:
    """The tensor in the dtype of the arithmetic: float32, or float64 for a float64 tensor."""
    return x if x.dtype == torch.float64 else x.float()


def round_at(
    point: RoundingPoint,
    x: Tensor,  # float32 or float64, any shape
    dtype: torch.dtype,  # of the activation
    numerics: Numerics,
) -> Tensor:
    """`x` after a round trip through the activation dtype, to nearest even, where the numerics list the point.

    The gradient of the round trip is the identity.
    """
    if point not in numerics.rounding_points or x.dtype == dtype:
        return x
    return _RoundTrip.apply(x, dtype)  # type: ignore[no-any-return]  # torch does not type apply


class _RoundTrip(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


def divide(x: Tensor, n: float) -> Tensor:
    """The correctly rounded x / n. CUDA multiplies by the reciprocal of a scalar, so the divisor is a tensor."""
    return x / torch.full_like(x, n)


def multiply(x: Tensor, n: float) -> Tensor:
    """The product of x and 1 / n, the reciprocal rounded to the dtype of x."""
    return x * torch.full_like(x, 1.0 / n)


# --- Reciprocal square root -------------------------------------------------------------------------------------------


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x) with the bits of the tensor's device; a CPU returns those of sm_90 (MUFU.RSQ) for float32.

    Differentiable. float64 takes torch's own.
    """
    if x.dtype == torch.float64 or x.device.type != "cpu":
        return torch.rsqrt(x)
    return _Sm90Rsqrt.apply(x)  # type: ignore[no-any-return]


class _Sm90Rsqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _sm90_rsqrt(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return grads[0] * (-0.5 * y * y * y)


def _sm90_rsqrt(x: Tensor) -> Tensor:
    """Write x = m * 4**k with m in [1, 4): the result is 2**-k times that of m, which the packaged table corrects."""
    subnormal = x.abs() < SMALLEST_NORMAL
    scaled = torch.where(subnormal, x * 2.0**24, x)  # as rsqrtf does: scale a subnormal by 4**12, the result by 2**12
    regular = (scaled > 0) & torch.isfinite(scaled)
    bits = torch.where(regular, scaled, 1.0).view(torch.int32)
    k = (bits - ONE_BITS) >> (MANTISSA_BITS + 1)
    m = bits - (k << (MANTISSA_BITS + 1))
    nearest = (1.0 / m.view(torch.float32).double().sqrt()).float()
    delta = rsqrt_deltas()[m.long() - ONE_BITS]
    y = (nearest.view(torch.int32) + delta - (k << MANTISSA_BITS)).view(torch.float32)
    return torch.where(regular, torch.where(subnormal, y * 2.0**12, y), torch.rsqrt(x))


@cache
def rsqrt_deltas() -> Tensor:
    """int8 [2**24]: MUFU.RSQ minus the nearest float32, in ulps, for the float32 numbers of [1, 4) in order.

    Measured on an NVIDIA H200; the pattern repeats for every power of four. Read once, on first use.
    """
    packed = files("numerics.golden").joinpath("rsqrt_approx_sm90_delta.xz").read_bytes()
    return torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.int8)


# --- Fused multiply-add -----------------------------------------------------------------------------------------------


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Fused a * b + c, rounded once, for float32 tensors that broadcast. Differentiable.

    float64, which is there to check gradients, rounds twice.
    """
    if a.dtype == torch.float64:
        return a * b + c
    return _Fma.apply(a, b, c)  # type: ignore[no-any-return]


class _Fma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.shapes = a.shape, b.shape, c.shape
        return exact_fma(a, b, c)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = ctx.saved_tensors
        grad = grads[0]
        return tuple(g.sum_to_size(shape) for g, shape in zip((grad * b, grad * a, grad), ctx.shapes, strict=True))


def exact_fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The float32 nearest to a * b + c.

    The product of two float32 numbers is exact in float64. Their sum with c is rounded to odd, which keeps 53 bits and
    a sticky one, so that rounding it again to 24 bits is right (Boldo and Melquiond, 2008).
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    # Knuth's TwoSum: the error of the sum, exact.
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(torch.int64)
    inexact = torch.isfinite(error) & (error != 0) & torch.isfinite(total)
    outwards = (error > 0) == (total > 0)
    odd = torch.where((bits & 1) == 1, bits, torch.where(outwards, bits + 1, bits - 1))
    return torch.where(inexact, odd, bits).view(torch.float64).float()


def is_exact_product(a: Tensor, b: Tensor) -> bool:
    """Whether no product is rounded, as with 16-bit values, so that fusing it into a sum changes nothing.

    Spares a CPU the emulation; asked of a GPU it would wait for it, so there the answer is no.
    """
    if a.dtype == torch.float64:
        return True
    return a.device.type == "cpu" and torch.equal(a.double() * b.double(), (a * b).double())
