"""Tiny models of each supported class, their inputs, and what a GPU computes where a CPU computes otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffusers
import torch
from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import numerics
from numerics.ops import rms_norm_reference
from numerics.ops.arithmetic import exact_fma

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
    return model.to(torch.bfloat16)


def forward(model: Any, inputs: Inputs) -> list[Tensor]:
    """What the model returns, as a list."""
    with torch.no_grad():
        out = model(**inputs, return_dict=False)[0]
    return list(out) if isinstance(out, list) else [out]


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
)


# --- What a GPU computes ----------------------------------------------------------------------------------------------


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
def stock_as_on_a_gpu(model: Any, preset: str) -> Iterator[Any]:
    """The model with its stock processors, its Q/K norms and its complex products replaced by the specification."""
    settings = numerics.resolve("fused_qk_norm_rope", preset=preset).numerics
    swapped = [
        (parent, name, norm)
        for parent in model.modules()
        for name, norm in parent.named_children()
        if name in {"norm_q", "norm_k", "norm_added_q", "norm_added_k"} and isinstance(norm, (nn.RMSNorm, RMSNorm))
    ]
    for parent, name, norm in swapped:
        setattr(parent, name, ReferenceNorm(norm, settings))
    try:
        with ComplexProductOfAGpu():  # type: ignore[no-untyped-call]  # the same
            yield model
    finally:
        for parent, name, norm in swapped:
            setattr(parent, name, norm)
