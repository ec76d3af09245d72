"""Inputs of diffusers' models, random but for what positions and masks must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

Inputs = dict[str, Any]
BF16: Final = torch.bfloat16
OUTLIERS: Final = 97  # each so manieth channel is an outlier
OUTLIER: Final = 4.0


@dataclass(frozen=True, slots=True)
class Extent:
    """Tokens: of text, and of an image or video. Others, such as audio, follow from those of the text."""

    text: int
    height: int
    width: int
    frames: int = 1

    def __str__(self) -> str:
        return f"{self.text} text and {self.video} image tokens"

    @property
    def video(self) -> int:
        """Tokens of the image or video."""
        return self.frames * self.height * self.width


def _random(device: torch.device, *shape: int) -> Tensor:
    x = torch.randn(shape, device=device)
    x[..., ::OUTLIERS] *= OUTLIER
    return x.to(BF16)


def _ids(axes: int, extent: Extent, device: torch.device) -> tuple[Tensor, Tensor]:
    image = torch.zeros(extent.height, extent.width, axes, device=device)
    image[..., 1] += torch.arange(extent.height, device=device)[:, None]
    image[..., 2] += torch.arange(extent.width, device=device)[None]
    return image.reshape(-1, axes), torch.zeros(extent.text, axes, device=device)


def ovis(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """Ovis-Image."""
    img_ids, txt_ids = _ids(3, extent, device)
    return {
        "hidden_states": _random(device, batch, extent.video, config.in_channels),
        "encoder_hidden_states": _random(device, batch, extent.text, config.joint_attention_dim),
        "timestep": torch.full((batch,), 0.5, device=device).to(BF16),
        "img_ids": img_ids,
        "txt_ids": txt_ids,
    }


def flux(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """FLUX.1."""
    inputs = ovis(config, batch, extent, device)
    if config.guidance_embeds:
        inputs["guidance"] = torch.full((batch,), 4.0, device=device).to(BF16)
    return {**inputs, "pooled_projections": _random(device, batch, config.pooled_projection_dim)}


def flux2(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """Flux.2, dev or klein."""
    img_ids, txt_ids = _ids(4, extent, device)
    txt_ids[:, 3] = torch.arange(extent.text, device=device)
    guidance = torch.full((batch,), 4.0, device=device).to(BF16)
    return {**ovis(config, batch, extent, device), "img_ids": img_ids, "txt_ids": txt_ids, "guidance": guidance}


def qwen(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """Qwen-Image; the last prompt of a batch is shorter, so that a mask is made."""
    mask = torch.ones(batch, extent.text, dtype=torch.bool, device=device)
    mask[-1, -2:] = batch == 1
    return {
        "hidden_states": _random(device, batch, extent.video, config.in_channels),
        "encoder_hidden_states": _random(device, batch, extent.text, config.joint_attention_dim),
        "encoder_hidden_states_mask": mask,
        "timestep": torch.full((batch,), 0.5, device=device).to(BF16),
        "img_shapes": [(extent.frames, extent.height, extent.width)] * batch,
    }


def hunyuan(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """HunyuanVideo-1.5; the last prompt is padded."""
    second, image = max(3, extent.text // 2), max(2, extent.text // 4)
    mask = torch.ones(batch, extent.text, dtype=torch.int64, device=device)
    mask[-1, -2:] = 0
    return {
        "hidden_states": _random(device, batch, config.in_channels, extent.frames, extent.height, extent.width),
        "timestep": torch.full((batch,), 500.0, device=device).to(BF16),
        "encoder_hidden_states": _random(device, batch, extent.text, config.text_embed_dim),
        "encoder_attention_mask": mask,
        "encoder_hidden_states_2": _random(device, batch, second, config.text_embed_2_dim),
        "encoder_attention_mask_2": torch.ones(batch, second, dtype=torch.int64, device=device),
        "image_embeds": _random(device, batch, image, config.image_embed_dim),
    }


def z_image(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """Z-Image; captions of different lengths, so that a mask is made."""
    size = config.in_channels, extent.frames, 2 * extent.height, 2 * extent.width
    return {
        "x": [_random(device, *size) for _ in range(batch)],
        "t": torch.full((batch,), 0.5, device=device).to(BF16),
        "cap_feats": [_random(device, extent.text + 40 * index, config.cap_feat_dim) for index in range(batch)],
    }


def minimax(config: Any, batch: int, extent: Extent, device: torch.device) -> Inputs:
    """MiniMax-H3: text, audio and video packed in one sequence, the audio at another noise level."""
    audio = max(4, extent.text // 4)
    order = torch.arange(extent.text + audio + extent.video, device=device)
    text_indices, audio_indices, video_indices = order.split([extent.text, audio, extent.video])
    tags = torch.zeros_like(order)
    tags[text_indices], tags[audio_indices] = 1, 2
    per_frame = extent.height * extent.width
    positions = torch.stack([order // per_frame, order // extent.width % extent.height, order % extent.width], -1)
    patch = config.patch_size[0] * config.patch_size[1] * config.patch_size[2]
    return {
        "hidden_states": _random(device, batch, extent.video, config.in_channels * patch),
        "audio_hidden_states": _random(device, batch, audio, config.audio_in_channels),
        "encoder_hidden_states": _random(device, batch, extent.text, config.text_dim),
        "timestep": torch.tensor([0.5, 0.25], device=device),
        "timestep_indices": (tags == 2).long(),
        "token_tags": tags,
        "position_ids": positions,
        "video_indices": video_indices,
        "audio_indices": audio_indices,
        "text_indices": text_indices,
    }
