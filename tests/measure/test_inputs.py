"""The tensors of a case: shapes, layout, and the hash that recognises them."""

import inspect

import pytest
import torch

from numerics import ops
from numerics.measure.cases import CASES, Case, Heads
from numerics.measure.inputs import hash_of, make
from tests.measure.conftest import shrunk

CPU = torch.device("cpu")
QK = Case(
    op="fused_qk_norm_rope",
    geometry=Heads(tokens=5, q_heads=4, k_heads=2, rotary_dim=96, interleaved=False),
    presets=("fast",),
    exact="vllm_cuda",
)


@pytest.mark.parametrize("case", {case.op: shrunk(case) for case in CASES}.values(), ids=lambda case: case.op)
def test_arguments_are_those_of_the_op(case: Case) -> None:
    parameters = inspect.signature(getattr(ops, case.op)).parameters.values()
    needed = {each.name for each in parameters if each.default is inspect.Parameter.empty}
    given = make(case, CPU, 0).arguments()
    assert needed <= set(given) <= {each.name for each in parameters}


def test_q_and_k_are_views_of_one_projection() -> None:
    tensors = make(QK, CPU, 0).tensors
    q, k = tensors["q"], tensors["k"]
    assert (q.shape, k.shape) == ((5, 4, 128), (5, 2, 128))
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert q.stride() == k.stride() == ((4 + 2 * 2) * 128, 128, 1)


def test_the_streams_of_a_joint_case_are_views_of_their_projections() -> None:
    case = next(shrunk(each) for each in CASES if each.op == "fused_joint_qkv_norm_rope")
    tensors = make(case, CPU, 0).tensors
    assert tensors["text_q"].untyped_storage().data_ptr() == tensors["text_v"].untyped_storage().data_ptr()
    assert tensors["image_v"].stride(1) == 3 * 2 * 128
    assert tensors["cos"].shape == (2 + 3, 64)


def test_modulation_tables_are_slices_of_a_wider_one() -> None:
    case = next(shrunk(each) for each in CASES if each.op == "indexed_gate_rms_norm_scale_shift")
    tensors = make(case, CPU, 0).tensors
    assert {tensors[name].stride() for name in ("shift", "scale", "gate")} == {(6 * 768, 1)}
    assert not torch.equal(tensors["shift"], tensors["scale"])
    assert int(tensors["indices"].max()) < 12


def test_the_table_is_packed_in_the_dtype_that_is_asked_for() -> None:
    inputs = make(QK, CPU, 0)
    table = inputs.arguments(torch.float32)["rope_table"]
    assert (table.dtype, table.shape) == (torch.float32, (5, 96))
    assert torch.equal(table, torch.cat((inputs.tensors["cos"], inputs.tensors["sin"]), dim=-1))
    assert inputs.arguments()["rope_table"].dtype == torch.bfloat16


# --- Hash -------------------------------------------------------------------------------------------------------------


def test_a_seed_makes_the_same_inputs_again_and_another_does_not() -> None:
    assert make(QK, CPU, 3).hash == make(QK, CPU, 3).hash != make(QK, CPU, 4).hash


def test_the_hash_sees_one_bit_one_exchange_one_shape_and_one_name() -> None:
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    flipped, exchanged = x.clone(), x.flip(0)
    flipped.view(torch.int16)[3, 63] ^= 1
    found = [{"x": x}, {"x": flipped}, {"x": exchanged}, {"x": x.view(64, 4)}, {"y": x}, {"x": x.float()}]
    assert len({hash_of(each) for each in found}) == len(found)


def test_the_hash_is_of_values_and_not_of_strides() -> None:
    x = torch.randn(6, 8)
    assert hash_of({"x": x.t()}) == hash_of({"x": x.t().contiguous()})


def test_the_hash_tells_signs_of_zero_apart() -> None:
    assert hash_of({"x": torch.zeros(3)}) != hash_of({"x": -torch.zeros(3)})


def test_the_hash_of_known_bytes_stays_the_same() -> None:
    x = torch.arange(1000).to(torch.bfloat16)
    assert hash_of({"x": x})[:23] == "sha256:e14a1812bfee2d6b"
