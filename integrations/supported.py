"""The models that the integrations serve, read without their libraries and without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Supported:
    """A model class of diffusers: under which names its settings stand, and which processors serve it."""

    models: tuple[str, ...]  # of presets.toml; the last of several is the one without guidance embeddings
    processors: tuple[str, ...]  # of numerics.integrations.diffusers_models
    ops: tuple[str, ...]
    block: str | None = None  # diffusers' class of blocks whose modulation is fused too
    unrotated: str | None = None  # the part of the model whose attention is not rotated


_BOTH: Final = ("fused_joint_qkv_norm_rope", "fused_qk_norm_rope")
_BLOCK: Final = ("rms_norm_indexed_scale_shift", "indexed_gate_rms_norm_scale_shift", "indexed_gate")
SUPPORTED: Final[Mapping[str, Supported]] = MappingProxyType(
    {
        "FluxTransformer2DModel": Supported(("diffusers:flux",), ("FluxJoint", "FluxSingle"), _BOTH),
        "Flux2Transformer2DModel": Supported(
            ("diffusers:flux2", "diffusers:flux2_klein"), ("Flux2Joint", "Flux2Single"), _BOTH
        ),
        "OvisImageTransformer2DModel": Supported(
            ("diffusers:ovis_image",), ("OvisImageJoint", "OvisImageSingle"), _BOTH
        ),
        "QwenImageTransformer2DModel": Supported(("diffusers:qwen_image",), ("QwenImageJoint",), _BOTH[:1]),
        "HunyuanVideo15Transformer3DModel": Supported(
            ("diffusers:hunyuan_video_15",), ("HunyuanVideo15Joint",), _BOTH[:1]
        ),
        "ZImageTransformer2DModel": Supported(("diffusers:z_image",), ("ZImageSingle",), _BOTH[1:]),
        "MiniMaxH3Transformer3DModel": Supported(
            ("diffusers:minimax_h3",),
            ("MiniMaxH3Single",),
            (*_BOTH[1:], *_BLOCK),
            block="MiniMaxH3TransformerBlock",
            unrotated="token_refiner",
        ),
    }
)


# --- Geometry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model normalises and rotates."""

    heads: tuple[int, ...]  # of q: a number for each size that the model comes in
    width: tuple[int, ...]  # of the activations around attention, in the same order
    streams: tuple[Literal["joint", "single"], ...]  # whether text comes apart from the image, or in one stream with it
    head_dim: int = 128
    rotary_dim: int = 128  # the first elements of a head
    interleaved: bool = True  # pairs of neighbours; else one element of each half
    kv_heads: int | None = None  # where they are fewer
    eps: float = 1e-6  # of the norm of q and k
    note: str = ""


_JOINT_SINGLE: Final = ("joint", "single")
# By model without its engine, as the sources of vllm-omni 0.30.0 and diffusers 0.42.1 have it.
GEOMETRY: Final[Mapping[str, Geometry]] = MappingProxyType(
    {
        "flux": Geometry((24,), (3072,), _JOINT_SINGLE),
        "flux2": Geometry((48,), (6144,), _JOINT_SINGLE),
        "flux2_klein": Geometry((24, 32), (3072, 4096), _JOINT_SINGLE),
        "ovis_image": Geometry((24,), (3072,), _JOINT_SINGLE),
        "qwen_image": Geometry((24,), (3072,), ("joint",)),
        "hunyuan_video_15": Geometry((16,), (2048,), ("joint",), note="only video tokens are rotated"),
        "z_image": Geometry((30,), (3840,), ("single",), eps=1e-5),
        "minimax_h3": Geometry((56,), (5376,), ("single",), rotary_dim=96, interleaved=False, eps=1e-5),
        "boogu_image": Geometry((24,), (2880,), _JOINT_SINGLE, head_dim=120, rotary_dim=120, kv_heads=8, eps=1e-5),
    }
)


# --- vLLM-Omni --------------------------------------------------------------------------------------------------------

# By model: the ops whose counterparts the model's module in vllm-omni 0.30 calls.
VLLM_OMNI: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "minimax_h3": (
            "fused_qk_norm_rope",
            "rms_norm_indexed_scale_shift",
            "indexed_gate_rms_norm_scale_shift",
            "indexed_scale_shift_",
            "indexed_gate",
        ),
        "qwen_image": ("fused_qk_norm_rope",),
        "boogu_image": ("fused_qk_norm_rope",),
    }
)
