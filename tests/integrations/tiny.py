"""Tiny models of each supported class, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffusers
import torch
from torch import Tensor

HEADS, HEAD_DIM = 2, 32
TEXT, HEIGHT, WIDTH = 5, 3, 5
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Tiny:
    """A model class at tiny size, and how often its forward calls the fused ops."""

    name: str
    model: str  # as in presets.toml
    build: Callable[..., Any]
    inputs: Callable[[int], Inputs]
    joint_calls: int
    single_calls: int
    blocks: int = 0  # whose modulation is fused

    def __str__(self) -> str:
        return self.name


def made(tiny: Tiny, **config: int) -> Any:
    """The model in bfloat16, with random weights; those of the Q/K norms are not near one another."""
    torch.manual_seed(0)
    model = tiny.build(**config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight") and parameter.ndim == 1:
                parameter.uniform_(0.5, 2.0)
            elif parameter.ndim == 1 or "pad_token" in name:
                parameter.normal_(0, 0.1)
    model.to(torch.bfloat16)
    for name, parameter in model.named_parameters():  # as from_pretrained leaves them
        if any(part in name.split(".") for part in model._keep_in_fp32_modules or ()):
            parameter.data = parameter.data.float()
    return model


def forward(model: Any, inputs: Inputs) -> list[Tensor]:
    """What the model returns, as a list."""
    with torch.no_grad():
        outs = model(**inputs, return_dict=False)
    return [x for out in outs for x in (out if isinstance(out, list) else [out])]


def random(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.bfloat16)


# --- Inputs -----------------------------------------------------------------------------------------------------------


def _ids(axes: int) -> tuple[Tensor, Tensor]:
    image = torch.zeros(HEIGHT, WIDTH, axes)
    image[..., 1] += torch.arange(HEIGHT)[:, None]
    image[..., 2] += torch.arange(WIDTH)[None]
    return image.reshape(-1, axes), torch.zeros(TEXT, axes)


def flux_inputs(batch: int) -> Inputs:
    img_ids, txt_ids = _ids(3)
    return {
        "hidden_states": random(batch, HEIGHT * WIDTH, 8),
        "encoder_hidden_states": random(batch, TEXT, 24),
        "pooled_projections": random(batch, 16),
        "timestep": torch.full((batch,), 0.5).to(torch.bfloat16),
        "img_ids": img_ids,
        "txt_ids": txt_ids,
    }


def ovis_inputs(batch: int) -> Inputs:
    return {name: value for name, value in flux_inputs(batch).items() if name != "pooled_projections"}


def flux2_inputs(batch: int) -> Inputs:
    img_ids, txt_ids = _ids(4)
    txt_ids[:, 3] = torch.arange(TEXT)
    inputs = {name: value for name, value in flux_inputs(batch).items() if name != "pooled_projections"}
    guidance = torch.full((batch,), 4.0).to(torch.bfloat16)
    return {**inputs, "img_ids": img_ids, "txt_ids": txt_ids, "guidance": guidance}


def qwen_inputs(batch: int) -> Inputs:
    mask = torch.ones(batch, TEXT, dtype=torch.bool)
    mask[-1, -2:] = batch == 1
    return {
        "hidden_states": random(batch, HEIGHT * WIDTH, 8),
        "encoder_hidden_states": random(batch, TEXT, 24),
        "encoder_hidden_states_mask": mask,
        "timestep": torch.full((batch,), 0.5).to(torch.bfloat16),
        "img_shapes": [(1, HEIGHT, WIDTH)] * batch,
    }


def hunyuan_inputs(batch: int) -> Inputs:
    mask = torch.ones(batch, TEXT, dtype=torch.int64)
    mask[-1, -2:] = 0
    return {
        "hidden_states": random(batch, 8, 2, HEIGHT, WIDTH),
        "timestep": torch.full((batch,), 500.0).to(torch.bfloat16),
        "encoder_hidden_states": random(batch, TEXT, 24),
        "encoder_attention_mask": mask,
        "encoder_hidden_states_2": random(batch, 3, 12),
        "encoder_attention_mask_2": torch.ones(batch, 3, dtype=torch.int64),
        "image_embeds": random(batch, 2, 16),
    }


def z_image_inputs(batch: int) -> Inputs:
    # Captions of different lengths, so that a mask is made.
    return {
        "x": [random(4, 1, 2 * HEIGHT, 2 * WIDTH) for _ in range(batch)],
        "t": torch.full((batch,), 0.5).to(torch.bfloat16),
        "cap_feats": [random(TEXT + 40 * index, 24) for index in range(batch)],
    }


def minimax_inputs(batch: int) -> Inputs:
    # Text, video and audio lie packed in one sequence; the audio is at another noise level.
    video, audio = HEIGHT * WIDTH, 4
    order = torch.arange(TEXT + video + audio)
    text_indices, audio_indices, video_indices = order.split([TEXT, audio, video])
    tags = torch.zeros(len(order), dtype=torch.int64)
    tags[text_indices], tags[audio_indices] = 1, 2
    positions = torch.stack([order, order % HEIGHT, order % WIDTH], -1)
    return {
        "hidden_states": random(batch, video, 16),
        "audio_hidden_states": random(batch, audio, 8),
        "encoder_hidden_states": random(batch, TEXT, 24),
        "timestep": torch.tensor([0.5, 0.25]),
        "timestep_indices": (tags == 2).long(),
        "token_tags": tags,
        "position_ids": positions,
        "video_indices": video_indices,
        "audio_indices": audio_indices,
        "text_indices": text_indices,
    }


# --- Models -----------------------------------------------------------------------------------------------------------

_HEADS: dict[str, Any] = {"num_attention_heads": HEADS, "attention_head_dim": HEAD_DIM}
_FLUX: dict[str, Any] = {**_HEADS, "num_layers": 1, "num_single_layers": 2, "in_channels": 8, "patch_size": 1}
_AXES_3, _AXES_4 = (8, 12, 12), (8, 8, 8, 8)
_FLUX2 = {**_FLUX, "joint_attention_dim": 24, "axes_dims_rope": _AXES_4, "timestep_guidance_channels": 16}

TINY = (
    Tiny(
        "flux2",
        "diffusers:flux2",
        partial(diffusers.Flux2Transformer2DModel, **_FLUX2, guidance_embeds=True),
        flux2_inputs,
        1,
        2,
    ),
    Tiny(
        "flux2_klein",
        "diffusers:flux2_klein",
        partial(diffusers.Flux2Transformer2DModel, **{**_FLUX2, "num_attention_heads": 3}, guidance_embeds=False),
        flux2_inputs,
        1,
        2,
    ),
    Tiny(
        "flux",
        "diffusers:flux",
        partial(
            diffusers.FluxTransformer2DModel,
            **_FLUX,
            joint_attention_dim=24,
            pooled_projection_dim=16,
            axes_dims_rope=_AXES_3,
        ),
        flux_inputs,
        1,
        2,
    ),
    Tiny(
        "qwen_image",
        "diffusers:qwen_image",
        partial(
            diffusers.QwenImageTransformer2DModel,
            **_HEADS,
            num_layers=2,
            in_channels=8,
            out_channels=2,
            joint_attention_dim=24,
            axes_dims_rope=_AXES_3,
        ),
        qwen_inputs,
        2,
        0,
    ),
    Tiny(
        "hunyuan_video_15",
        "diffusers:hunyuan_video_15",
        partial(
            diffusers.HunyuanVideo15Transformer3DModel,
            **_HEADS,
            num_layers=2,
            num_refiner_layers=1,
            in_channels=8,
            out_channels=4,
            text_embed_dim=24,
            text_embed_2_dim=12,
            image_embed_dim=16,
            rope_axes_dim=_AXES_3,
        ),
        hunyuan_inputs,
        2,
        0,
    ),
    Tiny(
        "z_image",
        "diffusers:z_image",
        partial(
            diffusers.ZImageTransformer2DModel,
            in_channels=4,
            dim=HEADS * HEAD_DIM,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=HEADS,
            n_kv_heads=HEADS,
            cap_feat_dim=24,
            axes_dims=list(_AXES_3),
            axes_lens=[128, 16, 16],
        ),
        z_image_inputs,
        0,
        4,
    ),
    Tiny(
        "ovis_image",
        "diffusers:ovis_image",
        partial(diffusers.OvisImageTransformer2DModel, **_FLUX, joint_attention_dim=24, axes_dims_rope=_AXES_3),
        ovis_inputs,
        1,
        2,
    ),
    Tiny(
        "minimax_h3",
        "diffusers:minimax_h3",
        partial(
            diffusers.MiniMaxH3Transformer3DModel,
            **_HEADS,
            hidden_size=96,
            num_layers=2,
            num_refiner_layers=1,
            ffn_dim=128,
            in_channels=4,
            audio_in_channels=8,
            text_dim=24,
            freq_dim=16,
            time_embed_hidden_dim=32,
            time_embed_dim=16,
            rope_freq_dim=4,
        ),
        minimax_inputs,
        0,
        2,
        2,
    ),
)
