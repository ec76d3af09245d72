"""Reconstructs the tree of additions of a norm that nobody declared, by asking which squares meet first.

FPRev (Xie et al., 2025, "FPRev: Revealing the Order of Floating-Point Summation") reveals a tree with a large number M
and a -M that cancel. Squares cannot be negative, so another question is asked here. Element i has the square H = 2**24,
elements j and k have a square u with u below half an ulp of H and 2u above it, the others are zero. H + u is H again,
H + 2u is the next number: the sum tells whether j and k meet before either meets i. That is the topology of three
leaves, and the topologies of all threes determine a binary tree (Aho et al., 1981).

The sum is read through the output: eps is set so that the mean of H stays just below a threshold at which the output of
element i becomes the next smaller number, and the mean of H's successor does not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Final

import torch
from torch import Tensor

from numerics.measure.identify_trees import Tree

HUGE: Final = 4096.0  # squared 2**24, whose ulp is 2
UNIT: Final = 0.875  # squared 0.77: below half an ulp, twice that above it
MORE: Final = 1.25  # squared 1.56: alone it takes H to the next number
BISECTIONS: Final = 64
ROOMS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)  # shares of the mean that eps may add
CHECKS: Final = 256

Question = tuple[int, int, int]  # i, j, k: do j and k meet before either meets i?


class ProbeError(Exception):
    """The tree cannot be reconstructed; the message says why."""


@dataclass
class Probe:
    """Answers questions about one callable at one width and number of rows, many in a call."""

    norm: Callable[[Tensor, Tensor, float], Tensor]
    width: int
    rows: int
    dtype: torch.dtype
    device: torch.device
    budget: int  # calls that may be made
    asked: int = 0  # questions
    calls: int = 0
    _eps: float = 0.0
    _weight: Tensor = field(init=False)
    _alone: list[float] = field(default_factory=list)  # what H alone reads at each position

    def __post_init__(self) -> None:
        self._weight = torch.ones(self.width, dtype=self.dtype, device=self.device)

    def calibrate(self) -> None:
        """Find the eps with which the output tells H from its successor. Raises ProbeError if there is none."""
        for room in ROOMS:
            eps = self._threshold(room * HUGE * HUGE / self.width)
            if eps is None:
                continue
            self._eps = eps
            zero, one, two = self._read([(0, {}), (0, {1: UNIT}), (0, {1: MORE})])
            if zero == one != two:
                everywhere: list[tuple[int, dict[int, float]]] = [(i, {}) for i in range(self.width)]
                self._alone = self._read(everywhere)
                return
        raise ProbeError(
            "the output does not tell a sum of 2**24 from its successor: its sums are not rounded to float32 one by "
            "one, or eps is not added to the mean"
        )

    def _threshold(self, high: float) -> float | None:
        """The largest eps up to `high` whose output for H alone is still the last but one."""

        def output(eps: float) -> float:
            self._eps = eps
            return self._read([(0, {})])[0]

        low, last = 0.0, output(high)
        if output(low) == last:
            return None
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if middle in {low, high}:
                break
            if output(middle) == last:
                high = middle
            else:
                low = middle
        return low

    def answers(self, questions: Sequence[Question]) -> list[bool]:
        """Raises ProbeError where the budget is spent."""
        self.asked += len(questions)
        self.calls += -(-len(questions) // self.rows)
        if self.calls > self.budget:
            raise ProbeError(f"it would take more than {self.budget} calls")
        read = self._read([(i, {j: UNIT, k: UNIT}) for i, j, k in questions])
        return [value != self._alone[i] for value, (i, _, _) in zip(read, questions, strict=True)]

    def _read(self, settings: Sequence[tuple[int, dict[int, float]]]) -> list[float]:
        """The output at the position of H, for each setting of the other elements."""
        read: list[float] = []
        for start in range(0, len(settings), self.rows):
            part = list(settings[start : start + self.rows])
            full = part + [part[-1]] * (self.rows - len(part))
            cells = [(row, other, value) for row, (_, others) in enumerate(full) for other, value in others.items()]
            cells += [(row, position, HUGE) for row, (position, _) in enumerate(full)]
            at_row, at_column, values = zip(*cells, strict=True)
            x = torch.zeros(self.rows, self.width)
            x[list(at_row), list(at_column)] = torch.tensor(values)
            out = self.norm(x.to(self.device, self.dtype), self._weight, self._eps).cpu()
            at = torch.tensor([position for position, _ in full])
            read += out.double().gather(1, at[:, None])[: len(part), 0].tolist()
        return read


def reconstruct(probe: Probe, seed: int) -> Tree:
    """The tree of additions, checked on questions that were not needed to find it. Raises ProbeError."""
    if probe.width < 3:
        raise ProbeError("a row of one or two elements has but one tree")
    probe.calibrate()
    tree = Tree(probe.width, tuple(_assembled(_grown(probe), probe.width)))
    _check(probe, tree, Random(seed))  # noqa: S311  # no secret
    return tree


@dataclass
class _Branch:
    """The way from an element to the root of a subtree: the other subtrees that are added on it, nearest first."""

    elements: list[int]
    groups: list[list[int]] = field(default_factory=list)
    rest: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rest = self.elements[1:]

    @property
    def pivot(self) -> int:
        return self.elements[0]


def _grown(probe: Probe) -> dict[int, _Branch]:
    """Every branch, by the element that it starts from. Those of one level are asked about together."""
    branches: dict[int, _Branch] = {}
    level = [_Branch(list(range(probe.width)))]
    while level:
        while open_ := [branch for branch in level if branch.rest]:
            _next_groups(probe, open_)
        _sort_groups(probe, level)
        branches |= {branch.pivot: branch for branch in level}
        level = [_Branch(group) for branch in level for group in branch.groups]
    return branches


def _next_groups(probe: Probe, branches: list[_Branch]) -> None:
    """In each branch: which elements are in one subtree with the first of the rest?"""
    questions = [(branch.pivot, branch.rest[0], other) for branch in branches for other in branch.rest[1:]]
    answers = iter(probe.answers(questions))
    for branch in branches:
        first, *others = branch.rest
        together = {other for other in others if next(answers)}
        branch.groups.append([first, *(other for other in others if other in together)])
        branch.rest = [other for other in others if other not in together]


def _sort_groups(probe: Probe, branches: list[_Branch]) -> None:
    """As many subtrees come before one as meet the pivot before it. Raises ProbeError if that is no sequence."""
    pairs = [list(permutations(range(len(branch.groups)), 2)) for branch in branches]
    questions = [
        (branch.groups[b][0], branch.pivot, branch.groups[a][0])
        for branch, own in zip(branches, pairs, strict=True)
        for a, b in own
    ]
    answers = iter(probe.answers(questions))
    for branch, own in zip(branches, pairs, strict=True):
        before = [0] * len(branch.groups)
        for _, b in own:
            before[b] += next(answers)
        if sorted(before) != list(range(len(before))):
            raise ProbeError("the answers contradict each other: no tree of additions of two numbers gives them")
        branch.groups = [group for _, group in sorted(zip(before, branch.groups, strict=True))]


def _assembled(branches: dict[int, _Branch], width: int) -> list[tuple[int, int]]:
    """The additions, each after those that it adds."""
    sums: list[tuple[int, int]] = []
    nodes: dict[int, int] = {}
    for branch in reversed(branches.values()):  # a level comes after the one that it hangs on
        node = branch.pivot
        for group in branch.groups:
            sums.append((node, nodes[group[0]]))
            node = width + len(sums) - 1
        nodes[branch.pivot] = node
    return sums


def _check(probe: Probe, tree: Tree, random: Random) -> None:
    """Every three elements have one pair that meets first. Where that is not the pair of the tree, there is no tree."""
    threes = [tuple(random.sample(range(tree.width), 3)) for _ in range(CHECKS if tree.width > 2 else 0)]
    questions = [question for three in threes for question in _questions(*three)]
    masks = list(_members(tree))
    expected = [_meet_first(masks, question) for question in questions]
    if probe.answers(questions) != expected:
        raise ProbeError(
            "answers that were not needed to find a tree contradict it: more than two numbers are added at once"
        )


def _questions(i: int, j: int, k: int) -> Iterator[Question]:
    yield from ((i, j, k), (j, i, k), (k, i, j))


def _members(tree: Tree) -> Iterator[int]:
    """For each sum, its elements as bits; smaller sums first."""
    masks = [1 << i for i in range(tree.width)]
    for a, b in tree.sums:
        masks.append(masks[a] | masks[b])
    yield from sorted(masks[tree.width :], key=int.bit_count)


def _meet_first(masks: Sequence[int], question: Question) -> bool:
    i, j, k = question
    both = 1 << j | 1 << k
    meeting = next(mask for mask in masks if mask & both == both)
    return not meeting >> i & 1
