"""The Pydantic models of a presets file: what may be declared, and what must hold within each part."""

import hashlib
import json
import math
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator

from numerics.presets.order import First, Inner, Lanes, Mean, Order, Square, Warps
from numerics.presets.versions import ClosedVersionRange, VersionRange
from numerics.presets.vocabulary import OPEN_REDUCTION, ROUNDING_POINTS, Family, Rotation, RoundingPoint

Positive = Annotated[int, Field(strict=True, ge=1)]
Span = Positive | tuple[Positive, Positive]
Step = tuple[Positive, Positive]
Dtype = Literal["bfloat16", "float16", "float32"]
Backend = Literal["cuda", "hip", "npu"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ModelName = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*:)?[A-Za-z_][A-Za-z0-9_]*$")]
Capability = Annotated[str, Field(pattern=r"^(cuda(:\d+(\.\d+)?)?|hip(:gfx[0-9a-f]+)?|npu(:[A-Za-z0-9_.]+)?)$")]
Tokens = Annotated[int, Field(strict=True, ge=0)]


class Declaration(BaseModel):
    """Frozen; an unknown key is an error; numbers, booleans and text are never converted into each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- Reductions -------------------------------------------------------------------------------------------------------


class Reduction(Declaration):
    """An order of additions as a function of the width and the number of rows. `presets.toml` explains the fields."""

    vector: Positive | Literal["gcd8", "row/32"] | Annotated[tuple[Step, ...], Field(min_length=1)]
    threads: Positive | Literal["row/vector"] | Annotated[tuple[Step, ...], Field(min_length=1)]
    threads_pow2: StrictBool = False
    max_threads: Positive | Annotated[tuple[Step, ...], Field(min_length=1)] | None = None
    slots: Literal[1, 2, 4] = 1
    inner: Inner = "fold"
    lanes: Lanes
    warps: Warps = "fold"
    first: First = "lanes"
    mean: Mean
    square: Square = "product"
    width: Span | None = None
    rows: Span | None = None

    @field_validator("vector", "threads", "max_threads", mode="after")
    @classmethod
    def _steps_ascend(cls, value: object) -> object:
        if isinstance(value, tuple):
            bounds = [bound for bound, _ in value]
            if bounds != sorted(set(bounds)):
                raise ValueError(f"the first numbers of the steps must ascend, not {bounds}")
        return value

    @field_validator("max_threads", mode="after")
    @classmethod
    def _caps_start_at_one_row(cls, value: object) -> object:
        if isinstance(value, tuple) and value[0][0] != 1:
            raise ValueError(f"the first cap must hold from 1 row, not from {value[0][0]}")
        return value

    @field_validator("width", "rows", mode="after")
    @classmethod
    def _spans_ascend(cls, value: Span | None) -> Span | None:
        return _ascending(value)

    @model_validator(mode="after")
    def _slots_belong_to_fold(self) -> Self:
        if self.inner == "pairs" and self.slots != 1:
            raise ValueError("inner = 'pairs' has one accumulator; slots must be 1")
        return self

    def order(self, width: int, rows: int) -> Order:
        """The additions of one row of `width` elements among `rows` rows.

        Raises ValueError, naming the condition, where the declaration does not hold.
        """
        if not _within(width, self.width):
            raise ValueError(f"it is declared for rows of {_words(self.width)} elements, not {width}")
        if not _within(rows, self.rows):
            raise ValueError(f"it is declared for {_words(self.rows)} rows, not {rows}")
        if self.mean == "power_of_two" and width & (width - 1):
            raise ValueError(f"its mean is exact for a power of two only, not for {width} elements")
        vector = self._vector(width)
        if width % vector:
            raise ValueError(f"it adds whole vectors of {vector} elements, which do not divide a row of {width}")
        if self.inner == "pairs" and vector % 2:
            raise ValueError(f"inner = 'pairs' needs an even vector, not {vector} (at width {width})")
        return Order(
            width=width,
            vector=vector,
            threads=self._threads(width, vector, rows),
            slots=self.slots,
            inner=self.inner,
            lanes=self.lanes,
            warps=self.warps,
            first=self.first,
            mean=self.mean,
            square=self.square,
        )

    def _vector(self, width: int) -> int:
        if self.vector == "gcd8":
            return math.gcd(8, width)
        if self.vector == "row/32":
            if width % 32:
                raise ValueError(f"vector = 'row/32' needs a row that is a multiple of 32, not {width}")
            return width // 32
        return _at_width(self.vector, width, "vector")

    def _threads(self, width: int, vector: int, rows: int) -> int:
        threads = width // vector if self.threads == "row/vector" else _at_width(self.threads, width, "threads")
        if self.threads_pow2:
            threads = 1 << (threads.bit_length() - 1)
        if self.max_threads is None:
            return threads
        if isinstance(self.max_threads, int):
            return min(threads, self.max_threads)
        cap = next(cap for from_rows, cap in reversed(self.max_threads) if max(rows, 1) >= from_rows)
        return min(threads, cap)

    @property
    def row_regimes(self) -> tuple[int, ...]:
        """The row counts from which another cap of threads holds: (1,) where the order cannot depend on the rows."""
        return (1,) if isinstance(self.max_threads, int | None) else tuple(start for start, _ in self.max_threads)


class Source(Declaration):
    """Where an order was read: who computes so, in which versions, and where that is written."""

    provider: str
    versions: ClosedVersionRange
    location: str = ""


class DeclaredReduction(Reduction):
    """A `[reductions.NAME]` table: an order of additions, with a summary and where it comes from."""

    summary: str
    source: Source | None = None

    @cached_property
    def bits(self) -> Reduction:
        """The declaration without the words about it."""
        return Reduction.model_construct(**{name: getattr(self, name) for name in Reduction.model_fields})


# --- Knobs and presets ------------------------------------------------------------------------------------------------


class Numerics(Declaration):
    """The exact floating-point behaviour of the fused ops: every knob, with the reduction as its declaration.

    Hashable; `text` is its canonical form, which custom ops carry, and `parse` reads it back.
    """

    rms_norm_reduction: Reduction | Literal["triton"]
    enable_fp_fusion: StrictBool
    rounding_points: tuple[RoundingPoint, ...]
    rope_rotation: Rotation = "separate"

    @field_validator("rounding_points", mode="after")
    @classmethod
    def _points_once_in_order(cls, points: tuple[RoundingPoint, ...]) -> tuple[RoundingPoint, ...]:
        return _sorted_points(points)

    @cached_property
    def text(self) -> str:
        """Canonical JSON: sorted keys, no blanks, a declaration's defaults left out."""
        reduction = self.rms_norm_reduction
        knobs = {
            "rms_norm_reduction": reduction
            if isinstance(reduction, str)
            else reduction.model_dump(mode="json", exclude_defaults=True),
            "enable_fp_fusion": self.enable_fp_fusion,
            "rounding_points": self.rounding_points,
            "rope_rotation": self.rope_rotation,
        }
        return json.dumps(knobs, sort_keys=True, separators=(",", ":"))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the canonical text; equal bits have equal fingerprints whatever they are called."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the canonical text back."""
        return cls.model_validate_json(text)

    @property
    def is_exact(self) -> bool:
        """Whether the knobs leave nothing open: a declared order, and no contraction by the compiler."""
        return self.rms_norm_reduction != OPEN_REDUCTION and not self.enable_fp_fusion


class Knobs(Declaration):
    """Knobs as a file writes them: the reduction by name, None where a knob is not given."""

    rms_norm_reduction: Name | None = None
    enable_fp_fusion: StrictBool | None = None
    rounding_points: tuple[RoundingPoint, ...] | None = None
    rope_rotation: Rotation | None = None

    @field_validator("rounding_points", mode="after")
    @classmethod
    def _points_once_in_order(cls, points: tuple[RoundingPoint, ...] | None) -> tuple[RoundingPoint, ...] | None:
        return None if points is None else _sorted_points(points)

    @property
    def knobs(self) -> dict[str, object]:
        """The knobs that are given."""
        return {name: value for name in Knobs.model_fields if (value := getattr(self, name)) is not None}


class Reference(Declaration):
    """The unfused chain whose bytes a preset reproduces."""

    provider: str
    versions: ClosedVersionRange
    verified_on: tuple[str, ...] = ()


class Requires(Declaration):
    """Conditions without which a preset refuses. An empty field asks for nothing."""

    dtype: Annotated[tuple[Dtype, ...], Field(min_length=1)] | None = None
    rope_table_dtype: Literal["activation", "float32"] | None = None
    width: Span | None = None
    rows: Span | None = None
    capability: Capability | None = None
    backend: Backend | None = None
    torch: VersionRange | None = None
    triton: VersionRange | None = None
    env: dict[str, str] = {}

    @field_validator("width", "rows", mode="after")
    @classmethod
    def _spans_ascend(cls, value: Span | None) -> Span | None:
        return _ascending(value)

    @model_validator(mode="after")
    def _capability_is_of_the_backend(self) -> Self:
        if self.capability and self.backend and self.capability.split(":")[0] != self.backend:
            raise ValueError(f"capability {self.capability!r} is not of backend {self.backend!r}; it can never hold")
        return self


class Preset(Knobs):
    """A `[presets.NAME]` table: knobs, with the reference that they reproduce and the conditions that it needs."""

    summary: str
    extends: Name | None = None
    reference: Reference | None = None
    requires: Requires = Requires()


# --- Settings of ops and models ---------------------------------------------------------------------------------------


class Choice(Knobs):
    """A preset, knobs on top of it, and a token threshold; each may be left to a weaker layer."""

    preset: Name | None = None
    min_tokens: Tokens | None = None


class When(Choice):
    """A choice for one capability, matched by component: `cuda:9` holds for `cuda:9.0`."""

    capability: Capability


class Setting(Choice):
    """What `[ops.FAMILY]` and each family of `[models.NAME]` say: a choice, and choices for some capabilities."""

    when: tuple[When, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone_is_a_preset(cls, value: object) -> object:
        return {"preset": value} if isinstance(value, str) else value

    @field_validator("when", mode="after")
    @classmethod
    def _each_capability_once(cls, rows: tuple[When, ...]) -> tuple[When, ...]:
        names = [row.capability for row in rows]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"capability {repeated[0]!r} stands twice")
        return rows

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("an empty setting; name a preset, a knob or min_tokens")
        return self


class PresetFile(Declaration):
    """One presets file. `numerics.presets.file` reads it, joins it with the packaged one and checks the names."""

    reductions: dict[Name, DeclaredReduction] = {}
    presets: dict[Name, Preset] = {}
    ops: dict[Family, Setting] = {}
    models: dict[ModelName, dict[Family, Setting]] = {}


# --- Shared checks ----------------------------------------------------------------------------------------------------


def _sorted_points(points: tuple[RoundingPoint, ...]) -> tuple[RoundingPoint, ...]:
    if repeated := sorted({point for point in points if points.count(point) > 1}):
        raise ValueError(f"rounding point {repeated[0]!r} stands twice")
    return tuple(point for point in ROUNDING_POINTS if point in points)


def _ascending(span: Span | None) -> Span | None:
    if isinstance(span, tuple) and span[0] > span[1]:
        raise ValueError(f"[{span[0]}, {span[1]}] is empty; write [from, to]")
    return span


def _within(value: int, span: Span | None) -> bool:
    if span is None:
        return True
    low, high = span if isinstance(span, tuple) else (span, span)
    return low <= value <= high


def _words(span: Span | None) -> str:
    return f"{span[0]} to {span[1]}" if isinstance(span, tuple) else str(span)


def _at_width(value: int | tuple[Step, ...], width: int, field: str) -> int:
    if isinstance(value, int):
        return value
    for max_width, at_width in value:
        if width <= max_width:
            return at_width
    raise ValueError(f"its {field} is declared for rows of up to {value[-1][0]} elements, not {width}")
