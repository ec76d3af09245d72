"""The models of diffusers that the integration serves, at full width or small, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from numerics.measure import model_inputs
from numerics.measure.model_inputs import BF16, OUTLIER, OUTLIERS, Extent, Inputs

NORM_WEIGHTS: Final = (0.5, 2.0)
JOINT: Final = "fused_joint_qkv_norm_rope"
SINGLE: Final = "fused_qk_norm_rope"
MODULATION: Final = ("rms_norm_indexed_scale_shift", "indexed_gate_rms_norm_scale_shift", "indexed_gate")

SQUARE: Final = Extent(512, 64, 64)  # 1024 x 1024 pixels


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model of diffusers: 2 + 2 blocks of its own width, or whatever else `config` says."""

    name: str
    model: str  # as in presets.toml
    model_class: str
    inputs: Callable[[Any, int, Extent, torch.device], Inputs]  # of its config, for a batch
    calls: Callable[[Any], dict[str, int]]  # of each fused op in a forward, from its config
    config: Mapping[str, Any] = field(default_factory=dict)  # what differs from diffusers' defaults
    extent: Extent = SQUARE

    def __str__(self) -> str:
        return self.name

    def random(self, model: Any, batch: int) -> Inputs:
        """Inputs for a model of this case, on its device."""
        return self.inputs(model.config, batch, self.extent, model.device)

    def build(self, device: torch.device | str = "cpu", **more: Any) -> Any:
        """The model in bfloat16 but for what diffusers keeps in float32, made on the device; more: of its config."""
        import diffusers  # noqa: PLC0415  # an extra

        with torch.device(device):
            model = getattr(diffusers, self.model_class)(**{**self.config, **more}).eval()
        kept = model._keep_in_fp32_modules or ()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                _fill(name, parameter)
        model.to(BF16)
        for name, parameter in model.named_parameters():
            if any(part in name.split(".") for part in kept):
                parameter.data = parameter.data.float()
        return model


def outputs(model: Any, inputs: Inputs) -> list[Tensor]:
    """What a forward returns, as a list."""
    with torch.no_grad():
        outs = model(**inputs, return_dict=False)
    return [x for out in outs for x in (out if isinstance(out, list) else [out])]


def _fill(name: str, parameter: Tensor) -> None:
    """Norms not near one another, no zero biases, and outlier channels in every matrix."""
    if parameter.ndim > 1 and "pad_token" not in name:
        parameter[::OUTLIERS] *= OUTLIER
    elif "norm" in name and name.endswith("weight"):
        parameter.uniform_(*NORM_WEIGHTS)
    else:
        parameter.normal_(0, 0.1)


# --- Models -----------------------------------------------------------------------------------------------------------


def _two_kinds(config: Any) -> dict[str, int]:
    return {JOINT: config.num_layers, SINGLE: config.num_single_layers}


def _joint(config: Any) -> dict[str, int]:
    return {JOINT: config.num_layers}


_TWO: Final = {"num_layers": 2, "num_single_layers": 2}
_KLEIN: Final = {"num_attention_heads": 24, "joint_attention_dim": 7680, "guidance_embeds": False}
MODELS: Final[Mapping[str, ModelCase]] = MappingProxyType(
    {
        case.name: case
        for case in (
            ModelCase("flux2", "diffusers:flux2", "Flux2Transformer2DModel", model_inputs.flux2, _two_kinds, _TWO),
            ModelCase(
                "flux2_klein",
                "diffusers:flux2_klein",
                "Flux2Transformer2DModel",
                model_inputs.flux2,
                _two_kinds,
                {**_TWO, **_KLEIN},
            ),
            ModelCase(
                "flux",
                "diffusers:flux",
                "FluxTransformer2DModel",
                model_inputs.flux,
                _two_kinds,
                {**_TWO, "guidance_embeds": True},
            ),
            ModelCase(
                "qwen_image",
                "diffusers:qwen_image",
                "QwenImageTransformer2DModel",
                model_inputs.qwen,
                _joint,
                {"num_layers": 2},
            ),
            ModelCase(
                "hunyuan_video_15",
                "diffusers:hunyuan_video_15",
                "HunyuanVideo15Transformer3DModel",
                model_inputs.hunyuan,
                _joint,
                {"num_layers": 2},
                Extent(512, 30, 40, 5),
            ),
            ModelCase(
                "z_image",
                "diffusers:z_image",
                "ZImageTransformer2DModel",
                model_inputs.z_image,
                lambda config: {SINGLE: config.n_layers + 2 * config.n_refiner_layers},
                {"n_layers": 2, "n_refiner_layers": 1},
            ),
            ModelCase(
                "ovis_image", "diffusers:ovis_image", "OvisImageTransformer2DModel", model_inputs.ovis, _two_kinds, _TWO
            ),
            ModelCase(
                "minimax_h3",
                "diffusers:minimax_h3",
                "MiniMaxH3Transformer3DModel",
                model_inputs.minimax,
                lambda config: dict.fromkeys((SINGLE, *MODULATION), config.num_layers),
                {"num_layers": 2},
                Extent(512, 32, 32, 8),
            ),
        )
    }
)

# --- The same, small enough for a CPU ---------------------------------------------------------------------------------

_HEADS: Final[dict[str, Any]] = {"num_attention_heads": 2, "attention_head_dim": 32}
_AXES: Final = (8, 12, 12)
_FLUX: Final = {**_HEADS, "num_layers": 1, "num_single_layers": 2, "in_channels": 8, "joint_attention_dim": 24}
_FLUX2: Final = {**_FLUX, "axes_dims_rope": (8, 8, 8, 8), "timestep_guidance_channels": 16}
_TINY: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "flux2": _FLUX2,
        "flux2_klein": {**_FLUX2, "num_attention_heads": 3},
        "flux": {**_FLUX, "pooled_projection_dim": 16, "axes_dims_rope": _AXES, "guidance_embeds": False},
        "qwen_image": {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 2,
            "joint_attention_dim": 24,
            "axes_dims_rope": _AXES,
        },
        "hunyuan_video_15": {
            **_HEADS,
            "num_refiner_layers": 1,
            "in_channels": 8,
            "out_channels": 4,
            "text_embed_dim": 24,
            "text_embed_2_dim": 12,
            "image_embed_dim": 16,
            "rope_axes_dim": _AXES,
        },
        "z_image": {
            "in_channels": 4,
            "dim": 64,
            "n_heads": 2,
            "n_kv_heads": 2,
            "cap_feat_dim": 24,
            "axes_dims": list(_AXES),
            "axes_lens": [128, 16, 16],
        },
        "ovis_image": {**_FLUX, "out_channels": 8, "axes_dims_rope": _AXES},
        "minimax_h3": {
            **_HEADS,
            "hidden_size": 96,
            "num_refiner_layers": 1,
            "ffn_dim": 128,
            "in_channels": 4,
            "audio_in_channels": 8,
            "text_dim": 24,
            "freq_dim": 16,
            "time_embed_hidden_dim": 32,
            "time_embed_dim": 16,
            "rope_freq_dim": 4,
        },
    }
)
TINY: Final[Mapping[str, ModelCase]] = MappingProxyType(
    {
        name: replace(case, config={**case.config, **_TINY[name]}, extent=Extent(5, 3, 5))
        for name, case in MODELS.items()
    }
)
