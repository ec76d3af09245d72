"""The models that the integrations serve, read without their libraries and without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Supported:
    """A model class of diffusers: under which names its settings stand, and which processors serve it."""

    models: tuple[str, ...]  # of presets.toml; `_name_of` says which is whose
    processors: tuple[str, ...]  # of numerics.integrations.diffusers_models
    ops: tuple[str, ...]
    geometry: str


_BOTH: Final = ("fused_joint_qkv_norm_rope", "fused_qk_norm_rope")
SUPPORTED: Final[Mapping[str, Supported]] = MappingProxyType(
    {
        "FluxTransformer2DModel": Supported(
            ("diffusers:flux",), ("FluxJoint", "FluxSingle"), _BOTH, "24 heads x 128, pairs, float32 table"
        ),
        "Flux2Transformer2DModel": Supported(
            ("diffusers:flux2", "diffusers:flux2_klein"),
            ("Flux2Joint", "Flux2Single"),
            _BOTH,
            "48 (klein: 24 or 32) heads x 128, pairs, float32 table",
        ),
        "OvisImageTransformer2DModel": Supported(
            ("diffusers:ovis_image",),
            ("OvisImageJoint", "OvisImageSingle"),
            _BOTH,
            "24 heads x 128, pairs, float32 table",
        ),
        "QwenImageTransformer2DModel": Supported(
            ("diffusers:qwen_image",), ("QwenImageJoint",), _BOTH[:1], "24 heads x 128, pairs, complex64"
        ),
        "HunyuanVideo15Transformer3DModel": Supported(
            ("diffusers:hunyuan_video_15",),
            ("HunyuanVideo15Joint",),
            _BOTH[:1],
            "16 heads x 128, pairs, float32 table, text not rotated",
        ),
        "ZImageTransformer2DModel": Supported(
            ("diffusers:z_image",), ("ZImageSingle",), _BOTH[1:], "30 heads x 128, pairs, complex64"
        ),
    }
)
