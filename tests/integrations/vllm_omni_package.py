"""A package `vllm_omni` of the form of 0.30: where its functions are defined, who imports them, how they are called."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from numerics.integrations import vllm_omni

Engine = Callable[..., Path]  # makes the package importable
MODULES: Final = {model.name: model.module for model in vllm_omni.MODELS}
FUSED_QK: Final = "fused_qk_norm_rope"
MIN_TOKENS: Final = "fused_qk_norm_rope_min_tokens"

QK: Final = """
import torch


def fused_qk_norm_rope_min_tokens(default: int) -> int:
    return default


def fused_qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    rope_table: torch.Tensor,
    eps: float,
    *,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.clone(), k.clone()


def _fused_cuda_supported(q, k, head_dim, rotary_dim, interleaved=False):
    return True
"""
MODULATION: Final = """
import torch


def indexed_scale_shift_(
    x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    return x


def indexed_gate(
    x: torch.Tensor, gate: torch.Tensor, other: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    return x


def rms_norm_indexed_scale_shift(
    x: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    indices: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    return x


def indexed_gate_rms_norm_scale_shift(
    residual: torch.Tensor,
    gate: torch.Tensor,
    branch: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    indices: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return residual, residual
"""
MINIMAX_H3: Final = """
from vllm_omni.diffusion.layers.fused_qk_norm_rope import fused_qk_norm_rope
from vllm_omni.diffusion.layers.indexed_modulation import (
    indexed_gate,
    indexed_gate_rms_norm_scale_shift,
    indexed_scale_shift_,
    rms_norm_indexed_scale_shift,
)


def attention(q, k, q_weight, k_weight, rope_table, eps):
    return fused_qk_norm_rope(q, k, q_weight, k_weight, rope_table, eps)


def block(x, branch, weight, shift, scale, gate, indices, eps):
    h = rms_norm_indexed_scale_shift(x, weight, shift, scale, indices, eps)
    x, h = indexed_gate_rms_norm_scale_shift(x, gate, h + branch, weight, shift, scale, indices, eps)
    return indexed_gate(x, gate, h, indices)


def final(x, shift, scale, indices):
    return indexed_scale_shift_(x, shift, scale, indices)
"""
IMAGE: Final = """
from vllm_omni.diffusion.layers.fused_qk_norm_rope import (
    _fused_cuda_supported,
    fused_qk_norm_rope,
    fused_qk_norm_rope_min_tokens,
)

_FUSED_MIN_TOKENS = 2048


def fuses(tokens):
    return tokens >= fused_qk_norm_rope_min_tokens(_FUSED_MIN_TOKENS)


def attention(q, k, q_weight, k_weight, rope_table, eps):
    return fused_qk_norm_rope(q, k, q_weight, k_weight, rope_table, eps, interleaved=True)
"""
FILES: Final = {
    "layers/fused_qk_norm_rope.py": QK,
    "layers/indexed_modulation.py": MODULATION,
    "models/minimax_h3/minimax_h3_transformer.py": MINIMAX_H3,
    "models/qwen_image/qwen_image_transformer.py": IMAGE,
    "models/boogu_image/boogu_image_transformer.py": IMAGE,
}


def write(folder: Path, version: str = "0.30.0") -> None:
    """Write the package and its metadata, as pip would install them."""
    for name, text in FILES.items():
        path = folder / "vllm_omni" / "diffusion" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.parents[: len(path.relative_to(folder).parents) - 1]:
            (parent / "__init__.py").touch()
    info = folder / f"vllm_omni-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-omni\nVersion: {version}\n")


def imported(model: str) -> Any:
    """The model's module."""
    return importlib.import_module(MODULES[model])


def original(name: str) -> Any:
    """The function where it is defined."""
    return getattr(importlib.import_module(vllm_omni.LAYERS[name]), name)


def forget() -> None:
    """As if nothing of the package had been imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_omni"]:
        del sys.modules[name]
