"""Numerics for tests of ops, and exact float32 arithmetic in Python to compare with."""

import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from numerics.presets.file import load
from numerics.presets.schema import Numerics, Reduction

WARP_FOLD: Final = Reduction(vector="gcd8", threads="row/vector", lanes="adjacent", mean="divide")

Builder = Callable[..., Numerics]


@pytest.fixture(scope="session")
def build() -> Builder:
    """Numerics with some knobs given: by default any width, no rounding points, no contraction."""

    def builder(*points: str, reduction: Reduction | str = WARP_FOLD, **knobs: Any) -> Numerics:
        given = {"rms_norm_reduction": reduction, "enable_fp_fusion": False, "rounding_points": points, **knobs}
        return Numerics.model_validate(given)

    return builder


@pytest.fixture(scope="session")
def preset() -> Callable[[str], Numerics]:
    """The numerics of a packaged preset."""

    def by_name(name: str) -> Numerics:
        catalog = load()
        return catalog.presets[name].numerics(catalog.reductions)

    return by_name


@pytest.fixture(scope="session")
def same_bits() -> Callable[[Tensor, Tensor], bool]:
    """Whether two tensors have the same shape, dtype and bits, NaN payloads and signs of zero included."""

    def same(a: Tensor, b: Tensor) -> bool:
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return a.dtype == b.dtype and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))

    return same


@pytest.fixture(scope="session")
def nearest() -> Callable[[Fraction], float]:
    """The float32 nearest to a fraction, ties to even: the definition, without any float arithmetic."""

    def to_float32(value: Fraction) -> float:
        if value == 0:
            return 0.0
        size = abs(value)
        exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -126)
        while size >= Fraction(2) ** (exponent + 1):
            exponent += 1
        ulp = Fraction(2) ** (exponent - 23)
        quotient, rest = divmod(size, ulp)
        if 2 * rest > ulp or (2 * rest == ulp and quotient % 2):
            quotient += 1
        rounded = float(quotient * ulp)
        if rounded > struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]:
            rounded = float("inf")
        return rounded if value > 0 else -rounded

    return to_float32
