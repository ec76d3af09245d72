"""`verify`: each op under each preset beside every reference that is there, and what became of it, as records."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from numerics.golden.cases import ROTATION
from numerics.measure.verify_beside import Beside
from numerics.measure.verify_calls import Caller
from numerics.measure.verify_golden import replayed
from numerics.measure.verify_rows import pools
from numerics.measure.verify_subject import GOLDEN, Plan, Record, Subject, of_tally

SUMMED: Final = ("calls", "rows", "elements", "elements_differing", "one_sided_nan")


@dataclass(frozen=True)
class Unit:
    """One preset and op: what is compiled once is used for every reference. `also`: presets that compute the same."""

    preset: str
    op: str
    golden: bool
    live: bool
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"{self.preset}, {self.op}"


class Verifier:
    """Runs units; holds what they share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._pools = pools(plan.catalog, plan.device, plan.seed)

    def units(self) -> list[Unit]:
        """The work, that of presets which compute the same under the same references done once."""
        first: dict[tuple[Any, ...], tuple[str, str]] = {}
        also: dict[tuple[str, str], list[str]] = {}
        found = []
        for op in self.plan.ops:
            for name in self.plan.presets:
                subject = Subject(self.plan, name, op)
                if not subject.numerics.is_exact:
                    continue
                same = first.setdefault(subject.key, (name, op))
                if same != (name, op):
                    also.setdefault(same, []).append(name)
                golden = GOLDEN in self.plan.references and bool(subject.golden)
                found.append(Unit(name, op, golden, live=same == (name, op) and self.plan.references != (GOLDEN,)))
        return [replace(unit, also=tuple(also.get((unit.preset, unit.op), ()))) for unit in found]

    def run(self, unit: Unit) -> list[Record]:
        """The records of a unit. What fails is a record, too."""
        subject = Subject(self.plan, unit.preset, unit.op)
        records = [*self._attempt(subject, self._golden)] if unit.golden else []
        records += [subject.record(reference=name, absent=why) for name, why in subject.absent.items()]
        if unit.live:
            found = [*self._attempt(subject, self._live)]
            records += found
            records += [each for name in unit.also for each in _as_of(name, unit.preset, found)]
        return records

    def _attempt(self, subject: Subject, work: Callable[[Subject], Iterator[Record]]) -> Iterator[Record]:
        try:
            yield from work(subject)
        except Exception as error:  # noqa: BLE001  # a kernel that does not compile is a finding; the others go on
            yield subject.record(reference=None, error=f"{type(error).__name__}: {error}")

    def _golden(self, subject: Subject) -> Iterator[Record]:
        for case in subject.golden:
            has_kernel = subject.has_kernel(case.dtype)
            for by_reference in (True, False) if has_kernel and case.op != ROTATION else (False,):
                caller = Caller(subject.op, subject.numerics)
                with caller.watching():
                    tally = replayed(case, subject.numerics, self.plan.device, by_reference=by_reference)
                yield subject.record(
                    reference=GOLDEN,
                    shows="claim",
                    case=case.name,
                    arm="kernel" if caller.fused else "eager",
                    not_fused=caller.reason if has_kernel and not by_reference else None,
                    rows=tally.elements // case.width,
                    **of_tally(tally),
                )

    def _live(self, subject: Subject) -> Iterator[Record]:
        if not subject.samples:
            yield subject.record(
                reference=None, absent="its order is declared for none of the widths that are asked for"
            )
            return
        beside = Beside(subject, self._pools)
        for number, sample in enumerate(subject.samples):
            beside.call(sample, self.plan.seed + number)
        first, round_ = subject.samples[0], 0
        # Once more in any case: bytes that an op kept from an earlier call of this shape would be seen.
        while round_ == 0 or 0 < beside.least(first) < self.plan.elements:
            round_ += 1
            beside.call(first.again(round_), self.plan.seed + 1000 * round_)
        yield from beside.records()


def _as_of(name: str, preset: str, records: Sequence[Record]) -> Iterator[Record]:
    """The records of a preset which computes the same as another: the other's, summed up by reference."""
    by_reference: dict[tuple[Any, ...], list[Record]] = {}
    for each in records:
        key = tuple(each[field] for field in ("reference", "shows", "arm", "absent", "not_fused", "error"))
        by_reference.setdefault(key, []).append(each)
    for same in by_reference.values():
        elements = sum(each["elements"] for each in same)
        yield {
            **same[0],
            **{field: sum(each[field] for each in same) for field in SUMMED},
            "preset": name,
            "case": f"all of {preset}",
            "max_ulp": max(each["max_ulp"] for each in same),
            "bias_ulp": sum(each["bias_ulp"] * each["elements"] for each in same) / max(elements, 1),
            "first": next((each["first"] for each in same if each["first"]), None),
            "not_told": None,
            "candidates": None,
            "same_as": preset,
        }
