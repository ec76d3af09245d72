"""How far one latent is from another: bits, units in the last place, bias, PSNR and SSIM."""

import math
from typing import Any, Final

import torch
from torch import Tensor

from numerics.measure.arms import INTEGERS, differing

# Of SSIM, as its authors chose them: Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Processing 13(4), 2004.
WINDOW: Final = 11
WINDOW_SIGMA: Final = 1.5
K1, K2 = 0.01, 0.03


def compared(found: Tensor, reference: Tensor, image: tuple[Tensor, Tensor] | None = None) -> dict[str, Any]:
    """All of them, as JSON values; numbers that JSON does not know are text.

    found, reference: of one shape and floating-point dtype. image: both as [channels, height, width], if they are one.
    """
    return {
        "psnr_db": json_number(psnr(found, reference)),
        "max_abs": json_number(max_abs(found, reference)),
        "max_ulp": max_ulp(found, reference),
        "elements_differing": differing((found,), (reference,)),
        "elements": reference.numel(),
        "bias": json_number(bias(found, reference)),
        "ssim": None if image is None else json_number(ssim(*image)),
    }


def psnr(found: Tensor, reference: Tensor) -> float:
    """Peak signal-to-noise ratio in dB. The peak is the range of the reference, since a latent has no other.

    Infinite where the values are equal, even if signed zeros are not.
    """
    error = (found.double() - reference.double()).square().mean().item()
    if error == 0:
        return math.inf
    peak = value_range(reference)
    return 10 * math.log10(peak * peak / error) if peak > 0 and math.isfinite(error) else math.nan


def max_abs(found: Tensor, reference: Tensor) -> float:
    """The largest absolute difference."""
    return (found.double() - reference.double()).abs().max().item()


def bias(found: Tensor, reference: Tensor) -> float:
    """The mean difference, with its sign."""
    return (found.double() - reference.double()).mean().item()


def max_ulp(found: Tensor, reference: Tensor) -> int:
    """How many representable numbers the farthest two elements are apart; 0.0 and -0.0 are not."""
    return int((places(found) - places(reference)).abs().max())


def ssim(found: Tensor, reference: Tensor) -> float | None:
    """Structural similarity of [channels, height, width], the mean of its map over channels and whole windows.

    Windows are Gaussian, 11 x 11 with a standard deviation of 1.5 (Wang et al., 2004, equation 13), and the range of
    values is that of the reference. None where an image is smaller than a window.
    """
    if min(reference.shape[-2:]) < WINDOW:
        return None
    x, y = found.double(), reference.double()
    span = value_range(reference)
    c1, c2 = (K1 * span) ** 2, (K2 * span) ** 2
    mean_x, mean_y = _windowed(x), _windowed(y)
    var_x = _windowed(x * x) - mean_x * mean_x
    var_y = _windowed(y * y) - mean_y * mean_y
    covariance = _windowed(x * y) - mean_x * mean_y
    similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return (similarity / ((mean_x * mean_x + mean_y * mean_y + c1) * (var_x + var_y + c2))).mean().item()


def value_range(x: Tensor) -> float:
    """From the smallest to the largest value."""
    low, high = x.double().aminmax()
    return (high - low).item()


def json_number(value: float | None) -> float | str | None:
    """JSON has no word for infinities and NaN."""
    return value if value is None or math.isfinite(value) else str(value)


def _windowed(x: Tensor) -> Tensor:
    """The weighted mean of every whole window: [channels, height, width] -> [channels, height - 10, width - 10]."""
    return _band(x.shape[-2], x) @ x @ _band(x.shape[-1], x).T


def _band(size: int, like: Tensor) -> Tensor:
    """[size - 10, size]: in each row the weights of one whole window."""
    distance = torch.arange(WINDOW, dtype=like.dtype, device=like.device) - WINDOW // 2
    weights = torch.exp(-(distance**2) / (2 * WINDOW_SIGMA**2))
    windows = size - WINDOW + 1
    columns = torch.arange(windows, device=like.device)[:, None] + torch.arange(WINDOW, device=like.device)
    return like.new_zeros(windows, size).scatter_(1, columns, (weights / weights.sum()).expand(windows, -1))


def places(x: Tensor) -> Tensor:
    """int64: integers that count representable numbers: bits of a positive one, and mirrored those of its negative."""
    bits = x.contiguous().view(INTEGERS[x.element_size()]).long()
    magnitude = bits & ((1 << (8 * x.element_size() - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)
