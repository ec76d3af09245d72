"""The callables that `identify` can ask: by module and function, or by a known name; and how they are called."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import ConfigurationError, NumericsError, nearest
from numerics.measure.chains import aten_norm, mean_norm
from numerics.measure.imported import imported
from numerics.measure.peers import Locations, Peer, found, vllm_norm
from numerics.ops import rms_norm
from numerics.presets.file import Catalog

Norm = Callable[[Tensor, Tensor, float], Tensor]

KNOWN: Final = ("aten", "aten-mean", "aten-mean:two", "vllm")
ARGUMENTS: Final = 3


@dataclass(frozen=True)
class Subject:
    """A callable f(x [rows, N], weight [N], eps) -> [rows, N] in the dtype of x."""

    name: str
    norm: Norm

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """A copy of what it returns for copies of the inputs.

        Memory of the size of the output is filled with NaN and given back before, so that an allocator which hands it
        out again shows what is not written. Raises ConfigurationError where it raises, or returns no such tensor.
        """
        torch.full_like(x, torch.nan)
        what = f"{self.name} on x [{x.shape[0]}, {x.shape[1]}] {str(x.dtype).removeprefix('torch.')}"
        try:
            out: Any = self.norm(x.clone(), weight.clone(), eps)
        except NumericsError as error:
            raise ConfigurationError(f"{what}: {error}") from error
        except (Exception, SystemExit) as error:  # whatever somebody's callable raises, it is no answer
            raise ConfigurationError(f"{what}: raised {type(error).__name__}: {error}") from error
        if not isinstance(out, Tensor):
            raise ConfigurationError(f"{what}: returned {type(out).__name__}; legal: a tensor of the shape of x")
        if out.shape != x.shape or out.dtype != x.dtype:
            got = f"{list(out.shape)} {out.dtype}"
            raise ConfigurationError(f"{what}: returned {got}; legal: {list(x.shape)} {x.dtype}")
        return out.clone()


def subject(name: str, catalog: Catalog, vllm_library: Path | None = None) -> Subject:
    """The callable of this name. Raises ConfigurationError, saying what is legal, where there is none."""
    if vllm_library is not None and name != "vllm":
        raise ConfigurationError(f"--vllm-library: of no use for {name!r}; legal with 'vllm'")
    if name == "aten":
        return Subject(name, aten_norm)
    if name in {"aten-mean", "aten-mean:two"}:
        return Subject(name, partial(mean_norm, two_roundings=name != "aten-mean"))
    if name == "vllm":
        return Subject(name, _vllm(vllm_library))
    if name.startswith("numerics:"):
        return Subject(name, _own(name.removeprefix("numerics:"), catalog))
    return Subject(name, _imported(name))


def _own(preset: str, catalog: Catalog) -> Norm:
    if preset not in catalog.presets:
        raise ConfigurationError(f"CALLABLE: preset {preset!r}: no such preset{nearest(preset, catalog.presets)}")
    numerics = catalog.presets[preset].numerics(catalog.reductions)
    return lambda x, weight, eps: rms_norm(x, weight, eps, numerics=numerics)


def _vllm(library: Path | None) -> Norm:
    peer = found(Locations(vllm_library=library), ("vllm",))["vllm"]
    if not isinstance(peer, Peer):
        raise ConfigurationError(f"CALLABLE 'vllm': {peer}")
    return vllm_norm


def _imported(name: str) -> Norm:
    legal = f"legal: module:function, numerics:PRESET, {', '.join(KNOWN)}"
    module_name, separator, function = name.partition(":")
    if not separator or not module_name or not function:
        raise ConfigurationError(f"CALLABLE: got {name!r}; {legal}{nearest(name, KNOWN)}")
    found_there = imported(name, "CALLABLE")
    try:
        inspect.signature(found_there).bind(*[None] * ARGUMENTS)
    except TypeError as error:
        raise ConfigurationError(f"CALLABLE: {name} does not take (x, weight, eps): {error}") from None
    except ValueError:
        pass  # written in C, without a signature: the first call tells
    norm: Norm = found_there
    return norm
