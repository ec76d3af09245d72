"""Two results, case by case."""

from typing import Any

from numerics.measure.compare import Change, changes, differences
from numerics.measure.result import Record, record


def timed(case: str, time_us: float | None, preset: str = "fast", **more: Any) -> Record:
    return record(op="rms_norm", case=case, preset=preset, time_us=time_us, **more)


def test_a_case_is_slower_beyond_the_tolerance() -> None:
    change = Change(("rms_norm", "1x8", "fast"), 10.0, 10.6)
    assert change.is_slower(0.05)
    assert not change.is_slower(0.07)
    assert not Change(("rms_norm", "1x8", "fast"), 10.6, 10.0).is_slower(0)


def test_cases_are_matched_by_op_case_and_preset() -> None:
    earlier = [timed("a", 1.0), timed("a", 2.0, "vllm_cuda"), timed("b", 3.0)]
    now = [timed("a", 2.0, "vllm_cuda"), timed("a", 1.5), timed("c", 9.0)]
    found = {change.key[1:]: (change.earlier, change.now, change.ratio) for change in changes(earlier, now)}
    assert found == {
        ("a", "fast"): (1.0, 1.5, 1.5),
        ("a", "vllm_cuda"): (2.0, 2.0, 1.0),
        ("b", "fast"): (3.0, None, None),
        ("c", "fast"): (None, 9.0, None),
    }


def test_what_was_not_measured_again_can_be_left_out() -> None:
    found = changes([timed("a", 1.0), timed("b", 1.0)], [timed("b", 1.0)], all_of_earlier=False)
    assert [change.key[1] for change in found] == ["b"]


def test_a_case_that_was_refused_or_failed_has_no_ratio() -> None:
    (found,) = changes([timed("a", 1.0)], [timed("a", None)])
    assert found.ratio is None
    assert not found.is_slower(0)
    expected = {"op": "rms_norm", "case": "a", "preset": "fast", "earlier_us": 1.0, "now_us": None, "ratio": None}
    assert found.to_dict(0.05) == {**expected, "slower": False}


def test_another_machine_is_noticed() -> None:
    earlier = [timed("a", 1.0, gpu="NVIDIA H200", torch="2.11.0")]
    assert differences(earlier, [timed("a", 1.0, gpu="NVIDIA H100", torch="2.11.0")]) == {
        "gpu": ("NVIDIA H200", "NVIDIA H100")
    }
    assert differences(earlier, earlier) == {}
