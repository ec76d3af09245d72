"""A clock for machines without a GPU, and cases that a CPU computes in a moment."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from numerics.measure import cases
from numerics.measure.arms import as_tuple
from numerics.measure.cases import CASES, Case, Heads, Rows, Streams
from numerics.measure.clock import Unit


class ReplayedCall:
    """In place of a graph: a replay calls again and writes into the results of the first call."""

    def __init__(self, call: Callable[[], Any], times: Callable[[], float]) -> None:
        self._call = call
        self._times = times
        self.results: Any = call()

    def replay(self) -> float:
        again = self._call()
        if again is not None:
            for old, new in zip(as_tuple(self.results), as_tuple(again), strict=True):
                old.copy_(new)
        return self._times()


class CountingClock:
    """Every sample takes one microsecond more than the one before it. It remembers what it was asked."""

    device = torch.device("cpu")
    graph = ReplayedCall

    def __init__(self) -> None:
        self._count = count(1)
        self.captured: list[int | None] = []
        self.settled = 0
        self.released = 0
        self.at_once: list[bool] = []

    def times(self) -> float:
        return float(next(self._count))

    def launch_empty(self) -> None:
        pass

    def compile(self, calls: Mapping[str, Callable[[], Any]], *, at_once: bool) -> dict[str, Exception]:
        self.at_once.append(at_once)
        failures = {}
        for name, call in calls.items():
            try:
                call()
            except Exception as error:  # noqa: BLE001  # as the clock of a GPU does
                failures[name] = error
        return failures

    def capture(self, call: Callable[[], Any], calls: int | None) -> ReplayedCall:
        self.captured.append(calls)
        return self.graph(call, self.times)

    def settle(self, units: list[Unit]) -> None:
        self.settled += len(units)

    def eager(self, call: Callable[[], Any]) -> Unit:
        return self.host(call)

    def host(self, call: Callable[[], Any]) -> Unit:
        def unit() -> float:
            call()
            return self.times()

        return unit

    def release(self) -> None:
        self.released += 1


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For thousands of small operations: threads that wait for each other take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock()


def shrunk(case: Case) -> Case:
    """The case with few tokens, heads or rows."""
    match case.geometry:
        case Heads() as it:
            geometry: Heads | Streams | Rows = replace(
                it, tokens=min(it.tokens, 5), q_heads=3, k_heads=3 if it.q_heads == it.k_heads else 1
            )
        case Streams() as it:
            geometry = replace(it, text=2, image=3, heads=2)
        case Rows() as it:
            geometry = replace(it, rows=min(it.rows, 3), width=min(it.width, 768))
    return replace(case, geometry=geometry)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    """The first case of each op, small, by op; and nothing else to measure."""
    found: dict[str, Case] = {}
    for case in CASES:
        found.setdefault(case.op, shrunk(case))
    monkeypatch.setattr(cases, "CASES", tuple(found.values()))
    return found
