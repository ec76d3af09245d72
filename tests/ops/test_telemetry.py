"""What the ops say about the way that calls went, and which calls may skip their checks."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import numerics
from numerics import ops
from numerics.errors import ConfigurationError, InputError, NotFusedError, RequirementError
from numerics.ops import pack_qk_norm_rope_table, rms_norm
from numerics.ops.norm import NORM
from numerics.ops.qk_norm_rope import can_fuse
from numerics.ops.telemetry import Dispatch, dispatch_counts, reset_dispatch_counts
from numerics.presets.schema import Numerics

Arguments = Callable[..., dict[str, Any]]
Builder = Callable[..., Numerics]
SameBits = Callable[[Tensor, Tensor], bool]

BF16 = torch.bfloat16
ON_A_CPU = "no kernel for device 'cpu'"


def on_a_cpu(op: str) -> str:
    return f"text: {ON_A_CPU}" if "joint" in op else ON_A_CPU  # of which stream


@pytest.fixture(autouse=True)
def _counted_from_zero() -> Iterator[None]:
    reset_dispatch_counts()
    yield
    reset_dispatch_counts()


# --- Counting, logging, strict mode -----------------------------------------------------------------------------------


def test_each_call_is_counted_with_the_way_it_went_and_why(every_op: str, build: Builder, arguments: Arguments) -> None:
    for calls in (1, 2):
        getattr(ops, every_op)(**arguments(every_op), numerics=build())
        assert dispatch_counts() == {Dispatch(every_op, fused=False, reason=on_a_cpu(every_op)): calls}


def test_counts_are_a_copy(build: Builder, arguments: Arguments) -> None:
    rms_norm(**arguments("rms_norm"), numerics=build())
    dispatch_counts().clear()
    assert sum(dispatch_counts().values()) == 1


def test_each_way_of_each_op_is_logged_once(
    build: Builder, arguments: Arguments, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="numerics.ops")
    few = numerics.resolve("rms_norm", preset="fast", min_tokens=100)
    for _ in range(3):
        rms_norm(**arguments("rms_norm"), numerics=build())
        rms_norm(**arguments("rms_norm"), numerics=few)
        ops.fused_add_rms_norm(**arguments("fused_add_rms_norm"), numerics=build())
    assert [record.getMessage() for record in caplog.records] == [
        f"rms_norm: runs its reference: {ON_A_CPU}",
        "rms_norm: runs its reference: below min_tokens 100",
        f"fused_add_rms_norm: runs its reference: {ON_A_CPU}",
    ]
    reset_dispatch_counts()
    rms_norm(**arguments("rms_norm"), numerics=build())
    assert len(caplog.records) == 4


def test_strict_mode_refuses_the_reference(
    every_op: str, build: Builder, arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERICS_STRICT", "1")
    call = arguments(every_op)
    before = {name: arg.clone() for name, arg in call.items() if isinstance(arg, Tensor)}
    with pytest.raises(NotFusedError, match=f"{every_op}: not fused: {on_a_cpu(every_op)}. NUMERICS_STRICT=1 refuses"):
        getattr(ops, every_op)(**call, numerics=build())
    assert all(torch.equal(call[name], tensor) for name, tensor in before.items())
    monkeypatch.setenv("NUMERICS_STRICT", "0")
    getattr(ops, every_op)(**call, numerics=build())


@pytest.mark.parametrize("strict", ["0", "1"])
def test_few_tokens_are_no_failure_to_fuse(
    every_op: str, strict: str, arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERICS_STRICT", strict)
    given = numerics.resolve(every_op, preset="fast", min_tokens=1000)
    getattr(ops, every_op)(**arguments(every_op), numerics=given)
    assert dispatch_counts() == {Dispatch(every_op, fused=False, reason="below min_tokens 1000"): 1}


@pytest.mark.parametrize(
    ("op", "tokens"),
    [("rms_norm", 6), ("indexed_gate", 6), ("fused_qk_norm_rope", 6), ("fused_joint_qkv_norm_rope", 12)],
)
def test_tokens_are_those_of_the_whole_call(op: str, tokens: int, arguments: Arguments) -> None:
    for asked in (tokens, tokens + 1):
        getattr(ops, op)(**arguments(op), numerics=numerics.resolve(op, preset="fast", min_tokens=asked))
    assert [way.reason for way in dispatch_counts()] == [on_a_cpu(op), f"below min_tokens {tokens + 1}"]


def test_tokens_of_a_batch_are_counted_over_the_batch() -> None:
    q, rope = torch.ones(2, 5, 3, 32, dtype=BF16), torch.ones(5, 32, dtype=BF16)
    for asked, reason in ((10, ON_A_CPU), (11, "below min_tokens 11")):
        given = numerics.resolve("fused_qk_norm_rope", preset="fast", min_tokens=asked)
        assert can_fuse(q, q, rope, numerics=given).reason == reason
        reset_dispatch_counts()
        ops.fused_qk_norm_rope(q, q, None, None, rope, 1e-6, numerics=given)
        assert [way.reason for way in dispatch_counts()] == [reason]


def test_can_fuse_raises_as_the_op_does() -> None:
    q, rope = torch.ones(5, 3, 64, dtype=BF16), torch.ones(5, 32, dtype=BF16)
    with pytest.raises(RequirementError, match="it is declared for rows of 128 elements, not 64"):
        can_fuse(q, q, rope, numerics="vllm_cuda_128")
    with pytest.raises(ConfigurationError, match="nearest: vllm_cuda"):
        can_fuse(q, q, rope, numerics="vlm_cuda")
    with pytest.raises(InputError, match=r"eps: got -1\.0"):
        can_fuse(q, q, rope, -1.0)


def test_nothing_is_counted_for_a_call_that_is_refused(arguments: Arguments) -> None:
    with pytest.raises(RequirementError):
        rms_norm(**arguments("rms_norm"), numerics="vllm_cuda_128")
    assert dispatch_counts() == {}


class Recorder(TorchDispatchMode):
    """Collects the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("identity_rows", [0, 512])
def test_packing_allocates_nothing_where_the_kernel_does_not_run(identity_rows: int) -> None:
    angle = torch.randn(5, 16)
    cos, sin = angle.cos(), angle.sin()
    call: dict[str, Any] = {"dtype": BF16, "identity_rows": identity_rows}
    like = torch.empty(5, 2, 32, dtype=BF16)
    with Recorder() as recorder:
        assert pack_qk_norm_rope_table(cos, sin, like=like, **call) is None
    assert recorder.names <= {"aten::slice.Tensor", "aten::equal"}
    with Recorder() as recorder:
        assert pack_qk_norm_rope_table(cos, sin, **call) is not None
    assert "aten::empty.memory_format" in recorder.names


# --- Indices on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["indexed_gate", "indexed_scale_shift_", "rms_norm_indexed_scale_shift"])
def test_the_op_itself_checks_indices_where_it_is_asked_to(
    op: str, build: Builder, arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = arguments(op)
    call["indices"][4] = 3
    overload = getattr(torch.ops.numerics, op).default
    args = [(call | {"min_tokens": 0, "numerics": build().text})[each.name] for each in overload._schema.arguments]
    with pytest.raises(IndexError):
        overload(*args)
    monkeypatch.setenv("NUMERICS_CHECK_INDICES", "1")
    with pytest.raises(InputError, match="indices: got 3 in row 4; legal: 0 to 2, rows of"):
        overload(*args)


# --- Calls that may be remembered -------------------------------------------------------------------------------------


def recalled(x: Tensor) -> bool:
    """Whether a call with x would be looked for among those that were accepted."""
    key, _ = NORM.recall((x, None, 1e-6), None)
    return key is not None


class Subclass(Tensor):
    """Means something else."""


def test_a_plain_call_may_be_remembered() -> None:
    assert recalled(torch.ones(3, 32))
    assert recalled(torch.nn.Parameter(torch.ones(3, 32), requires_grad=False))
    with torch.no_grad():
        assert recalled(torch.ones(3, 32, requires_grad=True))


def test_a_call_that_something_else_watches_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 32)
    assert not recalled(x.requires_grad_())
    x = x.detach()
    assert not recalled(x.as_subclass(Subclass))
    assert not recalled(x.to_sparse())
    assert not recalled(torch._neg_view(x))
    with FakeTensorMode() as mode:
        assert not recalled(mode.from_tensor(x))
        assert not recalled(x)
    with Recorder():
        assert not recalled(x)
    seen: list[bool] = []

    def look(inside: Tensor) -> Tensor:
        seen.append(recalled(inside))
        return inside

    torch.func.vmap(look)(x)
    torch.func.functionalize(look)(x)
    assert seen == [False, False]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not recalled(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[1:],
        lambda x: x.double(),
        lambda x: x.bfloat16(),
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat((x.flatten(), x.new_zeros(1)))[1:].view(4, 32),
        lambda x: x.view(2, 2, 32),
        lambda x: x.to("meta"),
    ],
)
def test_a_call_that_looks_different_is_another(change: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(4, 32)
    assert NORM.recall((x, None, 1e-6), None)[0] == NORM.recall((x.clone(), None, 1e-6), None)[0]
    assert NORM.recall((x, None, 1e-6), None)[0] != NORM.recall((change(x), None, 1e-6), None)[0]


def test_other_numerics_another_eps_and_another_weight_are_another_call(preset: Callable[[str], Numerics]) -> None:
    x, w = torch.ones(4, 32), torch.ones(32)
    calls: list[tuple[Any, ...]] = [
        ((x, None, 1e-6), None), ((x, w, 1e-6), None), ((x, None, 1e-5), None), ((x, None, 1e-6), preset("fast")),
        ((x, None, 1e-6), preset("vllm_cuda")), ((x, None, 1e-6), numerics.resolve("rms_norm", preset="fast")),
    ]  # fmt: skip
    assert len({NORM.recall(args, given)[0] for args, given in calls}) == len(calls)
