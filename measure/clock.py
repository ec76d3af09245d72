"""How calls are timed on a GPU: replays of CUDA graphs, eager calls between events, and the time of the host."""

import gc
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, Protocol

import torch

from numerics.errors import ConfigurationError
from numerics.ops.language import HAS_TRITON, triton

Unit = Callable[[], float]  # runs some calls and returns the microseconds that one took

GRAPH_MICROSECONDS: Final = 2000.0  # of one replay, beside which the launch of a graph does not count
GRAPH_CALLS: Final = (4, 64)
SMALL_GRAPH_CALLS: Final = 64
EAGER_MICROSECONDS: Final = 500.0
EAGER_CALLS: Final = (1, 16)
HOST_CALLS: Final = 200  # fewer than a stream holds before a launch waits for the GPU
SETTLE_MICROSECONDS: Final = 30_000.0  # of work before the first sample of a case: clocks rise
COMPILING_THREADS: Final = 8


class Graph(Protocol):
    """Some calls of an arm, captured."""

    results: Any  # of the last call; a replay writes them again

    def replay(self) -> float:
        """Run the calls; microseconds a call."""


class Clock(Protocol):
    """What a measurement asks of a device; tests have one of their own."""

    device: torch.device

    def launch_empty(self) -> None:
        """Launch a kernel that does nothing: what every launch takes."""

    def compile(self, calls: Mapping[str, Callable[[], Any]], *, at_once: bool) -> dict[str, Exception]:
        """Call each once, so that everything is compiled; what failed, by name."""

    def capture(self, call: Callable[[], Any], calls: int | None) -> Graph:
        """So many calls, or as many as make a replay long enough."""

    def settle(self, units: list[Unit]) -> None:
        """Run everything until the clocks of the device are up."""

    def eager(self, call: Callable[[], Any]) -> Unit:
        """Calls as a program makes them, timed by events."""

    def host(self, call: Callable[[], Any]) -> Unit:
        """Calls timed by the host's clock, which does not wait for the device."""

    def release(self) -> None:
        """Give back what a case allocated."""


class CudaClock:
    """The clock of the current CUDA device. Raises ConfigurationError where there is none, or no Triton."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigurationError("no CUDA device; bench measures kernels")
        if not HAS_TRITON:
            raise ConfigurationError("Triton is not installed; bench measures kernels")
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._memory = torch.empty(1, device=self.device)
        self.launch_empty()  # so that Triton finds its driver before several threads ask for it

    def launch_empty(self) -> None:
        """As the protocol has it."""
        _empty_kernel[(1,)](self._memory, num_warps=1, enable_fp_fusion=False)

    def compile(self, calls: Mapping[str, Callable[[], Any]], *, at_once: bool) -> dict[str, Exception]:
        """As the protocol has it. At once: in threads, since Triton leaves the interpreter while it compiles."""

        def attempt(call: Callable[[], Any]) -> Exception | None:
            torch.cuda.set_device(self.device)  # is a thread's own
            try:
                call()
            except Exception as error:  # noqa: BLE001  # it is reported with the arm; the others go on
                return error
            return None

        if at_once:
            with ThreadPoolExecutor(COMPILING_THREADS) as threads:
                failures = dict(zip(calls, threads.map(attempt, calls.values()), strict=True))
        else:
            failures = {name: attempt(call) for name, call in calls.items()}
        torch.cuda.synchronize()
        return {name: error for name, error in failures.items() if error is not None}

    def capture(self, call: Callable[[], Any], calls: int | None) -> "CudaGraph":
        """As the protocol has it."""
        return CudaGraph(call, calls or number_of_calls(self._once(call), GRAPH_MICROSECONDS, GRAPH_CALLS))

    def settle(self, units: list[Unit]) -> None:
        """As the protocol has it."""
        start = perf_counter()
        while (perf_counter() - start) * 1e6 < SETTLE_MICROSECONDS:
            for unit in units:
                unit()

    def eager(self, call: Callable[[], Any]) -> Unit:
        """As the protocol has it."""
        calls = number_of_calls(self._once(call), EAGER_MICROSECONDS, EAGER_CALLS)

        def unit() -> float:
            return between_events(lambda: repeat(call, calls)) / calls

        return unit

    def host(self, call: Callable[[], Any]) -> Unit:
        """As the protocol has it."""

        def unit() -> float:
            torch.cuda.synchronize()
            collects = gc.isenabled()
            gc.disable()
            try:
                start = perf_counter()
                repeat(call, HOST_CALLS)
                taken = perf_counter() - start
            finally:
                if collects:
                    gc.enable()
            torch.cuda.synchronize()
            return taken * 1e6 / HOST_CALLS

        return unit

    def release(self) -> None:
        """As the protocol has it."""
        gc.collect()
        torch.cuda.empty_cache()

    def _once(self, call: Callable[[], Any]) -> float:
        call()
        return between_events(call)


@triton.jit
def _empty_kernel(_pointer):
    pass


class CudaGraph:
    """Calls captured on a stream of their own.

    It holds the call, and with it every tensor that the graph reads: a graph knows addresses and keeps nothing alive.
    """

    def __init__(self, call: Callable[[], Any], calls: int) -> None:
        self._call = call
        self._calls = calls
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()  # what it allocates on its first call is allocated before
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(calls):
                self.results = None  # frees the memory for the next call
                self.results = call()

    def replay(self) -> float:
        """Microseconds a call."""
        return between_events(self._graph.replay) / self._calls


def between_events(work: Callable[[], Any]) -> float:
    """Microseconds from an event before the work to one after it."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1000


def repeat(call: Callable[[], Any], calls: int) -> None:
    """Call so often."""
    for _ in range(calls):
        call()


def number_of_calls(microseconds: float, wanted: float, limits: tuple[int, int]) -> int:
    """How many calls of this length make one sample of the wanted length, within limits."""
    low, high = limits
    return min(high, max(low, math.ceil(wanted / max(microseconds, 1e-3))))
