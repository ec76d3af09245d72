"""The Pydantic model of a declared reduction, and the order of additions that it means for one width and row count."""

import math
import struct
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, field_validator, model_validator

from numerics.presets.declaration import SPAN, Declaration, Positive, Span, Text, ascending, within, words
from numerics.presets.order import First, Inner, Lanes, Mean, Order, Square, Warps
from numerics.presets.versions import CLOSED_RANGE, ClosedVersionRange

Step = tuple[Positive, Positive]
Steps = Annotated[tuple[Step, ...], Field(min_length=1)]


class Reduction(Declaration):
    """An order of additions as a function of the width and the number of rows. `presets.toml` explains the fields."""

    vector: Positive | Literal["gcd8", "row/32"] | Steps = Field(
        description="a number of elements, 'gcd8', 'row/32', or steps [[max_width, value], ...]"
    )
    threads: Positive | Literal["row/vector"] | Steps = Field(
        description="a number of threads, 'row/vector', or steps [[max_width, value], ...]"
    )
    threads_pow2: StrictBool = False
    max_threads: Positive | Steps | None = Field(
        default=None, description="a number of threads, or steps [[from_rows, cap], ...]"
    )
    slots: Literal[1, 2, 4] = 1
    inner: Inner = "fold"
    lanes: Lanes
    warps: Warps = "fold"
    first: First = "lanes"
    mean: Mean
    square: Square = "product"
    width: Span | None = Field(default=None, description=f"elements of a row: {SPAN}")
    rows: Span | None = Field(default=None, description=f"rows of a call: {SPAN}")

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

    @field_validator("slots", mode="before")
    @classmethod
    def _slots_are_an_integer(cls, value: object) -> object:
        # Pydantic finds true and 1.0 among the literals 1, 2 and 4.
        return value if type(value) is int else repr(value)

    @field_validator("width", "rows", mode="after")
    @classmethod
    def _spans_ascend(cls, value: Span | None) -> Span | None:
        return ascending(value)

    @model_validator(mode="after")
    def _slots_belong_to_fold(self) -> Self:
        if self.inner == "pairs" and self.slots != 1:
            raise ValueError("inner = 'pairs' has one accumulator; slots must be 1")
        return self

    def order(self, width: int, rows: int) -> Order:
        """The additions of one row of `width` elements among `rows` rows; no rows count as one.

        Raises ValueError, naming the condition, where the declaration does not hold.
        """
        rows = max(rows, 1)
        if self.width is not None and not within(width, self.width):
            raise ValueError(f"it is declared for rows of {words(self.width)} elements, not {width}")
        if self.rows is not None and not within(rows, self.rows):
            raise ValueError(f"it is declared for {words(self.rows)} rows, not {rows}")
        if self.mean == "power_of_two" and width & (width - 1):
            raise ValueError(f"its mean is exact for a power of two only, not for {width} elements")
        if self.mean == "multiply" and not _reciprocal_is_independent_of(rows, width):
            raise ValueError(
                f"at {rows} rows of {width}, float32(rows) / float32(rows * width) is not float32(1 / width)"
            )
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
        cap = next(cap for from_rows, cap in reversed(self.max_threads) if rows >= from_rows)
        return min(threads, cap)

    @property
    def row_regimes(self) -> tuple[int, ...]:
        """The row counts from which another cap of threads holds: (1,) where the order cannot depend on the rows."""
        return (1,) if isinstance(self.max_threads, int | None) else tuple(start for start, _ in self.max_threads)


class Source(Declaration):
    """Where an order was read: who computes so, in which versions, and where that is written."""

    provider: Text
    versions: ClosedVersionRange = Field(description=CLOSED_RANGE)
    location: Text = ""


class DeclaredReduction(Reduction):
    """A `[reductions.NAME]` table: an order of additions, with a summary and where it comes from."""

    summary: Text
    source: Source | None = None

    @cached_property
    def bits(self) -> Reduction:
        """The declaration without the words about it."""
        return Reduction.model_construct(**{name: getattr(self, name) for name in Reduction.model_fields})


def _reciprocal_is_independent_of(rows: int, width: int) -> bool:
    """Whether ATen's factor of a mean, float32(rows) / float32(rows * width), is float32(1 / width)."""
    return _float32(_float32(rows) / _float32(rows * width)) == _float32(1 / width)


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _at_width(value: int | tuple[Step, ...], width: int, field: str) -> int:
    if isinstance(value, int):
        return value
    for max_width, at_width in value:
        if width <= max_width:
            return at_width
    raise ValueError(f"its {field} is declared for rows of up to {value[-1][0]} elements, not {width}")
