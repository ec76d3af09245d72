"""One op beside every reference, sample after sample: each call is made once and compared with all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from numerics.measure.arms import AbsentError
from numerics.measure.inputs import Inputs
from numerics.measure.verify_calls import COPIED, Caller, Results
from numerics.measure.verify_references import Live
from numerics.measure.verify_rows import Search, declared_norm, telling
from numerics.measure.verify_samples import Sample, make
from numerics.measure.verify_subject import DECLARATION, EAGER, Record, Subject, of_tally
from numerics.measure.verify_tally import Tally
from numerics.presets.schema import Reduction

DECLARED_CALLS: Final = 2  # of a shape: thousands of additions, one by one
SHOWS: Final = {EAGER: "kernel", DECLARATION: "declaration"}


@dataclass
class _Line:
    """What becomes a record: one reference and one case."""

    reference: str
    case: str
    arm: str
    tally: Tally = field(default_factory=Tally)
    calls: int = 0
    rows: int = 0
    search: Search | None = None
    not_fused: str | None = None
    absent: str | None = None
    error: str | None = None


class Beside:
    """Counts, for each reference and case, what differs. pools: of candidates for searched rows."""

    def __init__(self, subject: Subject, pools: Any) -> None:
        self._subject = subject
        self._pools = pools
        self._caller = Caller(subject.op, subject.numerics)
        self._lines: dict[tuple[str, str], _Line] = {}
        self._live = subject.live

    def least(self, sample: Sample) -> int:
        """Elements compared with the reference that was compared least, of those that compute this sample."""
        computing = {line.reference for line in self._lines.values() if line.case == sample.case and line.calls}
        computing -= {DECLARATION}
        elements = dict.fromkeys(computing, 0)
        for line in self._lines.values():
            if line.reference in computing:
                elements[line.reference] += line.tally.elements
        return min(elements.values(), default=0)

    def call(self, sample: Sample, seed: int) -> None:
        """Compute a sample and compare it."""
        subject = self._subject
        device = subject.plan.device
        search = self._searched(sample) if sample.searched else None
        inputs = make(sample, subject.op, device, seed, search)
        table = torch.float32 if subject.table_dtype == "float32" else sample.dtype
        expected: dict[str, Results | str | Exception] = {}
        for name, live in self._live.items():
            expected[name] = self._chained(live, inputs, table)
        eager = self._caller.eager(inputs, sample, table) if subject.has_kernel() else None
        computed = self._caller.op(inputs, sample, table, eager or {})
        fused, reason = self._caller.fused, self._caller.reason
        if eager is not None and subject.asks(EAGER):
            expected[EAGER] = eager if fused else f"not fused: {reason}"
        for name, wanted in expected.items():
            line = self._line(name, sample, search)
            line.arm, line.not_fused = (
                ("kernel", None) if fused else ("eager", reason if subject.has_kernel() else None)
            )
            self._compare(line, sample, computed, wanted)
        before = self._lines.get((DECLARATION, sample.case))
        is_new = before is None or before.calls < DECLARED_CALLS
        if is_new and subject.asks(DECLARATION) and (rows := self._declared(inputs, sample)) is not None:
            line = self._line(DECLARATION, sample, search)
            self._compare(line, sample, eager or computed, rows)

    def records(self) -> Iterator[Record]:
        """One for each reference and case."""
        for line in self._lines.values():
            live = self._live.get(line.reference)
            yield self._subject.record(
                reference=line.reference,
                shows=live.shows if live else SHOWS[line.reference],
                case=line.case,
                arm=line.arm,
                **of_tally(line.tally) | {"calls": line.calls, "rows": line.rows},
                made_of=live.made_of if live else None,
                version=live.version if live else None,
                not_told=list(line.search.not_told) if line.search else None,
                candidates=line.search.candidates if line.search else None,
                not_fused=line.not_fused,
                absent=line.absent,
                error=line.error,
            )

    def _chained(self, live: Live, inputs: Inputs, table: torch.dtype) -> Results | str | Exception:
        try:
            return self._caller.chain(live.chain, inputs, table)
        except AbsentError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  # a library that fails is a finding; other references go on
            return error

    def _compare(self, line: _Line, sample: Sample, computed: Results, wanted: Results | str | Exception) -> None:
        if isinstance(wanted, Exception):
            line.error = f"{line.reference}, {sample.case}: {type(wanted).__name__}: {wanted}"
            return
        if isinstance(wanted, str):
            line.absent = wanted
            return
        line.calls += 1
        before = line.tally.elements
        line.tally.compare(computed, wanted, COPIED)
        line.rows += (line.tally.elements - before) // sample.width

    def _line(self, reference: str, sample: Sample, search: Search | None) -> _Line:
        line = self._lines.setdefault((reference, sample.case), _Line(reference, sample.case, "eager"))
        line.search = search
        return line

    def _searched(self, sample: Sample) -> Search:
        reduction = self._subject.numerics.rms_norm_reduction
        assert isinstance(reduction, Reduction)
        order = reduction.order(sample.width, max(sample.norms()))
        return telling(self._pools, order, self._subject.numerics.rounding_points, sample.dtype)

    def _declared(self, inputs: Inputs, sample: Sample) -> Results | None:
        """The norm alone, of numbers that a float32 holds with their squares."""
        reduction = self._subject.numerics.rms_norm_reduction
        if self._subject.op != "rms_norm" or sample.special or sample.dtype == torch.float32 or not sample.norms()[0]:
            return None
        assert isinstance(reduction, Reduction)
        x, weight = inputs.tensors["x"], inputs.tensors["weight"]
        order = reduction.order(sample.width, len(x))
        return {"out": declared_norm(x, weight, order, self._subject.numerics.rounding_points)}
