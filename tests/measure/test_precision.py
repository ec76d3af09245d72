"""Errors worked out by hand, planted faults that must be seen, and what is compared with what."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics import ops
from numerics.measure import precision
from numerics.measure.precision import Plan, Precision, Record
from numerics.measure.precision_cases import SHAPES, STAGES, Shape, arguments_of, chosen, truth
from numerics.measure.precision_errors import Errors, Standings, Tally

CPU = torch.device("cpu")
SHAPE = {shape.op: shape for shape in reversed(SHAPES)}
TINY = 40_000  # values: a few rows
PRESETS = ("fast", "vllm_cuda", "vllm_native")


def measured(op: str, presets: tuple[str, ...] = PRESETS, elements: int = TINY, seed: int = 0) -> list[Record]:
    run = Precision(Plan([SHAPE[op]], presets, elements, seed), CPU)
    return [each for turn in run.turns for each in run.take(turn)]


def of(records: list[Record], preset: str, stage: str, precision: str = "float64", table: str | None = None) -> Record:
    where = preset, stage, precision, table
    (found,) = [r for r in records if (r["preset"], r["stage"], r["precision"], r["table"]) == where]
    return found


# --- By hand ----------------------------------------------------------------------------------------------------------


def test_a_single_value_has_the_error_that_rounding_leaves() -> None:
    errors = Errors()
    third = torch.tensor([1 / 3], dtype=torch.float64)
    errors.add({"rounded": third.bfloat16()}, third)
    found = errors.of("rounded", ())
    error = 0.333984375 - 1 / 3  # the bfloat16 nearest to a third has 8 bits: 171 / 512
    assert found == {"elements": 1, "rmse": error, "max_abs": error, "bias": error, "rms": 1 / 3, "against": {}}


def test_errors_of_several_calls_are_those_of_one() -> None:
    errors = Errors()
    for values in ([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]):  # of truths that are 0.25 less, but for 2.0: 0.75 more
        result = torch.tensor(values, dtype=torch.bfloat16)
        errors.add({"a": result}, torch.where(result == 2, 2.75, result.double() - 0.25))
    found = errors.of("a", ())
    assert (found["elements"], found["max_abs"]) == (6, 0.75)
    assert found["bias"] == (5 * 0.25 - 0.75) / 6
    assert found["rmse"] == math.sqrt((5 * 0.25**2 + 0.75**2) / 6)


def test_small_errors_are_not_lost_beside_large_ones() -> None:
    tally = Tally()
    for value in (2.0**10, *[2.0**-10] * 4):  # in float32 the square of the first swallows the others
        tally.add(torch.full((1,), value, dtype=torch.float64))
    assert float(tally.squares) == 2.0**20 + 4 * 2.0**-20
    assert float(tally.total) == 2.0**10 + 4 * 2.0**-10


def test_values_are_closer_tied_or_further() -> None:
    errors = Errors((("a", "b"),))
    truth = torch.zeros(6, dtype=torch.float64)
    a = torch.tensor([1.0, -1.0, 2.0, 0.0, 3.0, -3.0])
    b = torch.tensor([2.0, 1.0, -1.0, 0.0, 4.0, -3.0])
    errors.add({"a": a, "b": b}, truth)
    assert errors.of("a", ("b",))["against"] == {"b": {"closer": 2, "tied": 3, "further": 1}}
    assert errors.of("b", ("a",))["against"] == {"a": {"closer": 1, "tied": 3, "further": 2}}
    assert Standings(3).to_dict() == {"closer": 0, "tied": 3, "further": 0}


def test_a_value_that_is_no_number_is_said() -> None:
    errors = Errors()
    errors.add({"a": torch.tensor([torch.nan, 1.0])}, torch.ones(2, dtype=torch.float64))
    assert [errors.of("a", ())[name] for name in ("rmse", "max_abs", "bias")] == ["nan"] * 3


# --- The truth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", list(STAGES))
def test_the_truth_of_every_stage_is_never_rounded_to_the_activation_dtype(op: str) -> None:
    inputs = SHAPE[op].inputs(4, CPU, 0, 0)
    for stage in STAGES[op]:
        for dtype in (torch.float32, torch.float64):
            results = truth(op, arguments_of(inputs, torch.float64), dtype, stage.neutral)
            for place in stage.results:
                assert results[place].dtype == dtype
                assert (results[place] != results[place].to(torch.bfloat16)).any()


def test_the_truth_in_float64_is_the_formula() -> None:
    shape = SHAPE["fused_qk_norm_rope"]
    inputs = shape.inputs(3, CPU, 1, 0)
    q, weight = inputs.tensors["q"].double(), inputs.tensors["q_weight"].double()
    cos, sin = inputs.tensors["cos"][:, None], inputs.tensors["sin"][:, None]
    normed = q / (q.square().mean(-1, keepdim=True) + inputs.settings["eps"]).sqrt() * weight
    turned = torch.view_as_complex(normed.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)
    norm, rotation = STAGES[shape.op]
    given = arguments_of(inputs, torch.float64)
    for stage, expected in ((norm, normed), (rotation, torch.view_as_real(turned).flatten(-2))):
        found = truth(shape.op, given, torch.float64, stage.neutral)[0]
        assert torch.allclose(found, expected, rtol=0, atol=1e-13)  # some roundings of 2**-53 of values below 100


def test_a_full_table_is_that_of_the_angles() -> None:
    inputs = SHAPE["fused_qk_norm_rope"].inputs(50, CPU, 0, 0)
    full = arguments_of(inputs, torch.float64)["rope_table"]
    assert torch.allclose(
        full[:, :64].square() + full[:, 64:].square(), torch.ones(50, 64).double(), rtol=0, atol=4e-16
    )
    rounded = arguments_of(inputs, torch.bfloat16)["rope_table"]
    assert torch.equal(rounded, full.float().bfloat16())
    assert (full != full.float()).any()
    assert torch.equal(arguments_of(inputs, torch.float32)["rope_table"], full.float())


def test_a_rounded_table_is_rounded_from_float32_as_models_do() -> None:
    inputs = SHAPE["fused_qk_norm_rope"].inputs(1, CPU, 0, 0)
    cos = torch.full_like(inputs.tensors["cos"], 0.5 + 2.0**-9 + 2.0**-40)  # by itself nearer to 0.5 + 2**-8
    table = arguments_of(replace(inputs, tensors={**inputs.tensors, "cos": cos}), torch.bfloat16)["rope_table"]
    assert table[0, 0] == 0.5  # in float32 it lies in the middle, and goes to even


# --- What is found ----------------------------------------------------------------------------------------------------


def test_a_rounding_more_is_further_from_the_truth() -> None:
    records = measured("fused_qk_norm_rope")
    native, cuda = (of(records, name, "norm") for name in ("vllm_native", "vllm_cuda"))
    assert native["rmse"] > 1.2 * cuda["rmse"]
    assert native["against"]["fast"]["closer"] == 0  # both round a value once at the end, and one of them before, too
    assert set(native["against"]) == {"fast"}  # which chain of two is closer, nobody asks
    shown = of(records, "fast", "rotation", table="full"), of(records, "fast", "rotation", table="rounded")
    assert shown[0]["rmse"] > shown[1]["rmse"]  # the table's own rounding counts in the first alone
    assert shown[0]["elements"] == sum(shown[0]["against"]["vllm_native"].values())


def test_float32_is_nearly_as_true_as_float64() -> None:
    records = measured("rms_norm")
    in_float32, in_float64 = (of(records, "vllm_cuda", "norm", each)["rmse"] for each in ("float32", "float64"))
    assert in_float32 == pytest.approx(in_float64, rel=1e-5)
    assert in_float32 != in_float64


def test_a_table_in_float32_was_not_rounded() -> None:
    records = measured("fused_qk_norm_rope", ("fast", "diffusers_aten"))
    there = {(r["preset"], r["table"]) for r in records if r["stage"] == "rotation"}
    assert there == {("fast", "full"), ("fast", "rounded"), ("diffusers_aten", "full")}
    assert of(records, "diffusers_aten", "rotation", table="full")["rope_table_dtype"] == "float32"


def test_a_planted_bias_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(measured("rms_norm"), "vllm_cuda", "norm")
    reference = ops.rms_norm_reference
    bias = 2.0**-5

    def biased(x: Tensor, *rest: Any, **given: Any) -> Tensor:
        out = reference(x, *rest, **given)
        return out if x.dtype != torch.bfloat16 else (out.float() + bias).bfloat16()

    monkeypatch.setattr(
        ops, "rms_norm_reference", lambda x, weight, eps, numerics: biased(x, weight, eps, numerics=numerics)
    )
    records = measured("rms_norm")
    after = of(records, "vllm_cuda", "norm")
    assert abs(before["bias"]) < bias / 100
    assert after["bias"] == pytest.approx(bias, rel=0.01)  # what it adds is itself rounded, to either side
    assert after["against"]["fast"]["further"] > 10 * after["against"]["fast"]["closer"]
    assert of(records, "fast", "norm")["bias"] == of(measured("rms_norm", ("fast",)), "fast", "norm")["bias"]


def test_one_wrong_value_is_the_largest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = ops.indexed_gate_reference

    def faulty(x: Tensor, *rest: Any, **given: Any) -> Tensor:
        out = reference(x, *rest, **given)
        if x.dtype == torch.bfloat16 and given["numerics"].is_exact:
            out[-1, -1] += 1024
        return out

    monkeypatch.setattr(ops, "indexed_gate_reference", faulty)
    records = measured("indexed_gate", ("fast", "vllm_cuda"))
    assert of(records, "vllm_cuda", "residual")["max_abs"] == pytest.approx(1024, rel=2**-6)
    assert of(records, "fast", "residual")["max_abs"] < 1


def test_stages_are_seen_through_the_op_itself() -> None:
    records = measured("indexed_gate_rms_norm_scale_shift")
    stages = list(dict.fromkeys(r["stage"] for r in records))
    assert stages == ["residual", "norm", "modulation"]
    rmse = [of(records, "vllm_cuda", stage)["rmse"] for stage in stages]
    assert rmse == sorted(rmse)  # each stage adds its roundings


def test_an_op_in_place_leaves_its_inputs_to_the_other_arms() -> None:
    records = measured("indexed_scale_shift_", ("fast", "fast", "bf16_affine"))
    assert of(records, "bf16_affine", "modulation")["rmse"] < 0.01


# --- Arms and chunks --------------------------------------------------------------------------------------------------


def test_presets_that_cannot_differ_are_computed_once() -> None:
    records = measured("rms_norm", ("vllm_cuda", "fast", "vllm_cuda_bf16_rope", "bf16_affine"))
    same = {r["preset"]: r["same_as"] for r in records}
    assert same == {"vllm_cuda": None, "fast": None, "vllm_cuda_bf16_rope": "vllm_cuda", "bf16_affine": None}
    twin, first = (of(records, name, "norm") for name in ("vllm_cuda_bf16_rope", "vllm_cuda"))
    assert (twin["rmse"], twin["against"]) == (first["rmse"], first["against"])
    assert twin["reference"] != first["reference"]


def test_what_a_preset_is_stays_its_own_where_another_was_computed() -> None:
    records = measured("indexed_scale_shift_", ("bf16_affine", "vllm_cuda"))
    found = {r["preset"]: (r["same_as"], r["exact"]) for r in records}
    assert found == {"bf16_affine": (None, False), "vllm_cuda": ("bf16_affine", True)}


def test_presets_that_read_other_tables_are_computed_apart() -> None:
    records = measured("fused_qk_norm_rope", ("vllm_cuda", "vllm_cuda_float32_table"))
    assert {r["same_as"] for r in records} == {None}
    full = [of(records, name, "rotation", table="full")["rmse"] for name in ("vllm_cuda", "vllm_cuda_float32_table")]
    assert full[0] > full[1]


def test_orders_that_are_one_tree_are_computed_once() -> None:
    records = measured("fused_qk_norm_rope", ("vllm_cuda", "vllm_cuda_128", "omni_native"))
    assert {r["preset"]: r["same_as"] for r in records} == {
        "vllm_cuda": None,
        "vllm_cuda_128": "vllm_cuda",
        "omni_native": None,
    }


def test_two_chains_are_compared_where_nothing_else_is_asked_for() -> None:
    records = measured("rms_norm", ("vllm_cuda", "vllm_native"))
    assert set(of(records, "vllm_native", "norm")["against"]) == {"vllm_cuda"}


def test_a_preset_that_refuses_is_said_and_the_others_are_measured() -> None:
    records = measured("rms_norm", ("fast", "vllm_cuda_128"))
    (refused,) = [r for r in records if r["refused"]]
    assert refused["rmse"] is None
    assert "rows of 128 elements, not 5376" in refused["refused"]
    assert len(records) == 3


def test_chunks_hold_all_values_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "CHUNK", {"cpu": 3 * 6144})
    run = Precision(Plan([SHAPE["fused_qk_norm_rope"]], ("fast",), 7 * 6144 - 1, 0), CPU)
    assert [number for _, number in run.turns] == [0, 1, 2]
    first, second = (run._inputs(SHAPE["fused_qk_norm_rope"], number).tensors for number in (1, 2))
    assert not torch.equal(first["q"], second["q"])
    assert not torch.equal(first["cos"], second["cos"])
    found = [run.take(turn) for turn in run.turns]
    assert [len(each) for each in found] == [0, 0, 6]
    assert {r["elements"] for r in found[-1]} == {7 * 6144}


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again, other = (measured("indexed_gate", ("fast",), seed=seed)[0]["rmse"] for seed in (3, 3, 4))
    assert first == again != other


def test_who_computed_it_is_said() -> None:
    records = measured("rms_norm", ("fast", "vllm_cuda"))
    assert of(records, "vllm_cuda", "norm")["computed_by"] == "eager reference"
    assert of(records, "fast", "norm")["computed_by"] == "eager reference: no kernel for device 'cpu'"


def test_shapes_are_chosen_by_op_and_family() -> None:
    assert {shape.op for shape in chosen(["fused_rms_norm"])} == {"rms_norm", "fused_add_rms_norm"}
    assert [shape.name for shape in chosen(["fused_qk_norm_rope"])] == ["24x128", "56x128-half96", "text+image x24x128"]
    assert len({shape.path for shape in chosen([])}) == len(SHAPES)
    assert isinstance(SHAPES[0], Shape)


def test_kernels_of_open_presets_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: dict[str, Any] = {}

    class Clock:
        def compile(self, calls: dict[str, Any], *, at_once: bool) -> dict[str, Exception]:
            assert at_once
            for name, compile_one in calls.items():
                compiled[name] = compile_one()
            return {}

    monkeypatch.setattr(precision, "CudaClock", Clock)
    monkeypatch.setattr(precision, "HAS_TRITON", True)
    run = Precision(Plan([SHAPE["rms_norm"], SHAPE["indexed_gate"]], ("fast", "vllm_cuda"), TINY, 0), CPU)
    run.compile()
    assert compiled == {}  # a CPU has none
    monkeypatch.setattr(run, "_inputs", lambda shape, _: shape.inputs(1, CPU, 0, 0))
    run.device = torch.device("cuda")
    run.compile()
    assert list(compiled) == ["rms_norm/5376, fast", "indexed_gate/5376-12groups, fast"]
    assert all(arm.computed_by == "" for work in run._work.values() for arm in work.arms.values())
