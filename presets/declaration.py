"""What every table of a presets file shares: strictness, and the types of numbers, texts and spans."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(strict=True, ge=1)]
Text = Annotated[str, Field(description="text in quotes")]
Span = Positive | tuple[Positive, Positive]

SPAN: Final = "a number, or [from, to]"


class Declaration(BaseModel):
    """Frozen; an unknown key is an error; numbers, booleans and text are never converted into each other.

    The description of a field is what the message about a wrong value calls legal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields, which are not checked. What is cached of the original is computed anew."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        copied.model_post_init(None)
        return copied


def bounds(span: Span) -> tuple[int, int]:
    """The least and the greatest number of a span."""
    return span if isinstance(span, tuple) else (span, span)


def ascending(span: Span | None) -> Span | None:
    """The span itself. Raises ValueError if it holds no number."""
    if isinstance(span, tuple) and span[0] > span[1]:
        raise ValueError(f"[{span[0]}, {span[1]}] is empty; write [from, to]")
    return span


def within(value: int, span: Span) -> bool:
    """Whether a number is in a span."""
    low, high = bounds(span)
    return low <= value <= high


def words(span: Span) -> str:
    """A span as text: `128` or `64 to 256`."""
    low, high = bounds(span)
    return str(low) if low == high else f"{low} to {high}"
