"""One golden case: a call of a provider, with the arrays that went in and came out, and what it was captured on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from numerics.capability import components, matches
from numerics.errors import RequirementError
from numerics.presets.schema import Dtype, Numerics, Reference, Requires
from numerics.presets.versions import admits
from numerics.presets.vocabulary import OPS, Family
from numerics.requirements import check_tensors

# Every array was captured on an NVIDIA H200, under:
CAPABILITY: Final = "cuda:9.0"
TORCH: Final = "2.11.0"
TRITON: Final = "3.6.0"
ENVIRONMENT: Final = {"VLLM_BATCH_INVARIANT": "0"}

ROTATION: Final = "rotate"
"""In place of an op: the stage alone, on activations that are taken as normalized."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Arrays by the names of an op's arguments and results. The table of a Q/K op is packed from `cos` and `sin`."""

    name: str
    providers: Mapping[str, str] = field(hash=False)  # who computes so, each with the version that did
    op: str
    inputs: Mapping[str, str] = field(hash=False)
    outputs: Mapping[str, str] = field(hash=False)
    width: int
    rows: int  # of the provider's call: the arrays hold the first of them, or were repeated up to that number
    eps: float = 1e-6
    dtype: Dtype = "bfloat16"
    rope_table_dtype: Literal["bfloat16", "float32"] | None = None
    rotary_dim: int | None = None
    interleaved: bool = True
    table_row: int | None = None  # the one row of cos and sin that rotates every token

    @property
    def family(self) -> Family:
        """Of the op."""
        return "fused_qk_norm_rope" if self.op == ROTATION else OPS[self.op]

    @property
    def has_norm(self) -> bool:
        """Whether the op adds up squares at all."""
        return "norm" in self.op

    def is_of(self, reference: Reference) -> bool:
        """Whether the chain of the reference, in one of its versions, computed these bytes."""
        version = self.providers.get(reference.provider)
        return version is not None and admits(reference.versions, version)

    def meets(self, requires: Requires, numerics: Numerics) -> bool:
        """Whether the conditions of a preset, and of its reduction, held when the case was captured."""
        return (
            (requires.backend is None or requires.backend == components(CAPABILITY)[0])
            and (requires.capability is None or matches(requires.capability, CAPABILITY))
            and (requires.torch is None or admits(requires.torch, TORCH))
            and (requires.triton is None or admits(requires.triton, TRITON))
            and all(ENVIRONMENT.get(name, value) == value for name, value in requires.env.items())
            and self._tensors_meet(requires)
            and self._has_order(numerics)
        )

    def _tensors_meet(self, requires: Requires) -> bool:
        try:
            check_tensors(
                requires,
                self.name,
                width=self.width,
                rows=self.rows,
                dtype=self.dtype,
                rope_table_dtype=self.rope_table_dtype,
            )
        except RequirementError:
            return False
        return True

    def _has_order(self, numerics: Numerics) -> bool:
        reduction = numerics.rms_norm_reduction
        try:
            return isinstance(reduction, str) or bool(reduction.order(self.width, self.rows))
        except ValueError:
            return False
