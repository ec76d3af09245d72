"""What a GPU computes in a stock model where a CPU computes otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import numerics
from numerics.ops import rms_norm_reference
from numerics.ops.arithmetic import exact_fma


class ReferenceNorm(nn.Module):
    """A norm of q or k, in the order in which a GPU adds."""

    def __init__(self, norm: Any, numerics_: numerics.Numerics) -> None:
        super().__init__()
        self.weight, self.eps, self.numerics = norm.weight, norm.eps, numerics_

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm_reference(x, self.weight, self.eps, numerics=self.numerics)


class ComplexProductOfAGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """ATen's CUDA kernel contracts a complex product into two fused multiply-adds; its CPU kernel does not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mul.Tensor and all(isinstance(x, Tensor) and x.is_complex() for x in args):
            x, y = args
            (a, b), (c, s) = torch.view_as_real(x).unbind(-1), torch.view_as_real(y).unbind(-1)
            real, imag = exact_fma(a, c, -(b * s)), exact_fma(a, s, b * c)
            return torch.view_as_complex(torch.stack([real, imag], -1))
        return func(*args, **(kwargs or {}))


@contextmanager
def stock_as_on_a_gpu(model: Any, preset: str, fused: Collection[str] | None = None) -> Iterator[Any]:
    """The stock model, with the norms that we fuse and its complex products replaced by the specification.

    fused: the modules whose norms that are; all but the refiner's without it.
    """
    settings = numerics.resolve("fused_qk_norm_rope", preset=preset).numerics
    names = {"norm_q", "norm_k", "norm_added_q", "norm_added_k", "norm1", "norm2"}
    swapped = [
        (parent, name, norm)
        for path, parent in model.named_modules()
        for name, norm in parent.named_children()
        if name in names
        and isinstance(norm, (nn.RMSNorm, RMSNorm))
        and (not path.startswith("token_refiner") if fused is None else path in fused)
    ]
    for parent, name, norm in swapped:
        setattr(parent, name, ReferenceNorm(norm, settings))
    try:
        with ComplexProductOfAGpu():  # type: ignore[no-untyped-call]  # the same
            yield model
    finally:
        for parent, name, norm in swapped:
            setattr(parent, name, norm)
