"""The reconstruction of trees, against every declared order of narrow rows."""

from typing import Final

import pytest
import torch
from torch import Tensor

from numerics.measure.identify_probe import Probe, ProbeError, reconstruct
from numerics.measure.identify_trees import Tree, declared_as
from numerics.ops import rms_norm_reference
from numerics.ops.reduction import order_of, row_sum
from numerics.presets.file import load
from numerics.presets.order import Order
from numerics.presets.properties import holds
from numerics.presets.schema import Numerics

REDUCTIONS: Final = load().reductions
ROWS: Final = 256
pytestmark = pytest.mark.usefixtures("one_thread")


def _declared(width: int) -> dict[int, tuple[str, Order]]:
    """Every distinct tree."""
    orders = {name: each.order(width, ROWS) for name, each in REDUCTIONS.items() if holds(each, width, ROWS)}
    return {Tree.of(order).key: (name, order) for name, order in orders.items()}


def _probe(name: str, width: int, rows: int = ROWS, dtype: torch.dtype = torch.bfloat16, budget: int = 10**5) -> Probe:
    numerics = Numerics(rms_norm_reduction=REDUCTIONS[name].bits, enable_fp_fusion=False, rounding_points=())

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm_reference(x, weight, eps, numerics=numerics)

    return Probe(norm, width, rows, dtype, torch.device("cpu"), budget)


@pytest.mark.parametrize("width", [64, 96, 128, 256])
def test_every_declared_order_is_reconstructed(width: int) -> None:
    declared = _declared(width)
    assert len(declared) >= 5
    for key, (name, _) in declared.items():
        assert reconstruct(_probe(name, width), seed=0).key == key, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_it_is_reconstructed_in_other_dtypes(dtype: torch.dtype) -> None:
    order = REDUCTIONS["aten_rms_norm"].order(128, ROWS)
    assert reconstruct(_probe("aten_rms_norm", 128, dtype=dtype), seed=0).key == Tree.of(order).key


def test_one_row_a_call_is_enough() -> None:
    order = REDUCTIONS["vllm_cuda"].order(16, 1)
    assert reconstruct(_probe("vllm_cuda", 16, rows=1), seed=0).key == Tree.of(order).key


def test_a_spent_budget_is_said() -> None:
    with pytest.raises(ProbeError, match="more than 3 calls"):
        reconstruct(_probe("vllm_cuda", 128, rows=16, budget=3), seed=0)


@pytest.mark.parametrize("width", [96, 128])
def test_fields_of_a_declared_order_make_its_tree(width: int) -> None:
    for key, (name, order) in _declared(width).items():
        fields = declared_as(Tree.of(order), "divide")
        assert fields is not None, name
        known = {name: value for name, value in fields.items() if name != "mean"}
        assert Tree.of(Order(**known)).key == key


def test_squares_added_along_the_tree_are_those_of_the_order() -> None:
    x = torch.randn(8, 96, generator=torch.Generator().manual_seed(0))
    for name, order in _declared(96).values():
        numerics = Numerics(
            rms_norm_reduction=REDUCTIONS[name].bits.model_copy(update={"square": "product"}),
            enable_fp_fusion=False,
            rounding_points=(),
        )
        assert torch.equal(Tree.of(order).add_squares(x), row_sum(x, order_of(numerics, 96, ROWS)))
