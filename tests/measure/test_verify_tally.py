"""How differences are counted: bits, distances, direction and place."""

import torch

from numerics.measure.verify_tally import Tally


def tally(computed: torch.Tensor, expected: torch.Tensor, *copied: str) -> Tally:
    found = Tally()
    found.compare({"out": computed}, {"out": expected}, copied)
    return found


def test_equal_bytes_differ_nowhere() -> None:
    x = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1.5], dtype=torch.bfloat16)
    found = tally(x.clone(), x)
    assert (found.elements, found.differing, found.max_ulp, found.bias_ulp, found.first) == (5, 0, 0, 0.0, None)


def test_zeros_of_different_sign_differ_by_no_ulp() -> None:
    found = tally(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -0.0]]))
    assert (found.differing, found.max_ulp) == (1, 0)
    assert found.first == {"output": "out", "index": [0, 1], "reference": -0.0, "computed": 0.0}


def test_computed_nan_are_equal_and_copied_ones_by_their_bits() -> None:
    one, other = (torch.tensor([bits], dtype=torch.int16).view(torch.bfloat16) for bits in (0x7FC0, 0x7FC1))
    assert tally(one, other).differing == 0
    assert tally(one, other, "out").differing == 1


def test_nan_on_one_side_has_no_distance() -> None:
    found = tally(torch.tensor([torch.nan, 1.0]), torch.tensor([2.0, 1.0]))
    assert (found.differing, found.one_sided_nan, found.max_ulp) == (1, 1, 0)


def test_numbers_that_are_cut_off_have_a_bias_towards_zero_whatever_their_sign() -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    cut = (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    found = tally(cut, x.bfloat16())
    assert found.max_ulp == 1
    assert abs(float((cut.double() - x.bfloat16().double()).mean())) < 1e-4  # the mean of values does not see it
    assert -0.6 < found.bias_ulp < -0.4


def test_a_change_of_sign_is_far_and_no_bias() -> None:
    found = tally(torch.tensor([1.0, -2.0]), torch.tensor([-1.0, -2.0]))
    assert (found.differing, found.bias_ulp) == (1, 0.0)
    assert found.max_ulp == 2 * 0x3F800000


def test_another_shape_or_dtype_differs_throughout() -> None:
    found = tally(torch.zeros(2, 2), torch.zeros(4))
    assert (found.elements, found.differing) == (4, 4)
