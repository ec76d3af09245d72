"""MiniMax-H3: a fused attention processor, and the forward of a block with fused modulation."""

from __future__ import annotations

from typing import Any, Final

import torch
from diffusers.models.transformers import transformer_minimax_h3
from torch import Tensor, nn

from numerics.integrations.diffusers_processor import (
    Processor,
    asks_for_tokens,
    why_not_norms,
    why_not_plain,
    why_not_read_norms,
)
from numerics.integrations.diffusers_table import of_halves, why_not_pairs
from numerics.ops import indexed_gate, indexed_gate_rms_norm_scale_shift, rms_norm_indexed_scale_shift
from numerics.ops.dispatch import settings_for
from numerics.ops.registry import few_tokens
from numerics.ops.telemetry import Dispatch, record
from numerics.resolution import Resolution

Block: Final = transformer_minimax_h3.MiniMaxH3TransformerBlock
BLOCK_NORMS: Final = ("norm1", "norm2")
FIRST_OP: Final = "rms_norm_indexed_scale_shift"


class MiniMaxH3Single(Processor):
    """One packed stream; the first elements of a head are rotated, by halves and in the activation dtype."""

    stock_class = transformer_minimax_h3.MiniMaxH3AttnProcessor
    joint = False
    reads_fused = True
    interleaved = False

    def __call__(self, attn: Any, hidden_states: Tensor, rotary_emb: Any = None, attention_mask: Any = None) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, rotary_emb) or why_not_pairs(
            rotary_emb, attn.head_dim, hidden_states.shape[1], part=True
        )
        if reason is not None:
            return self.keep(reason, attn, hidden_states, rotary_emb, attention_mask)
        q, k, v = self.project(attn, hidden_states)
        q, k = self.fuse(attn, q, k, self.pack(of_halves, rotary_emb, q))
        out = self.attend(q, k, v, attention_mask, dropout_p=0.0, is_causal=False)
        return attn.to_out[1](attn.to_out[0](out))


# --- The block --------------------------------------------------------------------------------------------------------


def why_not_block(block: nn.Module) -> str | None:
    """Why a block of this form is not covered; None where it is. Asked once, when its forward is replaced."""
    if type(block) is not Block:
        return f"it is a {type(block).__name__}, which has no fused form here"
    return why_not_norms(block, BLOCK_NORMS, nn.RMSNorm)


def modulated_forward(
    block: Any,
    resolution: Resolution,
    hidden_states: Tensor,  # [batch, tokens, N]
    temb: Tensor,  # [timesteps, time_embed_dim]
    adaln_indices: Tensor,  # [tokens], rows of the tables that `adaln_proj` makes
    rotary_emb: Any,
    attention_mask: Any = None,
) -> Tensor:  # [batch, tokens, N]
    """As the block's own: attention and feed-forward, each between adaptive norm and gated residual."""
    reason = _why_stock(block, resolution, hidden_states, adaln_indices)
    tables: tuple[Tensor, ...] = () if reason is not None else block.adaln_proj(temb)
    if any(table.dtype != hidden_states.dtype for table in tables):
        reason = "scale, shift and gate are not in the dtype of the activations"
    if reason is not None:
        if not torch.compiler.is_compiling():
            record(Dispatch(FIRST_OP, False, reason))
        return Block.forward(block, hidden_states, temb, adaln_indices, rotary_emb, attention_mask)  # type: ignore[no-any-return]
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = tables
    shape = hidden_states.shape
    residual = hidden_states.reshape(-1, shape[-1])
    indices = adaln_indices if shape[0] == 1 else adaln_indices.repeat(shape[0])
    normed = rms_norm_indexed_scale_shift(
        residual, block.norm1.weight, shift_msa, scale_msa, indices, block.norm1.eps, numerics=resolution
    )
    attended = block.attn(normed.view(shape), rotary_emb, attention_mask)
    residual, normed = indexed_gate_rms_norm_scale_shift(
        residual,
        gate_msa,
        attended.reshape(-1, shape[-1]),
        block.norm2.weight,
        shift_mlp,
        scale_mlp,
        indices,
        block.norm2.eps,
        numerics=resolution,
    )
    fed = block.ff(normed.view(shape)).reshape(-1, shape[-1])
    return indexed_gate(residual, gate_mlp, fed, indices, numerics=resolution).view(shape)


def _why_stock(block: Any, resolution: Resolution, hidden_states: Tensor, adaln_indices: Tensor) -> str | None:
    """Why this call is left to the block's own forward; None where it is fused."""
    reason = (
        why_not_plain(hidden_states)
        or why_not_norms(block, BLOCK_NORMS, nn.RMSNorm)
        or why_not_read_norms(block, BLOCK_NORMS, hidden_states)
    )
    if reason is None and (hidden_states.ndim != 3 or adaln_indices.shape != hidden_states.shape[1:2]):
        reason = "the activations are not [batch, tokens, N], or the indices not [tokens]"
    if reason is None and asks_for_tokens(resolution):
        settings = settings_for(FIRST_OP, resolution, like=hidden_states)
        reason = few_tokens(hidden_states.shape[0] * hidden_states.shape[1], settings.min_tokens)
    return reason
