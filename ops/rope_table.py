"""The rotation table of the Q/K ops: [cos | sin], one row for each token."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from numerics.errors import InputError
from numerics.ops.dispatch import AnyNumerics, settings_for
from numerics.ops.inputs import (
    ACTIVATIONS,
    check_activation,
    check_alike,
    check_count,
    check_either_dtype,
    check_eps,
    word,
)
from numerics.ops.qk_geometry import why_not
from numerics.ops.registry import parse, unfused

MAX_HEAD_DIM = 256
LIKE_FORM = "[tokens, heads, head_dim] or [batch, tokens, heads, head_dim]"
HALF_FORM = "[tokens, rotary_dim / 2] or [batch, tokens, rotary_dim / 2]"


def pack_qk_norm_rope_table(
    cos: Tensor,
    sin: Tensor,
    *,
    dtype: torch.dtype,
    identity_rows: int = 0,
    like: Tensor | None = None,
    eps: float | None = None,
    numerics: AnyNumerics = None,
) -> Tensor | None:
    """Pack cosines and sines into the table that the Q/K ops read.

    Args:
        cos: [tokens, rotary_dim / 2] or [batch, tokens, rotary_dim / 2], one value for each pair of elements; a table
            that repeats each value has the wrong layout.
        sin: the same shape, dtype and device.
        dtype: of the table: that of the activations, or float32.
        identity_rows: rows of (cos 1, sin -0.0) to append, for tokens that are normalized and not rotated. The sign
            tells them from position 0, which the unfused chains compute like any other.
        like: q, with head_dim last. With it, None is returned and nothing is allocated where the fused kernel would not
            run for q: the model then keeps its own chain.
        eps: of the norm, which decides that as well if it is tiny; without it, one that is not is assumed.
        numerics: as for the op; its condition on the dtype of the table is checked where the activations are known.

    Returns:
        [tokens + identity_rows, rotary_dim] or [batch, tokens + identity_rows, rotary_dim], contiguous; or None.

    Raises:
        InputError: cos and sin do not belong together, or repeat each value.
        RequirementError: the preset needs a table of another dtype.
        ConfigurationError: no such preset, or settings of another family.
    """
    check_activation("cos", cos, HALF_FORM, (2, 3))
    check_alike("sin", sin, "cos", cos, cos.shape)
    if dtype not in ACTIVATIONS:
        raise InputError(f"dtype: got {dtype}; legal: {', '.join(map(word, ACTIVATIONS))}")
    check_count("identity_rows", identity_rows)
    if eps is not None:
        check_eps(eps)
    if like is not None:
        check_activation("like", like, LIKE_FORM, (3, 4))
    _check_layout(cos, sin, MAX_HEAD_DIM if like is None else like.shape[-1])
    if like is not None or dtype != torch.float32:
        activation = dtype if like is None else like.dtype
        op = "fused_qk_norm_rope"
        settings = settings_for(op, numerics, like=cos, dtype=activation, table_dtype=dtype)
        if like is not None and (
            unfused(prod(like.shape[:-2]), settings.min_tokens, eps) or why_not(like, like, None, parse(settings.text))
        ):
            return None
    half, tokens = cos.shape[-1], cos.shape[-2]
    table = torch.empty((*cos.shape[:-2], tokens + identity_rows, 2 * half), dtype=dtype, device=cos.device)
    table[..., :tokens, :half], table[..., :tokens, half:] = cos, sin
    table[..., tokens:, :half], table[..., tokens:, half:] = 1, -0.0
    return table


def check_table(
    table: Tensor,
    like_name: str,
    like: Tensor,
    leading: Sequence[int],  # [tokens] or [batch, tokens]
    head_dim: int,
    rotary_dim: int | None,
) -> None:
    """Refuse a table that has not one even-sized row of at most head_dim values for each token."""
    check_either_dtype("rope_table", table, like_name, like)
    forms = [[leading[-1]], [prod(leading)], [*leading]]
    shape = list(table.shape[:-1])
    if shape not in forms and not (len(leading) == 1 and len(shape) == 2 and prod(shape) == leading[0]):
        legal = " or ".join(dict.fromkeys(f"[{', '.join(map(str, form))}, rotary_dim]" for form in forms))
        raise InputError(f"rope_table: got shape {list(table.shape)}; legal: {legal}, a row for each token")
    width = table.shape[-1]
    if width % 2 or not 2 <= width <= head_dim:
        raise InputError(
            f"rope_table: got {width} columns; legal: an even number from 2 to the head_dim {head_dim}, as [cos | sin] "
            "with one value for each pair of elements"
        )
    if rotary_dim is not None and rotary_dim != width:
        raise InputError(f"rotary_dim: got {rotary_dim}; legal: {width}, the columns of rope_table")


def table_rows(
    table: Tensor,  # [..., r], as check_table takes it
    x: Tensor,  # [..., heads, D]
) -> tuple[Tensor, Tensor]:  # [..., r / 2] each
    """Cos and sin, with leading dimensions that broadcast over those of x."""
    leading, width = x.shape[:-2], table.shape[-1]
    if list(table.shape[:-1]) != [leading[-1]]:
        table = table.reshape(*leading, width)
    cos, sin = table.split(width // 2, dim=-1)
    return cos, sin


def _check_layout(cos: Tensor, sin: Tensor, head_dim: int) -> None:
    """Refuse tables that repeat each value: by their width, and where the values can be read, by those."""
    width = cos.shape[-1]
    readable = cos.device.type == "cpu" and not torch.compiler.is_compiling()
    in_pairs = readable and _in_pairs(cos) and _in_pairs(sin)
    if in_pairs or 2 * width > head_dim:
        found = "with each value twice, c0, c0, c1, c1, ..." if in_pairs else f"for heads of at most {head_dim}"
        raise InputError(
            f"cos and sin: got {width} values a token, {found}; legal: one value for each pair of elements. Where each "
            "value stands twice, pass [..., ::2] of c0, c0, c1, c1, ... or the first half of c0, c1, ..., c0, c1, ..."
        )


def _in_pairs(x: Tensor) -> bool:
    """c0, c0, c1, c1, ... with more than one value, which tokens that are not turned do not have."""
    return x.shape[-1] % 2 == 0 and torch.equal(x[..., 0::2], x[..., 1::2]) and bool((x != x[..., :1]).any())
