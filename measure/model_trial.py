"""One model of diffusers, stock and fused: bytes, calls, layouts, and the time of a forward."""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from numerics.measure.arms import differing
from numerics.measure.clock import between_events
from numerics.measure.model_cases import JOINT, MODULATION, SINGLE, ModelCase, outputs
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts

BACKENDS: Final = ("_native_flash", "_native_efficient", "native")  # the first one that takes the model's masks
SAMPLE_MS: Final = 60.0  # of work in one sample
LEAST_CALLS: Final = 2
ALIGNMENT: Final = {"cuda": 512, "cpu": 64}  # of what torch allocates
CEILING: Final = "measured: time of the stock model over that of the fused one whose ops return what was made before"


def twin_of(model: Any) -> Any:
    """A copy with processors of its own, and the same parameters and buffers."""
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def pin_backend(model: Any, inputs: Inputs) -> tuple[str, list[Tensor]]:
    """The first attention backend that the stock model runs with, set; and what it returned."""
    *names, last = BACKENDS if model.device.type == "cuda" else BACKENDS[-1:]
    for name in names:
        model.set_attention_backend(name)
        try:
            return name, outputs(model, inputs)
        except (ValueError, RuntimeError):  # so diffusers and PyTorch refuse a mask
            continue
    model.set_attention_backend(last)
    return last, outputs(model, inputs)


def fused_calls(call: Callable[[], Any]) -> tuple[Any, dict[str, int], list[str]]:
    """What a call returns, how often it ran which op's kernel, and why other calls did not."""
    reset_dispatch_counts()
    made = call()
    found: Counter[str] = Counter()
    reasons = set()
    for way, count in dispatch_counts().items():
        found[way.op] += count if way.fused else 0
        if not way.fused:
            reasons.add(f"{way.op}: {way.reason} ({count} calls)")
    return made, dict(+found), sorted(reasons)


def compare(case: ModelCase, model: Any, fused: Any, inputs: Inputs) -> dict[str, Any]:
    """Stock against stock, then the fused model against stock: fields of a record."""
    backend, stock = pin_backend(model, inputs)
    fused.set_attention_backend(backend)
    unsteady = [differing(outputs(model, inputs), stock) for _ in range(2)]
    made, calls, reasons = fused_calls(lambda: outputs(fused, inputs))
    return {
        "attention_backend": backend,
        "elements": sum(x.numel() for x in stock),
        "stock_differs_from_itself": max(unsteady),
        "elements_differing": None if any(unsteady) else differing(made, stock),
        "repeated_differing": differing(outputs(fused, inputs), made),
        "finite": all(bool(torch.isfinite(x).all()) for x in stock),
        "same_strides": [x.stride() for x in made] == [x.stride() for x in stock],
        "same_attention_inputs": _layouts(model, inputs) == _layouts(fused, inputs),
        "fused_calls": calls,
        "expected_calls": case.calls(model.config),
        "not_fused": reasons,
    }


def verdict(record: dict[str, Any]) -> str:
    """`equal`, or what is not as it must be."""
    if record["stock_differs_from_itself"]:
        return "not measurable"
    wrong = {
        "bytes differ": record["elements_differing"],
        "does not repeat itself": record["repeated_differing"],
        "restored model differs": record.get("restored_differing"),
        "strides differ": not record["same_strides"],
        "attention reads otherwise laid out tensors": not record["same_attention_inputs"],
        "calls are not as expected": record["fused_calls"] != record["expected_calls"],
    }
    return "; ".join(what for what, is_so in wrong.items() if is_so) or "equal"


# --- Time -------------------------------------------------------------------------------------------------------------


def times(arms: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Milliseconds of a call of each arm, two samples a round: in order and then backwards (ABBA)."""
    calls = [max(LEAST_CALLS, round(SAMPLE_MS / max(_milliseconds(arm, 1), 1e-3))) for arm in arms]
    samples: list[list[float]] = [[] for _ in arms]
    for _ in range(rounds):
        for place in (*range(len(arms)), *reversed(range(len(arms)))):
            samples[place].append(_milliseconds(arms[place], calls[place]))
    return samples


def without_ops(fused: Any, inputs: Inputs, kept: dict[Any, Any]) -> list[Tensor]:
    """A forward of the fused model whose ops take no time."""
    with free_ops(kept):
        return outputs(fused, inputs)


def ratio(stock: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    """Medians, their ratio, and the least and greatest ratio of a round."""
    of_rounds = [
        (stock[place] + stock[place + 1]) / (ours[place] + ours[place + 1]) for place in range(0, len(stock), 2)
    ]
    medians = statistics.median(stock), statistics.median(ours)
    return {
        "stock_ms": medians[0],
        "ours_ms": medians[1],
        "stock_over_ours": medians[0] / medians[1],
        "spread": [min(of_rounds), max(of_rounds)],
        "rounds": len(of_rounds),
        "samples_ms": {"stock": list(stock), "ours": list(ours)},
    }


def _milliseconds(arm: Callable[[], Any], calls: int) -> float:
    """Of one call, after one that is not counted."""
    arm()
    if not torch.cuda.is_available():
        start = time.perf_counter()
        for _ in range(calls):
            arm()
        return (time.perf_counter() - start) * 1000 / calls

    def work() -> None:
        for _ in range(calls):
            arm()

    return between_events(work) / 1000 / calls


@contextmanager
def free_ops(kept: dict[Any, Any]) -> Iterator[None]:
    """Fused ops that return, for shapes that they were called with before, what they returned then.

    kept: what they returned, by op and shapes.
    """
    from numerics.integrations import diffusers_minimax, diffusers_processor  # noqa: PLC0415  # diffusers is an extra

    def free(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            key = (name, *(x.shape for x in args if isinstance(x, Tensor)))
            if key not in kept:
                kept[key] = op(*args, **kwargs)
            return kept[key]

        return call

    with ExitStack() as stack:
        for module, names in ((diffusers_processor, (JOINT, SINGLE)), (diffusers_minimax, MODULATION)):
            for name in names:
                stack.enter_context(mock.patch.object(module, name, free(name, getattr(module, name))))
        yield


# --- What attention reads ---------------------------------------------------------------------------------------------


def _layouts(model: Any, inputs: Inputs) -> list[Any]:
    """Of q, k and v in each attention: shape, strides, place in the allocation, its size and its alignment."""
    from diffusers.models import attention_dispatch  # noqa: PLC0415  # an extra

    true, seen = attention_dispatch.dispatch_attention_fn, []

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        seen.append([_layout(x) for x in (q, k, v)])
        return true(q, k, v, **options)

    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("diffusers.models") and vars(module).get("dispatch_attention_fn") is true:
                stack.enter_context(mock.patch.object(module, "dispatch_attention_fn", spy))
        outputs(model, inputs)
    return seen


def _layout(x: Tensor) -> tuple[Any, ...]:
    storage = x.untyped_storage()
    alignment = storage.data_ptr() % ALIGNMENT[x.device.type]
    return x.shape, x.stride(), x.storage_offset(), storage.nbytes(), alignment, x.dtype
