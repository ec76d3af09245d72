"""The closed lists that files, environment, ops and command line share: families, ops, knobs, rounding points."""

from typing import Final, Literal

Family = Literal["fused_qk_norm_rope", "fused_modulation", "fused_rms_norm"]
RoundingPoint = Literal[
    "normalized",
    "qk_norm",
    "rope_product",
    "gate_product",
    "residual",
    "norm",
    "one_plus_scale",
    "scaled",
]
Rotation = Literal["separate", "complex"]
Knob = Literal["rms_norm_reduction", "enable_fp_fusion", "rounding_points", "rope_rotation"]

KNOBS: Final[tuple[Knob, ...]] = (
    "rms_norm_reduction",
    "enable_fp_fusion",
    "rounding_points",
    "rope_rotation",
)

MAX_TOKENS: Final = 10**18 - 1  # of min_tokens, which a custom op takes as a number of 64 bits

# cuda:MAJOR.MINOR, hip:gfxNAME, npu:NAME, or the first components of one. A number is written as a driver writes it:
# cuda:09 would hold for no device.
CAPABILITY_SPELLING: Final = r"cuda(:(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))?)?|hip(:gfx[0-9a-f]+)?|npu(:[A-Za-z0-9_.]+)?"

# What each point rounds to the activation dtype; the order here is the order of the arithmetic.
ROUNDING_POINTS: Final[dict[RoundingPoint, str]] = {
    "gate_product": "gate * branch",
    "residual": "residual + ..., before the norm",
    "normalized": "x * rstd, before the weight multiply",
    "norm": "x * rstd * weight, before scale and shift",
    "one_plus_scale": "1 + scale",
    "scaled": "norm * (1 + scale), before the shift",
    "qk_norm": "x * rstd * weight, before the rotation",
    "rope_product": "each product of the rotation",
}

# A family is a set of ops that share their settings. A knob or point not listed for a family cannot change its bytes.
FAMILIES: Final[dict[Family, tuple[RoundingPoint, ...]]] = {
    "fused_qk_norm_rope": ("normalized", "qk_norm", "rope_product"),
    "fused_modulation": ("gate_product", "residual", "normalized", "norm", "one_plus_scale", "scaled"),
    "fused_rms_norm": ("residual", "normalized"),
}

# Every public operation that reads numerics, and its family.
OPS: Final[dict[str, Family]] = {
    "fused_qk_norm_rope": "fused_qk_norm_rope",
    "fused_joint_qkv_norm_rope": "fused_qk_norm_rope",
    "rms_norm_indexed_scale_shift": "fused_modulation",
    "indexed_gate_rms_norm_scale_shift": "fused_modulation",
    "indexed_scale_shift_": "fused_modulation",
    "indexed_gate": "fused_modulation",
    "rms_norm": "fused_rms_norm",
    "fused_add_rms_norm": "fused_rms_norm",
}

# What each op computes, on one line; `i` stands for the indices.
OP_SUMMARIES: Final[dict[str, str]] = {
    "fused_qk_norm_rope": "RMSNorm of q and k, then rotation",
    "fused_joint_qkv_norm_rope": "the same for a text and an image stream, joined to q, k and v",
    "rms_norm_indexed_scale_shift": "RMSNorm, then * (1 + scale[i]) + shift[i]",
    "indexed_gate_rms_norm_scale_shift": "residual + gate[i] * branch, then the same",
    "indexed_scale_shift_": "x * (1 + scale[i]) + shift[i], in place",
    "indexed_gate": "x + gate[i] * other",
    "rms_norm": "RMSNorm",
    "fused_add_rms_norm": "x + residual, then RMSNorm",
}

OPEN_REDUCTION: Final = "triton"
"""The one reduction that has no declared order: Triton's own `tl.sum`; its reference is torch's float32 sum."""
