"""What `identify` says about our own ops, about planted faults and about orders that nobody declared, on a CPU."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import tomli
import torch
from torch import Tensor

from numerics.measure.identify import Asked, Cell, identified
from numerics.measure.identify_callables import Norm, Subject, subject
from numerics.measure.identify_verdict import verdict
from numerics.ops import rms_norm_reference
from numerics.ops.arithmetic import multiply, rsqrt
from numerics.ops.reduction import row_sum
from numerics.presets.file import load
from numerics.presets.properties import equals, holds
from numerics.presets.schema import Numerics, PresetFile

CATALOG: Final = load()
EXACT: Final = [name for name, preset in CATALOG.presets.items() if preset.knobs["rms_norm_reduction"] != "triton"]
ROWS: Final = 16
pytestmark = pytest.mark.usefixtures("one_thread")


def ask(norm: Norm, width: int = 128, rows: Sequence[int] = (ROWS,), dtype: torch.dtype = torch.bfloat16) -> list[Cell]:
    question = Asked(Subject("norm", norm), CATALOG, dtype, torch.device("cpu"), 0)
    return identified(question, width, rows, lambda _: None)


def own(reduction: str = "vllm_cuda", *points: Any) -> Norm:
    numerics = Numerics(
        rms_norm_reduction=CATALOG.reductions[reduction].bits, enable_fp_fusion=False, rounding_points=points
    )
    return lambda x, weight, eps: rms_norm_reference(x, weight, eps, numerics=numerics)


def chained(sum_of: Callable[[Tensor], Tensor], mean_of: Callable[[Tensor, float], Tensor] = torch.div) -> Norm:
    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x32 = x.float()
        rstd = rsqrt(mean_of(sum_of(x32 * x32), x.shape[-1]) + eps)
        return (x32 * rstd[:, None] * weight.float()).to(x.dtype)

    return norm


@pytest.mark.parametrize("name", EXACT)
def test_our_own_op_is_identified_as_its_preset(name: str) -> None:
    preset = CATALOG.presets[name]
    reduction = CATALOG.reductions[preset.knobs["rms_norm_reduction"]]
    width = 128 if holds(reduction, 128, ROWS) else 1024
    dtype = getattr(torch, preset.requires.dtype[0]) if preset.requires.dtype else torch.bfloat16
    cells = ask(subject(f"numerics:{name}", CATALOG).norm, width, dtype=dtype)
    assert cells[0].identified, cells[0]
    assert cells[0].reductions == equals(reduction.order(width, ROWS), CATALOG.reductions, ROWS)
    found = verdict(CATALOG, "norm", cells)
    assert found.identified
    assert name in found.presets
    assert found.rounding == ("two" if "normalized" in preset.knobs["rounding_points"] else "one")


def test_row_regimes_are_told_apart_at_a_wide_row() -> None:
    cells = ask(own("vllm_cuda"), 2304, (16, 256))
    assert [cell.reductions for cell in cells] == [["vllm_cuda", "vllm_cuda_batch_invariant"], ["vllm_cuda"]]
    found = verdict(CATALOG, "norm", cells)
    assert (found.identified, found.reductions, found.batch) == (True, ["vllm_cuda"], {2304: False})
    invariant = verdict(CATALOG, "norm", ask(own("vllm_cuda_batch_invariant"), 2304, (16, 256)))
    assert (invariant.reductions, invariant.batch) == (["vllm_cuda_batch_invariant"], {2304: True})


def test_what_to_paste_is_a_file_that_declares_the_preset() -> None:
    found = verdict(CATALOG, "norm", ask(own("aten_mean", "normalized")))
    assert found.toml is not None
    preset = PresetFile.model_validate(tomli.loads(found.toml)).presets["identified"]
    assert preset.rms_norm_reduction in found.reductions
    assert preset.rounding_points is not None
    assert "normalized" in preset.rounding_points


# --- Planted faults ---------------------------------------------------------------------------------------------------


def test_a_wrong_order_is_named() -> None:
    cell = ask(own("aten_rms_norm"), 128)[0]
    assert cell.identified
    assert "vllm_cuda" not in cell.reductions
    assert "aten_rms_norm" in cell.reductions


def test_a_wrong_mean_is_named() -> None:
    order = CATALOG.reductions["vllm_cuda"].order(96, ROWS)

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x32 = x.float()
        rstd = rsqrt(multiply(row_sum(x32, order), 96) + eps)
        return (x32 * rstd[:, None] * weight.float()).to(x.dtype)

    cell = ask(norm, 96)[0]
    assert not cell.identified
    assert any("but the mean by multiply" in text for text in cell.sees)
    assert cell.toml is not None
    declared = PresetFile.model_validate(tomli.loads(cell.toml)).reductions["identified"]
    assert (declared.mean, declared.order(96, ROWS).vector) == ("multiply", order.vector)


def _weight_first(x: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    return (x * (rstd * weight)).to(torch.bfloat16)


def _rounded_rstd(x: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    return (x * rstd.bfloat16().float() * weight).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("finish", "said"), [(_weight_first, "x * (rstd * weight)"), (_rounded_rstd, "rstd rounded before it is used")]
)
def test_a_rounding_that_no_preset_has_is_named(finish: Callable[..., Tensor], said: str) -> None:
    order = CATALOG.reductions["vllm_cuda"].order(128, ROWS)

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x32 = x.float()
        rstd = rsqrt(row_sum(x32, order) / 128 + eps)[:, None]
        return finish(x32, weight.float(), rstd)

    cell = ask(norm)[0]
    assert not cell.identified
    assert any(said in text for text in cell.sees)
    assert cell.computes is not None
    assert cell.computes.order == "vllm_cuda"


def test_an_extra_rounding_before_the_weight_is_named() -> None:
    cell = ask(own("vllm_cuda", "normalized"))[0]
    assert cell.computes is not None
    assert (cell.identified, cell.computes.rounding) == (True, "two")
    assert verdict(CATALOG, "norm", [cell]).presets == ["vllm_cuda_0_19"]


def test_a_dropped_row_is_named() -> None:
    norm = own()

    def drops(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = norm(x, weight, eps)
        out[7] = 0
        return out

    cell = ask(drops)[0]
    assert not cell.identified
    assert cell.sees == ["row 7 of 16: the same bytes for other inputs, stale or dropped"]


def test_a_row_that_is_computed_otherwise_is_named() -> None:
    norm, two = own(), own("vllm_cuda", "normalized")

    def mixed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.cat((norm(x[:-1], weight, eps), two(x[-1:], weight, eps)))

    assert ask(mixed)[0].sees == ["row 15 of 16: other bytes than the other rows of a call, with the same input"]


def test_a_row_that_reads_another_row_is_named() -> None:
    norm = own()

    def shifted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = norm(x, weight, eps)
        out[3] = out[4]
        return out

    (said,) = ask(shifted)[0].sees
    assert said.endswith("row 3 of 16")


def test_a_stale_output_is_named() -> None:
    norm, kept = own(), dict[int, Tensor]()

    def stale(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return kept.setdefault(len(x), norm(x, weight, eps))

    cell = ask(stale)[0]
    assert not cell.identified
    assert cell.sees[0].endswith("the same bytes for other inputs, a stale output")


def test_an_output_that_changes_from_call_to_call_is_named() -> None:
    norm, calls = own(), [0]

    def unsteady(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        calls[0] += 1
        out = norm(x, weight, eps)
        out[2, 0] += calls[0]
        return out

    assert "the same call twice differs in 1 of 2048 elements: row 2 of 16" in ask(unsteady)[0].sees


# --- Orders that nobody declared --------------------------------------------------------------------------------------


def test_an_order_that_nobody_declared_is_reconstructed_and_can_be_pasted() -> None:
    order = CATALOG.reductions["vllm_cuda"].order(128, ROWS).__class__(128, 2, 16, slots=2, lanes="halves")
    cell = ask(chained(lambda squares: row_sum(squares.sqrt(), order)))[0]
    assert not cell.identified
    assert cell.tree is not None
    assert cell.toml is not None
    declared = PresetFile.model_validate(tomli.loads(cell.toml)).reductions["identified"]
    assert declared.order(128, ROWS) == order


def test_a_tree_that_no_fields_can_say_is_printed() -> None:
    def from_the_end(squares: Tensor) -> Tensor:
        total, *rest = reversed(squares.unbind(-1))
        for each in rest:
            total = total + each
        return total

    cell = ask(chained(from_the_end), 64)[0]
    assert cell.tree is not None
    assert "(63+62)" in cell.tree or "(62+63)" in cell.tree
    assert "the fields of a reduction cannot say this tree" in cell.sees
    assert cell.computes is not None
    assert not any("differ from it" in text for text in cell.sees)


def test_a_sum_in_float64_is_said_to_be_no_tree_of_float32() -> None:
    (said,) = ask(chained(lambda squares: squares.double().sum(-1).float()), 64)[0].sees
    assert "cannot be reconstructed" in said


def test_float32_rows_tell_contraction() -> None:
    cells = [ask(own(name), 128, dtype=torch.float32)[0] for name in ("vllm_cuda_float32", "apex")]
    assert [cell.identified for cell in cells] == [True, True]
    assert "vllm_cuda_float32" in cells[0].reductions
    assert "vllm_cuda_float32" not in cells[1].reductions
