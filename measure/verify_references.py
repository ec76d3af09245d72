"""Which library computes, live, what a preset claims of an op; what is the same on every device, and what is not.

On a CPU PyTorch adds the squares of a row in another order and multiplies complex numbers without contraction. The
steps after a norm are the same everywhere: there the norm is the eager reference's, and the steps alone are shown.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from numerics.errors import RequirementError
from numerics.measure.arms import AbsentError
from numerics.measure.chains import TORCH, Chain
from numerics.measure.peers import Locations
from numerics.measure.verify_libraries import (
    ATEN_NORMS,
    ROTATIONS,
    Norm,
    diffusers_norm,
    diffusers_rotation,
    norm_of,
    version_of,
    vllm,
)
from numerics.ops import rms_norm_reference
from numerics.ops.dispatch import capability_of
from numerics.presets.checks import ResolvedPreset
from numerics.presets.schema import Numerics
from numerics.presets.versions import admits
from numerics.presets.vocabulary import OPS, RoundingPoint
from numerics.requirements import check_process

LIBRARIES: Final = ("aten", "vllm", "diffusers", "flashinfer", "quack", "apex")
# What the chain of each provider is made of: whose norm, and which rotation.
PROVIDERS: Final[Mapping[str, tuple[str, str]]] = {
    "vllm_c": ("vllm", "separate"),
    "vllm_c_add": ("vllm", "separate"),
    "vllm_c_bf16_rope": ("vllm", "op_by_op"),
    "vllm_native": ("mean:two", "separate"),
    "omni_native": ("mean:one", "separate"),
    "omni_aten": ("aten", "separate"),
    "diffusers_aten": ("aten", "separate"),
    "diffusers_native": ("mean:two", "separate"),
    "diffusers_complex": ("mean:two", "complex"),
    "diffusers_bf16_rope": ("aten", "op_by_op"),
    "flashinfer": ("flashinfer", "separate"),
    "flashinfer_cuda": ("flashinfer", "separate"),
    "quack": ("quack", "separate"),
    "apex": ("apex", "separate"),
}
# What PyTorch's steps store, and so round.
STORED: Final[Mapping[str, tuple[RoundingPoint, ...]]] = {
    "fused_qk_norm_rope": ("qk_norm",),
    "fused_joint_qkv_norm_rope": ("qk_norm",),
    "rms_norm_indexed_scale_shift": ("norm", "one_plus_scale", "scaled"),
    "indexed_gate_rms_norm_scale_shift": ("gate_product", "residual", "norm", "one_plus_scale", "scaled"),
    "indexed_scale_shift_": ("one_plus_scale", "scaled"),
    "indexed_gate": ("gate_product",),
    "rms_norm": (),
    "fused_add_rms_norm": ("residual",),
}
UNCLAIMED: Final = "nothing is claimed of it"
NO_NORM_ON_CPU: Final = "not on this device: a CPU adds the squares in another order"


@dataclass(frozen=True)
class Live:
    """A chain to compare an op with. shows: the claim, or the steps after the norm alone."""

    chain: Chain
    shows: Literal["claim", "steps"]
    made_of: str  # whose norm and which rotation
    version: str | None


@dataclass(frozen=True)
class Where:
    """The device, and libraries that are not installed."""

    device: torch.device
    locations: Locations
    vllm_version: str | None = None

    @property
    def is_cpu(self) -> bool:
        """Where nothing of a GPU's order can be had."""
        return self.device.type == "cpu"


def live(library: str, preset: ResolvedPreset, numerics: Numerics, op: str, where: Where) -> Live:
    """What the library computes of the preset's claim for an op. Raises AbsentError, saying why, for nothing."""
    provider = "" if preset.reference is None else preset.reference.provider
    norm, rotation = PROVIDERS.get(provider, ("", _rotation_of(numerics)))
    if library == "aten":
        _check_stored(numerics, op)
        if "norm" not in op:
            return Live(TORCH, "steps", "no norm", version_of("aten"))
        if norm in ATEN_NORMS and not where.is_cpu:
            return _claimed(library, preset, op, _chain(ATEN_NORMS[norm], rotation), where)
        return Live(
            _after_own_norm(numerics, op, rotation, where), "steps", _words("own", rotation, op), version_of("aten")
        )
    if library == "diffusers":
        return _diffusers(preset, numerics, op, where)
    if norm != library:
        raise AbsentError(UNCLAIMED)
    if "norm" not in op:
        raise AbsentError(UNCLAIMED)  # every chain is PyTorch's then
    if where.is_cpu:
        raise AbsentError("not on this device: its norm runs on a GPU")
    if library == "vllm":
        _check_stored(numerics, op)
        if (op == "fused_add_rms_norm") != (provider == "vllm_c_add"):
            raise AbsentError(UNCLAIMED)  # its norm of a sum adds otherwise than its norm
        return _claimed(library, preset, op, vllm(where.locations, rotation), where)
    return _claimed(library, preset, op, _chain(norm_of(library), rotation), where)


def _diffusers(preset: ResolvedPreset, numerics: Numerics, op: str, where: Where) -> Live:
    provider = "" if preset.reference is None else preset.reference.provider
    if not provider.startswith("diffusers"):
        raise AbsentError(UNCLAIMED)
    norm, rotation = PROVIDERS[provider]
    rotates = OPS[op] == "fused_qk_norm_rope"
    if not rotates and (op != "rms_norm" or norm == "aten"):
        raise AbsentError(UNCLAIMED)  # its steps are PyTorch's
    if where.is_cpu:
        if not rotates:
            raise AbsentError(NO_NORM_ON_CPU)
        own = _after_own_norm(numerics, op, rotation, where)
        own = replace(own, rotate=diffusers_rotation(rotation))
        return Live(own, "steps", _words("own", rotation, op), version_of("diffusers"))
    found = ATEN_NORMS[norm] if norm == "aten" else diffusers_norm()
    chain = replace(TORCH, norm=found, rotate=diffusers_rotation(rotation))
    return _claimed("diffusers", preset, op, chain, where)


def _claimed(library: str, preset: ResolvedPreset, op: str, chain: Chain, where: Where) -> Live:
    """The chain, if the library that is here is what the claim is of, and the process meets the preset's conditions."""
    claim = preset.reference
    assert claim is not None
    found = version_of(library)
    if library == "vllm" and where.locations.vllm_library is not None:
        found = where.vllm_version
        if found is None and not claim.verified_on:
            raise AbsentError("the version of the library is not known; --vllm-version says it")
    if library != "aten" and found is not None and not admits(claim.versions, found):
        raise AbsentError(f"claimed of {claim.versions}, found {found}")
    if op == "fused_add_rms_norm" and claim.provider == "vllm_native":
        raise AbsentError("its norm of a sum reads the sum before it is rounded")
    try:
        check_process(preset.requires, capability_of(where.device), f"preset {preset.name!r}")
    except RequirementError as error:
        raise AbsentError(str(error)) from None
    for name, value in preset.requires.env.items():  # where a condition is met by default, a claim is not
        if (os.environ.get(name, "").strip() or "0") != value:
            raise AbsentError(f"claimed of {name}={value}")
    return Live(chain, "claim", _words(*PROVIDERS[claim.provider], op), found)


def _words(norm: str, rotation: str, op: str) -> str:
    return f"norm {norm}, rotation {rotation}" if OPS[op] == "fused_qk_norm_rope" else f"norm {norm}"


# --- Chains -----------------------------------------------------------------------------------------------------------


def _after_own_norm(numerics: Numerics, op: str, rotation: str, where: Where) -> Chain:
    """The norm of the eager reference, then PyTorch's steps."""
    if OPS[op] == "fused_rms_norm":
        raise AbsentError(NO_NORM_ON_CPU if where.is_cpu else UNCLAIMED)
    if rotation == "complex" and where.is_cpu and OPS[op] == "fused_qk_norm_rope":
        raise AbsentError("not on this device: a CPU multiplies complex numbers without contraction")
    return _chain(partial(_own_norm, numerics), rotation)


def _own_norm(numerics: Numerics, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm_reference(x, weight, eps, numerics=numerics)


def _chain(norm: Norm, rotation: str) -> Chain:
    def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm(total, weight, eps), total

    return Chain(norm, add_norm, ROTATIONS[rotation])


def _check_stored(numerics: Numerics, op: str) -> None:
    if any(point not in numerics.rounding_points for point in STORED[op]):
        raise AbsentError("no chain of ops rounds so: PyTorch stores what these knobs do not round")


def _rotation_of(numerics: Numerics) -> str:
    if numerics.rope_rotation == "complex":
        return "complex"
    return "op_by_op" if "rope_product" in numerics.rounding_points else "separate"
