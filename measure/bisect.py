"""The arms of `bisect`: each runs once, is compared with A and B, and is saved."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch

from numerics.errors import ConfigurationError
from numerics.measure.bisect_arms import Arms, Turned
from numerics.measure.bisect_compare import difference, is_within
from numerics.measure.bisect_target import Outcome, Target, run
from numerics.measure.bisect_use import used, without_effect
from numerics.measure.metrics import json_number
from numerics.measure.result import Record

Side = Literal["a", "b"]

NOTHING: Final[Turned] = frozenset()


@dataclass(frozen=True)
class Question:
    """What is asked: the target, the settings between A and B, what counts as equal, and how often A and B run."""

    target: Target
    arms: Arms
    tolerance: float = 0.0
    controls: int = 2

    def header(self) -> Record:
        """What must be the same for a saved search to be continued, and what stands in its report."""
        return {
            "kind": "header",
            "target": self.target.name,
            "from": self.arms.a.name,
            "to": self.arms.b.name,
            "settings": self.arms.fingerprint,
            "counts": self.target.counts,
            "metric": self.target.metric,
            "in_process": self.target.in_process,
            "tolerance": self.tolerance,
            "controls": self.controls,
            "differences": [asdict(atom) for atom in self.arms.atoms],
        }


class Bisection:
    """A search, with every arm that has run.

    keep: a folder in which the tensors of A and B stay until there is a verdict. known: the arms of an earlier run.
    save: is given all arms after each one. announce: is given the name of each arm before it runs, how many have run,
    and how many are expected. Raises ConfigurationError where the tensors of an earlier run are gone.
    """

    def __init__(
        self,
        question: Question,
        keep: Path,
        known: Sequence[Record] = (),
        save: Callable[[list[Record]], object] = lambda _: None,
        announce: Callable[[str, int, int], object] = lambda *_: None,
    ) -> None:
        self.question = question
        self.atoms = question.arms.atoms
        self.all: Turned = frozenset(range(len(self.atoms)))
        self.arms = list(known)
        self._keep, self._save, self._announce = keep, save, announce
        self._ends: dict[Side, Outcome] = {}
        self.expected = 2 * question.controls
        ends: dict[Side, Turned] = {"a": NOTHING, "b": self.all}
        for side, turned in ends.items():
            if (first := self._known(turned, 1)) is not None and first["status"] == "ok":
                self._ends[side] = self._kept(side, first)

    # --- Arms ---------------------------------------------------------------------------------------------------------

    def arm(self, turned: Turned, again: int = 1) -> Record:
        """The record of an arm, which runs unless it has run."""
        known = self._known(turned, again)
        return self._run(turned, again) if known is None else known

    def is_b(self, turned: Turned, again: int = 1) -> bool:
        """Whether the arm's result is B's. Of an arm without a verdict it is not known to be."""
        return turned == self.all or self.is_equal(self.arm(turned, again), "b")

    def is_equal(self, arm: Mapping[str, Any], side: Side) -> bool:
        """Whether the result of an arm counts as that of A or of B."""
        found = arm[f"from_{side}"]
        return arm["status"] == "ok" and found is not None and is_within(found, self.question.tolerance)

    def name(self, turned: Turned, again: int = 1) -> str:
        """What an arm is called."""
        if turned in (NOTHING, self.all):
            return f"{'B' if turned else 'A'}, run {again}"
        return self.atoms[min(turned)].name if len(turned) == 1 else f"{len(turned)} differences"

    def _known(self, turned: Turned, again: int) -> Record | None:
        key = sorted(turned), again
        return next((each for each in self.arms if (each["turned"], each["run"]) == key), None)

    def _run(self, turned: Turned, again: int) -> Record:
        self._announce(self.name(turned, again), len(self.arms), max(self.expected, len(self.arms) + 1))
        with tempfile.TemporaryDirectory(prefix="numerics-bisect-") as folder:
            outcome = run(self.question.target, self.question.arms.file(turned), Path(folder))
            if outcome.status == "ok" and again == 1 and turned in (NOTHING, self.all):
                self._ends["b" if turned else "a"] = outcome = self._moved("b" if turned else "a", outcome)
            found = self._record(turned, again, outcome)
        self.arms.append(found)
        self._save(self.arms)
        return found

    def _record(self, turned: Turned, again: int, outcome: Outcome) -> Record:
        atoms = [(index, self.atoms[index]) for index in sorted(turned)]
        ends = {f"from_{side}": self._ends.get(side) for side in ("a", "b")}
        return {
            "kind": "arm",
            "name": self.name(turned, again),
            "turned": sorted(turned),
            "run": again,
            "status": outcome.status,
            "reason": outcome.reason,
            "stderr": list(outcome.stderr),
            "seconds": outcome.seconds,
            "value": json_number(outcome.value),
            "digest": outcome.digest,
            **{
                name: difference(outcome, end) if end and end is not outcome and outcome.status == "ok" else None
                for name, end in ends.items()
            },
            "used": used(outcome.resolved),
            "without_effect": {str(index): why for index, why in without_effect(atoms, outcome.resolved).items()},
        }

    # --- The results of A and B ---------------------------------------------------------------------------------------

    def _moved(self, side: Side, outcome: Outcome) -> Outcome:
        if outcome.tensors is None:
            return outcome
        self._keep.mkdir(exist_ok=True)
        kept = Path(shutil.move(outcome.tensors, self._keep / f"{side}.pt"))
        return replace(outcome, tensors=kept)

    def _kept(self, side: Side, first: Record) -> Outcome:
        if first["digest"] is None:
            return Outcome("ok", value=float(first["value"]))
        path = self._keep / f"{side}.pt"
        if not path.exists() or torch.load(path, weights_only=True, mmap=True)["digest"] != first["digest"]:
            raise ConfigurationError(
                f"{path}: the tensors of {side.upper()} that the saved search began with are not there; "
                "remove its file and begin again"
            )
        return Outcome("ok", digest=first["digest"], tensors=path)

    def forget(self) -> None:
        """Remove the tensors of A and B."""
        shutil.rmtree(self._keep, ignore_errors=True)
