"""Rows on which the settings of a preset return other bytes than any other declared order, mean or rounding would."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from numerics.measure.identify_declared import Class, classes
from numerics.measure.identify_rows import (
    OFFERED,
    Mean,
    Possibility,
    made_rows,
    made_weight,
    means,
    output,
    possibilities,
)
from numerics.measure.identify_trees import Tree
from numerics.measure.inputs import EPS
from numerics.ops.arithmetic import rsqrt
from numerics.ops.reduction import row_sum
from numerics.presets.file import Catalog
from numerics.presets.order import Order
from numerics.presets.properties import scaling

ROWS: Final = (1, 2, 4, 8, 16, 256)  # numbers of rows at which a declared order may change
PER_RIVAL: Final = 2  # rows that tell one other possibility apart
MOST_ROWS: Final = 1 << 20  # candidates
NEAR: Final = 32  # float32 numbers
BITS_CUT: Final = {torch.bfloat16: 16, torch.float16: 13}
# Elements of a batch of candidates, and of all of them, by the type of device.
BATCH: Final = {"cpu": 1 << 17, "cuda": 1 << 24}
MOST: Final = {"cpu": 1 << 21, "cuda": 1 << 27}


@dataclass(frozen=True)
class Search:
    """What was found for one order, rounding and width. `not_told`: possibilities that no candidate told from it."""

    x: Tensor  # [rows, N]
    weight: Tensor  # [N]
    told: int
    not_told: tuple[str, ...]
    candidates: int


@dataclass
class _Pool:
    """Candidates of one width, and what each class of orders makes of them; made when they are asked for."""

    known: Mapping[str, Class]
    weight: Tensor
    generator: torch.Generator
    batches: list[tuple[Tensor, dict[str, Tensor]]] = field(default_factory=list)
    found: dict[Possibility, "Search"] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        device, width = self.weight.device.type, self.weight.numel()
        rows = max(1, min(BATCH[device] // width, MOST_ROWS))
        most = max(1, min(MOST[device] // width, MOST_ROWS) // rows)
        for number in range(most):
            if number == len(self.batches):
                x = made_rows(rows, width, self.weight.dtype, self.generator)
                sums = {name: row_sum(x.float(), _plain(each.order, x.dtype)) for name, each in self.known.items()}
                self.batches.append((x, sums))
            yield self.batches[number]


def telling(
    pools: Callable[[int, torch.dtype], _Pool], order: Order, points: tuple[str, ...], dtype: torch.dtype
) -> Search:
    """Rows of `order.width` elements on which every other declared order, the other mean and rounding return others.

    Orders that are one tree are one possibility. The search ends when all are told apart, or with the candidates.
    """
    pool = pools(order.width, dtype)
    own = _possibility(pool.known, order, points)
    if own not in pool.found:
        pool.found[own] = _search(pool, own)
    return pool.found[own]


def _search(pool: _Pool, own: Possibility) -> Search:
    width = pool.weight.numel()
    asked = possibilities(list(pool.known), width, pool.weight.dtype, torch.device("cuda"))
    rivals = [how for how in asked if how.rounding in OFFERED and how.rsqrt == "approximate" and _one_apart(how, own)]
    rows: list[Tensor] = []
    told = candidates = 0
    for x, sums in pool:
        if not rivals:
            break
        candidates += len(x)
        of = means([own, *rivals], sums, width)
        row, column = _near_a_tie(x, pool.weight, of[own.order, own.mean], own)
        at = x[row, column][:, None], pool.weight[column][:, None]
        mine = output(*at, EPS, of[own.order, own.mean][row], own)
        left = []
        for rival in rivals:
            theirs = output(*at, EPS, of[rival.order, rival.mean][row], rival)
            tells = row[(mine != theirs)[:, 0]][:PER_RIVAL]
            if len(tells):
                rows.append(x[tells])
                told += 1
            else:
                left.append(rival)
        rivals = left
    found = torch.cat(rows).unique(dim=0) if rows else next(iter(pool))[0][:PER_RIVAL]
    return Search(found, pool.weight, told, tuple(map(str, rivals)), candidates)


def _near_a_tie(x: Tensor, weight: Tensor, mean: Tensor, how: Possibility) -> tuple[Tensor, Tensor]:
    """Rows and columns where a float32 about to be rounded to 16 bits lies so close to a tie that another mean shows.

    Others need not be looked at: two orders make means that are few units apart.
    """
    y = x.float() * rsqrt(mean + EPS)[:, None]
    if how.rounding == "one":
        y = y * weight.float()
    cut = BITS_CUT[x.dtype]
    distance = (y.view(torch.int32) & ((1 << cut) - 1)) - (1 << (cut - 1))
    row, column = (distance.abs() <= NEAR).nonzero().unbind(1)
    return row, column


def pools(catalog: Catalog, device: torch.device, seed: int) -> Callable[[int, torch.dtype], _Pool]:
    """The candidates of a run, made once for each width and dtype."""

    @lru_cache
    def pool(width: int, dtype: torch.dtype) -> _Pool:
        generator = torch.Generator(device).manual_seed(seed + width)
        known = classes(catalog, width, ROWS, dtype)
        return _Pool(known, made_weight(width, dtype, generator), generator)

    return pool


@lru_cache(maxsize=1024)
def tree(order: Order) -> Tree:
    """The additions of an order."""
    return Tree.of(order)


def declared_norm(x: Tensor, weight: Tensor, order: Order, points: tuple[str, ...]) -> Tensor:
    """[rows, N] of 16 bits: the norm with the squares added node by node, as the declaration's tree has them."""
    how = Possibility("own", mean_of(order), "approximate", _rounding(points))
    of = means([how], {"own": tree(order).add_squares(x.float())}, order.width)
    return output(x, weight, EPS, of["own", how.mean], how)


def mean_of(order: Order) -> Mean:
    """`divide` or `multiply`; by a power of two they are one, and called so."""
    return "multiply" if scaling(order) == "multiply" else "divide"


def _possibility(known: Mapping[str, Class], order: Order, points: tuple[str, ...]) -> Possibility:
    key = tree(order).key
    name = next(each.name for each in known.values() if tree(each.order).key == key)
    return Possibility(name, mean_of(order), "approximate", _rounding(points))


def _one_apart(a: Possibility, b: Possibility) -> bool:
    return [a.order != b.order, a.mean != b.mean, a.rounding != b.rounding].count(True) == 1


def _rounding(points: tuple[str, ...]) -> str:
    return "two" if "normalized" in points else "one"


def _plain(order: Order, dtype: torch.dtype) -> Order:
    """Squares of 16-bit numbers are exact, so that contracting them into a sum, which takes long, changes nothing."""
    return order if dtype == torch.float32 else replace(order, square="product")
