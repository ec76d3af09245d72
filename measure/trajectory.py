"""A flow-matching trajectory in several arms: the unfused chain, the same again, and presets; each latent is compared.

All arms start from the same latent and weights, and only the ops of the families under test differ. In every layer and
step an arm calls each modulation op of a block once: `rms_norm_indexed_scale_shift` before attention,
`indexed_gate_rms_norm_scale_shift` after it, and `indexed_gate` at the end of the block. Counted are calls of the
public op, or of the chain in its place, each op by itself: 50 layers and 50 steps are 2,500 of each.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.measure.dit import EPS, FEATURES, GROUPS, HEAD_DIM, MLP_RATIO, ROTARY_DIM, Dit
from numerics.measure.machine import command, machine, sources
from numerics.measure.metrics import compared
from numerics.measure.peers import Locations, found
from numerics.measure.trajectory_arms import OPS, Plan, arm_of, claims, op_of_chain, public_op, settings_of, unfused_of
from numerics.ops.telemetry import dispatch_counts

REFERENCE, CONTROL = "reference", "control"
SHIFT: Final = 3.0  # of the noise levels (Esser et al., 2024, equation 23)
CUBLAS: Final = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch calls cuBLAS not deterministic
Record = dict[str, Any]
Turn = tuple[str, int]


class Trajectory:
    """All arms of a plan. `take` computes one step of one, in the order of `turns`.

    Raises ConfigurationError for a preset or a library that is none, RequirementError for a preset that refuses.
    """

    def __init__(self, plan: Plan, device: torch.device, vllm_library: Path | None = None) -> None:
        self.plan = plan
        if taken := {REFERENCE, CONTROL}.intersection(plan.presets):
            raise ConfigurationError(f"preset {min(taken)!r}: the name of an arm here; give it another with `extends`")
        exact, candidates = settings_of(plan, device)
        unfused = unfused_of(exact, found(Locations(vllm_library=vllm_library), ["vllm"])["vllm"], device)
        self.reference, self._files = unfused.name, unfused.files
        self.dit = Dit(plan.geometry, device, plan.seed)
        chain = op_of_chain(unfused.chain)
        self.arms = {name: arm_of(plan, self.dit, exact, chain, claims=True) for name in (REFERENCE, CONTROL)}
        for name, numerics in candidates.items():
            equal = claims(numerics, exact, unfused, plan.families)
            self.arms[name] = arm_of(plan, self.dit, numerics, public_op, claims=equal)
        self.sigmas = noise_levels(plan.steps)
        self._latents: list[Tensor] = []  # of the reference, on the host
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    @property
    def turns(self) -> list[Turn]:
        """Arm and step, counted from 1: the reference first, then the control, then each preset."""
        return [(name, step) for name in self.arms for step in range(1, self.plan.steps + 1)]

    def take(self, turn: Turn) -> Record | None:
        """One step of an arm, and how its latent compares with the reference's, which itself has no record."""
        name, step = turn
        arm = self.arms[name]
        before = dispatch_counts()
        with torch.no_grad(), deterministic():
            now, later = self.sigmas[step - 1 : step + 1]
            velocity = self.dit.velocity(arm.latent, now, arm.calls)
            arm.latent = (arm.latent.float() + velocity.float() * (later - now)).to(arm.latent.dtype)
        for way, count in dispatch_counts().items():
            if count > before.get(way, 0) and OPS.get(way.op) in self.plan.families:
                arm.fused[way.op] += (count - before.get(way, 0)) * way.fused
                if not way.fused:
                    arm.not_fused[way.op] = way.reason
        latent = arm.latent.cpu()
        if name == REFERENCE:
            self._latents.append(latent)
            return None
        return self._record(name, step, latent, self._latents[step - 1])

    def header(self, arguments: Iterable[str]) -> Record:
        """What holds for all records. arguments: of the command line."""
        geometry = self.plan.geometry
        return {
            "kind": "header",
            "reference": self.reference,
            "steps": self.plan.steps,
            **asdict(geometry),
            "heads": geometry.heads,
            "head_dim": HEAD_DIM,
            "rotary_dim": ROTARY_DIM,
            "mlp_ratio": MLP_RATIO,
            "modulation_rows": GROUPS,
            "grid": list(geometry.grid),
            "latent": [geometry.tokens, FEATURES],
            "image": list(geometry.image(self.dit.start).shape),
            "eps": EPS,
            "sigma_shift": SHIFT,
            "seed": self.plan.seed,
            "families": list(self.plan.families),
            "weight_sets": len(self.dit.weights),
            "attention": self.dit.attention.name.lower(),
            "device": str(self.dit.device),
            "calls": {name: dict(arm.counted) for name, arm in self.arms.items()},
            "fused": {name: dict(arm.fused) for name, arm in self.arms.items()},
            "not_fused": {name: arm.not_fused for name, arm in self.arms.items() if arm.not_fused},
            "fingerprints": {
                name: {family: arm.numerics[family].fingerprint for family in self.plan.families}
                for name, arm in self.arms.items()
            },
            **machine(),
            "sources": sources(self._files),
            "started": self._started,
            "command": command(arguments),
        }

    def _record(self, name: str, step: int, latent: Tensor, reference: Tensor) -> Record:
        image = self.plan.geometry.image
        facts = machine()
        return {
            "kind": "step",
            "preset": name,
            "step": step,
            "sigma": self.sigmas[step],
            **compared(latent, reference, (image(latent), image(reference))),
            "claims_reference": self.arms[name].claims,
            "reference": self.reference,
            **{key: facts[key] for key in ("gpu", "torch", "triton")},
        }


# --- Steps ------------------------------------------------------------------------------------------------------------


def noise_levels(steps: int) -> list[float]:
    """Levels from 1 to 0, one more than steps, shifted to noise: s * t / (1 + (s - 1) * t) for equally spaced t."""
    times = [1 - step / steps for step in range(steps + 1)]
    return [SHIFT * time / (1 + (SHIFT - 1) * time) for time in times]


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms where torch has them. The control, and not a refusal, shows whether all are."""
    os.environ.setdefault(*CUBLAS)
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False  # every element is written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        memory.fill_uninitialized_memory = fills


# --- Results ----------------------------------------------------------------------------------------------------------


def steps_of(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of steps by preset, the control among them."""
    presets: dict[str, list[Record]] = {}
    for each in records:
        if each["kind"] == "step":
            presets.setdefault(each["preset"], []).append(each)
    return presets


def is_wrong(each: Record) -> bool:
    """Whether bytes differ that must not: the control's, or those of a preset that claims the reference's."""
    return bool(each["kind"] == "step" and each["claims_reference"] and each["elements_differing"])
