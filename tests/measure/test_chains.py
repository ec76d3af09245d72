"""The unfused chains, and the hand-made PyTorch one against the presets whose arithmetic it has."""

import pytest
import torch

from numerics.measure.arms import AbsentError, Arm, differing, specification
from numerics.measure.cases import Case, Heads
from numerics.measure.chains import TORCH, Chain, arguments_of
from numerics.measure.inputs import make
from numerics.presets.vocabulary import OPS
from numerics.resolve import resolve

CPU = torch.device("cpu")


@pytest.mark.parametrize("op", OPS)
def test_the_pytorch_chain_is_what_the_op_computes(tiny: dict[str, Case], op: str) -> None:
    inputs = make(tiny[op], CPU, 0)
    chain = Arm(lambda: TORCH.of(op)(**arguments_of(inputs, TORCH)))
    # On a CPU torch adds the squares of a row in another order, which moves a few elements by one rounding.
    expected = specification(inputs, resolve(op, preset="omni_native")).results()
    assert differing(chain.results(), expected) <= sum(x.numel() for x in expected) // 100
    for found, wanted in zip(chain.results(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2**-6, atol=2**-8)


def test_elements_beyond_the_rotation_are_normalized_alone() -> None:
    geometry = Heads(tokens=5, q_heads=2, k_heads=2, rotary_dim=96, interleaved=False)
    case = Case(op="fused_qk_norm_rope", geometry=geometry, presets=("fast",), exact="vllm_cuda")
    given = arguments_of(make(case, CPU, 0), TORCH)
    q, _ = TORCH.fused_qk_norm_rope(**given)
    assert torch.equal(q[..., 96:], TORCH.norm(given["q"], given["q_weight"], given["eps"])[..., 96:])


def test_a_chain_without_a_rotation_is_absent_where_one_is_needed(tiny: dict[str, Case]) -> None:
    chain = Chain(TORCH.norm, TORCH.add_norm)
    with pytest.raises(AbsentError):
        arguments_of(make(tiny["fused_qk_norm_rope"], CPU, 0), chain)
    assert "x" in arguments_of(make(tiny["rms_norm"], CPU, 0), chain)
