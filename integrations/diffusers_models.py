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

from numerics.integrations.diffusers_processor import Processor, project
from numerics.integrations.diffusers_table import of_complex, of_complex_streams, of_pairs

SEPARATE = ("to_q", "to_k", "to_v")
SEPARATE_TEXT = ("add_q_proj", "add_k_proj", "add_v_proj")


def _why_pairs(rotary: Any, head_dim: int) -> str | None:
    """Why these cosines and sines are not the [tokens, head_dim] float32 that the models make."""
    if not isinstance(rotary, tuple) or len(rotary) != 2:
        return "the rotation is not given as cosines and sines"
    if any(x.ndim != 2 or x.shape[-1] != head_dim or x.dtype != torch.float32 for x in rotary):
        return "cosines and sines are not [tokens, head_dim] in float32"
    return None


def _why_complex(freqs: Any, head_dim: int) -> str | None:
    if not isinstance(freqs, Tensor) or freqs.dtype != torch.complex64 or freqs.shape[-1] != head_dim // 2:
        return "the rotation is not [..., tokens, head_dim / 2] in complex64"
    return None


# --- FLUX.1, Flux.2, Ovis-Image ---------------------------------------------------------------------------------------


class _Flux(Processor):
    """Text and image joined, or one stream that holds both; text comes first."""

    contiguous = False  # whether the output projections read a copy
    text_last = False  # whether the text is projected after the image

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Any = None,
        attention_mask: Any = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, image_rotary_emb, encoder_hidden_states) or _why_pairs(
            image_rotary_emb, attn.head_dim
        )
        if reason is None and self.joint != (encoder_hidden_states is not None):
            reason = "text and image come otherwise than the projections expect"
        if reason is not None:
            return self.keep(reason, attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        heads = self.heads(attn)
        q, k, v = project(attn, ("to_qkv",) if attn.fused_projections else SEPARATE, hidden_states, heads)
        table = self.pack(of_pairs, image_rotary_emb, q)
        if encoder_hidden_states is None:
            q, k = self.fuse(attn, q, k, table)
            return self.attend(q, k, v, attention_mask)
        names = ("to_added_qkv",) if attn.fused_projections else SEPARATE_TEXT
        text = project(attn, names, encoder_hidden_states, heads)
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
        return attn.heads, -1


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

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        attention_mask: Any = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """As the stock processor."""
        reason = self.why_stock(attn, hidden_states, image_rotary_emb) or _why_pairs(image_rotary_emb, attn.head_dim)
        if reason is not None:
            return self.keep(reason, attn, hidden_states, attention_mask, image_rotary_emb)
        projected = attn.to_qkv_mlp_proj(hidden_states)
        # By their ratio: under tensor parallelism a rank has a slice of each.
        whole, mlp = 3 * attn.inner_dim, attn.mlp_hidden_dim * attn.mlp_mult_factor
        width = projected.shape[-1] * whole // (whole + mlp)
        qkv, mlp_states = projected.split([width, projected.shape[-1] - width], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, attn.head_dim)) for part in qkv.chunk(3, dim=-1))
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
        size = attn.inner_dim // attn.heads
        reason = self.why_stock(attn, hidden_states, image_rotary_emb, encoder_hidden_states)
        if reason is None:
            reason = next(filter(None, (_why_complex(freqs, size) for freqs in image_rotary_emb)), None)
        if reason is None and (encoder_hidden_states is None or attention_mask is not None):
            reason = "the stock processor refuses such a call"
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
        image = project(attn, SEPARATE, hidden_states, (-1, size))
        text = project(attn, SEPARATE_TEXT, encoder_hidden_states, (-1, size))
        table = self.pack(of_complex_streams, image_rotary_emb[::-1], image[0])
        q, k, v = self.fuse_joint(attn, text, image, table)
        out = self.attend(q, k, v, mask, dropout_p=0.0, is_causal=False)
        tokens = encoder_hidden_states.shape[1]
        of_text, of_image = out[:, :tokens].contiguous(), out[:, tokens:].contiguous()
        for layer in attn.to_out[:2]:
            of_image = layer(of_image)
        return of_image, attn.to_add_out(of_text)


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
        size = attn.inner_dim // attn.heads
        reason = self.why_stock(attn, hidden_states, image_rotary_emb, encoder_hidden_states) or _why_pairs(
            image_rotary_emb, size
        )
        if reason is None and (encoder_hidden_states is None or attention_mask is None):
            reason = "there is no text, or no mask of it"
        if reason is not None:
            return self.keep(reason, attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        tokens = encoder_hidden_states.shape[1]
        video = project(attn, SEPARATE, hidden_states, (attn.heads, -1))
        text = project(attn, SEPARATE_TEXT, encoder_hidden_states, (attn.heads, -1))
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
        reason = self.why_stock(attn, hidden_states, freqs_cis) or _why_complex(freqs_cis, attn.inner_dim // attn.heads)
        if reason is not None:
            return self.keep(reason, attn, hidden_states, encoder_hidden_states, attention_mask, freqs_cis)
        q, k, v = project(attn, SEPARATE, hidden_states, (attn.heads, -1))
        q, k = self.fuse(attn, q, k, self.pack(of_complex, (freqs_cis,), q))
        if attention_mask is not None and attention_mask.ndim == 2:
            attention_mask = attention_mask[:, None, None, :]
        out = self.attend(q, k, v, attention_mask, dropout_p=0.0, is_causal=False)
        for layer in attn.to_out[:2]:
            out = layer(out)
        return out
