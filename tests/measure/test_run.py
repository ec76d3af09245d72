"""One case, with a clock that counts: records, and every fault that they must show."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics import ops
from numerics.measure import run
from numerics.measure.arms import Arm
from numerics.measure.cases import Case
from numerics.measure.peers import Locations, Peer, found
from numerics.measure.result import FIELDS, Record, is_wrong
from numerics.measure.run import Plan, facts, measured
from tests.measure.conftest import CountingClock, ReplayedCall

PLAN = Plan(found(Locations()), ("torch",), rounds=2)


def by_preset(records: list[Record]) -> dict[str, Record]:
    return {record["preset"]: record for record in records}


def test_every_op_has_a_record_for_each_preset_with_every_field(tiny: dict[str, Case], clock: CountingClock) -> None:
    for case in tiny.values():
        records = measured(case, PLAN, clock)
        assert [record["preset"] for record in records] == list(case.presets)
        for record in records:
            assert tuple(record) == FIELDS
            assert (record["op"], record["case"], record["moved_bytes"]) == (case.op, case.name, case.moved_bytes)
            assert record["error"] is record["refused"] is None
            assert record["time_us"] > 0
            assert record["elements"] > 0
            assert not is_wrong(record)
        exact = by_preset(records)[case.exact]
        assert (exact["exact"], exact["elements_differing"]) == (True, 0)
        assert exact["differing"] == {"before": 0, "repeated": 0, "after": 0}
        assert exact["reference"] == f"eager reference of {case.exact}"


def test_arms_are_timed_in_turns_and_in_graphs_of_64_calls_where_little_is_moved(
    tiny: dict[str, Case], clock: CountingClock
) -> None:
    (fast, exact, *_) = measured(tiny["fused_joint_qkv_norm_rope"], PLAN, clock)
    # empty kernel, fast, exact, torch; and back. So all have the same median, and the outermost the widest spread.
    assert fast["time_us"] == exact["time_us"] == fast["empty_us"] == fast["peer_us"]["torch"] == 8.5
    assert fast["times"]["graph"] == {"median": 8.5, "spread": [2.0, 15.0], "samples": 4}
    assert exact["peers"]["torch"]["times"]["graph"]["spread"] == [4.0, 13.0]
    assert (fast["copy_us"], fast["ratio_to_copy"], fast["ratio_to_empty"], fast["ratio_to_fast"]) == (None, None, 1, 1)
    assert clock.captured == [64] * 4
    assert clock.settled == 4
    assert clock.at_once == [True, False]  # a compiler of torch's is not asked from several threads


def test_a_case_that_moves_much_is_held_against_a_copy(
    tiny: dict[str, Case], clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numerics.measure.cases.SMALL", 0)
    (fast, *_) = measured(tiny["rms_norm"], PLAN, clock)
    assert (fast["copy_us"], fast["ratio_to_copy"], fast["empty_us"], fast["ratio_to_empty"]) == (8.5, 1, None, None)
    assert clock.captured == [None] * 4


def test_packing_is_timed_apart(tiny: dict[str, Case], clock: CountingClock) -> None:
    assert measured(tiny["fused_qk_norm_rope"], PLAN, clock)[0]["pack_us"] > 0
    assert measured(tiny["rms_norm"], PLAN, clock)[0]["pack_us"] is None


def test_the_host_is_timed_without_a_yardstick(tiny: dict[str, Case], clock: CountingClock) -> None:
    host = replace(tiny["fused_qk_norm_rope"], clock="host")
    records = measured(host, PLAN, clock)
    assert set(records[0]["times"]) == {"host"}
    assert records[0]["copy_us"] is records[0]["empty_us"] is records[0]["eager_us"] is None
    assert records[0]["peer_us"]["torch"] > 0
    (in_force,) = measured(replace(host, presets=()), PLAN, clock)
    assert (in_force["preset"], in_force["case"]) == ("fast", f"{host.geometry}-host-none")


def test_an_op_that_runs_its_reference_says_why(tiny: dict[str, Case], clock: CountingClock) -> None:
    assert {record["not_fused"] for record in measured(tiny["rms_norm"], PLAN, clock)} == {"no kernel for device 'cpu'"}


def test_open_presets_are_compared_with_the_exact_one_and_may_differ(
    tiny: dict[str, Case], clock: CountingClock
) -> None:
    fast = by_preset(measured(tiny["indexed_scale_shift_"], PLAN, clock))["fast"]
    assert fast["reference"] == "eager reference of vllm_cuda"
    assert fast["elements_differing"] > 0
    assert not fast["exact"]
    assert not is_wrong(fast)


# --- Faults -----------------------------------------------------------------------------------------------------------

Fault = Callable[[Tensor], object]


def with_fault(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    op = ops.rms_norm

    def faulty(x: Tensor, *arguments: Any, **given: Any) -> Tensor:
        out = op(x, *arguments, **given)
        fault(out)
        return out

    monkeypatch.setattr(ops, "rms_norm", faulty)


def test_an_element_that_differs_is_counted(
    tiny: dict[str, Case], clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_fault(monkeypatch, lambda out: out.view(torch.int16)[0, :3].add_(1))
    exact = by_preset(measured(tiny["rms_norm"], PLAN, clock))["vllm_cuda"]
    assert exact["differing"] == {"before": 3, "repeated": 0, "after": 3}
    assert exact["elements_differing"] == 3
    assert is_wrong(exact)


def test_a_call_that_does_not_repeat_itself_is_counted(
    tiny: dict[str, Case], clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift = iter(range(1000))
    with_fault(monkeypatch, lambda out: out.view(torch.int16)[0, :1].add_(next(drift)))
    records = by_preset(measured(tiny["rms_norm"], PLAN, clock))
    assert records["vllm_cuda"]["differing"]["repeated"] == 1
    assert is_wrong(records["fast"])  # also without a promise about bits


def test_a_replay_that_writes_nothing_is_seen_after_the_timing(tiny: dict[str, Case], clock: CountingClock) -> None:
    class Stale(ReplayedCall):
        def replay(self) -> float:
            return self._times()

    clock.graph = Stale
    exact = by_preset(measured(tiny["rms_norm"], PLAN, clock))["vllm_cuda"]
    assert exact["differing"] == {"before": 0, "repeated": 0, "after": exact["elements"]}
    assert is_wrong(exact)


def test_an_arm_that_writes_into_the_inputs_is_seen(tiny: dict[str, Case], clock: CountingClock) -> None:
    def arm(inputs: Any) -> Arm:
        return Arm(lambda: inputs.tensors["x"].add_(1).clone())

    records = measured(tiny["rms_norm"], Plan({"torch": Peer(arm)}, ("torch",)), clock)
    assert records[0]["inputs_changed"]
    assert is_wrong(records[0])


def test_an_arm_that_fails_is_named_and_the_others_go_on(
    tiny: dict[str, Case], clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = ops.rms_norm

    def failing(*arguments: Any, numerics: Any, **given: Any) -> Tensor:
        if numerics.preset == "vllm_cuda":
            raise MemoryError("out of\nmemory")
        return op(*arguments, numerics=numerics, **given)

    monkeypatch.setattr(ops, "rms_norm", failing)
    records = by_preset(measured(tiny["rms_norm"], PLAN, clock))
    assert records["vllm_cuda"]["error"] == "MemoryError: out of"
    assert records["vllm_cuda"]["time_us"] is None
    assert is_wrong(records["vllm_cuda"])
    assert records["fast"]["time_us"] is not None


def test_a_failure_while_capturing_is_the_arms_own(
    tiny: dict[str, Case], clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = clock.capture

    def capture(call: Callable[[], Any], calls: int | None) -> ReplayedCall:
        if len(clock.captured) == 2:
            clock.captured.append(calls)
            raise RuntimeError("operation not permitted when stream is capturing")
        return original(call, calls)

    monkeypatch.setattr(clock, "capture", capture)
    fast, exact, *_ = measured(tiny["rms_norm"], PLAN, clock)
    assert fast["time_us"] is not None
    assert exact["error"] == "RuntimeError: operation not permitted when stream is capturing"
    assert exact["elements_differing"] == 0


def test_a_preset_whose_condition_does_not_hold_is_refused_and_not_wrong(
    tiny: dict[str, Case], clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    case = replace(tiny["rms_norm"], exact="omni_native", presets=("omni_native", "vllm_cuda", "sglang_qk_norm"))
    records = by_preset(measured(case, PLAN, clock))
    assert "requires the variable VLLM_BATCH_INVARIANT" in records["vllm_cuda"]["refused"]
    assert "requires width" in records["sglang_qk_norm"]["refused"]
    assert not any(map(is_wrong, records.values()))
    assert records["omni_native"]["time_us"] is not None


# --- Peers ------------------------------------------------------------------------------------------------------------


def test_absent_peers_stand_in_the_record_with_the_reason(tiny: dict[str, Case], clock: CountingClock) -> None:
    def failing(_: Any) -> Arm:
        return Arm(lambda: 1 / 0)

    plan = Plan({**PLAN.peers, "inductor": Peer(failing)}, ("vllm", "torch", "inductor"))
    (record, *_) = measured(tiny["rms_norm"], plan, clock)
    assert record["absent"] == {
        "vllm": "vLLM is not installed; --vllm-library FILE names its compiled ops",
        "inductor": "ZeroDivisionError: division by zero",
    }
    assert set(record["peer_us"]) == set(record["peers"]) == {"torch"}
    assert not is_wrong(record)


def test_vllms_ops_are_the_reference_where_the_preset_claims_them(tiny: dict[str, Case], clock: CountingClock) -> None:
    def one_off(inputs: Any) -> Arm:
        def call() -> Tensor:
            out: Tensor = ops.rms_norm(**inputs.arguments(), numerics="vllm_cuda")
            out.view(torch.int16)[0, 0] += 1
            return out

        return Arm(call)

    def records(version: str | None) -> dict[str, Record]:
        plan = Plan({**PLAN.peers, "vllm": Peer(one_off, version)}, ("torch",))
        return by_preset(measured(replace(tiny["rms_norm"], presets=("vllm_cuda", "omni_native")), plan, clock))

    found = records("0.29.0")
    assert found["vllm_cuda"]["reference"] == "vLLM's ops (0.29.0)"
    assert found["vllm_cuda"]["elements_differing"] == 1
    assert found["omni_native"]["reference"] == "eager reference of omni_native"
    assert found["omni_native"]["elements_differing"] == 0
    unknown = records(None)
    assert [unknown[name]["elements_differing"] for name in ("vllm_cuda", "omni_native")] == [1, 0]
    assert records("0.19.0")["vllm_cuda"]["reference"] == "eager reference of vllm_cuda"


def test_facts_name_the_command_the_sources_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "sources", lambda more: [path.name for path in more])
    found = facts(PLAN, ["bench", "--rounds", "2"])
    assert found["command"] == "numerics bench --rounds 2"
    assert found["rounds"] == 2
    assert found["torch"] == torch.__version__
    assert found["peer_versions"] == dict.fromkeys(("torch", "inductor", "inductor_autotuned"), torch.__version__)
    assert set(found) <= set(FIELDS)
