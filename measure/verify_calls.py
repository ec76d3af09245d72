"""One call of an op as the public op makes it, as its eager reference does, and as an unfused chain does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from numerics import ops
from numerics.golden.replay import RESULTS
from numerics.measure.arms import as_tuple
from numerics.measure.chains import Chain, arguments_of
from numerics.measure.inputs import Inputs
from numerics.measure.verify_samples import Sample
from numerics.ops.telemetry import dispatch_counts
from numerics.presets.schema import Numerics

NAMES: Final = {**RESULTS, "fused_joint_qkv_norm_rope": ("q", "k", "v"), "indexed_scale_shift_": ("x",)}
COPIED: Final = ("v",)  # whose NaN keep their bits
Results = dict[str, Tensor]


class Caller:
    """Calls of one op under one preset. `reason`: why the last one was not fused."""

    def __init__(self, op: str, numerics: Numerics) -> None:
        self._op = op
        self._numerics = numerics
        self.fused = False
        self.reason: str | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See which way the calls in this block go."""
        before = dispatch_counts()
        yield
        ways = [way for way, count in dispatch_counts().items() if count > before.get(way, 0)]
        reasons = [way.reason for way in ways if not way.fused]
        self.fused, self.reason = bool(ways) and not reasons, reasons[0] if reasons else None

    def op(self, inputs: Inputs, sample: Sample, table: torch.dtype, poison: Mapping[str, Tensor]) -> Results:
        """The public op. Memory of the sizes of `poison`, its results, is filled with NaN and given back before."""
        given = inputs.arguments(table)
        if self._op.endswith("_"):
            given["x"] = _copied(given["x"])
        if sample.batch > 1:
            given |= {name: given[name].unflatten(0, (sample.batch, -1)) for name in "qk"}
        _ = [torch.full_like(x, torch.nan) for x in poison.values()]
        del _
        with self.watching():
            made = getattr(ops, self._op)(**given, numerics=self._numerics)
        return self._named(made, sample)

    def eager(self, inputs: Inputs, sample: Sample, table: torch.dtype) -> Results:
        """The eager reference."""
        given = inputs.arguments(table)
        if sample.batch > 1:
            given |= {name: given[name].unflatten(0, (sample.batch, -1)) for name in "qk"}
        reference = getattr(ops, f"{self._op.removesuffix('_')}_reference")
        return self._named(reference(**given, numerics=self._numerics), sample)

    def chain(self, chain: Chain, inputs: Inputs, table: torch.dtype) -> Results:
        """An unfused chain. Raises AbsentError where it does not compute such a call."""
        with torch.no_grad():
            made = chain.of(self._op)(**arguments_of(inputs, chain, table))
        return dict(zip(NAMES.get(self._op, ("out",)), as_tuple(made), strict=True))

    def _named(self, made: Any, sample: Sample) -> Results:
        found = dict(zip(NAMES.get(self._op, ("out",)), as_tuple(made), strict=True))
        return {name: x.flatten(0, 1) for name, x in found.items()} if sample.batch > 1 else found


def _copied(x: Tensor) -> Tensor:
    """With its strides, gaps between rows included."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
