"""What a compiler that traces a public op asks once and keeps as a constant of its graph.

A tracer follows plain Python, not files, caches or the inside of a resolution. These functions run when it reaches
them, and it guards what they are asked with: texts.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch

from numerics.errors import ConfigurationError, RequirementError
from numerics.presets.vocabulary import RoundingPoint
from numerics.requirements import check_tensors
from numerics.resolution import Resolution, by_key

Bounds = tuple[int, int]


class TracedConfigurationError(ConfigurationError, AssertionError):
    """A ConfigurationError that TorchDynamo passes on as it is, as it does with every AssertionError."""


class TracedRequirementError(RequirementError, AssertionError):
    """The same for a condition that does not hold."""


@torch.compiler.assume_constant_result
def refuse(message: str) -> NoReturn:
    """Raise a ConfigurationError from a trace."""
    raise TracedConfigurationError(message)


@torch.compiler.assume_constant_result
def settings(
    key: str, capability: str | None, dtype: str, rope_table_dtype: str | None
) -> tuple[str, tuple[RoundingPoint, ...], int]:
    """Text of the numerics, rounding points and min_tokens of a resolution on a device, for these dtypes.

    Raises ConfigurationError and RequirementError as the op does outside of a graph.
    """
    bound = _bound(key, capability)
    try:
        check_tensors(bound.requires, bound.who, width=None, rows=None, dtype=dtype, rope_table_dtype=rope_table_dtype)
    except RequirementError as error:
        raise TracedRequirementError(*error.args) from None
    return bound.numerics.text, bound.numerics.rounding_points, bound.min_tokens


def check_spans(key: str, capability: str | None, width: int | None, rows: Sequence[int]) -> None:
    """Raise RequirementError if the preset does not take rows of this width or so many of them.

    Traced, since sizes may be symbols: a span becomes a guard of the graph.
    """
    who, widths, counts = spans(key, capability)
    if widths is not None and width is not None and not widths[0] <= width <= widths[1]:
        raise RequirementError(f"{who}: requires width from {widths[0]} to {widths[1]}, got {width}")
    for count in rows:
        if counts is not None and not counts[0] <= count <= counts[1]:
            raise RequirementError(f"{who}: requires rows from {counts[0]} to {counts[1]}, got {count}")


@torch.compiler.assume_constant_result
def spans(key: str, capability: str | None) -> tuple[str, Bounds | None, Bounds | None]:
    """Who set the preset, and the widths and row counts that it takes."""
    bound = _bound(key, capability)
    widths, rows = (
        (span, span) if isinstance(span, int) else span for span in (bound.requires.width, bound.requires.rows)
    )
    return bound.who, widths, rows


@torch.compiler.assume_constant_result
def reads_rounded_table(key: str, capability: str | None) -> bool:
    """Whether the preset of a resolution requires a rotation table in the activation dtype on a device."""
    return _bound(key, capability).requires.rope_table_dtype == "activation"


def _bound(key: str, capability: str | None) -> Resolution:
    try:
        return by_key(key).bind(capability)
    except RequirementError as error:
        raise TracedRequirementError(*error.args) from None
