"""What a norm may compute, and rows on which no two of these possibilities give the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

import torch
from torch import Tensor

from numerics.measure.arms import INTEGERS
from numerics.ops.arithmetic import divide, multiply, rsqrt

Mean = Literal["divide", "multiply"]
Rsqrt = Literal["approximate", "1/sqrt", "cpu"]

CANDIDATES: Final = 128  # rows from which one is chosen
SPREAD: Final = 12  # binary orders of magnitude between the largest and the usual elements
BISECTIONS: Final = 28
ROUNDINGS: Final = {
    "one": "rounded once, after the weight",
    "two": "rounded before the weight and after it (point `normalized`)",
    "weight_first": "x * (rstd * weight), which no preset offers",
    "rstd": "rstd rounded before it is used, which no preset offers",
    "mean": "the mean rounded before it is used, which no preset offers",
    "none_after_weight": "rounded before the weight, the product cut off instead of rounded, which no preset offers",
}
OFFERED: Final = ("one", "two")
RSQRTS: Final = {
    "approximate": "the GPU's approximation, as every preset has it",
    "1/sqrt": "1 / sqrt, each correctly rounded",
    "cpu": "torch.rsqrt on this CPU",
}


@dataclass(frozen=True)
class Possibility:
    """One way to compute a norm: a class of orders, how the sum becomes rstd, and where it is rounded."""

    order: str  # the name of the class
    mean: Mean
    rsqrt: Rsqrt
    rounding: str

    def __str__(self) -> str:
        return f"{self.order}, mean: {self.mean}, rsqrt: {self.rsqrt}, rounding: {self.rounding}"


RECIPROCALS: Final[Mapping[Rsqrt, Callable[[Tensor], Tensor]]] = {
    "approximate": rsqrt,
    "1/sqrt": lambda x: 1.0 / x.sqrt(),
    "cpu": torch.rsqrt,
}


def possibilities(orders: Sequence[str], width: int, dtype: torch.dtype, device: torch.device) -> list[Possibility]:
    """All of them. By a power of two, division and multiplication are one, and so are roundings to float32."""
    means: tuple[Mean, ...] = ("divide",) if width & (width - 1) == 0 else ("divide", "multiply")
    kinds: tuple[Rsqrt, ...] = ("approximate", "1/sqrt", "cpu") if device.type == "cpu" else ("approximate", "1/sqrt")
    roundings = ("one", "weight_first") if dtype == torch.float32 else tuple(ROUNDINGS)
    every = [Possibility(*each) for each in product(orders, means, kinds, roundings)]
    every = [each for each in every if each.rounding in OFFERED or each.rsqrt == "approximate"]
    # A mean of 16 bits hides the order and the division: one of each stands for all.
    return [each for each in every if each.rounding != "mean" or (each.order, each.mean) == (orders[0], means[0])]


def output(
    x: Tensor,  # [rows, N]; N need not be the width of the rows that were added up
    weight: Tensor,  # [N]
    eps: Tensor | float,  # [rows] float32
    mean: Tensor,  # [rows] float32
    how: Possibility,
) -> Tensor:  # [rows, N]
    """What a possibility returns."""
    x32, w32 = x.float(), weight.float()
    if how.rounding == "mean":
        mean = mean.to(x.dtype).float()
    argument = mean + eps
    rstd = RECIPROCALS[how.rsqrt](argument)[:, None]
    if how.rounding == "rstd":
        rstd = rstd.to(x.dtype).float()
    if how.rounding == "weight_first":
        return (x32 * (rstd * w32)).to(x.dtype)
    y = x32 * rstd
    if how.rounding in {"two", "none_after_weight"}:
        y = y.to(x.dtype).float()
    y = y * w32
    return _cut(y, x.dtype) if how.rounding == "none_after_weight" else y.to(x.dtype)


def means(asked: Sequence[Possibility], sums: Mapping[str, Tensor], width: int) -> dict[tuple[str, Mean], Tensor]:
    """The mean of each row for each class of orders and kind of mean."""
    by = {"divide": divide, "multiply": multiply}
    return {key: by[key[1]](sums[key[0]], width) for key in dict.fromkeys((each.order, each.mean) for each in asked)}


def _cut(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Towards zero."""
    near = y.to(dtype)
    beyond = near.float().abs() > y.abs()
    bits = near.view(INTEGERS[near.element_size()])
    return torch.where(beyond, bits - 1, bits).view(dtype)


def made_rows(number: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """[number, N]: half of them Gaussian, half with a few large elements beside which small ones are lost or not.

    Which of the small squares are lost depends on the order, so that its sums are many ulps apart.
    """
    device = generator.device
    x = torch.randn(number, width, generator=generator, device=device)
    large = torch.rand(number, width, generator=generator, device=device) < 4 / width
    large[::2] = False
    spread = 2.0**SPREAD * (0.5 + torch.rand(number, width, generator=generator, device=device))
    x *= torch.where(large, spread, 1.0)
    # The element that is read is positive and of usual size.
    x[:, 0] = 0.5 + torch.rand(number, generator=generator, device=device)
    return x.to(dtype)


def made_weight(width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """[N], all mantissas alike."""
    return (0.5 + 1.5 * torch.rand(width, generator=generator, device=generator.device)).to(dtype)


# --- Search -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probes:
    """Rows, each with an eps of its own, that tell possibilities apart; and the groups that none of them does."""

    x: Tensor  # [probes, N]
    eps: Tensor  # [probes] float32
    alike: tuple[tuple[Possibility, ...], ...]


def search(
    asked: Sequence[Possibility],
    weight: Tensor,  # [N]
    sums_of: Callable[[Tensor], Mapping[str, Tensor]],  # [rows, N] float32 -> [rows] for each class of orders
    generator: torch.Generator,
    attempts: int,
) -> Probes:
    """Rows and eps such that every pair of possibilities differs in the first element of one, or so many attempts.

    Means that are one ulp apart hardly ever change a 16-bit output. So eps is set, for one possibility of those still
    alike, to the last number before its output changes, or to the next: another mean then is on the other side.
    """
    groups = [list(range(len(asked)))]
    rows, eps_of_rows = [], []
    for _ in range(attempts):
        if not (waiting := [group for group in groups if len(group) > 1]):
            break
        x = made_rows(CANDIDATES, weight.numel(), weight.dtype, generator).to(weight.device)
        of = means(asked, sums_of(x.float()), weight.numel())
        head = x[:, :1], weight[:1]
        groups = [group for group in groups if len(group) == 1]
        for group in waiting:
            first = asked[group[0]]
            for eps in _edges(*head, of[first.order, first.mean], first):
                outs = [output(*head, eps, of[asked[i].order, asked[i].mean], asked[i])[:, 0].float() for i in group]
                differs = (torch.stack(outs) != outs[0]).sum(0)
                row = int((differs * (len(group) - differs)).argmax())  # the most even parts
                if differs[row]:
                    break
            else:
                groups.append(group[1:] + group[:1])  # another is the first next time
                continue
            rows.append(x[row])
            eps_of_rows.append(eps[row])
            parts: dict[float, list[int]] = {}
            for member, out in zip(group, outs, strict=True):
                parts.setdefault(float(out[row]), []).append(member)
            groups += parts.values()
    alike = tuple(tuple(asked[i] for i in sorted(group)) for group in groups if len(group) > 1)
    return Probes(torch.stack(rows), torch.stack(eps_of_rows), alike)


def _edges(x: Tensor, weight: Tensor, mean: Tensor, how: Possibility) -> tuple[Tensor, Tensor]:
    """For each row two neighbouring eps between which the output of a possibility changes."""
    low, high = mean * 1e-3, mean * 0.75
    last = output(x, weight, high, mean, how)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_last = (output(x, weight, middle, mean, how) == last)[:, 0]
        low, high = torch.where(is_last, low, middle), torch.where(is_last, middle, high)
    return low, high
