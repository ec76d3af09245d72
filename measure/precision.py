"""How far presets are from the truth: each stage of an op, beside the same computed in float32 and in float64."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import RequirementError
from numerics.measure.arms import table_dtype_of
from numerics.measure.clock import CudaClock
from numerics.measure.inputs import Inputs
from numerics.measure.machine import command, machine, sources
from numerics.measure.precision_arms import Arm, Bits, bits_of, pairs_of, usual
from numerics.measure.precision_cases import ACTIVATION, STAGES, TABLE, Shape, Stage, arguments_of, by_call, truth
from numerics.measure.precision_errors import Errors
from numerics.ops.dispatch import capability_of
from numerics.ops.inputs import word
from numerics.ops.language import HAS_TRITON
from numerics.resolve import resolve

FULL, ROUNDED = "full", "rounded"
PRECISIONS: Final = {"float32": torch.float32, "float64": torch.float64}
CHUNK: Final = {"cuda": 1 << 25, "cpu": 1 << 21}  # values of a stage that are computed at once
UNMEASURED: Final = ("stage", "precision", "rmse")  # are null where a preset refuses
Record = dict[str, Any]
Turn = tuple[Shape, int]  # and the number of the chunk


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    shapes: Sequence[Shape]
    presets: tuple[str, ...]  # none: those that leave bits open, and those that were verified
    elements: int  # of a stage, at least
    seed: int = 0


@dataclass
class _Work:
    """A shape while it is measured."""

    chunks: list[int]  # tokens or rows of each
    arms: dict[str, Arm] = field(default_factory=dict)  # by the first of its presets
    refused: dict[str, str] = field(default_factory=dict)
    errors: dict[tuple[str, str, str | None], Errors] = field(default_factory=dict)  # by stage, precision and table
    started: str = ""


class Precision:
    """All shapes of a plan. `take` computes one chunk of one, in the order of `turns`."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.presets = plan.presets or usual()
        self._work = {shape.path: self._prepared(shape) for shape in plan.shapes}

    @property
    def turns(self) -> list[Turn]:
        """Each shape and chunk."""
        return [(shape, number) for shape in self.plan.shapes for number in range(len(self._work[shape.path].chunks))]

    def compile(self) -> None:
        """Compile at once, in threads, the kernels that presets will run. Where one fails, its turn says so."""
        if self.device.type == "cuda" and HAS_TRITON:
            calls = {
                f"{shape.path}, {name}": partial(self._call_once, shape, arm)
                for shape in self.plan.shapes
                for name, arm in self._work[shape.path].arms.items()
                if not arm.settings.numerics.is_exact
            }
            CudaClock().compile(calls, at_once=True)

    def take(self, turn: Turn) -> list[Record]:
        """Compute a chunk. The records of the shape, where it was the last of its chunks."""
        shape, number = turn
        work = self._work[shape.path]
        work.started = work.started or datetime.now(UTC).isoformat(timespec="seconds")
        if work.arms:
            with torch.no_grad():
                self._compute(shape, work, number)
        return self._records(shape, work) if number == len(work.chunks) - 1 else []

    # --- Arms ---------------------------------------------------------------------------------------------------------

    def _prepared(self, shape: Shape) -> _Work:
        limit = max(CHUNK[self.device.type] // shape.values, shape.least)
        tokens = max(-(-self.plan.elements // shape.values), shape.least)
        count = -(-tokens // limit)
        work = _Work([tokens // count + (number < tokens % count) for number in range(count)])
        seen: list[tuple[Bits, str]] = []
        for preset in self.presets:
            try:
                settings = resolve(shape.op, preset=preset, min_tokens=0).bind(capability_of(self.device))
                bits = bits_of(shape, settings, work.chunks[-1])
            except RequirementError as error:
                work.refused[preset] = str(error)
                continue
            first = next((name for other, name in seen if other.same_as(bits)), preset)
            seen.append((bits, first))
            work.arms.setdefault(first, Arm(settings, {})).presets[preset] = settings
        return work

    def _call_once(self, shape: Shape, arm: Arm) -> None:
        inputs = self._inputs(shape, 0)
        neutral = next(iter(by_call(STAGES[shape.op])))[0]
        replace(arm)(shape.op, arguments_of(inputs, table_dtype_of(arm.settings)), neutral)

    def _inputs(self, shape: Shape, number: int) -> Inputs:
        return shape.inputs(self._work[shape.path].chunks[number], self.device, self.plan.seed, number)

    # --- Errors -------------------------------------------------------------------------------------------------------

    def _compute(self, shape: Shape, work: _Work, number: int) -> None:
        inputs = self._inputs(shape, number)
        given = {name: arguments_of(inputs, table_dtype_of(arm.settings)) for name, arm in work.arms.items()}
        pairs = pairs_of(work.arms)
        for neutral, stages in by_call(STAGES[shape.op]):
            results = {name: arm(shape.op, given[name], neutral) for name, arm in work.arms.items()}
            rotated = shape.rotates and TABLE not in neutral
            for precision, dtype in PRECISIONS.items():
                for table in (FULL, ROUNDED) if rotated else (None,):
                    read = torch.bfloat16 if table == ROUNDED else dtype
                    expected = truth(shape.op, arguments_of(inputs, read), dtype, neutral)
                    there = {
                        name: found
                        for name, found in results.items()
                        if table != ROUNDED or table_dtype_of(work.arms[name].settings) == read
                    }
                    for stage in stages:
                        errors = work.errors.setdefault((stage.name, precision, table), Errors(pairs))
                        _add(errors, stage, there, expected)

    # --- Records ------------------------------------------------------------------------------------------------------

    def facts(self, arguments: Iterable[str]) -> Record:
        """What is the same in all records. arguments: of the command line."""
        return {"seed": self.plan.seed, "device": str(self.device), **machine(), "sources": sources()} | {
            "command": command(arguments)
        }

    def _records(self, shape: Shape, work: _Work) -> list[Record]:
        leaders = {preset: name for name, arm in work.arms.items() for preset in arm.presets}
        names = [stage.name for stage in STAGES[shape.op]]
        found = [
            self._described(shape, work, preset, leaders[preset], place) | errors.of(leaders[preset], work.arms)
            for place, errors in sorted(work.errors.items(), key=lambda item: names.index(item[0][0]))
            for preset in self.presets
            if preset in leaders and leaders[preset] in errors.arms
        ]
        refused = [
            {"op": shape.op, "case": shape.name, "preset": preset, **dict.fromkeys(UNMEASURED), "refused": why}
            for preset, why in work.refused.items()
        ]
        return found + refused

    def _described(
        self, shape: Shape, work: _Work, preset: str, leader: str, place: tuple[str, str, str | None]
    ) -> Record:
        arm, settings = work.arms[leader], work.arms[leader].presets[preset]
        claim = settings.reference
        stage, precision, table = place
        return {
            "op": shape.op,
            "case": shape.name,
            "preset": preset,
            "stage": stage,
            "precision": precision,
            "table": table,
            "dtype": ACTIVATION,
            "rope_table_dtype": word(table_dtype_of(settings)) if shape.rotates else None,
            "rows": work.chunks[-1],
            "exact": settings.numerics.is_exact,
            "reference": claim and {"provider": claim.provider, "versions": claim.versions},
            "computed_by": arm.computed_by,
            "same_as": None if leader == preset else leader,
            "fingerprint": settings.fingerprint,
            "refused": None,
            "started": work.started,
        }


def _add(errors: Errors, stage: Stage, results: Mapping[str, Sequence[Tensor]], expected: Sequence[Tensor]) -> None:
    for place in stage.results:
        errors.add({name: found[place] for name, found in results.items()}, expected[place])
