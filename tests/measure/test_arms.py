"""Arms, and the comparison of their bytes."""

import pytest
import torch
from torch import Tensor

from numerics import ops
from numerics.measure.arms import Arm, as_tuple, copy, differing, ours, specification, table_dtype_of
from numerics.measure.cases import Case
from numerics.measure.inputs import make
from numerics.resolve import resolve

CPU = torch.device("cpu")


def test_the_public_op_and_its_reference_agree_for_every_op(tiny: dict[str, Case]) -> None:
    for case in tiny.values():
        inputs, settings = make(case, CPU, 0), resolve(case.op, preset=case.exact)
        assert differing(ours(inputs, settings).results(), specification(inputs, settings).results()) == 0


def test_an_op_in_place_starts_from_the_same_values_each_time(tiny: dict[str, Case]) -> None:
    inputs = make(tiny["indexed_scale_shift_"], CPU, 0)
    before = inputs.tensors["x"].clone()
    arm = ours(inputs, resolve("indexed_scale_shift_", preset="vllm_cuda"))
    first = arm.results()
    arm.call()
    assert differing(arm.results(), first) == 0
    assert torch.equal(inputs.tensors["x"], before)


def test_settings_in_force_are_looked_up_by_the_call(tiny: dict[str, Case], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(ops, "rms_norm", lambda **given: seen.append(given["numerics"]))
    inputs, settings = make(tiny["rms_norm"], CPU, 0), resolve("rms_norm")
    ours(inputs, settings).call()
    ours(inputs, settings, given=False).call()
    assert seen == [settings, None]


@pytest.mark.parametrize(("preset", "dtype"), [("vllm_cuda", torch.bfloat16), ("diffusers_aten", torch.float32)])
def test_the_rotation_table_has_the_dtype_that_a_preset_requires(preset: str, dtype: torch.dtype) -> None:
    assert table_dtype_of(resolve("fused_qk_norm_rope", preset=preset)) == dtype


@pytest.mark.parametrize("op", ["fused_qk_norm_rope", "indexed_gate", "rms_norm"])
def test_the_copy_reads_and_writes_the_bytes_of_the_case(tiny: dict[str, Case], op: str) -> None:
    (target,) = as_tuple(copy(make(tiny[op], CPU, 0)).call())
    assert 2 * target.numel() * target.element_size() == tiny[op].moved_bytes


# --- Bytes ------------------------------------------------------------------------------------------------------------


def test_what_a_call_does_not_write_is_nan() -> None:
    memory = torch.zeros(4)  # what an allocator gives out again

    def call() -> Tensor:
        memory[:3] = torch.tensor([1.0, 2.0, 3.0])
        return memory

    (found,) = Arm(call).results()
    assert found.tolist()[:3] == [1.0, 2.0, 3.0]
    assert found[3].isnan()


def test_signs_of_zero_and_nan_payloads_differ() -> None:
    x = torch.tensor([0.0, 1.0, float("nan")])
    y = torch.tensor([-0.0, 1.0, float("nan")])
    assert differing([x], [x.clone()]) == 0
    assert differing([x], [y]) == 1
    y.view(torch.int32)[2] += 1
    assert differing([x], [y]) == 2


def test_results_of_another_shape_or_dtype_differ_throughout() -> None:
    x = torch.ones(2, 3)
    assert differing([x], [x.view(3, 2)]) == 6
    assert differing([x], [x.bfloat16()]) == 6
    assert differing([x], [x, x]) == 12


def test_all_results_are_compared() -> None:
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    y = x.clone()
    y[1, 2] = 2
    assert differing([x, y.t()], [x, x.t()]) == 1
