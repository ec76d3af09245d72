"""What the public ops refuse, and in which words: every message names the tensor, what came and what is legal."""

import math
from collections.abc import Container, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import InputError

ACTIVATIONS: Final = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
INDICES: Final = (torch.int32, torch.int64)


def word(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def check_activation(name: str, x: Tensor, form: str, dims: Container[int] | None) -> None:
    """Refuse what is no plain floating-point tensor with one of `dims` dimensions; `form` says the same in words.

    None: any number but zero.
    """
    _check_plain(name, x)
    if x.dtype not in ACTIVATIONS:
        raise InputError(f"{name}: got dtype {word(x.dtype)}; legal: {', '.join(map(word, ACTIVATIONS))}")
    if x.ndim == 0 or (dims is not None and x.ndim not in dims):
        raise InputError(f"{name}: got shape {list(x.shape)}; legal: {form}")
    if x.shape[-1] == 0:
        raise InputError(f"{name}: got shape {list(x.shape)}; the last dimension must hold at least one element")


def check_alike(name: str, x: Tensor, like_name: str, like: Tensor, shape: Iterable[int]) -> None:
    """Refuse a tensor without the dtype and device of another, or of another shape."""
    _check_plain(name, x)
    if x.dtype != like.dtype:
        raise InputError(f"{name}: got dtype {word(x.dtype)}; legal: {word(like.dtype)}, that of {like_name}")
    _check_device(name, x, like_name, like)
    if list(x.shape) != list(shape):
        raise InputError(f"{name}: got shape {list(x.shape)}; legal: {list(shape)}, which follows from {like_name}")


def check_weight(name: str, weight: Tensor | None, like_name: str, like: Tensor, width: int) -> None:
    """Refuse a norm weight that is neither None nor [width] in the activation's dtype, on its device."""
    if weight is not None:
        check_alike(name, weight, like_name, like, (width,))


def check_eps(eps: Any) -> None:
    """Refuse what is no finite number of at least zero."""
    if not isinstance(eps, float | int | torch.SymFloat) or not 0 <= eps < math.inf:
        raise InputError(f"eps: got {eps!r}; legal: a finite number, zero or more")


def check_count(name: str, value: Any) -> None:
    """Refuse what is no whole number of at least zero."""
    if not isinstance(value, int | torch.SymInt) or value < 0:
        raise InputError(f"{name}: got {value!r}; legal: a whole number, zero or more")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False: another value would be read as one of them."""
    if not isinstance(value, bool):
        raise InputError(f"{name}: got {value!r}; legal: True or False")


def check_either_dtype(name: str, x: Tensor, like_name: str, like: Tensor) -> None:
    """Refuse a table that has neither the activation's dtype nor float32, or that is on another device."""
    _check_plain(name, x)
    if x.dtype not in (like.dtype, torch.float32):
        legal = " or ".join(dict.fromkeys((word(like.dtype), "float32")))
        raise InputError(f"{name}: got dtype {word(x.dtype)}; legal: {legal} ({like_name} is {word(like.dtype)})")
    _check_device(name, x, like_name, like)


def check_modulation(name: str, table: Tensor, like_name: str, like: Tensor) -> None:
    """Refuse a scale, shift or gate table that is not [groups, N] in the activation's dtype or float32."""
    check_either_dtype(name, table, like_name, like)
    if table.ndim != 2 or table.shape[1] != like.shape[1]:
        raise InputError(
            f"{name}: got shape {list(table.shape)}; legal: [groups, {like.shape[1]}], as wide as {like_name}"
        )


def check_indices(indices: Tensor, rows: int, tables: dict[str, Tensor]) -> None:
    """Refuse what is no [rows] of int32 or int64 on the device of the tables; on a CPU also a number out of range.

    On other devices the numbers are not read, since that would wait for the device: see `check_range`.
    """
    _check_plain("indices", indices)
    if indices.dtype not in INDICES:
        raise InputError(f"indices: got dtype {word(indices.dtype)}; legal: int32 or int64")
    if list(indices.shape) != [rows]:
        raise InputError(f"indices: got shape {list(indices.shape)}; legal: [{rows}], one for each row")
    for name, table in tables.items():
        _check_device("indices", indices, name, table)
    if indices.device.type == "cpu" and not torch.compiler.is_compiling():
        check_range(indices, tables)


def check_range(indices: Tensor, tables: dict[str, Tensor]) -> None:
    """Refuse a number that is no row of some table. Waits for a GPU."""
    for name, table in tables.items():
        wrong = (indices < 0) | (indices >= table.shape[0])
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise InputError(
                f"indices: got {int(indices[row])} in row {row}; legal: 0 to {table.shape[0] - 1}, rows of {name}"
            )


def _check_plain(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"{name}: got {type(x).__name__}; legal: a torch.Tensor")
    if _is_distributed(type(x)):
        raise InputError(
            f"{name}: got a DTensor; legal: a plain tensor. What is added where depends on what a device holds: "
            "call the op on x.to_local()"
        )
    if x.layout != torch.strided:
        raise InputError(f"{name}: got layout {x.layout}; legal: torch.strided")


@torch.compiler.assume_constant_result
def _is_distributed(kind: type) -> bool:
    return any(base.__name__ == "DTensor" for base in kind.__mro__)


def _check_device(name: str, x: Tensor, like_name: str, like: Tensor) -> None:
    if x.device != like.device:
        raise InputError(f"{name}: got device {x.device}; legal: {like.device}, that of {like_name}")
