"""A session in which kernels run on the CPU, in Triton's interpreter: `tests/ops/test_interpreted.py` starts it."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from numerics import ops
from numerics.ops import joint_qkv_norm_rope, launch, modulation, norm, norm_modulation, qk_norm_rope
from numerics.ops.registry import Op
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts
from numerics.presets.schema import Numerics

_spec = importlib.util.spec_from_file_location("interpreter", Path(__file__).parent.parent / "interpreter.py")
assert _spec is not None
assert _spec.loader is not None
_interpreter = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_interpreter)
_interpreter.correct()
np.seterr(all="ignore")  # infinities and NaN are among what kernels are given

EVERY_OP: dict[str, Op] = {
    op.name: op
    for module in (joint_qkv_norm_rope, modulation, norm, norm_modulation, qk_norm_rope)
    for op in vars(module).values()
    if isinstance(op, Op)
}
Outputs = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def _outputs_hold_nan_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = launch.Launch._output

    def poisoned(output: Any, args: Any) -> Tensor | None:
        made = allocate(output, args)
        return made if made is None or isinstance(output, int) else made.fill_(torch.nan)

    monkeypatch.setattr(launch.Launch, "_output", staticmethod(poisoned))


@pytest.fixture(autouse=True)
def _nothing_planned_before() -> Iterator[None]:
    forget_plans()
    reset_dispatch_counts()
    yield
    forget_plans()


def forget_plans() -> None:
    for op in EVERY_OP.values():
        op._plans.clear()
        op._accepted.clear()


@pytest.fixture
def tile(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Choose how many heads a tile of the Q/K ops holds, and how many warps compute it."""

    def choose(heads: int, warps: int) -> None:
        for module in (qk_norm_rope, joint_qkv_norm_rope):
            monkeypatch.setattr(module, "tile_of", lambda *_, **__: (heads, warps))
        forget_plans()

    return choose


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Where the bits are not the same; a computed NaN is any NaN."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    same = a.contiguous().view(integers) == b.contiguous().view(integers)
    return ~(same | (a.isnan() & b.isnan()))


@pytest.fixture(scope="session")
def same() -> Callable[[Outputs, Outputs], bool]:
    """Whether two results are the same bytes."""
    return lambda a, b: len(a) == len(b) and not any(differing(x, y).any() for x, y in zip(a, b, strict=True))


@pytest.fixture
def fused() -> Callable[..., Outputs]:
    """Call a public op, and see that it ran its kernel and returns what its reference does."""

    def call(op: str, given: Numerics, /, **arguments: Any) -> Outputs:
        x = arguments.get("x")
        expected = _tuple(getattr(ops, f"{op.rstrip('_')}_reference")(**arguments, numerics=given))
        if op.endswith("_") and isinstance(x, Tensor):
            arguments["x"] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
        reset_dispatch_counts()
        made = _tuple(getattr(ops, op)(**arguments, numerics=given))
        assert [(way.op, way.fused, way.reason) for way in dispatch_counts()] == [(op, True, "")]
        for place, (a, b) in enumerate(zip(made, expected, strict=True)):
            wrong = differing(a, b)
            first = [(at, a[at].item(), b[at].item()) for at in map(tuple, wrong.nonzero()[:3].tolist())]
            assert not first, f"output {place}, {int(wrong.sum())} of {a.numel()} elements: {first}"
            assert op.endswith("_") or a.is_contiguous()
        return made

    return call


def _tuple(made: Any) -> Outputs:
    return made if isinstance(made, tuple) else (made,)
