"""One preset and op of a plan: its calls, the references that are there for it, and its records."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch

from numerics.golden.cases import Case
from numerics.measure.arms import AbsentError
from numerics.measure.peers import Locations
from numerics.measure.verify_golden import golden_cases
from numerics.measure.verify_references import LIBRARIES, UNCLAIMED, Live, Where, live
from numerics.measure.verify_rows import mean_of, tree
from numerics.measure.verify_samples import Sample, samples
from numerics.measure.verify_tally import Tally
from numerics.ops.launch import no_kernel_for
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import Catalog
from numerics.presets.schema import Numerics, Reduction
from numerics.presets.vocabulary import FAMILIES, OPS

GOLDEN, EAGER, DECLARATION = "golden", "eager", "declaration"
REFERENCES: Final = (GOLDEN, *LIBRARIES, EAGER, DECLARATION)
SHOWS: Final = {  # what a record says of a preset where nothing differs
    "claim": "the bytes that the preset claims",
    "steps": "the steps after the norm, which is the eager reference's",
    "kernel": "the kernel returns what the eager reference does",
    "declaration": "the eager reference adds as declared",
}
Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What holds for the whole run."""

    catalog: Catalog
    presets: tuple[str, ...]
    ops: tuple[str, ...]
    references: tuple[str, ...]
    device: torch.device
    elements: int = 0  # at least, of each op, preset and live reference; each sample is called once anyway
    seed: int = 0
    locations: Locations = field(default_factory=Locations)
    vllm_version: str | None = None

    @property
    def where(self) -> Where:
        """The device and the libraries."""
        return Where(self.device, self.locations, self.vllm_version)


@dataclass(frozen=True)
class Subject:
    """One preset and op of a plan."""

    plan: Plan
    name: str
    op: str

    @property
    def preset(self) -> ResolvedPreset:
        """As the catalog has it."""
        return self.plan.catalog.presets[self.name]

    @cached_property
    def numerics(self) -> Numerics:
        """Of the preset."""
        return self.preset.numerics(self.plan.catalog.reductions)

    @cached_property
    def golden(self) -> list[Case]:
        """The golden cases of this op."""
        return golden_cases(self.plan.catalog, self.preset, [self.op])

    @cached_property
    def samples(self) -> list[Sample]:
        """The calls."""
        large = self.plan.device.type != "cpu"
        return samples(self.op, self.numerics, self.preset.requires, large=large)

    @cached_property
    def _chains(self) -> dict[str, Live | str]:
        found: dict[str, Live | str] = {}
        for library in [name for name in LIBRARIES if name in self.plan.references]:
            try:
                found[library] = live(library, self.preset, self.numerics, self.op, self.plan.where)
            except AbsentError as error:
                found[library] = str(error)
        return found

    @property
    def live(self) -> dict[str, Live]:
        """The libraries that compute what is claimed here."""
        return {name: each for name, each in self._chains.items() if isinstance(each, Live)}

    @property
    def absent(self) -> dict[str, str]:
        """Those of which something is claimed that is not computed here, and why."""
        found = {name: each for name, each in self._chains.items() if isinstance(each, str) and each != UNCLAIMED}
        if EAGER in self.plan.references and (why := no_kernel_for(self.plan.device, torch.bfloat16)):
            found[EAGER] = f"not on this device: {why}"
        return found

    @property
    def table_dtype(self) -> str:
        """Of the rotation table: float32, or that of the activations."""
        return self.preset.requires.rope_table_dtype or "activation"

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for presets that compute the same of this op and are compared with the same."""
        reduction = self.numerics.rms_norm_reduction
        orders: list[Any] = []
        if isinstance(reduction, Reduction) and "norm" in self.op:
            every = [reduction.order(sample.width, rows) for sample in self.samples for rows in sample.norms()]
            orders = [(tree(order).key, mean_of(order)) for order in every]
        rotates = OPS[self.op] == "fused_qk_norm_rope"
        points = [point for point in self.numerics.rounding_points if point in FAMILIES[OPS[self.op]]]
        chains = [(name, each.shows, each.made_of) for name, each in self.live.items()]
        return (
            self.op,
            tuple(self.samples),
            tuple(orders),
            tuple(points),
            (self.numerics.rope_rotation, self.table_dtype) if rotates else None,
            tuple(chains),
        )

    def asks(self, reference: str) -> bool:
        """Whether the plan names a reference."""
        return reference in self.plan.references

    def has_kernel(self, dtype: str = "bfloat16") -> bool:
        """Whether kernels run on the device."""
        return no_kernel_for(self.plan.device, getattr(torch, dtype)) is None

    def record(self, *, reference: str | None, **values: Any) -> Record:
        """With every field, in one order. Raises TypeError for one that there is not."""
        every: Record = {
            "op": self.op,
            "preset": self.name,
            "reference": reference,
            "shows": None,  # what is shown where nothing differs
            "case": None,
            "arm": None,  # whose bytes were compared: "kernel" or "eager"
            "device": str(self.plan.device.type),
            "calls": 0,
            "rows": 0,
            "elements": 0,
            "elements_differing": 0,
            "max_ulp": 0,
            "bias_ulp": 0.0,
            "one_sided_nan": 0,
            "first": None,
            "made_of": None,  # whose norm, which rotation
            "version": None,
            "not_told": None,  # searched rows: what else would return the same bytes
            "candidates": None,
            "not_fused": None,
            "absent": None,
            "error": None,
            "same_as": None,  # the preset whose records these are, since it computes the same
        }
        if unknown := values.keys() - every.keys():
            raise TypeError(f"no such field: {', '.join(sorted(unknown))}")
        return {**every, **values}


def of_tally(tally: Tally) -> Record:
    """As fields of a record."""
    return {
        "calls": 1,
        "elements": tally.elements,
        "elements_differing": tally.differing,
        "max_ulp": tally.max_ulp,
        "bias_ulp": tally.bias_ulp,
        "one_sided_nan": tally.one_sided_nan,
        "first": tally.first,
    }
