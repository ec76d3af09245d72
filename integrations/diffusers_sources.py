"""Digests of the diffusers sources that the fused forms were written from; others are not replaced."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers import (
    transformer_flux,
    transformer_flux2,
    transformer_minimax_h3,
    transformer_ovis_image,
    transformer_qwenimage,
)
from torch import nn

from numerics.integrations.diffusers_processor import Processor

# What each processor calls and the fused one does in its stead, by the module that has the processor.
_CALLED: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    "transformer_flux": (
        transformer_flux._get_projections,
        transformer_flux._get_fused_projections,
        transformer_flux._get_qkv_projections,
        apply_rotary_emb,
    ),
    "transformer_flux2": (
        transformer_flux2._get_projections,
        transformer_flux2._get_fused_projections,
        transformer_flux2._get_qkv_projections,
        apply_rotary_emb,
    ),
    "transformer_ovis_image": (
        transformer_ovis_image._get_projections,
        transformer_ovis_image._get_fused_projections,
        transformer_ovis_image._get_qkv_projections,
        apply_rotary_emb,
    ),
    "transformer_qwenimage": (transformer_qwenimage.apply_rotary_emb_qwen, RMSNorm.forward),
    "transformer_hunyuan_video15": (apply_rotary_emb, RMSNorm.forward),
    "transformer_z_image": (RMSNorm.forward,),
    "transformer_minimax_h3": (
        transformer_minimax_h3._apply_rotary_emb,
        transformer_minimax_h3.MiniMaxH3RotaryPosEmbed.forward,
    ),
}
# By stock processor or block, of diffusers 0.42.1: what `digest` makes of it and of what it calls.
KNOWN: Final[dict[str, frozenset[str]]] = {
    "FluxAttnProcessor": frozenset({"34e0e00c4c58ab7c"}),
    "Flux2AttnProcessor": frozenset({"d7c260f013b71593"}),
    "Flux2ParallelSelfAttnProcessor": frozenset({"5b3ab02ebcfe6a04"}),
    "OvisImageAttnProcessor": frozenset({"62331a4eb95e81b0"}),
    "QwenDoubleStreamAttnProcessor2_0": frozenset({"ff04f3e59daa3dac"}),
    "HunyuanVideo15AttnProcessor2_0": frozenset({"f206ea4ce3270dc9"}),
    "ZSingleStreamAttnProcessor": frozenset({"dec30e6122dc38f4"}),
    "MiniMaxH3AttnProcessor": frozenset({"82a598e7c184a08b"}),
    "MiniMaxH3TransformerBlock": frozenset({"3b70ea4fa2ec2fcc"}),  # its forward
}


def why_unknown(processor: type[Processor]) -> str | None:
    """Why the stock processor cannot be replaced: its source is another; None where it is the known one."""
    stock: Any = processor.stock_class
    return _why_other_norm(processor.norm_class) or _why_other(
        stock.__name__, (stock.__call__, *_CALLED[stock.__module__.rpartition(".")[2]])
    )


def why_unknown_block(block: type[nn.Module]) -> str | None:
    """Why the forward of such a block cannot be replaced."""
    return _why_other_norm(nn.RMSNorm) or _why_other(block.__name__, (block.forward,))


def _why_other_norm(norm: Any) -> str | None:
    """A digest does not tell: torch may lay its source out anew. What replaced the function comes from elsewhere."""
    if getattr(norm.forward, "__globals__", None) is not vars(sys.modules[norm.__module__]):
        return f"something else replaced {norm.__name__}.forward"
    return None


def _why_other(name: str, functions: tuple[Callable[..., Any], ...]) -> str | None:
    found = digest(functions)
    if found in KNOWN.get(name, ()):
        return None
    from importlib.metadata import version

    return (
        f"{name} or what it calls is written otherwise in diffusers {version('diffusers')} than in the releases that "
        f"its fused form was written from (digest {found})"
    )


@cache
def digest(functions: tuple[Callable[..., Any], ...]) -> str:
    """Sixteen hex digits over the code of functions, as Python would print it: comments and layout do not count.

    A function without source, such as one made while running, counts by its name.
    """
    trees = [ast.parse(_source(function)) for function in functions]
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256("\n".join(map(ast.unparse, trees)).encode()).hexdigest()[:16]


def _source(function: Callable[..., Any]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return f"{getattr(function, '__qualname__', type(function).__name__)!r}"
