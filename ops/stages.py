"""The stages that every fused op is made of: normalize, rotate, modulate, gate. Arithmetic is float32."""

from __future__ import annotations

import torch
from torch import Tensor

from numerics.ops.arithmetic import fma, round_at, rsqrt, upcast
from numerics.ops.language import contains, tl, triton
from numerics.ops.reduction import row_mean
from numerics.presets.schema import Numerics


def normalize(
    x: Tensor,  # [..., N] activation dtype, or float32 where a residual was not rounded
    weight: Tensor | None,  # [N] activation dtype
    eps: float,
    rows: int,  # of the unfused norm
    dtype: torch.dtype,  # of the activation
    numerics: Numerics,
) -> Tensor:  # [..., N] float32
    """RMSNorm: (x * rstd) * weight with rstd = rsqrt(mean(x * x) + eps)."""
    x32 = upcast(x)
    rstd = rsqrt(row_mean(x32, rows, numerics) + eps)
    y = round_at("normalized", x32 * rstd[..., None], dtype, numerics)
    return y if weight is None else y * upcast(weight)


def rotate(
    x: Tensor,  # [..., heads, D] float32, normalized
    cos: Tensor,  # [..., rotary_dim / 2], broadcast over the heads
    sin: Tensor,  # the same
    interleaved: bool,  # pairs (2i, 2i + 1), else (i, i + rotary_dim / 2)
    dtype: torch.dtype,  # of the activation
    numerics: Numerics,
) -> Tensor:  # [..., heads, D] float32
    """RoPE on the first rotary_dim elements of each head; the others pass through.

    A token whose row says cos 1 and sin -0.0 throughout is not rotated: signed zeros, infinities and NaN pass as they
    are. With sin 0.0, as at position 0, it is computed like any other, as the unfused chains do.
    """
    half = cos.shape[-1]
    rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (rotary[..., 0::2], rotary[..., 1::2]) if interleaved else (rotary[..., :half], rotary[..., half:])
    c, s = upcast(cos)[..., None, :], upcast(sin)[..., None, :]
    real, imag = _products(first, second, c, s, dtype, numerics)
    identity = ((c == 1) & (s == 0) & s.signbit()).all(-1, keepdim=True)
    real, imag = torch.where(identity, first, real), torch.where(identity, second, imag)
    rotated = torch.stack((real, imag), -1).flatten(-2) if interleaved else torch.cat((real, imag), -1)
    return torch.cat((rotated, rest), -1)


def _products(
    a: Tensor, b: Tensor, c: Tensor, s: Tensor, dtype: torch.dtype, numerics: Numerics
) -> tuple[Tensor, Tensor]:
    """(a + ib) * (c + is), as `rope_rotation` says. In `complex`, two of the four products are never rounded."""
    bs, bc = round_at("rope_product", b * s, dtype, numerics), round_at("rope_product", b * c, dtype, numerics)
    if numerics.rope_rotation == "complex":
        return fma(a, c, -bs), fma(a, s, bc)
    ac, as_ = round_at("rope_product", a * c, dtype, numerics), round_at("rope_product", a * s, dtype, numerics)
    return ac - bs, as_ + bc


def modulate(
    x: Tensor,  # [rows, N] float32
    shift: Tensor,  # [rows, N]
    scale: Tensor,  # [rows, N]
    dtype: torch.dtype,  # of the activation
    numerics: Numerics,
) -> Tensor:  # [rows, N] float32
    """AdaLN: x * (1 + scale) + shift."""
    factor = round_at("one_plus_scale", 1 + upcast(scale), dtype, numerics)
    scaled = round_at("scaled", round_at("norm", x, dtype, numerics) * factor, dtype, numerics)
    return scaled + upcast(shift)


def gate(
    residual: Tensor,  # [rows, N]
    gate: Tensor,  # [rows, N]
    branch: Tensor,  # [rows, N]
    dtype: torch.dtype,  # of the activation
    numerics: Numerics,
) -> Tensor:  # [rows, N] float32
    """Gated residual: residual + gate * branch."""
    return upcast(residual) + round_at("gate_product", upcast(gate) * upcast(branch), dtype, numerics)


def store(
    y: Tensor,  # any shape, float32
    dtype: torch.dtype,  # of the activation
) -> Tensor:
    """The output: rounded to the activation dtype, with the canonical strides of its shape.

    Allocated by shape: a view's strides, kept where a dimension is 1, would make the next matrix product pick another
    algorithm.
    """
    return torch.empty(y.shape, dtype=dtype, device=y.device).copy_(y)


# --- On the device ----------------------------------------------------------------------------------------------------


@triton.jit
def _round_at(POINT: tl.constexpr, x, dtype: tl.constexpr, ROUNDING_POINTS: tl.constexpr):
    if contains(ROUNDING_POINTS, POINT):
        return x.to(dtype).to(tl.float32)
    else:
        return x


@triton.jit
def _normalize(x, rstd, weight, dtype: tl.constexpr, ROUNDING_POINTS: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    y = _round_at("normalized", x * rstd, dtype, ROUNDING_POINTS)
    if HAS_WEIGHT:
        y = y * weight
    return y


@triton.jit
def _rotate(a, b, c, s, dtype: tl.constexpr, ROUNDING_POINTS: tl.constexpr, ROPE_ROTATION: tl.constexpr):
    """(a + ib) * (c + is)."""
    bs = _round_at("rope_product", b * s, dtype, ROUNDING_POINTS)
    bc = _round_at("rope_product", b * c, dtype, ROUNDING_POINTS)
    if ROPE_ROTATION == "complex":
        return tl.fma(a, c, _negative(bs)), tl.fma(a, s, bc)
    else:
        ac = _round_at("rope_product", a * c, dtype, ROUNDING_POINTS)
        as_ = _round_at("rope_product", a * s, dtype, ROUNDING_POINTS)
        return ac - bs, as_ + bc


@triton.jit
def _negative(x):
    """-x. The unary minus of Triton 3.6 and 3.7 is 0 - x, which loses the sign of zero."""
    return x * -1.0


@triton.jit
def _modulate(x, shift, scale, dtype: tl.constexpr, ROUNDING_POINTS: tl.constexpr):
    factor = _round_at("one_plus_scale", 1.0 + scale, dtype, ROUNDING_POINTS)
    return _round_at("scaled", _round_at("norm", x, dtype, ROUNDING_POINTS) * factor, dtype, ROUNDING_POINTS) + shift


@triton.jit
def _gate(residual, gate, branch, dtype: tl.constexpr, ROUNDING_POINTS: tl.constexpr):
    return residual + _round_at("gate_product", gate * branch, dtype, ROUNDING_POINTS)
