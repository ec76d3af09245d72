"""The fused ops: an eager reference that reads like the specification, and its Triton kernel beside it."""

from numerics.ops.dispatch import Decision
from numerics.ops.joint_qkv_norm_rope import fused_joint_qkv_norm_rope, fused_joint_qkv_norm_rope_reference
from numerics.ops.modulation import (
    indexed_gate,
    indexed_gate_reference,
    indexed_scale_shift_,
    indexed_scale_shift_reference,
)
from numerics.ops.norm import (
    fused_add_rms_norm,
    fused_add_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)
from numerics.ops.norm_modulation import (
    indexed_gate_rms_norm_scale_shift,
    indexed_gate_rms_norm_scale_shift_reference,
    rms_norm_indexed_scale_shift,
    rms_norm_indexed_scale_shift_reference,
)
from numerics.ops.qk_norm_rope import can_fuse, fused_qk_norm_rope, fused_qk_norm_rope_reference
from numerics.ops.rope_table import pack_qk_norm_rope_table
from numerics.ops.telemetry import Dispatch, dispatch_counts, reset_dispatch_counts

__all__ = [
    "Decision",
    "Dispatch",
    "can_fuse",
    "dispatch_counts",
    "fused_add_rms_norm",
    "fused_add_rms_norm_reference",
    "fused_joint_qkv_norm_rope",
    "fused_joint_qkv_norm_rope_reference",
    "fused_qk_norm_rope",
    "fused_qk_norm_rope_reference",
    "indexed_gate",
    "indexed_gate_reference",
    "indexed_gate_rms_norm_scale_shift",
    "indexed_gate_rms_norm_scale_shift_reference",
    "indexed_scale_shift_",
    "indexed_scale_shift_reference",
    "pack_qk_norm_rope_table",
    "reset_dispatch_counts",
    "rms_norm",
    "rms_norm_indexed_scale_shift",
    "rms_norm_indexed_scale_shift_reference",
    "rms_norm_reference",
]
