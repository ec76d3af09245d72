"""Which calls are fused, and that packing, `can_fuse` and the ops agree about it, in Triton's interpreter."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics import ops
from numerics.errors import NotFusedError, RequirementError
from numerics.ops import launch, pack_qk_norm_rope_table
from numerics.ops.launch import Launch
from numerics.ops.norm import NORM
from numerics.ops.qk_norm_rope import OP, can_fuse
from numerics.ops.registry import Op
from numerics.ops.telemetry import Dispatch, dispatch_counts, reset_dispatch_counts
from numerics.presets.schema import Numerics, Reduction

Builder = Callable[..., Numerics]
Preset = Callable[[str], Numerics]
Same = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], bool]

BF16 = torch.bfloat16


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def strided(*shape: int) -> Tensor:
    """A tensor whose last stride is 2."""
    return random(*shape[:-1], 2 * shape[-1])[..., ::2]


FAR: dict[str, tuple[Tensor, Tensor, Tensor, str]] = {
    "as it should be": (random(3, 2, 64), random(3, 1, 64), random(3, 64), ""),
    "q with a stride": (strided(3, 2, 64), random(3, 1, 64), random(3, 64), "q has stride 2 within a head"),
    "k with a stride": (random(3, 2, 64), strided(3, 1, 64), random(3, 64), "k has stride 2 within a head"),
    "table with a stride": (
        random(3, 2, 64), random(3, 1, 64), strided(3, 64), "rope_table has stride 2 within a row",
    ),
    "heads of odd width": (
        random(3, 2, 63), random(3, 1, 63), random(3, 62), "q has heads of 63 elements, an odd number",
    ),
    "float64": (
        random(3, 2, 64).double(), random(3, 1, 64).double(), random(3, 64).double(), "float64 is for gradient checks",
    ),
    "rows of a table apart": (
        random(6, 2, 64), random(6, 1, 64), random(2, 4, 64)[:, :3],
        "rope_table has a batch of rows that are not evenly apart, and q has no batch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAR)
def test_can_fuse_says_what_the_op_then_does_with_the_same_bytes(name: str, build: Builder, same: Same) -> None:
    q, k, rope, reason = FAR[name]
    given = build("qk_norm")
    decision = can_fuse(q, k, rope, numerics=given)
    assert (decision.fused, decision.reason) == (not reason, reason)
    found = ops.fused_qk_norm_rope(q, k, None, None, rope, 1e-6, numerics=given)
    assert dispatch_counts() == {Dispatch("fused_qk_norm_rope", fused=not reason, reason=reason): 1}
    assert same(
        tuple(x.float() for x in found),
        tuple(x.float() for x in ops.fused_qk_norm_rope_reference(q, k, None, None, rope, 1e-6, numerics=given)),
    )


@pytest.mark.parametrize("name", FAR)
def test_packing_answers_for_q_as_the_op_would(name: str, build: Builder) -> None:
    q, _, rope, _ = FAR[name]
    half = rope.shape[-1] // 2
    angle = torch.randn(3, half, dtype=torch.float64)
    call: dict[str, Any] = {"dtype": rope.dtype, "like": q, "numerics": build("qk_norm")}
    packed = pack_qk_norm_rope_table(angle.cos(), angle.sin(), **call)
    assert (packed is not None) == can_fuse(q, q, numerics=build("qk_norm")).fused


def test_few_tokens_are_not_packed_and_not_fused() -> None:
    q, angle = random(5, 2, 64), torch.randn(5, 32)
    for asked in (5, 6):
        given = numerics.resolve("fused_qk_norm_rope", preset="fast", min_tokens=asked)
        packed = pack_qk_norm_rope_table(angle.cos(), angle.sin(), dtype=BF16, like=q, numerics=given)
        decision = can_fuse(q, q, numerics=given)
        reset_dispatch_counts()
        ops.fused_qk_norm_rope(q, q, None, None, random(5, 64), 1e-6, numerics=given)
        (way,) = dispatch_counts()
        assert (packed is not None) == decision.fused == way.fused == (asked == 5)
        assert decision.reason == way.reason == ("" if asked == 5 else "below min_tokens 6")


@pytest.mark.parametrize("eps", [2.0**-80, 2.0**-81, 0.0])
def test_a_tiny_eps_is_answered_alike_by_packing_can_fuse_and_the_op(build: Builder, eps: float) -> None:
    q, angle, given = random(5, 2, 64), torch.randn(5, 32), build("qk_norm")
    packed = pack_qk_norm_rope_table(angle.cos(), angle.sin(), dtype=BF16, like=q, eps=eps, numerics=given)
    decision = can_fuse(q, q, eps=eps, numerics=given)
    ops.fused_qk_norm_rope(q, q, None, None, random(5, 64), eps, numerics=given)
    (way,) = dispatch_counts()
    assert (packed is not None) == decision.fused == way.fused == (eps == 2.0**-80)
    assert decision.reason == way.reason == ("" if way.fused else f"eps is below {2.0**-80}")


def test_one_thread_that_adds_a_long_row_is_not_fused(build: Builder, same: Same) -> None:
    long = build(reduction=Reduction(vector=8, threads=1, lanes="adjacent", mean="divide"))
    x = random(2, 320)
    found = ops.rms_norm(x, None, 1e-6, numerics=long)
    (way,) = dispatch_counts()
    assert way.reason == "a row of 320 gives one thread of the reduction more than 256 elements"
    assert same((found,), (ops.rms_norm_reference(x, None, 1e-6, numerics=long),))
    assert can_fuse(random(2, 1, 256), random(2, 1, 256), numerics=long).fused
    reset_dispatch_counts()
    ops.rms_norm(random(2, 256), None, 1e-6, numerics=long)
    assert next(iter(dispatch_counts())).fused


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (strided(3, 64), "x has stride 2 within a row"),
        (random(4, 5, 64)[:, :3], "the rows of x are not evenly apart"),
        (random(3, 64).double(), "float64 is for gradient checks"),
    ],
)
def test_rows_that_the_kernel_does_not_read_run_the_reference(
    x: Tensor, reason: str, build: Builder, same: Same
) -> None:
    found = ops.rms_norm(x, None, 1e-6, numerics=build())
    assert dispatch_counts() == {Dispatch("rms_norm", fused=False, reason=reason): 1}
    assert same((found.float(),), (ops.rms_norm_reference(x, None, 1e-6, numerics=build()).float(),))


def test_strict_mode_lets_fused_calls_pass_and_refuses_the_others(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERICS_STRICT", "1")
    ops.rms_norm(random(3, 64), None, 1e-6, numerics=build())
    with pytest.raises(NotFusedError, match="rms_norm: not fused: x has stride 2 within a row"):
        ops.rms_norm(strided(3, 64), None, 1e-6, numerics=build())


def test_a_fused_call_is_counted_and_logged_quietly(build: Builder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="numerics.ops")
    for _ in range(3):
        ops.rms_norm(random(3, 64), None, 1e-6, numerics=build())
    assert dispatch_counts() == {Dispatch("rms_norm", fused=True): 3}
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("DEBUG", "rms_norm: fused")]


def test_more_programs_than_a_device_takes_are_not_fused(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    q, rope = random(6, 8, 64), random(6, 64)
    monkeypatch.setattr(launch, "grid_limit", lambda _: 3)
    ops.fused_qk_norm_rope(q, q, None, None, rope, 1e-6, numerics=build())
    (way,) = dispatch_counts()
    assert not way.fused
    assert "more than the 3 of one launch on 'cpu'" in way.reason


class _Npu:
    """What a launch asks of a device; torch knows NPUs with an extension only."""

    type = "npu"


def test_an_npu_takes_65535_rows_a_launch_and_a_gpu_all() -> None:
    rows = 200_000
    call = (torch.empty(rows, 8, dtype=BF16), None, 1e-6)
    plan = NORM.plan(*call, 0, numerics.resolve("rms_norm", preset="vllm_cuda").numerics.text)
    assert isinstance(plan, Launch)
    each = plan.rows_per_program
    assert each is not None
    assert [(n, s[:2]) for n, s in plan._pieces(torch.device("cuda"))] == [(-(-rows // each), (0, rows))]
    pieces = plan._pieces(_Npu())  # type: ignore[arg-type]  # all that it asks of a device
    bounds = [scalars[:2] for _, scalars in pieces]
    assert bounds == [(0, 65_535), (65_535, 131_070), (131_070, 196_605), (196_605, rows)]
    assert all(programs * each >= end - start > (programs - 1) * each for programs, (start, end, *_) in pieces)
    assert all(scalars[2:] == plan.scalars[2:] for _, scalars in pieces)


# --- Remembered calls -------------------------------------------------------------------------------------------------


def qk_call(tokens: int = 3, seed: int = 0) -> tuple[Any, ...]:
    q, k = random(tokens, 2, 64, seed=seed), random(tokens, 1, 64, seed=seed + 1)
    return q, k, random(64, seed=seed + 2), None, random(tokens, 64, seed=seed + 3), 1e-6


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops whose calls took the long way."""
    names: list[str] = []

    def watched(op: Op) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            names.append(op.name)
            return op._run(*args)

        return call

    for op in (OP, NORM):
        monkeypatch.setattr(op, "call", watched(op))
    return names


def test_a_remembered_call_returns_and_counts_what_the_first_did(
    preset: Preset, same: Same, planned: list[str]
) -> None:
    for given in (preset("vllm_cuda"), numerics.resolve("fused_qk_norm_rope", preset="vllm_cuda"), None):
        planned.clear()
        first = ops.fused_qk_norm_rope(*qk_call(), numerics=given)
        again = ops.fused_qk_norm_rope(*qk_call(), numerics=given)
        assert planned == ["fused_qk_norm_rope"]
        assert same(first, again)
        other = ops.fused_qk_norm_rope(*qk_call(seed=7), numerics=given)  # other values of the same shapes
        assert planned == ["fused_qk_norm_rope"]
        if given is not None:
            numbers = given if isinstance(given, Numerics) else given.numerics
            assert same(other, ops.fused_qk_norm_rope_reference(*qk_call(seed=7), numerics=numbers))
    assert dispatch_counts() == {Dispatch("fused_qk_norm_rope", fused=True): 9}


def test_every_remembered_op_returns_what_the_first_call_did(preset: Preset, same: Same) -> None:
    given, x, residual = preset("vllm_cuda"), random(3, 64), random(3, 64, seed=1)
    for call in (lambda: ops.fused_add_rms_norm(x, residual, None, 1e-6, numerics=given),
                 lambda: (ops.rms_norm(x, None, 1e-6, numerics=given),)):  # fmt: skip
        assert same(call(), call())
    q, k = random(1, 2, 2, 64), random(1, 2, 1, 64, seed=1)
    joint = lambda: ops.fused_joint_qkv_norm_rope(  # noqa: E731
        q, k, k, q, k, k, None, None, None, None, random(4, 64), 1e-6, interleaved=True, numerics=given
    )
    assert same(joint(), joint())


Q, K, WEIGHT, _, TABLE, _ = qk_call()
OTHERS: list[dict[int, Any]] = [
    {0: Q[:2], 1: K[:2], 4: TABLE[:2]},
    {2: None},
    {3: WEIGHT},
    {4: TABLE[:, :32]},
    {4: TABLE.float()},
    {5: 1e-2},
    {0: Q.half(), 1: K.half(), 2: WEIGHT.half(), 4: TABLE.half()},
    {0: random(3, 4, 64)[:, ::2]},
    {0: random(386)[1:385].view(3, 2, 64)},  # at an address that 16 does not divide
]


@pytest.mark.parametrize("change", OTHERS)
def test_a_call_that_looks_different_is_not_the_remembered_one(
    change: dict[int, Any], preset: Preset, same: Same, planned: list[str]
) -> None:
    given = preset("vllm_cuda")
    ops.fused_qk_norm_rope(*qk_call(), numerics=given)
    planned.clear()
    other = [change.get(place, arg) for place, arg in enumerate(qk_call())]
    found = ops.fused_qk_norm_rope(*other, numerics=given)
    assert planned == ["fused_qk_norm_rope"]
    assert same(found, ops.fused_qk_norm_rope_reference(*other, numerics=given))


def test_other_settings_are_not_the_remembered_ones(preset: Preset, planned: list[str]) -> None:
    x = random(40, 64)
    by_name = {name: ops.rms_norm(x, x[0], 1e-6, numerics=preset(name)) for name in ("vllm_cuda", "vllm_native")}
    assert planned == ["rms_norm"] * 2
    assert not torch.equal(*by_name.values())
    for name, expected in by_name.items():
        with numerics.use(preset=name):
            for _ in range(2):
                assert torch.equal(ops.rms_norm(x, x[0], 1e-6), expected)
    assert planned == ["rms_norm"] * 4


def test_a_call_that_wants_a_gradient_is_not_the_remembered_one(preset: Preset, planned: list[str]) -> None:
    x, given = random(3, 64), preset("vllm_cuda")
    expected = ops.rms_norm(x, None, 1e-6, numerics=given)
    planned.clear()
    made = ops.rms_norm(x.requires_grad_(), None, 1e-6, numerics=given)
    assert planned == ["rms_norm"]
    assert torch.equal(made, expected)
    with torch.no_grad():
        ops.rms_norm(x, None, 1e-6, numerics=given)
    assert planned == ["rms_norm"]


def test_a_negative_view_is_not_read_as_its_memory(preset: Preset) -> None:
    x, given = random(3, 64), preset("vllm_cuda")
    for _ in range(2):
        assert torch.equal(
            ops.rms_norm(torch._neg_view(x), None, 1e-6, numerics=given), ops.rms_norm(-x, None, 1e-6, numerics=given)
        )


def test_an_unchecked_call_is_not_remembered_from_a_refused_one(preset: Preset) -> None:
    x, given = random(3, 64), numerics.resolve("rms_norm", preset="vllm_cuda_128")
    for _ in range(2):
        with pytest.raises(RequirementError, match="declared for rows of 128"):
            ops.rms_norm(x, None, 1e-6, numerics=given)


def test_gradients_of_a_fused_forward_are_those_of_the_reference(preset: Preset) -> None:
    given, grads = preset("vllm_cuda"), []
    for function in (ops.rms_norm, ops.rms_norm_reference):
        x, w = random(5, 64).requires_grad_(), random(64, seed=1).requires_grad_()
        out = function(x, w, 1e-6, numerics=given)
        grads.append(torch.autograd.grad(out, (x, w), random(5, 64, seed=2)))
    assert dispatch_counts() == {Dispatch("rms_norm", fused=True): 1}
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
