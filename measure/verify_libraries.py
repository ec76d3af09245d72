"""Norms and rotations of other libraries, imported when they are asked for. AbsentError says why one is not there."""

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch
from torch import Tensor

from numerics.measure.arms import AbsentError
from numerics.measure.chains import (
    Chain,
    Rotate,
    aten_norm,
    mean_norm,
    rotate_complex,
    rotate_op_by_op,
    rotate_separate,
)
from numerics.measure.norm_libraries import DISTRIBUTIONS as NORM_LIBRARIES
from numerics.measure.norm_libraries import norms_of
from numerics.measure.peers import Locations, vllm_chain

Norm = Callable[[Tensor, Tensor, float], Tensor]

ATEN_NORMS: Final[Mapping[str, Norm]] = {
    "aten": aten_norm,
    "mean:one": partial(mean_norm, two_roundings=False),
    "mean:two": partial(mean_norm, two_roundings=True),
}
ROTATIONS: Final[Mapping[str, Rotate]] = {
    "separate": rotate_separate,
    "op_by_op": rotate_op_by_op,
    "complex": rotate_complex,
}
DISTRIBUTIONS: Final = {
    "aten": "torch",
    "vllm": "vllm",
    "diffusers": "diffusers",
    "apex": "apex",
    **NORM_LIBRARIES,
}


def version_of(library: str) -> str | None:
    """Of what is installed."""
    if library == "aten":
        return torch.__version__
    try:
        return version(DISTRIBUTIONS[library])
    except PackageNotFoundError:
        return None


# --- vLLM -------------------------------------------------------------------------------------------------------------


@lru_cache
def vllm(locations: Locations, rotation: str) -> Chain:
    """Its compiled norms; its rotary kernel, where that is there and does the same, else PyTorch's rotation."""
    theirs = vllm_chain(locations)
    rotate = ROTATIONS[rotation]

    def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        if not x.numel():
            return x
        if theirs.rotate is not None and rotation == "separate" and cos.dtype == x.dtype:  # the tables that it reads
            return theirs.rotate(x, cos.contiguous(), sin.contiguous(), interleaved)
        return rotate(x, cos, sin, interleaved)

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return theirs.norm(x.contiguous(), weight, eps) if x.numel() else x

    def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return theirs.add_norm(x.clone(), residual.clone(), weight, eps)  # it writes into both

    return Chain(norm, add_norm, rotated)


# --- diffusers --------------------------------------------------------------------------------------------------------


def diffusers_norm() -> Norm:
    """Its RMSNorm."""
    rms_norm = _import("diffusers.models.normalization").RMSNorm

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        module = rms_norm(weight.numel(), eps=eps).to(device=x.device, dtype=x.dtype)
        with torch.no_grad():
            module.weight.copy_(weight)
            out: Tensor = module(x)
        return out

    return norm


def diffusers_rotation(rotation: str) -> Rotate:
    """What its models call to rotate q and k. Raises AbsentError in a call for pairs that it does not rotate so."""
    if rotation == "op_by_op":
        minimax = _import("diffusers.models.transformers.transformer_minimax_h3")._apply_rotary_emb
        return partial(_rotated_halves, minimax)
    if rotation == "complex":
        qwen = _import("diffusers.models.transformers.transformer_qwenimage").apply_rotary_emb_qwen
        return partial(_rotated_whole, lambda x, cos, sin: qwen(x, torch.complex(cos, sin), use_real=False))
    real = _import("diffusers.models.embeddings").apply_rotary_emb

    def in_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        tables = tuple(each.repeat_interleave(2, dim=-1) for each in (cos, sin))
        return real(x, tables, use_real=True, use_real_unbind_dim=-1, sequence_dim=1)

    return partial(_rotated_whole, in_pairs)


def _rotated_halves(theirs: Callable[..., Tensor], x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        raise AbsentError("it rotates halves")
    if not x.numel():
        return x
    return theirs(x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


def _rotated_whole(theirs: Callable[..., Tensor], x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if not interleaved or 2 * cos.shape[-1] != x.shape[-1]:
        raise AbsentError("it rotates pairs, and whole heads")
    if not x.numel():
        return x
    return theirs(x, cos, sin)


# --- Others -----------------------------------------------------------------------------------------------------------


def norm_of(library: str) -> Norm:
    """Of FlashInfer, quack or apex."""
    if library in NORM_LIBRARIES:
        theirs = norms_of(library).norm
        return lambda x, weight, eps: _on_rows(lambda rows: theirs(rows, weight, eps), x)
    apex = _import("apex.normalization.fused_layer_norm").fused_rms_norm_affine
    return lambda x, weight, eps: _on_rows(lambda rows: apex(rows, weight, weight.shape, eps), x)


def _on_rows(norm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return norm(x.reshape(-1, x.shape[-1]).contiguous()).view(x.shape) if x.numel() else x


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise AbsentError(f"{error.name} is not installed") from None
    except Exception as error:  # a library compiled for another torch fails in ways of its own
        raise AbsentError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
