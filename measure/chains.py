"""The unfused chains that fused ops replace, as a model runs them, from the norm and the rotation of a library."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from numerics.measure.arms import AbsentError
from numerics.measure.cases import Heads, Streams
from numerics.measure.inputs import Inputs

Rotate = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


@dataclass(frozen=True)
class Chain:
    """A library's steps; the affine steps between them are PyTorch's."""

    norm: Callable[[Tensor, Tensor, float], Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rotate: Rotate | None = None  # [batch, tokens, heads, head_dim] and cos, sin [tokens, rotary_dim / 2]

    def of(self, op: str) -> Callable[..., Any]:
        """The chain that an op replaces; its arguments are those of `arguments_of`."""
        chain: Callable[..., Any] = getattr(self, op.removesuffix("_"))
        return chain

    def fused_qk_norm_rope(
        self,
        q: Tensor,  # [tokens, heads, head_dim]
        k: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        cos: Tensor,
        sin: Tensor,
        eps: float,
        interleaved: bool,
    ) -> tuple[Tensor, Tensor]:
        """Two norms, two rotations."""
        assert self.rotate is not None
        q_normed, k_normed = self.norm(q, q_weight, eps), self.norm(k, k_weight, eps)
        q_out, k_out = (self.rotate(normed[None], cos, sin, interleaved) for normed in (q_normed, k_normed))
        return q_out[0], k_out[0]

    def fused_joint_qkv_norm_rope(
        self,
        text_q: Tensor,  # [batch, tokens, heads, head_dim]
        text_k: Tensor,
        text_v: Tensor,
        image_q: Tensor,
        image_k: Tensor,
        image_v: Tensor,
        text_q_weight: Tensor,
        text_k_weight: Tensor,
        image_q_weight: Tensor,
        image_k_weight: Tensor,
        cos: Tensor,
        sin: Tensor,
        eps: float,
        interleaved: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Four norms, three concatenations, two rotations."""
        assert self.rotate is not None
        q = torch.cat((self.norm(text_q, text_q_weight, eps), self.norm(image_q, image_q_weight, eps)), dim=1)
        k = torch.cat((self.norm(text_k, text_k_weight, eps), self.norm(image_k, image_k_weight, eps)), dim=1)
        v = torch.cat((text_v, image_v), dim=1)
        return self.rotate(q, cos, sin, interleaved), self.rotate(k, cos, sin, interleaved), v

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The norm alone."""
        return self.norm(x, weight, eps)

    def fused_add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of a sum, and the sum."""
        return self.add_norm(x, residual, weight, eps)

    def rms_norm_indexed_scale_shift(
        self, x: Tensor, weight: Tensor, shift: Tensor, scale: Tensor, indices: Tensor, eps: float
    ) -> Tensor:
        """Norm, then scale and shift."""
        return self.indexed_scale_shift(self.norm(x, weight, eps), shift, scale, indices)

    def indexed_gate_rms_norm_scale_shift(
        self,
        residual: Tensor,
        gate: Tensor,
        branch: Tensor,
        weight: Tensor,
        shift: Tensor,
        scale: Tensor,
        indices: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """Gated residual, norm, scale and shift."""
        total = self.indexed_gate(residual, gate, branch, indices)
        return total, self.indexed_scale_shift(self.norm(total, weight, eps), shift, scale, indices)

    @staticmethod
    def indexed_scale_shift(x: Tensor, shift: Tensor, scale: Tensor, indices: Tensor) -> Tensor:
        """Into a new tensor: x * (1 + scale[i]) + shift[i]."""
        return x * (1.0 + scale.index_select(0, indices)) + shift.index_select(0, indices)

    @staticmethod
    def indexed_gate(x: Tensor, gate: Tensor, other: Tensor, indices: Tensor) -> Tensor:
        """Gated residual: x + gate[i] * other."""
        return x + gate.index_select(0, indices) * other


def arguments_of(inputs: Inputs, chain: Chain, table_dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """For the chain: the op's, with cos and sin as tables of their own. Raises AbsentError where it cannot rotate."""
    given = inputs.arguments()
    if isinstance(inputs.case.geometry, Heads | Streams):
        if chain.rotate is None:
            raise AbsentError("it has no rotation here")
        del given["rope_table"]
        given["cos"], given["sin"] = inputs.halves(table_dtype)
    return given


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def aten_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """ATen's fused norm."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def mean_norm(x: Tensor, weight: Tensor, eps: float, *, two_roundings: bool) -> Tensor:
    """A norm written in PyTorch, on ATen's mean: rounded once, after the weight, or before it as well."""
    x32 = x.float()
    y = x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + eps)
    return y.to(x.dtype) * weight if two_roundings else (weight.float() * y).to(x.dtype)


def _torch_add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return aten_norm(total, weight, eps), total


def rotate_separate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """In float32, stored in the dtype of x."""
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    rotated, rest = x[..., : 2 * cos.shape[-1]].float(), x[..., 2 * cos.shape[-1] :]
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    out = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat((out.to(x.dtype), rest), dim=-1)


def rotate_complex(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """As a product of complex64, of pairs. Raises AbsentError for halves, which nobody multiplies so."""
    if not interleaved or 2 * cos.shape[-1] != x.shape[-1]:
        raise AbsentError("a complex product is of whole heads, interleaved")
    turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.complex(cos.float(), sin.float())[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def rotate_op_by_op(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Each step rounded to the activation dtype."""
    cos, sin = cos.to(x.dtype)[:, None], sin.to(x.dtype)[:, None]
    rotated, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, dim=-1)
    turned = a * cos + (-b) * sin, b * cos + a * sin
    out = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat((out, rest), dim=-1)


TORCH = Chain(aten_norm, _torch_add_norm, rotate_separate)
