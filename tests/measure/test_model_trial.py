"""A trial of a whole model: what it compares, counts and times, on tiny models; and the script that runs them all."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.integrations.diffusers import apply
from numerics.measure import model_trial as trial
from numerics.measure.model_cases import JOINT, MODELS, SINGLE, TINY, outputs
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts

CASE = TINY["flux2"]


@pytest.fixture(autouse=True)
def _counts_from_zero() -> None:
    reset_dispatch_counts()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return CASE.build()


def test_every_model_is_there_full_and_tiny() -> None:
    assert list(TINY) == list(MODELS)
    assert len(MODELS) == 8
    assert all(case.config.get("num_layers", case.config.get("n_layers")) == 2 for case in MODELS.values())


def test_weights_have_outlier_channels_and_norms_that_are_not_near_one_another(model: Any) -> None:
    weight = model.transformer_blocks[0].attn.to_q.weight
    assert weight[0].float().std() > 3 * weight[1:].float().std()
    assert model.transformer_blocks[0].attn.norm_q.weight.float().std() > 0.3


def test_a_twin_has_the_same_tensors_and_processors_of_its_own(model: Any) -> None:
    twin = trial.twin_of(model)
    assert all(a is b for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    with apply(twin):
        outputs(model, CASE.random(model, 1))
        assert not dispatch_counts()


def test_a_comparison_says_what_was_called_and_what_was_the_same(model: Any) -> None:
    twin, inputs = trial.twin_of(model), CASE.random(model, 1)
    with apply(twin):
        found = trial.compare(CASE, model, twin, inputs)
    assert found["stock_differs_from_itself"] == found["repeated_differing"] == 0
    assert found["same_strides"]
    assert found["same_attention_inputs"]
    assert found["expected_calls"] == {JOINT: 1, SINGLE: 2}
    assert found["fused_calls"] == {}
    assert all("no kernel for device 'cpu'" in reason for reason in found["not_fused"])
    assert found["elements"] == 15 * 8
    assert trial.verdict({**found, "elements_differing": 0, "fused_calls": found["expected_calls"]}) == "equal"


def test_a_model_that_differs_from_itself_is_not_measurable(model: Any) -> None:
    inputs, steps = CASE.random(model, 1), iter(range(100))
    with model.proj_out.register_forward_hook(lambda *args: args[-1] + next(steps)):
        found = trial.compare(CASE, model, trial.twin_of(model), inputs)
    assert found["elements_differing"] is None
    assert trial.verdict(found) == "not measurable"


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("elements_differing", 1, "bytes differ"),
        ("repeated_differing", 1, "repeat"),
        ("restored_differing", 2, "restored"),
        ("same_strides", False, "strides"),
        ("same_attention_inputs", False, "attention reads"),
        ("fused_calls", {JOINT: 1}, "calls"),
    ],
)
def test_whatever_is_not_as_it_must_be_is_no_equal(field: str, value: Any, word: str) -> None:
    calls = {JOINT: 2}
    fine = {
        "stock_differs_from_itself": 0,
        "elements_differing": 0,
        "repeated_differing": 0,
        "restored_differing": 0,
        "same_strides": True,
        "same_attention_inputs": True,
        "fused_calls": calls,
        "expected_calls": calls,
    }
    assert trial.verdict(fine) == "equal"
    assert word in trial.verdict({**fine, field: value})


def test_free_ops_compute_each_shape_once(model: Any) -> None:
    twin, inputs = trial.twin_of(model), CASE.random(model, 1)
    with apply(twin):
        kept: dict[Any, Any] = {}
        for _ in range(3):
            trial.without_ops(twin, inputs, kept)
        assert sum(dispatch_counts().values()) == 2  # one of either op, since both single blocks are alike
        reset_dispatch_counts()
        outputs(twin, inputs)
        assert sum(dispatch_counts().values()) == 3


def test_rounds_are_compared_with_themselves() -> None:
    found = trial.ratio([2.0, 2.0, 4.0, 4.0], [1.0, 1.0, 1.0, 3.0])
    assert found["stock_over_ours"] == 3.0
    assert found["spread"] == [2.0, 2.0]


def test_arms_are_timed_in_order_and_then_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def timed(arm: Callable[[], str], calls: int) -> float:
        assert calls in (1, trial.LEAST_CALLS)  # one to see how long it takes
        order.append(arm())
        return trial.SAMPLE_MS

    monkeypatch.setattr(trial, "_milliseconds", timed)
    samples = trial.times([lambda: "a", lambda: "b"], 2)
    assert "".join(order) == "ab" + "abba" * 2
    assert [len(each) for each in samples] == [4, 4]


def test_the_script_writes_a_record_for_each_model_and_batch(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, out = root / "benchmarks" / "models.py", tmp_path / "models.json"
    given = ["--tiny", "--model", "minimax_h3", "--rounds", "1", "--compiled", "none", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(script), *given])
    monkeypatch.setattr(trial, "SAMPLE_MS", 1.0)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(script), run_name="__main__")
    assert stopped.value.code == 0
    records = json.loads(out.read_text())
    assert [(each["model"], each["case"].split(",")[0]) for each in records] == [
        ("diffusers:minimax_h3", f"batch {batch}") for batch in (1, 2)
    ]
    first = records[0]
    assert first["preset"] == first["modulation_preset"] == "diffusers_bf16_rope"
    assert first["verdict"].startswith("not judged on a CPU")
    assert first["control"]["elements_differing"] > 0
    assert first["restored_differing"] == 0
    assert first["ceiling"] > 0
    assert first["attention_backend"] == "native"
    assert first["diffusers"]
