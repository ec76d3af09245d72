"""What an arm of `bisect` does with a function: call it, and put its result into files. Also a process of its own.

`python -m numerics.measure.bisect_worker MODULE:FUNCTION FOLDER` writes ANSWER, and TENSORS where there are some.
"""

import ctypes
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import ConfigurationError, RequirementError
from numerics.measure.imported import imported

ANSWER: Final = "answer.json"
TENSORS: Final = "tensors.pt"
LEGAL: Final = "legal: a tensor, a number, or a dict, list or tuple of tensors"


def answer(target: str, folder: Path) -> dict[str, Any]:
    """What the function returned: `value`, or the `digest` of tensors that are saved in the folder.

    `refused`, if the package refused the settings; `misused`, if there is no such function or it returns something
    else. Raises whatever else the module or the function raises.
    """
    try:
        return _saved(imported(target, "TARGET")(), target, folder)
    except RequirementError as error:
        return {"refused": str(error)}
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, RequirementError | ConfigurationError):
            return {"refused": str(cause)}
        if cause is not None and not isinstance(cause, ModuleNotFoundError):
            raise cause from None
        return {"misused" if str(error).startswith("TARGET") else "refused": str(error)}


def _saved(result: Any, target: str, folder: Path) -> dict[str, Any]:
    if isinstance(result, Real):
        return {"value": float(result)}
    named = list(_tensors(result, target))
    tensors = dict(named)
    if len(tensors) < len(named):
        raise ConfigurationError(f"TARGET: {target} returned several tensors of one name")
    if not any(tensor.numel() for tensor in tensors.values()):
        raise ConfigurationError(f"TARGET: {target} returned nothing to compare, not one element; {LEGAL}")
    hashed = digest(tensors)
    torch.save({"digest": hashed, "tensors": tensors}, folder / TENSORS)
    return {"digest": hashed}


def _tensors(result: Any, target: str, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor, on the host, under the keys and positions that lead to it."""
    if isinstance(result, Tensor):
        yield name, _plain(result)
        return
    if isinstance(result, Mapping):
        parts = [(str(key), each) for key, each in result.items()]
    elif isinstance(result, list | tuple):
        parts = [(str(index), each) for index, each in enumerate(result)]
    else:
        raise ConfigurationError(f"TARGET: {target} returned {type(result).__name__}; {LEGAL}")
    for key, each in parts:
        yield from _tensors(each, target, f"{name}.{key}" if name else key)


def _plain(x: Tensor) -> Tensor:
    """On the host, in memory of its own size, since a file holds all the memory behind a view."""
    x = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return x if x.untyped_storage().nbytes() == x.numel() * x.element_size() else x.clone()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of names, dtypes, shapes and bytes. Tensors are contiguous and on the host."""
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        size = tensor.numel() * tensor.element_size()
        if size:
            found.update((ctypes.c_char * size).from_address(tensor.data_ptr()))
    return f"sha256:{found.hexdigest()}"


if __name__ == "__main__":
    where = Path(sys.argv[2])
    (where / ANSWER).write_text(json.dumps(answer(sys.argv[1], where)), encoding="utf-8")
