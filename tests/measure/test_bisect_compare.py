"""How results of arms are compared: every byte, and how far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.measure.bisect_compare import difference, is_within, load, size
from numerics.measure.bisect_target import Outcome
from numerics.measure.bisect_worker import TENSORS, _saved

NAN, INF = float("nan"), float("inf")
Make = Callable[[Any], Outcome]


@pytest.fixture
def outcome(tmp_path: Path) -> Make:
    """An arm that came to this result."""

    def make(result: Any) -> Outcome:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        found = _saved(result, "m:f", folder)
        return Outcome("ok", value=found.get("value"), tensors=folder / TENSORS if "digest" in found else None)

    return make


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([1.0, NAN, INF, -0.0]),
        torch.tensor(2.5),
        {"a": torch.ones(2), "b": torch.zeros(0, 3)},
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, NAN * 1j]),
        torch.arange(3).to(torch.float8_e4m3fn),
        torch.randn(4, 6)[:, ::2],
        torch.randn(3, dtype=torch.complex64).conj(),
        {"a": torch.ones(2), "b": [torch.zeros(1), torch.zeros(2, dtype=torch.int32)]},
    ],
    ids=str,
)
def test_equal_bytes_are_no_difference(outcome: Make, x: Any) -> None:
    found = difference(outcome(x), outcome(x))
    assert found["elements_differing"] == 0
    assert (found["max_abs"], found["psnr_db"]) == (0.0, "inf")
    assert is_within(found, 0.0)


def test_a_signed_zero_and_the_bits_of_a_nan_are_differences_but_not_far(outcome: Make) -> None:
    found = difference(outcome(torch.tensor([0.0, 1.0])), outcome(torch.tensor([-0.0, 1.0])))
    assert (found["elements_differing"], found["max_abs"]) == (1, 0.0)
    assert not is_within(found, 0.0)
    assert is_within(found, 1e-30)


def test_the_farthest_tensor_is_named(outcome: Make) -> None:
    x = {"near": torch.tensor([0.0, 1.0]), "far": torch.tensor([0.0, 1.0])}
    y = {"near": torch.tensor([0.0, 1.001]), "far": torch.tensor([0.5, 1.0])}
    found = difference(outcome(y), outcome(x))
    assert (found["elements"], found["elements_differing"], found["max_abs"], found["worst"]) == (4, 2, 0.5, "far")
    assert found["psnr_db"] == pytest.approx(9.03, abs=0.01)  # 10 log10(1 / (0.25 / 2))


def test_a_nan_on_one_side_is_farther_than_any_tolerance(outcome: Make) -> None:
    found = difference(outcome(torch.tensor([NAN])), outcome(torch.tensor([1.0])))
    assert found["max_abs"] == "inf"
    assert not is_within(found, 1e30)


@pytest.mark.parametrize("y", [torch.ones(3), torch.ones(2, dtype=torch.float64), {"a": torch.ones(2)}, 1.0])
def test_other_shapes_names_and_kinds_are_said_so(outcome: Make, y: Any) -> None:
    found = difference(outcome(y), outcome(torch.ones(2)))
    assert set(found) == {"shapes"}
    assert size(found) == INF
    assert not is_within(found, 1e30)


@pytest.mark.parametrize(
    ("x", "y", "tolerance", "same"),
    [
        (1, 1.0, 0.0, True), (1.0, 1.5, 0.4, False), (1.0, 1.5, 0.5, True), (NAN, NAN, 0.0, True),
        (NAN, 1.0, 9.0, False), (INF, INF, 0.0, True), (-INF, INF, 9.0, False), (True, 1, 0.0, True),
    ],
)  # fmt: skip
def test_numbers_are_compared_by_value(outcome: Make, x: float, y: float, tolerance: float, same: bool) -> None:
    assert is_within(difference(outcome(x), outcome(y)), tolerance) is same


def test_a_view_is_saved_without_the_memory_behind_it(outcome: Make) -> None:
    found = outcome(torch.zeros(1 << 20)[:4])
    assert found.tensors is not None
    assert found.tensors.stat().st_size < 1 << 14
    assert load(found.tensors)[""].shape == (4,)
