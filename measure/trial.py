"""One arm of a case and what became of it: its bytes, its times, or why it has none."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec

from numerics.errors import NumericsError, RequirementError
from numerics.measure.arms import AbsentError, Arm, as_tuple, differing, elements, poison
from numerics.measure.clock import Graph
from numerics.measure.reference import References
from numerics.measure.samples import Samples
from numerics.ops.telemetry import dispatch_counts
from numerics.resolve import Resolution

Given = ParamSpec("Given")


@dataclass
class Trial:
    """One arm of a case."""

    arm: Arm | None = None  # none where nothing more is asked of it
    numerics: Resolution | None = None  # of ours
    failure: str | None = None
    refused: bool = False
    not_fused: str | None = None  # why the op ran its reference
    reference: str | None = None
    elements: int = 0
    differing: dict[str, int] = field(default_factory=dict)
    times: dict[str, Samples] = field(default_factory=dict)

    def attempt(
        self, step: Callable[Concatenate["Trial", Given], object], *args: Given.args, **kwargs: Given.kwargs
    ) -> None:
        """Take a step, unless an earlier one failed. What goes wrong is kept here, and the other arms go on."""
        if self.failure is not None:
            return
        try:
            step(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the exit code says that an arm failed
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Nothing more is asked of the arm. A preset that refuses a case is no fault."""
        self.arm, self.refused = None, isinstance(error, RequirementError)
        message = str(error) if isinstance(error, NumericsError | AbsentError) else f"{type(error).__name__}: {error}"
        self.failure = message.strip().split("\n", maxsplit=1)[0]

    def time(self, *kinds: str) -> float | None:
        """The median of the first of these kinds that was measured."""
        return next((self.times[kind].median for kind in kinds if kind in self.times), None)

    @property
    def elements_differing(self) -> int | None:
        """Before the timing or after it, whichever is worse."""
        return max((self.differing[when] for when in ("before", "after") if when in self.differing), default=None)

    def samples(self) -> dict[str, Any]:
        """All times, as they stand in a record."""
        return {kind: samples.to_dict() for kind, samples in self.times.items()}


def compare_before(trial: Trial, references: References) -> None:
    """A step: two calls, the first against the reference, the second against the first."""
    assert trial.arm is not None
    trial.reference, expected = references.name_and_results(trial.numerics)
    counted = dispatch_counts()
    first = trial.arm.results()
    ways = [way for way, count in dispatch_counts().items() if count > counted.get(way, 0)]
    trial.not_fused = next((way.reason for way in ways if not way.fused), None)
    trial.elements = elements(expected)
    trial.differing = {"before": differing(first, expected), "repeated": differing(trial.arm.results(), first)}


def compare_after(trial: Trial, references: References, graph: Graph | None = None) -> None:
    """A step: what was timed is what is compared, so a graph writes its results again, over NaN."""
    assert trial.arm is not None
    if graph is None or trial.arm.renew is not None:
        results = trial.arm.results()
    else:
        poison(as_tuple(graph.results))
        graph.replay()
        results = as_tuple(graph.results)
    trial.differing["after"] = differing(results, references.name_and_results(trial.numerics)[1])
