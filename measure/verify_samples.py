"""Inputs that an op is verified on: shapes of models and ragged ones, thresholds, special values, searched rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from numerics.measure.cases import Case, Heads, Rows, Streams
from numerics.measure.inputs import ARGUMENTS, Inputs
from numerics.measure.inputs import make as make_inputs
from numerics.measure.verify_rows import Search
from numerics.ops.inputs import word
from numerics.presets.properties import holds, regimes
from numerics.presets.schema import Numerics, Reduction, Requires
from numerics.presets.vocabulary import OPS

WEIGHTS: Final = ("signed", "positive", "identity")
AMPLITUDES: Final = (1.0, 1e-3, 1e3)
ACTIVATION_NAMES: Final = ("x", "residual", "branch", "other")
ACTIVATIONS: Final = {
    "fused_qk_norm_rope": ("q", "k"),
    "fused_joint_qkv_norm_rope": tuple(f"{stream}_{name}" for stream in ("text", "image") for name in "qkv"),
    **{op: tuple(name for name in names if name in ACTIVATION_NAMES) for op, names in ARGUMENTS.items()},
}
ADDED: Final = ("branch", "residual")  # what the second activation is, beside which searched rows keep their bits
# Widths in the order in which they are chosen; an order need not be declared for all of them.
HEAD_DIMS: Final = (128, 64, 256, 96)
WIDTHS: Final = (5376, 4096, 1024, 256, 128)
MORE_WIDTHS: Final = (128, 3072, 1000)
TELLING_ROWS: Final = 15  # that a number of rows must at least be for searched rows


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One call of an op."""

    name: str
    geometry: Heads | Streams | Rows
    dtype: torch.dtype = torch.bfloat16
    amplitude: float = 1.0
    weights: Literal["signed", "positive", "identity"] = "signed"
    special: bool = False
    searched: bool = False
    cancelling: bool = False  # the products of the rotation nearly cancel, so that one which is not rounded shows
    strided: bool = False  # rows lie in a wider tensor; heads always do
    batch: int = 1  # into which the tokens of a Q/K op are cut

    @property
    def case(self) -> str:
        """As records name it."""
        batch = f" in {self.batch} batches" if self.batch > 1 else ""
        dtype = "" if self.dtype == torch.bfloat16 else f" {word(self.dtype)}"
        return f"{self.name} {self.geometry}{batch}{dtype}"

    @property
    def width(self) -> int:
        """Of a row of the norm."""
        return self.geometry.width if isinstance(self.geometry, Rows) else self.geometry.head_dim

    def norms(self) -> list[int]:
        """The number of rows of each norm of the chain."""
        match self.geometry:
            case Heads() as it:
                return [it.tokens * it.q_heads, it.tokens * it.k_heads]
            case Streams() as it:
                return [it.batch * tokens * it.heads for tokens in (it.text, it.image)]
            case Rows() as it:
                return [it.rows]

    def again(self, round_: int) -> "Sample":
        """The same shape with other numbers."""
        return replace(self, amplitude=AMPLITUDES[round_ % 3], weights=WEIGHTS[round_ // 3 % 3])


# --- Which ones -------------------------------------------------------------------------------------------------------


def samples(op: str, numerics: Numerics, requires: Requires, *, large: bool) -> list[Sample]:
    """The calls of an op, the one that is repeated for more elements first. large: of the sizes of a model.

    None where the order is not declared for any width that is asked for.
    """
    reduction = numerics.rms_norm_reduction
    assert isinstance(reduction, Reduction)
    makers: dict[str, Callable[..., Iterator[Sample]]] = {
        "fused_qk_norm_rope": _heads,
        "fused_joint_qkv_norm_rope": _streams,
    }
    found = makers.get(op, _rows)(op, reduction, large=large)
    legal = [each for each in found if _is_legal(each, op, reduction, requires)]
    # On a CPU only the declaration itself adds in the same order, and that is of the norm alone.
    return (
        legal if large or op == "rms_norm" else [each for each in legal if each.name not in ("searched", "threshold")]
    )


def _is_legal(sample: Sample, op: str, reduction: Reduction, requires: Requires) -> bool:
    legal = requires.dtype
    if (word(sample.dtype) not in legal) if legal else (sample.dtype == torch.float32 and sample.searched):
        return False
    if "norm" not in op:
        return True
    return all(holds(reduction, sample.width, rows) for rows in sample.norms())


def _heads(_op: str, reduction: Reduction, *, large: bool) -> Iterator[Sample]:
    dim = next((dim for dim in HEAD_DIMS if holds(reduction, dim)), None)
    if dim is None:
        return
    many, few = (48, 24) if large else (4, 3)
    half = {"rotary_dim": dim * 3 // 4, "interleaved": False}

    def heads(tokens: int, q: int, k: int, **more: Any) -> Heads:
        return Heads(tokens=tokens, q_heads=q, k_heads=k, head_dim=dim, **{"rotary_dim": dim, **more})

    grouped = heads(17, few, few // 3)
    yield Sample(name="production", geometry=heads(4608 if large else 8, many, many))
    yield Sample(
        name="half-split, ragged", geometry=heads(4609 if large else 9, 14 if large else 2, 14 if large else 2, **half)
    )
    yield Sample(name="searched", geometry=replace(grouped, tokens=33), searched=True)
    yield Sample(name="special", geometry=grouped, special=True)
    yield Sample(name="cancelling", geometry=grouped, cancelling=True, weights="identity")
    yield Sample(name="batch", geometry=replace(grouped, tokens=34), batch=2, weights="positive")
    yield Sample(name="one token", geometry=replace(grouped, tokens=1), weights="identity")
    yield Sample(name="no token", geometry=replace(grouped, tokens=0))
    for dtype in (torch.float16, torch.float32):
        yield Sample(name="dtype", geometry=grouped, dtype=dtype)


def _streams(_op: str, reduction: Reduction, *, large: bool) -> Iterator[Sample]:
    dim = next((dim for dim in HEAD_DIMS if holds(reduction, dim)), None)
    if dim is None:
        return
    heads = 24 if large else 3
    small = Streams(batch=2, text=7, image=33 if large else 9, heads=heads, head_dim=dim)
    yield Sample(name="production", geometry=replace(small, text=512, image=4096) if large else small)
    yield Sample(name="searched", geometry=small, searched=True)
    yield Sample(name="special, ragged", geometry=small, special=True, weights="positive")
    yield Sample(name="no text", geometry=replace(small, batch=1, text=0), weights="identity")
    yield Sample(name="no image", geometry=replace(small, batch=1, image=0))
    yield Sample(name="dtype", geometry=small, dtype=torch.float16)


def _rows(op: str, reduction: Reduction, *, large: bool) -> Iterator[Sample]:
    has_norm, modulated = "norm" in op, OPS[op] == "fused_modulation"
    width = next(
        (width for width in WIDTHS[: 2 if modulated else None] if not has_norm or holds(reduction, width)), None
    )
    if width is None:
        return
    starts = [start for start, _ in regimes(reduction, width)] if has_norm else [1]
    shape = Rows(op=op, rows=17, width=width, groups=12 if modulated else 0)

    def rows(number: int) -> Rows:
        return replace(shape, rows=number)

    yield Sample(name="production", geometry=rows(4096 if large else 3))
    yield Sample(name="special, ragged", geometry=shape, special=True, strided=True)
    yield Sample(name="one row", geometry=rows(1), weights="identity")
    yield Sample(name="no row", geometry=rows(0))
    if not has_norm:
        yield Sample(name="dtype", geometry=shape, dtype=torch.float16)
        return
    for start in starts[1:] if op == "rms_norm" else starts[-1:]:
        for number in dict.fromkeys((max(start - 1, 1), start)):
            yield Sample(name="threshold", geometry=rows(number), weights="positive")
    for number in telling_rows(starts if large else starts[-1:]):
        yield Sample(name="searched", geometry=rows(number), searched=True)
    if op == "rms_norm":
        for other in MORE_WIDTHS:
            if other != width and holds(reduction, other):
                yield Sample(name="width", geometry=replace(shape, width=other), strided=True)
        if holds(reduction, 128):
            yield Sample(name="searched", geometry=replace(shape, rows=33, width=128), searched=True)
    for dtype in (torch.float16, torch.float32):
        yield Sample(name="dtype", geometry=shape, dtype=dtype)


def telling_rows(starts: Sequence[int]) -> list[int]:
    """For each order of a row the number of rows at which searched ones are put to it, unless those would be few."""
    ends = [*(start - 1 for start in starts[1:]), max(starts[-1], 2 * TELLING_ROWS)]
    return [end for end in ends if end >= TELLING_ROWS]


# --- Their tensors ----------------------------------------------------------------------------------------------------


def make(sample: Sample, op: str, device: torch.device, seed: int, found: Search | None = None) -> Inputs:
    """The tensors of a call. found: the rows of a searched sample."""
    inputs = make_inputs(Case(op=op, geometry=sample.geometry, presets=(), exact=""), device, seed, sample.dtype)
    tensors = dict(inputs.tensors)
    names = ACTIVATIONS[op]
    if sample.strided:
        tensors |= {name: _in_wider_rows(tensors[name]) for name in names}
    for name in names:
        tensors[name].mul_(sample.amplitude)
    for name in tensors:
        if name.endswith("weight"):
            tensors[name] = found.weight.clone() if found else _weight(tensors[name], sample.weights)
    for place, name in enumerate(names):
        if found is not None and name in ADDED and name != names[0]:
            tensors[name].zero_()
        elif found is not None:
            _put(tensors[name], found.x)
        elif sample.special:
            rows = special_rows(tensors[name].shape[-1], sample.dtype, device)
            _put(tensors[name], rows.roll(place, 0), limit=len(rows))
        elif sample.cancelling:
            _cancel(tensors[name], tensors["cos"], tensors["sin"])
    return Inputs(inputs.case, tensors, inputs.settings)


def special_rows(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[rows, N]: zeros of both signs, infinities, NaN, largest, smallest and subnormal ones, alone and throughout."""
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal / 4
    alone = (torch.inf, -torch.inf, torch.nan, 0.0, -0.0, info.max, -info.max, subnormal, -subnormal)
    whole = (0.0, -0.0, info.tiny, info.max, subnormal, -1e-5, torch.nan)
    rows = torch.linspace(-2, 2, width, device=device).repeat(len(alone) + len(whole), 1)
    for number, value in enumerate(alone):
        rows[number, (7 * number + 1) % width] = value
    for number, value in enumerate(whole):
        rows[len(alone) + number] = value
    return rows.to(dtype)


def _put(x: Tensor, rows: Tensor, limit: int | None = None) -> None:
    """Rows into [..., N], again and again, or the first `limit` of them alone."""
    indices = torch.cartesian_prod(*(torch.arange(size) for size in x.shape[:-1])).view(-1, x.ndim - 1)[:limit]
    if len(indices):
        x[tuple(indices.to(x.device).unbind(1))] = rows[torch.arange(len(indices), device=x.device) % len(rows)]


def _cancel(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Pairs (a, b) of [tokens, heads, D] with a * cos near b * sin, in every second token a * sin near -b * cos."""
    c, s = cos[:, None].clone(), sin[:, None].clone()
    ratio = c / s
    ratio[1::2] = -(s / c)[1::2]
    x[..., 1::2] = (x[..., 0::2].float() * ratio.clamp(-64, 64)).to(x.dtype)


def _weight(like: Tensor, kind: str) -> Tensor:
    if kind == "identity":
        return torch.ones_like(like)
    return like.abs() + 0.5 if kind == "positive" else like


def _in_wider_rows(x: Tensor) -> Tensor:
    wide = torch.zeros(len(x), 2 * x.shape[1], dtype=x.dtype, device=x.device)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]
