"""The clock of a GPU, on a CUDA that only keeps a diary."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from numerics.errors import ConfigurationError
from numerics.measure import clock
from numerics.measure.clock import CudaClock, number_of_calls


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_clock() -> None:
    with pytest.raises(ConfigurationError, match="no CUDA device; bench measures kernels"):
        CudaClock()


def test_without_triton_there_is_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(clock, "HAS_TRITON", False)
    with pytest.raises(ConfigurationError, match="Triton is not installed"):
        CudaClock()


@pytest.mark.parametrize(("microseconds", "calls"), [(1.0, 64), (100.0, 20), (3000.0, 4), (0.0, 64)])
def test_short_calls_are_captured_more_often(microseconds: float, calls: int) -> None:
    assert number_of_calls(microseconds, 2000.0, (4, 64)) == calls


# --- Diary ------------------------------------------------------------------------------------------------------------


class Diary(list[str]):
    """What was asked of CUDA, and a clock that says a millisecond between any two events."""

    def __init__(self) -> None:
        super().__init__()
        self.is_capturing = False


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    kept = Diary()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            kept.append("event")

        def synchronize(self) -> None:
            kept.append("wait")

        def elapsed_time(self, _: object) -> float:
            return 1.0

    class Graph:
        def replay(self) -> None:
            kept.append("replay")

    class Stream:
        def wait_stream(self, _: object) -> None:
            pass

    @contextmanager
    def capturing(_: Graph) -> Iterator[None]:
        kept.is_capturing = True
        yield
        kept.is_capturing = False

    cuda = torch.cuda
    for name, stand_in in {
        "Event": Event,
        "CUDAGraph": Graph,
        "Stream": Stream,
        "stream": lambda _: nullcontext(),
        "current_stream": Stream,
        "graph": capturing,
        "synchronize": lambda: kept.append("synchronize"),
        "set_device": lambda _: None,
        "empty_cache": lambda: kept.append("empty_cache"),
    }.items():
        monkeypatch.setattr(cuda, name, stand_in)
    return kept


@pytest.fixture
def cuda_clock(diary: Diary) -> CudaClock:
    made = object.__new__(CudaClock)
    made.device = torch.device("cpu")
    return made


def test_a_graph_holds_as_many_calls_as_asked_and_nothing_that_was_called_before(
    cuda_clock: CudaClock, diary: Diary
) -> None:
    captured: list[bool] = []
    graph = cuda_clock.capture(lambda: captured.append(diary.is_capturing), 64)
    assert captured.count(True) == 64
    assert captured[0] is False  # compiled and allocated before
    assert graph.replay() == 1000.0 / 64


def test_a_long_call_is_captured_until_a_replay_is_long_enough(cuda_clock: CudaClock, diary: Diary) -> None:
    captured: list[bool] = []
    cuda_clock.capture(lambda: captured.append(diary.is_capturing), None)  # of a millisecond
    assert captured.count(True) == 4


def test_results_are_freed_before_the_next_call_is_captured(cuda_clock: CudaClock) -> None:
    alive: set[int] = set()

    class Result:
        def __init__(self) -> None:
            assert not alive
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    graph = cuda_clock.capture(Result, 5)
    assert len(alive) == 1
    assert id(graph.results) in alive


def test_a_graph_keeps_what_its_calls_read(cuda_clock: CudaClock) -> None:
    freed: list[bool] = []

    class Tensors:
        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            freed.append(True)

    graph = cuda_clock.capture(Tensors(), 4)
    gc.collect()
    assert not freed
    graph.replay()


def test_eager_calls_are_timed_between_two_events(cuda_clock: CudaClock, diary: Diary) -> None:
    unit = cuda_clock.eager(lambda: diary.append("call"))
    diary.clear()
    assert unit() == 1000.0
    assert diary == ["event", "call", "event", "wait"]


def test_the_host_is_timed_while_nothing_is_collected(cuda_clock: CudaClock, diary: Diary) -> None:
    collecting: list[bool] = []
    unit = cuda_clock.host(lambda: collecting.append(gc.isenabled()))
    assert unit() > 0
    assert set(collecting) == {False}
    assert gc.isenabled()
    assert diary == ["synchronize", "synchronize"]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_does_not_compile_is_named(cuda_clock: CudaClock, at_once: bool) -> None:
    def fails() -> None:
        raise ValueError("no registers left")

    called: list[str] = []
    calls: dict[str, Callable[[], Any]] = {"a": lambda: called.append("a"), "b": fails, "c": lambda: called.append("c")}
    failures = cuda_clock.compile(calls, at_once=at_once)
    assert sorted(called) == ["a", "c"]
    assert {name: str(error) for name, error in failures.items()} == {"b": "no registers left"}


def test_units_run_until_the_clocks_are_up(cuda_clock: CudaClock, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(clock, "perf_counter", lambda: next(now) * 0.01)
    ran: list[float] = []

    def unit() -> float:
        ran.append(1.0)
        return ran[-1]

    cuda_clock.settle([unit])
    assert len(ran) == 2


def test_memory_goes_back_between_cases(cuda_clock: CudaClock, diary: Diary) -> None:
    cuda_clock.release()
    assert diary == ["empty_cache"]
