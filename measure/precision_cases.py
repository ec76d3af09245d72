"""What precision is measured on: ops and geometries, their stages, their inputs, and what they come to unrounded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

import torch
from torch import Tensor

from numerics import ops
from numerics.errors import ConfigurationError, nearest
from numerics.measure.arms import as_tuple
from numerics.measure.cases import WIDTH, Case, Geometry, Heads, Rows, Streams
from numerics.measure.inputs import Inputs, make
from numerics.presets.schema import Numerics
from numerics.presets.vocabulary import FAMILIES, OPEN_REDUCTION, OPS

GROUPS: Final = 12  # rows of a modulation table
TEXT_SHARE: Final = 9  # of so many tokens of a joined sequence one is text, as 512 of 4608
ACTIVATION: Final = "bfloat16"
TABLE: Final = "rope_table"
UNROUNDED: Final = Numerics(rms_norm_reduction=OPEN_REDUCTION, enable_fp_fusion=False, rounding_points=())
"""Every step in the dtype of the inputs, which for float32 and float64 inputs is that of the arithmetic."""


@dataclass(frozen=True)
class Stage:
    """A part of an op, seen in its results where what follows the part changes nothing."""

    name: str
    results: tuple[int, ...]  # of the op's, those that are of the stage
    neutral: tuple[str, ...] = ()  # arguments with which what follows changes nothing


NORM_OF_HEADS: Final = Stage("norm", (0, 1), (TABLE,))
ROTATION: Final = Stage("rotation", (0, 1))
STAGES: Final[Mapping[str, tuple[Stage, ...]]] = {
    "fused_qk_norm_rope": (NORM_OF_HEADS, ROTATION),
    "fused_joint_qkv_norm_rope": (NORM_OF_HEADS, ROTATION),  # v is copied
    "rms_norm_indexed_scale_shift": (Stage("norm", (0,), ("shift", "scale")), Stage("modulation", (0,))),
    "indexed_gate_rms_norm_scale_shift": (
        Stage("residual", (0,)),
        Stage("norm", (1,), ("shift", "scale")),
        Stage("modulation", (1,)),
    ),
    "indexed_scale_shift_": (Stage("modulation", (0,)),),
    "indexed_gate": (Stage("residual", (0,)),),
    "rms_norm": (Stage("norm", (0,)),),
    "fused_add_rms_norm": (Stage("residual", (1,)), Stage("norm", (0,))),
}


@dataclass(frozen=True)
class Shape:
    """An op on a geometry of any number of tokens or rows."""

    op: str
    geometry: Callable[[int], Geometry]
    least: int = 1  # a number of tokens that has all parts

    @property
    def name(self) -> str:
        """The geometry without its number of tokens or rows."""
        it = self.geometry(self.least)
        if isinstance(it, Streams):
            return f"text+image x{it.heads}x{it.head_dim}"
        return str(it).partition("x")[2]

    @property
    def path(self) -> str:
        """Op and name, which together are unique."""
        return f"{self.op}/{self.name}"

    @property
    def rotates(self) -> bool:
        """Whether the op reads a rotation table."""
        return TABLE in {name for stage in STAGES[self.op] for name in stage.neutral}

    @property
    def values(self) -> int:
        """Of a token or row, in the results of one stage."""
        match self.geometry(self.least):
            case Heads() as it:
                return (it.q_heads + it.k_heads) * it.head_dim
            case Streams() as it:
                return 2 * it.heads * it.head_dim
            case Rows() as it:
                return it.width

    def norms(self, tokens: int) -> tuple[int | None, list[int | None]]:
        """The width of a normalized row, and how many rows each norm of the unfused chain sees."""
        match self.geometry(tokens):
            case Heads() as it:
                return it.head_dim, [tokens * it.q_heads, tokens * it.k_heads]
            case Streams() as it:
                return it.head_dim, [it.text * it.heads, it.image * it.heads]
            case Rows() as it:
                return (it.width, [it.rows]) if "norm" in self.op else (None, [None])

    def inputs(self, tokens: int, device: torch.device, seed: int, chunk: int) -> Inputs:
        """Those of `bench`; the table's angles are exact in float64, and cos and sin are their nearest float64."""
        case = Case(op=self.op, geometry=self.geometry(tokens), presets=(), exact="")
        inputs = make(case, device, _seed(seed, chunk))
        if not self.rotates:
            return inputs
        generator = torch.Generator(device).manual_seed(_seed(seed, chunk, "angles"))
        shape = inputs.tensors["cos"].shape
        theta = torch.rand(shape, generator=generator, device=device, dtype=torch.float64) * (2 * torch.pi)
        return replace(inputs, tensors={**inputs.tensors, "cos": theta.cos(), "sin": theta.sin()})


def _seed(*names: object) -> int:
    """32 bits, which are all that the generator of a CPU looks at."""
    return crc32(" ".join(map(str, names)).encode())


def _heads(heads: int, **rest: Any) -> Callable[[int], Heads]:
    return lambda tokens: Heads(tokens=tokens, q_heads=heads, k_heads=heads, **rest)


def _streams(heads: int) -> Callable[[int], Streams]:
    def geometry(tokens: int) -> Streams:
        text = max(1, tokens // TEXT_SHARE)
        return Streams(batch=1, text=text, image=tokens - text, heads=heads)

    return geometry


def _rows(op: str) -> Callable[[int], Rows]:
    groups = GROUPS if OPS[op] == "fused_modulation" else 0
    return lambda rows: Rows(op=op, rows=rows, width=WIDTH, groups=groups)


SHAPES: Final = (
    Shape("fused_qk_norm_rope", _heads(24)),
    Shape("fused_qk_norm_rope", _heads(56, rotary_dim=96, interleaved=False)),
    Shape("fused_joint_qkv_norm_rope", _streams(24), least=2),
    *(Shape(op, _rows(op)) for op, family in OPS.items() if family != "fused_qk_norm_rope"),
)


def chosen(names: Sequence[str]) -> list[Shape]:
    """The shapes of these ops or families, or all. Raises ConfigurationError for an unknown name."""
    for name in names:
        if name not in OPS and name not in FAMILIES:
            raise ConfigurationError(f"op {name!r}: no such op or family{nearest(name, {*OPS, *FAMILIES})}")
    return [shape for shape in SHAPES if not names or shape.op in names or OPS[shape.op] in names]


# --- What a stage returns ---------------------------------------------------------------------------------------------


def arguments_of(inputs: Inputs, table_dtype: torch.dtype) -> dict[str, Any]:
    """Of the op. A table in the activation dtype is rounded from its float32, as models do."""
    given = {name: x for name, x in inputs.tensors.items() if name not in ("cos", "sin")} | dict(inputs.settings)
    if "cos" in inputs.tensors:
        table = torch.cat((inputs.tensors["cos"], inputs.tensors["sin"]), dim=-1)
        given[TABLE] = table if table_dtype == torch.float64 else table.float().to(table_dtype)
    return given


def lifted(given: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same values in another dtype, indices apart."""
    return {name: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in given.items()}


def by_call(stages: Sequence[Stage]) -> Iterator[tuple[tuple[str, ...], list[Stage]]]:
    """Stages that one call of the op shows, with the arguments that are neutral in it."""
    for neutral in dict.fromkeys(stage.neutral for stage in stages):
        yield neutral, [stage for stage in stages if stage.neutral == neutral]


def call(op: Callable[..., Any], given: Mapping[str, Any], neutral: Sequence[str]) -> tuple[Tensor, ...]:
    """The results of an op or a reference with some arguments neutral: no rotation, a scale and a shift of zero."""
    without = {name: identity(given[name]) if name == TABLE else torch.zeros_like(given[name]) for name in neutral}
    return as_tuple(op(**{**given, **without}))


def identity(table: Tensor) -> Tensor:
    """A rotation table that leaves every token as it was normalized: cos 1 and sin -0.0."""
    cos, sin = table.chunk(2, dim=-1)
    return torch.cat((torch.ones_like(cos), torch.full_like(sin, -0.0)), dim=-1)


def reference_of(op: str) -> Callable[..., Any]:
    """The eager reference of an op, which returns what an op in place writes."""
    reference: Callable[..., Any] = getattr(ops, f"{op.removesuffix('_')}_reference")
    return reference


def truth(op: str, given: Mapping[str, Any], dtype: torch.dtype, neutral: Sequence[str]) -> tuple[Tensor, ...]:
    """The results of an op computed in float32 or float64 throughout, and never rounded to the activation dtype."""

    def unrounded(**arguments: Any) -> Any:
        return reference_of(op)(**arguments, numerics=UNROUNDED)

    return call(unrounded, lifted(given, dtype), neutral)
