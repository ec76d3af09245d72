from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from numerics.golden import CASES, Breakage, Case, breakages, cases_of, compare, load, run, witness
from numerics.golden.replay import differing
from numerics.presets import properties
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import load as load_presets
from numerics.presets.schema import Numerics, Reduction

BY_NAME = {case.name: case for case in CASES}
CATALOG = load_presets()
REDUCTIONS: dict[str, Reduction] = {name: declared.bits for name, declared in CATALOG.reductions.items()}
VERIFIED = [name for name, preset in CATALOG.presets.items() if cases_of(preset, CATALOG.reductions)]

# The points that each op reads; `norm` of what is no norm rounds nothing.
READ = {
    "rms_norm": {"normalized"},
    "fused_add_rms_norm": {"normalized", "residual"},
    "fused_qk_norm_rope": {"normalized", "qk_norm", "rope_product"},
    "rotate": {"rope_product"},
    "indexed_scale_shift_": {"one_plus_scale", "scaled"},
    "indexed_gate": {"gate_product"},
    "rms_norm_indexed_scale_shift": {"normalized", "norm", "one_plus_scale", "scaled"},
    "indexed_gate_rms_norm_scale_shift": {
        "gate_product", "residual", "normalized", "norm", "one_plus_scale", "scaled",
    },
}  # fmt: skip


@cache
def numerics_of(name: str) -> Numerics:
    return CATALOG.presets[name].numerics(CATALOG.reductions)


def with_points(name: str, *points: str) -> Numerics:
    knobs = {field: getattr(numerics_of(name), field) for field in Numerics.model_fields}
    return Numerics.model_validate({**knobs, "rounding_points": points})


def test_every_array_is_of_a_preset() -> None:
    verified = {case.name for name in VERIFIED for case in cases_of(CATALOG.presets[name], CATALOG.reductions)}
    assert verified == set(BY_NAME)


def test_what_was_seen_on_a_gpu_has_bytes_and_what_has_bytes_was_seen() -> None:
    seen = {name for name, preset in CATALOG.presets.items() if preset.reference and preset.reference.verified_on}
    assert seen == set(VERIFIED)


@pytest.mark.parametrize("name", VERIFIED)
def test_a_preset_returns_every_byte_of_its_provider(name: str) -> None:
    cases = cases_of(CATALOG.presets[name], CATALOG.reductions)
    differences = {case.name: compare(case, run(case, numerics_of(name))) for case in cases}
    assert {name: counts for name, counts in differences.items() if any(counts.values())} == {}


def test_the_op_sees_all_rows_of_a_call_whose_order_is_another() -> None:
    few, many = (BY_NAME[f"vllm_{regime}_5376"] for regime in ("small", "large"))
    results = [run(case, numerics_of("vllm_cuda"))["out"] for case in (few, many)]
    assert not torch.equal(*results)
    # A number of rows that the cap of threads holds for makes one of the other.
    cap = Reduction.model_copy(REDUCTIONS["vllm_cuda"], update={"max_threads": ((1, 1024), (LARGE + 1, 256))})
    never = numerics_of("vllm_cuda").model_copy(update={"rms_norm_reduction": cap})
    assert torch.equal(run(many, never)["out"], results[0])


LARGE = BY_NAME["vllm_large_5376"].rows


# --- What the bytes can see -------------------------------------------------------------------------------------------


# The rows were searched against the orders that providers of RMSNorm have. These two are Triton's; at width 128 they
# part from ATen's tree in one addition of the three within a thread.
UNTOLD = {"triton_3_8_128_4x32", "triton_3_8_128_4x32_sm_100"}
ATEN = {
    name
    for name in VERIFIED
    if numerics_of(name).rms_norm_reduction in (REDUCTIONS["aten_mean"], REDUCTIONS["aten_rms_norm"])
}


def can_change(case: Case, whole: Numerics, breakage: Breakage) -> bool:
    """Whether arithmetic allows the breakage another result for some input of the case's shape."""
    if breakage.knob == "rounding_points":
        return breakage.change.split()[-1] in READ[case.op]
    if breakage.knob == "rope_rotation":
        # Products of bfloat16 and a bfloat16 table are exact in float32: there is nothing to contract, unless rounded.
        rounded = "rope_product" in whole.rounding_points
        return case.rope_table_dtype == "float32" or (case.rope_table_dtype is not None and rounded)
    own, other = whole.rms_norm_reduction, breakage.numerics.rms_norm_reduction
    assert isinstance(own, Reduction)
    assert isinstance(other, Reduction)
    if not case.has_norm or not properties.holds(other, case.width, case.rows):
        return False
    return not properties.same_bytes(own.order(case.width, case.rows), other.order(case.width, case.rows))


def breakages_of(name: str) -> Iterator[Breakage]:
    return breakages(numerics_of(name), REDUCTIONS)


@pytest.mark.parametrize("name", VERIFIED)
def test_every_knob_that_can_change_bytes_is_noticed_when_it_is_broken(name: str) -> None:
    cases = cases_of(CATALOG.presets[name], CATALOG.reductions)
    for breakage in breakages_of(name):
        able = any(can_change(case, numerics_of(name), breakage) for case in cases)
        told = name not in ATEN or breakage.change not in UNTOLD
        found = witness(breakage, cases)
        assert (found is not None) == (able and told), f"{breakage.knob}: {breakage.change}: {found and found.name}"


@pytest.mark.parametrize("name", VERIFIED)
def test_a_breakage_changes_one_knob(name: str) -> None:
    whole = numerics_of(name)
    for breakage in breakages_of(name):
        changed = {
            field for field in Numerics.model_fields if getattr(breakage.numerics, field) != getattr(whole, field)
        }
        assert changed == {breakage.knob}


def test_breakages_are_every_other_order_the_mean_each_point_and_the_rotation() -> None:
    found = [(breakage.knob, breakage.change) for breakage in breakages_of("vllm_cuda")]
    orders = [change for knob, change in found if knob == "rms_norm_reduction"]
    assert set(orders) == {*REDUCTIONS, "mean = multiply"} - {"vllm_cuda"}
    assert ("rounding_points", "without residual") in found
    assert ("rounding_points", "with normalized") in found
    assert ("rope_rotation", "complex") in found
    assert len(found) == len(set(found))


def test_a_case_without_a_norm_does_not_see_an_order() -> None:
    other = next(b for b in breakages_of("vllm_cuda") if b.change == "aten_mean")
    assert witness(other, [BY_NAME["mod_gate_out"]]) is None
    assert witness(other, [BY_NAME["mod_gate_out"], BY_NAME["vllm_small_64"]]) is BY_NAME["vllm_small_64"]


# --- Counting ---------------------------------------------------------------------------------------------------------


def test_each_element_that_differs_is_counted_once() -> None:
    golden = load()["vllm_small_128"]
    broken = golden.clone()
    broken[3, 5] = -broken[3, 5]
    broken[9, :7] = 9.0
    assert differing(golden, golden) == 0
    assert differing(broken, golden) == 8


def test_zeros_differ_by_their_sign_and_computed_nans_do_not() -> None:
    zeros, nans = torch.zeros(3), torch.tensor([torch.nan, -torch.nan, 1.0])
    assert differing(-zeros, zeros) == 3
    assert differing(nans, nans.flip(0)) == 2
    assert differing(-nans[:2], nans[:2]) == 0


def test_a_preset_of_a_users_file_is_verified_without_code(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[reductions.mine]\n"
        'summary = "the same additions, written otherwise"\n'
        "width = 128\nvector = 8\n"
        "threads = [[128, 16]]\n"
        'lanes = "adjacent"\nwarps = "halves"\nmean = "power_of_two"\n'
        "[presets.mine]\n"
        'summary = "mine"\n'
        'reference = { provider = "vllm_c", versions = ">=0.29,<0.30" }\n'
        'rms_norm_reduction = "mine"\nenable_fp_fusion = false\nrounding_points = ["qk_norm"]\n',
        encoding="utf-8",
    )
    catalog = load_presets(file)
    preset: ResolvedPreset = catalog.presets["mine"]
    cases = cases_of(preset, catalog.reductions)
    assert {case.width for case in cases} == {128}
    assert {case.op for case in cases} == {"rms_norm", "fused_qk_norm_rope"}
    assert not any(sum(compare(case, run(case, preset.numerics(catalog.reductions))).values()) for case in cases)


def test_a_preset_without_a_reference_has_no_cases() -> None:
    assert cases_of(CATALOG.presets["fast"], CATALOG.reductions) == []


def test_the_arrays_are_not_written_to() -> None:
    case = BY_NAME["mod_scale_shift_out"]
    before = load()["mod_x"].clone()
    run(case, with_points("vllm_cuda"))
    assert torch.equal(load()["mod_x"], before)
