"""RMSNorm of quack and FlashInfer, imported when asked for."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from torch import Tensor

from numerics.measure.arms import AbsentError

DISTRIBUTIONS: Final = {"quack": "quack-kernels", "flashinfer": "flashinfer-python"}


@dataclass(frozen=True)
class Norms:
    """A library's norms of [rows, N]."""

    norm: Callable[[Tensor, Tensor, float], Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    in_place: bool  # add_norm writes into its inputs
    version: str | None


def norms_of(library: str) -> Norms:
    """Of quack or FlashInfer. Raises AbsentError where it is not installed, or has other functions."""
    if library == "quack":
        quack = _function("quack", "rmsnorm")

        def add(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
            out, total = quack(x, weight, residual=residual, eps=eps, prenorm=True)
            return out, total

        return Norms(lambda x, weight, eps: quack(x, weight, eps=eps), add, in_place=False, version=_version(library))
    norm, add_norm = (_function("flashinfer.norm", name) for name in ("rmsnorm", "fused_add_rmsnorm"))

    def add_in_place(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        add_norm(x, residual, weight, eps)
        return x, residual

    return Norms(norm, add_in_place, in_place=True, version=_version(library))


def _function(module: str, name: str) -> Callable[..., Any]:
    library = module.split(".", maxsplit=1)[0]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == library:
            raise AbsentError(f"{library} is not installed (pip install {DISTRIBUTIONS[library]})") from None
        raise AbsentError(f"{module} needs {error.name}, which is not installed") from None
    except Exception as error:  # a library compiled for another torch fails in ways of its own
        raise AbsentError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    function: Callable[..., Any] | None = getattr(found, name, None)
    if function is None:
        raise AbsentError(f"{module} has no {name}")
    return function


def _version(library: str) -> str | None:
    try:
        return version(DISTRIBUTIONS[library])
    except PackageNotFoundError:
        return None
