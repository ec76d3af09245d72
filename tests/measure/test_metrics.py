"""Metrics against values worked out by hand."""

import json
import math

import pytest
import torch

from numerics.measure.metrics import WINDOW, bias, compared, json_number, max_abs, max_ulp, psnr, ssim

RAMP = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.bfloat16)  # of range 4


def test_equal_latents_have_an_infinite_psnr_and_nothing_else() -> None:
    found = compared(RAMP, RAMP.clone(), (_image(), _image()))
    assert found == {
        "psnr_db": "inf",
        "max_abs": 0.0,
        "max_ulp": 0,
        "elements_differing": 0,
        "elements": 4,
        "bias": 0.0,
        "ssim": pytest.approx(1.0, abs=1e-12),  # a quotient of two sums that are rounded apart
    }
    json.loads(json.dumps(found, allow_nan=False))


def test_psnr_is_the_range_of_the_reference_over_the_error() -> None:
    found = RAMP + torch.tensor([0.0, 0.0, 0.0, 2.0], dtype=torch.bfloat16)  # mean square 1, and a range of its own
    assert psnr(found, RAMP) == pytest.approx(10 * math.log10(16))
    assert psnr(RAMP, found) == pytest.approx(10 * math.log10(36))


def test_the_sign_of_the_bias_says_who_is_larger() -> None:
    lower = RAMP - torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.bfloat16)
    assert bias(lower, RAMP) == -0.5
    assert bias(RAMP, lower) == 0.5
    assert max_abs(lower, RAMP) == 1.0


def test_signed_zeros_differ_in_bits_alone() -> None:
    found = compared(torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert (found["elements_differing"], found["psnr_db"], found["max_abs"], found["ssim"]) == (1, "inf", 0.0, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_ulps_are_counted_across_binades_and_zero(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0], dtype=dtype)
    step = torch.finfo(dtype).eps
    above, below = (one + step).to(dtype), (one.double() - step / 2).to(dtype)
    assert max_ulp(above, below) == max_ulp(below, above) == 2
    smallest = torch.tensor([torch.finfo(dtype).smallest_normal * step], dtype=torch.float64).to(dtype)
    assert max_ulp(smallest, -smallest) == 2


def test_ulps_and_differences_are_the_largest_of_all_elements() -> None:
    found = torch.tensor([1.0, 256.0, 2.0], dtype=torch.bfloat16)
    reference = torch.tensor([1.0 + 3 / 128, 258.0, 2.0], dtype=torch.bfloat16)
    assert max_ulp(found, reference) == 3
    assert max_abs(found, reference) == 2.0


def test_what_is_not_finite_is_text() -> None:
    broken = torch.tensor([math.nan, 1.0, 2.0, 4.0], dtype=torch.bfloat16)
    found = compared(broken, RAMP)
    assert (found["psnr_db"], found["max_abs"], found["elements_differing"]) == ("nan", "nan", 1)
    assert json_number(math.inf) == "inf"
    assert json_number(None) is None


# --- SSIM -------------------------------------------------------------------------------------------------------------


def _image(channels: int = 2, size: int = 17) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(channels, size + 1, size, generator=generator, dtype=torch.float64)


def _ssim_by_hand(x: torch.Tensor, y: torch.Tensor) -> float:
    """Window by window, as the paper writes it."""
    at = torch.arange(WINDOW, dtype=torch.float64) - 5
    line = torch.exp(-(at**2) / (2 * 1.5**2))
    weights = torch.outer(line, line) / line.sum() ** 2
    span = float(y.max() - y.min())
    values = []
    for channel in range(len(x)):
        for row in range(x.shape[1] - 10):
            for column in range(x.shape[2] - 10):
                a, b = (image[channel, row : row + 11, column : column + 11] for image in (x, y))
                mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
                var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
                covariance = (weights * (a - mean_a) * (b - mean_b)).sum()
                c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
                top = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
                values.append(float(top / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))))
    return sum(values) / len(values)


def test_ssim_is_the_mean_over_whole_windows() -> None:
    reference = _image()
    found = 0.8 * reference + 0.3 * reference.flip(1) + 0.1
    # Both compute in float64; variances as a difference of moments lose a few bits.
    assert ssim(found, reference) == pytest.approx(_ssim_by_hand(found, reference), abs=1e-12)
    assert ssim(reference, reference) == pytest.approx(1.0, abs=1e-12)


def test_an_image_below_one_window_has_no_ssim() -> None:
    assert ssim(_image(size=11), _image(size=11)) is not None
    assert ssim(_image(size=10), _image(size=10)) is None
