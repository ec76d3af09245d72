"""Fused attention processors for the model classes of diffusers."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers import (
    transformer_flux,
    transformer_flux2,
    transformer_hunyuan_video15,
    transformer_ovis_image,
    transformer_qwenimage,
    transformer_z_image,
)
from torch import Tensor
from torch.nn.functional import pad

from numerics.integrations.diffusers_minimax import MiniMaxH3Single
from numerics.integrations.diffusers_processor import Processor
from numerics.integrations.diffusers_table import (
    of_complex,
    of_complex_streams,
    of_pairs,
    why_not_complex,
    why_not_pairs,
)

__all__ = [
    "Flux2Joint",
    "Flux2Single",
    "FluxJoint",
    "FluxSingle",
    "HunyuanVideo15Joint",
    "MiniMaxH3Single",
    "OvisImageJoint",
    "OvisImageSingle",
    "QwenImageJoint",
    "ZImageSingle",
]


# --- FLUX.1, Flux.2, Ovis-Image ---------------------------------------------------------------------------------------


class _Flux(Processor):
    """Text and image joined, or one stream that holds both; text comes first."""

    reads_fused = True
    contiguous = False  # whether the output projections read a copy

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Any = None,
        attention_mask: Any = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, image_rotary_emb, encoder_hidden_states)
        if reason is None:
            tokens = hidden_states.shape[1] + (0 if encoder_hidden_states is None else encoder_hidden_states.shape[1])
            reason = why_not_pairs(image_rotary_emb, attn.head_dim, tokens)
        if reason is None and self.joint != (encoder_hidden_states is not None):
            reason = "text and image come otherwise than the projections expect"
        if reason is not None:
            return self.keep(reason, attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        q, k, v = self.project(attn, hidden_states)
        table = self.pack(of_pairs, image_rotary_emb, q)
        if encoder_hidden_states is None:
            q, k = self.fuse(attn, q, k, table)
            return self.attend(q, k, v, attention_mask)
        text = self.project(attn, encoder_hidden_states, "text")
        out = self.attend(*self.fuse_joint(attn, text, (q, k, v), table), attention_mask)
        return self.outputs(attn, out, encoder_hidden_states.shape[1])

    @staticmethod
    def heads(attn: Any) -> tuple[int, int]:
        """By size: under tensor parallelism a rank has fewer heads than `attn.heads`."""
        return -1, attn.head_dim

    def outputs(self, attn: Any, out: Tensor, text_tokens: int) -> tuple[Tensor, Tensor]:
        """(image, text), projected."""
        text, image = out.split_with_sizes([text_tokens, out.shape[1] - text_tokens], dim=1)
        if self.contiguous:
            text, image = text.contiguous(), image.contiguous()
        return attn.to_out[1](attn.to_out[0](image)), attn.to_add_out(text)


class FluxJoint(_Flux):
    """FLUX.1, double-stream blocks."""

    stock_class = transformer_flux.FluxAttnProcessor
    joint = True
    contiguous = True


class FluxSingle(_Flux):
    """FLUX.1, single-stream blocks."""

    stock_class = transformer_flux.FluxAttnProcessor
    joint = False


class OvisImageJoint(_Flux):
    """Ovis-Image, double-stream blocks."""

    stock_class = transformer_ovis_image.OvisImageAttnProcessor
    joint = True

    @staticmethod
    def heads(attn: Any) -> tuple[int, int]:
        """By number."""
        return Processor.heads(attn)


class OvisImageSingle(OvisImageJoint):
    """Ovis-Image, single-stream blocks."""

    joint = False


class Flux2Joint(_Flux):
    """Flux.2, double-stream blocks."""

    stock_class = transformer_flux2.Flux2AttnProcessor
    joint = True


class Flux2Single(Processor):
    """Flux.2, single-stream blocks: one projection makes q, k, v and what the MLP reads; v stays a view of it."""

    stock_class = transformer_flux2.Flux2ParallelSelfAttnProcessor
    joint = False
    heads = staticmethod(_Flux.heads)

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        attention_mask: Any = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, image_rotary_emb) or why_not_pairs(
            image_rotary_emb, attn.head_dim, hidden_states.shape[1]
        )
        if reason is not None:
            return self.keep(reason, attn, hidden_states, attention_mask, image_rotary_emb)
        projected = attn.to_qkv_mlp_proj(hidden_states)
        # By their ratio: under tensor parallelism a rank has a slice of each.
        whole, mlp = 3 * attn.inner_dim, attn.mlp_hidden_dim * attn.mlp_mult_factor
        width = projected.shape[-1] * whole // (whole + mlp)
        qkv, mlp_states = projected.split([width, projected.shape[-1] - width], dim=-1)
        q, k, v = self.split(attn, qkv.chunk(3, dim=-1))
        q, k = self.fuse(attn, q, k, self.pack(of_pairs, image_rotary_emb, q))
        attended = self.attend(q, k, v, attention_mask)
        return attn.to_out(torch.cat([attended, attn.mlp_act_fn(mlp_states)], dim=-1))


# --- Qwen-Image, HunyuanVideo-1.5, Z-Image ----------------------------------------------------------------------------
# Their attention is diffusers' shared class, with diffusers' own RMSNorm.


class QwenImageJoint(Processor):
    """Qwen-Image: text first, a rotation for each stream."""

    stock_class = transformer_qwenimage.QwenDoubleStreamAttnProcessor2_0
    norm_class = RMSNorm
    joint = True

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Any = None,
        encoder_hidden_states_mask: Any = None,
        attention_mask: Any = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, image_rotary_emb, encoder_hidden_states)
        if reason is None and (encoder_hidden_states is None or attention_mask is not None):
            reason = "the stock processor refuses such a call"
        if reason is None and not (isinstance(image_rotary_emb, tuple | list) and len(image_rotary_emb) == 2):
            reason = "the rotation is not given for image and text"
        if reason is None:
            streams, size = (hidden_states, encoder_hidden_states), attn.inner_dim // attn.heads
            for freqs, stream in zip(image_rotary_emb, streams, strict=True):
                reason = reason or why_not_complex(freqs, size, stream.shape[1])
        if reason is not None:
            return self.keep(
                reason,
                attn,
                hidden_states,
                encoder_hidden_states,
                encoder_hidden_states_mask,
                attention_mask,
                image_rotary_emb,
            )
        mask = None
        if encoder_hidden_states_mask is not None:
            of_image = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device)
            mask = torch.cat([encoder_hidden_states_mask, of_image], dim=1)[:, None, None, :]
        image, text = self.project(attn, hidden_states), self.project(attn, encoder_hidden_states, "text")
        table = self.pack(of_complex_streams, tuple(image_rotary_emb[::-1]), image[0])
        q, k, v = self.fuse_joint(attn, text, image, table)
        out = self.attend(q, k, v, mask, dropout_p=0.0, is_causal=False)
        tokens = encoder_hidden_states.shape[1]
        of_text, of_image = out[:, :tokens].contiguous(), out[:, tokens:].contiguous()
        for layer in attn.to_out[:2]:
            of_image = layer(of_image)
        return of_image, attn.to_add_out(of_text)

    @staticmethod
    def heads(attn: Any) -> tuple[int, int]:
        """By size, as under tensor parallelism."""
        return -1, attn.inner_dim // attn.heads


class HunyuanVideo15Joint(Processor):
    """HunyuanVideo-1.5: video first; text is normalized and not rotated."""

    stock_class = transformer_hunyuan_video15.HunyuanVideo15AttnProcessor2_0
    norm_class = RMSNorm
    joint = True

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Any = None,
        attention_mask: Any = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, image_rotary_emb, encoder_hidden_states) or why_not_pairs(
            image_rotary_emb, attn.inner_dim // attn.heads, hidden_states.shape[1]
        )
        if reason is None and (encoder_hidden_states is None or attention_mask is None):
            reason = "there is no text, or no mask of it"
        if reason is not None:
            return self.keep(reason, attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        tokens = encoder_hidden_states.shape[1]
        video, text = self.project(attn, hidden_states), self.project(attn, encoder_hidden_states, "text")
        table = self.pack(of_pairs, image_rotary_emb, video[0], text_tokens=tokens)
        q, k, v = self.fuse_joint(attn, text, video, table, image_first=True)
        batch, total = q.shape[:2]
        valid = pad(attention_mask, (total - attention_mask.shape[1], 0), value=True).bool()
        rows = valid.view(batch, 1, 1, total).repeat(1, 1, total, 1)
        out = self.attend(q, k, v, rows & rows.transpose(2, 3), dropout_p=0.0, is_causal=False)
        of_video, of_text = out[:, :-tokens], out[:, -tokens:]
        if getattr(attn, "to_out", None) is not None:
            of_video = attn.to_out[1](attn.to_out[0](of_video))
        if getattr(attn, "to_add_out", None) is not None:
            of_text = attn.to_add_out(of_text)
        return of_video, of_text


class ZImageSingle(Processor):
    """Z-Image: one stream, a rotation for each sample."""

    stock_class = transformer_z_image.ZSingleStreamAttnProcessor
    norm_class = RMSNorm
    joint = False

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Any = None,
        attention_mask: Any = None,
        freqs_cis: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, freqs_cis) or why_not_complex(
            freqs_cis, attn.inner_dim // attn.heads, *hidden_states.shape[:2]
        )
        if reason is not None:
            return self.keep(reason, attn, hidden_states, encoder_hidden_states, attention_mask, freqs_cis)
        q, k, v = self.project(attn, hidden_states)
        q, k = self.fuse(attn, q, k, self.pack(of_complex, (freqs_cis,), q))
        if attention_mask is not None and attention_mask.ndim == 2:
            attention_mask = attention_mask[:, None, None, :]
        out = self.attend(q, k, v, attention_mask, dropout_p=0.0, is_causal=False)
        for layer in attn.to_out[:2]:
            out = layer(out)
        return out
