"""Which declared order, mean and rounding a norm computes with, at some widths and numbers of rows."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from numerics.measure.arms import INTEGERS, differing
from numerics.measure.identify_callables import Subject
from numerics.measure.identify_declared import Class, classes, preset_table, reduction_table, sums, with_mean
from numerics.measure.identify_probe import Probe, ProbeError, reconstruct
from numerics.measure.identify_rows import (
    OFFERED,
    ROUNDINGS,
    Possibility,
    Probes,
    made_rows,
    made_weight,
    means,
    output,
    possibilities,
    search,
)
from numerics.measure.identify_trees import Tree, declared_as
from numerics.presets.file import Catalog

ATTEMPTS: Final = 16  # of the search for probes
FIRST_PROBES: Final = 16  # leave few possibilities
ORDINARY_EPS: Final = (1e-6, 1e-5)
ORDINARY_CALLS: Final = 4
CALLS: Final = 30_000  # of a reconstruction
SHOWN_ROWS: Final = 8
OWN: Final = "reconstructed"  # the name of an order that was found by asking


@dataclass
class Cell:
    """What was seen at one width and number of rows. `reproduced`: every byte is that of `computes`."""

    width: int
    rows: int
    computes: Possibility | None = None
    reductions: list[str] = field(default_factory=list)  # declared, with this mean
    also: list[str] = field(default_factory=list)  # possibilities that no probe told from it
    sees: list[str] = field(default_factory=list)  # in words: faults, and what is not offered
    tree: str | None = None  # where it is not declared
    toml: str | None = None
    probes: int = 0
    elements: int = 0  # compared
    observed: Tensor | None = field(default=None, repr=False)  # [probes, N]

    @property
    def identified(self) -> bool:
        """Whether something declared reproduces every byte."""
        return bool(self.reductions) and not self.sees

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        names = ("width", "rows", "identified", "reductions", "also", "sees", "tree", "toml", "probes", "elements")
        computes = None if self.computes is None else asdict(self.computes)
        return {**{name: getattr(self, name) for name in names}, "computes": computes}


@dataclass(frozen=True)
class Asked:
    """The question: where, in which dtype, on which device."""

    subject: Subject
    catalog: Catalog
    dtype: torch.dtype
    device: torch.device
    seed: int


@dataclass(frozen=True)
class _Width:
    """What is the same for every number of rows: weights, what may be, and rows that tell it apart."""

    weight: Tensor
    known: dict[str, Class]
    asked: list[Possibility]
    probes: Probes


def identified(question: Asked, width: int, rows: Sequence[int], progress: Callable[[str], None]) -> list[Cell]:
    """A cell for each number of rows."""
    progress(f"width {width}: searching for rows that tell orders apart")
    generator = torch.Generator().manual_seed(question.seed)
    weight = made_weight(width, question.dtype, generator).to(question.device)
    known = classes(question.catalog, width, rows, question.dtype)
    asked = possibilities(list(known), width, question.dtype, question.device) if known else []
    at = _Width(weight, known, asked, search(asked, weight, partial(sums, known=known), generator, ATTEMPTS))
    cells = []
    for number in rows:
        progress(f"width {width}, {number} rows")
        cells.append(_cell(question, at, number, generator, progress))
    return cells


def _cell(question: Asked, at: _Width, rows: int, generator: torch.Generator, progress: Callable[[str], None]) -> Cell:
    cell = Cell(at.weight.numel(), rows)
    cell.sees += _unsteady(question, at.weight, rows, generator)
    if cell.sees:
        return cell
    cell.observed, odd = _observed(question.subject, at, rows)
    cell.probes, cell.elements = len(cell.observed), cell.observed.numel() * rows
    if odd:
        cell.sees.append(f"{_rows(odd, rows)}: other bytes than the other rows of a call, with the same input")
        return cell
    matching = _matching(at.probes, at.weight, cell.observed, at.asked, lambda x: sums(x, at.known))
    if not matching:
        progress(f"width {cell.width}, {rows} rows: nothing declared; reconstructing the tree of additions")
        _reconstruct(question, at, cell, generator)
        return cell
    cell.computes = matching[0]
    cell.also = [str(each) for each in matching[1:]]
    found = at.known[cell.computes.order]
    cell.reductions = found.declared(question.catalog, cell.computes.mean, rows)
    _describe(question, cell, found)
    cell.sees += _ordinary(question, at.weight, rows, cell, lambda x: sums(x, {found.name: found}), generator)
    return cell


def _describe(question: Asked, cell: Cell, found: Class) -> None:
    """Say what no declared reduction offers, and what to paste."""
    how = cell.computes
    assert how is not None
    cell.sees += _not_offered(how, question.device)
    if not cell.reductions:
        elsewhere = found.declared(question.catalog, how.mean)
        if elsewhere:
            cell.sees.append(f"the order that {', '.join(elsewhere)} has at another number of rows")
        else:
            named = next(iter(found.reductions.values()))[0]
            cell.sees.append(f"the order of {named}, but the mean by {how.mean}: no declared reduction has both")
            fields = with_mean(question.catalog, named, how.mean)
            if how.rounding in OFFERED:
                cell.toml = _pasted(fields, how.rounding, question.subject.name)
    elif how.rounding in OFFERED:
        cell.toml = preset_table(cell.reductions[0], how.rounding, question.subject.name)


def _pasted(fields: dict[str, Any], rounding: str, subject: str) -> str:
    return reduction_table(fields, subject) + "\n\n" + preset_table("identified", rounding, subject)


def _not_offered(how: Possibility, device: torch.device) -> list[str]:
    found = [] if how.rounding in OFFERED else [ROUNDINGS[how.rounding]]
    if how.rsqrt == "1/sqrt" and device.type != "cpu":
        found.append("1 / sqrt, correctly rounded each, instead of the GPU's rsqrt, which no preset offers")
    return found


# --- What no possibility explains -------------------------------------------------------------------------------------


def _unsteady(question: Asked, weight: Tensor, rows: int, generator: torch.Generator) -> list[str]:
    """Does the same call return the same, and another call something else?"""
    x, other = (_ordinary_rows(question, weight, rows, generator) for _ in range(2))
    first, again = (question.subject(x, weight, ORDINARY_EPS[0]) for _ in range(2))
    seen = []
    if unlike := _unlike_rows(first, again):
        count = f"{differing((first,), (again,))} of {first.numel()} elements"
        seen.append(f"the same call twice differs in {count}: {_rows(unlike, rows)}")
    changed = _unlike_rows(again, question.subject(other, weight, ORDINARY_EPS[0]))
    if stale := sorted({*range(rows)} - {*changed}):
        what = "a stale output" if len(stale) == rows else "stale or dropped"
        seen.append(f"{_rows(stale, rows)}: the same bytes for other inputs, {what}")
    return seen


def _ordinary(
    question: Asked,
    weight: Tensor,
    rows: int,
    cell: Cell,
    sums_of: Callable[[Tensor], dict[str, Tensor]],
    generator: torch.Generator,
) -> list[str]:
    """Whole calls of ordinary rows, every byte of them."""
    how = cell.computes
    assert how is not None
    wrong: dict[int, None] = {}
    count = 0
    for call in range(ORDINARY_CALLS):
        x, eps = _ordinary_rows(question, weight, rows, generator), ORDINARY_EPS[call % len(ORDINARY_EPS)]
        mean = means([how], sums_of(x.float()), weight.numel())[how.order, how.mean]
        expected, got = output(x, weight, eps, mean, how), question.subject(x, weight, eps)
        wrong |= dict.fromkeys(_unlike_rows(expected, got))
        count += differing((expected,), (got,))
        cell.elements += got.numel()
    if not wrong:
        return []
    return [f"{count} elements of ordinary calls differ from it: {_rows(sorted(wrong), rows)}"]


def _ordinary_rows(question: Asked, weight: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    return made_rows(rows, weight.numel(), question.dtype, generator).to(question.device)


def _unlike_rows(a: Tensor, b: Tensor) -> list[int]:
    integers = INTEGERS[a.element_size()]
    unlike = (a.view(integers) != b.view(integers)).any(-1)
    return [int(row) for row in unlike.nonzero()[:, 0]]


def _rows(numbers: Sequence[int], rows: int) -> str:
    more = f" and {len(numbers) - SHOWN_ROWS} more" if len(numbers) > SHOWN_ROWS else ""
    return f"row {', '.join(map(str, numbers[:SHOWN_ROWS]))}{more} of {rows}"


# --- Probes -----------------------------------------------------------------------------------------------------------


def _observed(subject: Subject, at: _Width, rows: int) -> tuple[Tensor, list[int]]:
    """What a call returns whose rows are all one probe, as most rows have it; and the rows that differ."""
    observed, odd = [], set[int]()
    for x, eps in zip(at.probes.x, at.probes.eps.tolist(), strict=True):
        out = subject(x.expand(rows, -1).contiguous(), at.weight, eps)
        bits = out.view(INTEGERS[out.element_size()])
        alike = bool((bits == bits[0]).all())
        usual = bits[0] if alike else bits.mode(0).values  # element by element, the most frequent
        odd |= {int(row) for row in (bits != usual).any(-1).nonzero()[:, 0]}
        observed.append(usual.view(out.dtype))
    return torch.stack(observed) if observed else at.weight.new_empty(0, at.weight.numel()), sorted(odd)


def _matching(
    probes: Probes,
    weight: Tensor,
    observed: Tensor,
    asked: Sequence[Possibility],
    sums_of: Callable[[Tensor], dict[str, Tensor]],
) -> list[Possibility]:
    """The possibilities that return what was observed, byte for byte."""
    left = list(asked)
    for part in (slice(0, FIRST_PROBES), slice(FIRST_PROBES, None)):
        x, eps, seen = probes.x[part], probes.eps[part], observed[part]
        if not left or not len(x):
            continue
        of = means(left, sums_of(x.float()), weight.numel())
        left = [how for how in left if not differing((output(x, weight, eps, of[how.order, how.mean], how),), (seen,))]
    return left


def _reconstruct(question: Asked, at: _Width, cell: Cell, generator: torch.Generator) -> None:
    """Find the tree by asking, and then mean and rounding as for a declared one."""
    probe = Probe(question.subject, cell.width, cell.rows, question.dtype, question.device, CALLS)
    try:
        tree = reconstruct(probe, question.seed)
    except ProbeError as error:
        cell.sees.append(f"none of the declared orders; the tree of additions cannot be reconstructed: {error}")
        return
    cell.tree = str(tree)
    asked = possibilities([OWN], cell.width, question.dtype, question.device)

    def sums_of(x: Tensor) -> dict[str, Tensor]:
        return {OWN: tree.add_squares(x)}

    probes = search(asked, at.weight, sums_of, generator, ATTEMPTS)
    own = _Width(at.weight, {}, asked, probes)
    observed, _ = _observed(question.subject, own, cell.rows)
    matching = _matching(probes, at.weight, observed, asked, sums_of)
    cell.probes += len(observed)
    if not matching:
        cell.sees.append(
            "none of the declared orders; the tree was reconstructed, but no known mean and rounding fit it"
        )
        return
    cell.computes, cell.also = matching[0], [str(each) for each in matching[1:]]
    cell.sees += [_named(at, tree), *_not_offered(cell.computes, question.device)]
    cell.sees += _ordinary(question, at.weight, cell.rows, cell, sums_of, generator)
    fields = declared_as(tree, cell.computes.mean)
    if fields is None:
        cell.sees.append("the fields of a reduction cannot say this tree")
    elif cell.computes.rounding in OFFERED:
        cell.toml = _pasted({**fields, "rows": cell.rows}, cell.computes.rounding, question.subject.name)


def _named(at: _Width, tree: Tree) -> str:
    same = [name for name, each in at.known.items() if Tree.of(each.order).key == tree.key]
    if same:  # possible only where the rest is computed in a way that was not among the possibilities
        return f"the order of {same[0]}, but something else is not declared"
    return "none of the declared orders; the tree was reconstructed and reproduces every byte"
