import pytest

from numerics.golden import CASES, Case, load
from numerics.golden.cases import ROTATION
from numerics.presets.file import load as load_presets
from numerics.presets.schema import Numerics, Reference, Requires
from numerics.presets.vocabulary import OPS

BY_NAME = {case.name: case for case in CASES}


def numerics(name: str) -> Numerics:
    catalog = load_presets()
    return catalog.presets[name].numerics(catalog.reductions)


def test_every_array_belongs_to_a_case_and_every_case_has_its_arrays() -> None:
    named = {array for case in CASES for array in (*case.inputs.values(), *case.outputs.values())}
    assert named == set(load())


def test_no_name_stands_twice() -> None:
    assert len(BY_NAME) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_a_call_of_a_known_op_with_arrays_of_its_width_and_rows(case: Case) -> None:
    assert case.op in {*OPS, ROTATION}
    assert set(case.inputs.values()).isdisjoint(case.outputs.values())
    for array in case.outputs.values():
        assert load()[array].shape[-1] == case.width
        assert load()[array][..., 0].numel() <= case.rows


@pytest.mark.parametrize(
    ("provider", "versions", "expected"),
    [
        ("vllm_c", ">=0.20,<0.34", True),
        ("vllm_c", ">=0.11.1,<0.20", False),
        ("vllm_native", ">=0.20,<0.34", False),
    ],
)
def test_a_case_is_of_a_reference_by_provider_and_version(provider: str, versions: str, expected: bool) -> None:
    assert BY_NAME["vllm_small_128"].is_of(Reference(provider=provider, versions=versions)) == expected


@pytest.mark.parametrize(
    ("case", "requires", "expected"),
    [
        ("vllm_small_128", Requires(), True),
        ("vllm_small_128", Requires(dtype=("bfloat16",), backend="cuda", capability="cuda:9"), True),
        ("vllm_small_128", Requires(dtype=("float16",)), False),
        ("vllm_small_128", Requires(backend="hip"), False),
        ("vllm_small_128", Requires(capability="cuda:10"), False),
        ("vllm_small_128", Requires(torch=">=2.12"), False),
        ("vllm_small_128", Requires(triton=">=3.6"), True),
        ("vllm_small_128", Requires(triton=">=3.7"), False),
        ("vllm_small_128", Requires(width=(64, 128)), True),
        ("vllm_small_128", Requires(width=64), False),
        ("vllm_large_128", Requires(rows=(1, 255)), False),
        ("vllm_small_128", Requires(env={"VLLM_BATCH_INVARIANT": "0"}), True),
        ("vllm_small_128", Requires(env={"VLLM_BATCH_INVARIANT": "1"}), False),
        ("vllm_small_128", Requires(rope_table_dtype="float32"), True),
        ("chain_half_96", Requires(rope_table_dtype="float32"), False),
        ("chain_half_96", Requires(rope_table_dtype="activation"), True),
        ("vllm_f32table", Requires(rope_table_dtype="activation"), False),
        ("vllm_small_64", Requires(), False),
    ],
)
def test_a_case_meets_what_held_when_it_was_captured(case: str, requires: Requires, expected: bool) -> None:
    assert BY_NAME[case].meets(requires, numerics("vllm_cuda_128")) == expected
