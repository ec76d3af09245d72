"""The arms of a trajectory: the unfused chain of a provider, and presets, each as the ops that a block calls."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from numerics import ops
from numerics.measure.arms import table_dtype_of
from numerics.measure.chains import TORCH, Chain
from numerics.measure.dit import HEAD_DIM, Calls, Dit, Geometry
from numerics.measure.peers import Peer, vllm_norm
from numerics.ops.dispatch import capability_of
from numerics.ops.inputs import word
from numerics.presets.versions import admits, can_hold
from numerics.presets.vocabulary import Family
from numerics.resolve import Resolution, resolve

PRESETS: Final = ("vllm_cuda", "bf16_affine", "fast")
EXACT: Final = "vllm_cuda"  # claims the chain that is the reference, and computes what is not under test
MODULATION: Final[Family] = "fused_modulation"
NORM: Final[Family] = "fused_rms_norm"
ROTATION: Final[Family] = "fused_qk_norm_rope"
OPS: Final[Mapping[str, Family]] = {  # of a block, and of the end of the stack
    "rms_norm_indexed_scale_shift": MODULATION,
    "indexed_gate_rms_norm_scale_shift": MODULATION,
    "indexed_gate": MODULATION,
    "fused_qk_norm_rope": ROTATION,
    "rms_norm": NORM,
}
Settings = dict[Family, Resolution]
Maker = Callable[[str, Resolution, Dit], Callable[..., Any]]


@dataclass(frozen=True)
class Plan:
    """What is computed."""

    geometry: Geometry
    steps: int
    presets: tuple[str, ...] = PRESETS
    families: tuple[Family, ...] = (MODULATION,)  # under test: the others are the same in all arms
    seed: int = 0


@dataclass
class Arm:
    """One way to compute the trajectory, and how far it got."""

    calls: Calls
    numerics: Settings
    claims: bool  # the reference's bytes, in every family under test
    latent: Tensor
    counted: Counter[str]  # calls of the ops under test
    fused: Counter[str] = field(default_factory=Counter)
    not_fused: dict[str, str] = field(default_factory=dict)  # by op, why it ran its reference


@dataclass(frozen=True)
class Unfused:
    """The chain that is the reference."""

    chain: Chain
    name: str
    version: str | None = None  # of the provider, where it is known
    files: tuple[Path, ...] = ()


def arm_of(plan: Plan, dit: Dit, numerics: Settings, make: Maker, *, claims: bool) -> Arm:
    """An arm whose ops under test `make` makes; the others are public ops."""
    counted: Counter[str] = Counter()

    def call_of(op: str, family: Family) -> Callable[..., Any]:
        if family not in plan.families:
            return public_op(op, numerics[family], dit)
        return partial(_count_and_call, counted, op, make(op, numerics[family], dit))

    calls = {op: call_of(op, family) for op, family in OPS.items()}
    return Arm(calls, numerics, claims, dit.start, counted)


def public_op(op: str, numerics: Resolution, dit: Dit) -> Callable[..., Any]:
    """A maker: the op of this package, with its rotation table."""
    call = partial(getattr(ops, op), numerics=numerics)
    if op != ROTATION:
        return call
    table = torch.cat((dit.cos, dit.sin), dim=-1).to(table_dtype_of(numerics))
    return partial(call, rope_table=table, interleaved=False)


def op_of_chain(chain: Chain) -> Maker:
    """The maker of what a chain does in place of an op."""

    def make(op: str, numerics: Resolution, dit: Dit) -> Callable[..., Any]:
        if op != ROTATION:
            return chain.of(op)
        cos, sin = (half.to(table_dtype_of(numerics)) for half in (dit.cos, dit.sin))
        return partial(chain.of(op), cos=cos, sin=sin, interleaved=False)

    return make


def _count_and_call(counter: Counter[str], op: str, call: Callable[..., Any], **given: Any) -> Any:
    counter[op] += 1
    return call(**given)


# --- Numerics ---------------------------------------------------------------------------------------------------------


def settings_of(plan: Plan, device: torch.device) -> tuple[Settings, dict[str, Settings]]:
    """The numerics of the reference, and by preset those of each candidate: its own in the families under test.

    Raises ConfigurationError for a preset that is none, RequirementError for one that refuses these calls.
    """
    exact = {family: _bound(family, EXACT, plan, device) for family in dict.fromkeys(OPS.values())}
    return exact, {
        preset: exact | {family: _bound(family, preset, plan, device) for family in plan.families}
        for preset in plan.presets
    }


def _bound(family: Family, preset: str, plan: Plan, device: torch.device) -> Resolution:
    numerics = resolve(family, preset=preset, min_tokens=0).bind(capability_of(device))
    rotates = family == ROTATION
    numerics.check_call(
        width=HEAD_DIM if rotates else plan.geometry.width,
        rows=plan.geometry.tokens * (plan.geometry.heads if rotates else 1),
        dtype="bfloat16",
        rope_table_dtype=word(table_dtype_of(numerics)) if rotates else None,
    )
    return numerics


def claims(numerics: Settings, exact: Settings, unfused: Unfused, families: Iterable[Family]) -> bool:
    """Whether a candidate claims the reference's chain in every family under test: its provider, in this version."""
    for family in families:
        claim, promised = numerics[family].reference, exact[family].reference
        if claim is None or promised is None or claim.provider != promised.provider:
            return False
        if unfused.version is None:
            admitted = can_hold(f"{claim.versions},{promised.versions}")  # the chain is one of those
        else:
            admitted = admits(claim.versions, unfused.version)
        if not admitted:
            return False
    return True


# --- The chain --------------------------------------------------------------------------------------------------------


def unfused_of(exact: Settings, vllm: Peer | str, device: torch.device) -> Unfused:
    """The norm is vLLM's where it is there, and else an eager one of its preset; the affine is PyTorch's in bf16."""
    claim = exact[MODULATION].reference
    assert claim is not None
    if isinstance(vllm, str):
        why = vllm
    elif device.type != "cuda":
        why = "vLLM's ops need a GPU"
    elif vllm.version is not None and not admits(claim.versions, vllm.version):
        why = f"{EXACT} claims vLLM {claim.versions}, and {vllm.version} is installed"
    else:
        name = vllm.version or ", ".join(path.name for path in vllm.files)
        chain = Chain(_vllm_norm, TORCH.add_norm, TORCH.rotate)
        return Unfused(chain, f"vLLM's rms_norm ({name}), PyTorch's affine", vllm.version, vllm.files)
    chain = Chain(partial(_eager_norm, exact[NORM]), TORCH.add_norm, TORCH.rotate)
    return Unfused(chain, f"eager norm of {EXACT}, PyTorch's affine ({why})")


def _vllm_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return vllm_norm(x.contiguous(), weight, eps)  # heads of q and k are slices


def _eager_norm(numerics: Resolution, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return ops.rms_norm_reference(x, weight, eps, numerics=numerics.numerics)
