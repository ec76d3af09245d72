from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics import ops
from numerics.errors import InputError
from numerics.presets.schema import Numerics

Builder = Callable[..., Numerics]

BF16 = torch.bfloat16


class DTensor(Tensor):
    """Stands for the tensors of torch.distributed, which are known by this name."""


def given(op: str) -> dict[str, Any]:
    """Arguments that each op takes."""
    width = 32
    x, weight = torch.ones(6, width, dtype=BF16), torch.ones(width, dtype=BF16)
    heads, rope = torch.ones(1, 6, 2, width, dtype=BF16), torch.ones(6, 24, dtype=BF16)
    groups = torch.ones(3, width, dtype=BF16)
    rows = {"indices": torch.tensor([0, 1, 2, 0, 1, 2])}
    affine = {"shift": groups, "scale": groups, **rows}
    streams = {f"{stream}_{name}": heads[:, :3] for stream in ("text", "image") for name in "qkv"}
    weights = {f"{stream}_{name}_weight": weight for stream in ("text", "image") for name in "qk"}
    arguments: dict[str, dict[str, Any]] = {
        "rms_norm": {"x": x, "weight": weight, "eps": 1e-6},
        "fused_add_rms_norm": {"x": x, "residual": x, "weight": weight, "eps": 1e-6},
        "fused_qk_norm_rope": {
            "q": heads[0], "k": heads[0], "q_weight": weight, "k_weight": weight, "rope_table": rope, "eps": 1e-6,
        },
        "fused_joint_qkv_norm_rope": {**streams, **weights, "rope_table": rope, "eps": 1e-6, "interleaved": True},
        "rms_norm_indexed_scale_shift": {"x": x, "weight": weight, **affine, "eps": 1e-6},
        "indexed_gate_rms_norm_scale_shift": {
            "residual": x, "gate": groups, "branch": x, "weight": weight, **affine, "eps": 1e-6,
        },
        "indexed_scale_shift_": {"x": x.clone(), **affine},
        "indexed_gate": {"x": x, "gate": groups, "other": x, **rows},
    }  # fmt: skip
    return arguments[op]


OPS = [
    "fused_add_rms_norm",
    "fused_joint_qkv_norm_rope",
    "fused_qk_norm_rope",
    "indexed_gate",
    "indexed_gate_rms_norm_scale_shift",
    "indexed_scale_shift_",
    "rms_norm",
    "rms_norm_indexed_scale_shift",
]
TENSORS = [(op, name) for op in OPS for name, value in given(op).items() if isinstance(value, Tensor)]


def refusal(op: str, build: Builder, **changes: Any) -> str:
    with pytest.raises(InputError) as error:
        getattr(ops, op)(**{**given(op), **changes}, numerics=build())
    return str(error.value)


@pytest.mark.parametrize("op", OPS)
def test_every_op_takes_the_arguments_that_the_refusals_start_from(op: str, build: Builder) -> None:
    getattr(ops, op)(**given(op), numerics=build())


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_every_tensor_is_refused_by_its_name_on_another_device(op: str, name: str, build: Builder) -> None:
    message = refusal(op, build, **{name: given(op)[name].to("meta")})
    assert "got device" in message
    assert "meta" in message


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_every_tensor_is_refused_in_a_dtype_that_is_not_its_own(op: str, name: str, build: Builder) -> None:
    message = refusal(op, build, **{name: given(op)[name].to(torch.complex64)})
    assert message.startswith(f"{name}: got dtype complex64; legal: ")


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_every_tensor_is_refused_with_one_column_or_row_too_few(op: str, name: str, build: Builder) -> None:
    message = refusal(op, build, **{name: given(op)[name][..., :-1]})
    assert "got 23 columns" in message if name == "rope_table" else "got shape" in message


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_a_distributed_tensor_is_refused_by_name(op: str, name: str, build: Builder) -> None:
    message = refusal(op, build, **{name: given(op)[name].as_subclass(DTensor)})
    assert message.startswith(f"{name}: got a DTensor; legal: a plain tensor")


@pytest.mark.parametrize("op", OPS)
def test_what_is_no_tensor_or_not_strided_is_refused(op: str, build: Builder) -> None:
    name = next(iter(given(op)))
    assert refusal(op, build, **{name: [1.0]}) == f"{name}: got list; legal: a torch.Tensor"
    assert "got layout torch.sparse_coo" in refusal(op, build, **{name: given(op)[name].to_sparse()})


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm", "rms_norm_indexed_scale_shift"])
def test_a_weight_of_another_dtype_is_refused(op: str, build: Builder) -> None:
    message = refusal(op, build, weight=torch.ones(32))
    assert message == "weight: got dtype float32; legal: bfloat16, that of x"


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf"), None, "1e-6", 1j])
def test_an_eps_that_is_no_number_of_at_least_zero_is_refused(eps: Any, build: Builder) -> None:
    assert refusal("rms_norm", build, eps=eps) == f"eps: got {eps!r}; legal: a finite number, zero or more"


def test_a_row_without_elements_is_refused(build: Builder) -> None:
    assert "at least one element" in refusal("rms_norm", build, x=torch.ones(3, 0, dtype=BF16))


def test_an_index_out_of_range_is_refused_with_its_row(build: Builder) -> None:
    for wrong in (3, -1):
        indices = torch.tensor([0, 1, 2, wrong, 1, 2])
        message = refusal("indexed_gate", build, indices=indices)
        assert message == f"indices: got {wrong} in row 3; legal: 0 to 2, rows of gate"
    empty = torch.ones(0, 32, dtype=BF16)
    assert "got 0 in row 0" in refusal("indexed_gate", build, gate=empty)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float32])
def test_indices_of_another_dtype_are_refused(dtype: torch.dtype, build: Builder) -> None:
    message = refusal("indexed_gate", build, indices=torch.zeros(6, dtype=dtype))
    assert message.endswith("legal: int32 or int64")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_table": torch.ones(5, 24, dtype=BF16)}, r"rope_table: got shape [5, 24]; legal: [6, rotary_dim]"),
        ({"rope_table": torch.ones(6, 23, dtype=BF16)}, "rope_table: got 23 columns; legal: an even number from 2 to"),
        ({"rope_table": torch.ones(6, 34, dtype=BF16)}, "rope_table: got 34 columns; legal: an even number from 2 to"),
        ({"rope_table": torch.ones(6, 0, dtype=BF16)}, "rope_table: got 0 columns"),
        ({"rope_table": torch.ones(6, 24).half()}, "rope_table: got dtype float16; legal: bfloat16 or float32"),
        ({"rotary_dim": 32}, "rotary_dim: got 32; legal: 24, the columns of rope_table"),
        ({"interleaved": None}, "interleaved: got None; legal: True or False"),
        ({"interleaved": "half"}, "interleaved: got 'half'; legal: True or False"),
        ({"head_dim": -32}, "head_dim: got -32; legal: the elements of a head, 1 to 256"),
        ({"head_dim": 64}, "q: got shape [6, 2, 32]; legal: "),
        ({"k": torch.ones(5, 2, 32, dtype=BF16)}, "k: got shape [5, 2, 32]; legal: [6, 2, 32], which follows from q"),
        ({"q": torch.ones(6, 64, dtype=BF16)}, "q: got shape [6, 64]; legal: "),
        ({"q_weight": torch.ones(64, dtype=BF16)}, "q_weight: got shape [64]; legal: [32]"),
    ],
)
def test_what_does_not_fit_the_heads_is_refused(changes: dict[str, Any], words: str, build: Builder) -> None:
    assert words in refusal("fused_qk_norm_rope", build, **changes)


def test_heads_that_no_kernel_holds_are_refused(build: Builder) -> None:
    q = torch.ones(6, 2, 512, dtype=BF16)
    message = refusal("fused_qk_norm_rope", build, q=q, k=q, q_weight=None, k_weight=None)
    assert message == "q: got heads of 512 elements; legal: at most 256"


def test_a_batch_takes_a_table_for_each_token_shared_or_not(build: Builder) -> None:
    q = torch.ones(2, 6, 2, 32, dtype=BF16)
    message = refusal("fused_qk_norm_rope", build, q=q, k=q, rope_table=torch.ones(7, 24, dtype=BF16))
    assert "legal: [6, rotary_dim] or [12, rotary_dim] or [2, 6, rotary_dim]" in message


def test_the_order_of_the_streams_is_a_yes_or_no(build: Builder) -> None:
    message = refusal("fused_joint_qkv_norm_rope", build, image_first="text")
    assert message == "image_first: got 'text'; legal: True or False"


@pytest.mark.parametrize("name", ["text_k", "text_v", "image_q", "image_k", "image_v"])
def test_streams_that_do_not_belong_together_are_refused(name: str, build: Builder) -> None:
    message = refusal("fused_joint_qkv_norm_rope", build, **{name: torch.ones(2, 3, 2, 32, dtype=BF16)})
    assert "got shape [2, 3, 2, 32]; legal: [1, 3, 2, 32]" in message


@pytest.mark.parametrize("op", OPS)
def test_no_tokens_are_validated_like_any_other(op: str, build: Builder) -> None:
    arguments = given(op)
    rows = {"fused_qk_norm_rope": ("q", "k", "rope_table"), "fused_joint_qkv_norm_rope": ()}
    named = rows.get(op, ("x", "residual", "branch", "other", "indices"))
    empty = {name: arguments[name][:0] for name in named if name in arguments}
    if op == "fused_joint_qkv_norm_rope":
        empty = {
            name: value[:, :0] for name, value in arguments.items() if isinstance(value, Tensor) and value.ndim == 4
        }
        empty["rope_table"] = arguments["rope_table"][:0]
    getattr(ops, op)(**{**arguments, **empty}, numerics=build())
    wrong = next(name for name in reversed(arguments) if isinstance(arguments[name], Tensor) and name not in empty)
    assert "complex64" in refusal(op, build, **{**empty, wrong: arguments[wrong].to(torch.complex64)})
