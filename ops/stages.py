"""The stages that every fused op is made of: normalize, rotate, modulate, gate. Arithmetic is float32."""

import torch
from torch import Tensor

from numerics.ops.arithmetic import fma, round_at, rsqrt, upcast
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

    A pair whose cos is 1 and sin is 0 passes through unchanged: signed zeros, infinities and NaN included.
    """
    half = cos.shape[-1]
    rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (rotary[..., 0::2], rotary[..., 1::2]) if interleaved else (rotary[..., :half], rotary[..., half:])
    c, s = upcast(cos)[..., None, :], upcast(sin)[..., None, :]
    real, imag = _products(first, second, c, s, dtype, numerics)
    identity = (c == 1) & (s == 0)
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
