"""Whose bytes an arm is compared with: vLLM's own ops where they are there, and eager references elsewhere."""

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from numerics.measure.arms import AbsentError, Arm, specification, table_dtype_of
from numerics.measure.inputs import Inputs
from numerics.measure.peers import Peer
from numerics.presets.versions import admits
from numerics.resolve import Resolution, resolve

VLLM_PROVIDERS: Final = ("vllm_c", "vllm_c_add")


@dataclass
class References:
    """The expected results of one case, each computed when first asked for."""

    inputs: Inputs
    vllm: Peer | str | None = None
    _results: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)

    def name_and_results(self, numerics: Resolution | None) -> tuple[str, tuple[Tensor, ...]]:
        """What a preset promises; for one that leaves bits open, and for peers, what the case's exact preset does."""
        promised = numerics
        if promised is None or not promised.numerics.is_exact:
            promised = resolve(self.inputs.case.op, preset=self.inputs.case.exact)
        name, arm = self._chain(promised) or (
            f"eager reference of {promised.label}",
            specification(self.inputs, promised),
        )
        if name not in self._results:
            self._results[name] = arm.results()
        return name, self._results[name]

    def _chain(self, promised: Resolution) -> tuple[str, Arm] | None:
        """The chain of vLLM itself, where the preset claims it, in this version and for this table."""
        peer, claim = self.vllm, promised.reference
        if not isinstance(peer, Peer) or claim is None or claim.provider not in VLLM_PROVIDERS:
            return None
        if peer.version is not None and not admits(claim.versions, peer.version):
            return None
        if table_dtype_of(promised) != torch.bfloat16:
            return None  # its rotary kernel reads tables in the activation dtype
        try:
            arm = peer.arm(self.inputs)
        except AbsentError:
            return None
        return f"vLLM's ops ({peer.version or ', '.join(path.name for path in peer.files)})", arm
