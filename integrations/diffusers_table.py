"""The rotation table of a diffusers model, packed once a forward and not once a block, and what it is packed of."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numerics.ops import pack_qk_norm_rope_table
from numerics.resolution import Resolution


@dataclass(frozen=True, slots=True)
class _Packed:
    sources: tuple[weakref.ref[Tensor], ...]
    versions: tuple[int, ...]
    wanted: tuple[object, ...]  # what else decides the bytes, and where they may be read
    table: Tensor

    def is_of(self, sources: tuple[Tensor, ...], wanted: tuple[object, ...]) -> bool:
        return (
            self.wanted == wanted
            and len(self.sources) == len(sources)
            and all(ref() is source for ref, source in zip(self.sources, sources, strict=True))
            and self.versions == tuple(source._version for source in sources)
        )


class Tables:
    """The last table that the blocks of a model packed. A model makes its cosines anew in each forward.

    Only what a later call can be sure of is kept: not while a compiler or a CUDA graph records the work, which may run
    again or elsewhere, and not from inference tensors, which do not tell when they are written to.
    """

    def __init__(self) -> None:
        self._last: _Packed | None = None

    def __reduce__(self) -> tuple[type[Tables], tuple[()]]:
        return Tables, ()

    def pack(
        self,
        halves: Callable[..., tuple[Tensor, Tensor]],  # of the sources: cos and sin, one value for each pair
        sources: tuple[Tensor, ...],
        like: Tensor,
        resolution: Resolution,
        identity_rows: int = 0,
    ) -> Tensor:
        """[tokens + identity_rows, head_dim] or [batch, tokens, head_dim] on the device of `like`.

        In float32, or in the dtype of `like` where the preset requires that.
        """
        if torch.compiler.is_compiling() or _is_recorded(like) or any(source.is_inference() for source in sources):
            return _packed(halves, sources, like, resolution, identity_rows)
        stream = torch.cuda.current_stream(like.device) if like.is_cuda else None
        wanted = (halves, like.device, like.dtype, identity_rows, resolution.key, stream)
        last = self._last
        if last is None or not last.is_of(sources, wanted):
            # Outside of autograd and inference mode, so that whoever comes next may use it.
            with torch.inference_mode(mode=False), torch.no_grad():
                table = _packed(halves, sources, like, resolution, identity_rows)
            refs, versions = tuple(map(weakref.ref, sources)), tuple(source._version for source in sources)
            last = self._last = _Packed(refs, versions, wanted, table)
        return last.table


def _is_recorded(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _packed(
    halves: Callable[..., tuple[Tensor, Tensor]],
    sources: tuple[Tensor, ...],
    like: Tensor,
    resolution: Resolution,
    identity_rows: int,
) -> Tensor:
    dtype = like.dtype if resolution.requires.rope_table_dtype == "activation" else torch.float32
    cos, sin = (x.to(like.device) for x in halves(*sources))
    table = pack_qk_norm_rope_table(cos, sin, dtype=dtype, identity_rows=identity_rows, numerics=resolution)
    assert table is not None  # as it may be only where `like` is given
    return table


# --- Where diffusers keeps cosines and sines --------------------------------------------------------------------------


def of_pairs(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, head_dim] each, every value twice: c0, c0, c1, c1, ..."""
    return cos[:, ::2], sin[:, ::2]


def of_halves(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, rotary_dim] each, every value twice: c0, c1, ..., c0, c1, ..."""
    half = cos.shape[-1] // 2
    return cos[:, :half], sin[:, :half]


def of_complex(freqs: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, head_dim / 2] or [batch, tokens, head_dim / 2] complex64."""
    return freqs.real, freqs.imag


def of_complex_streams(*freqs: Tensor) -> tuple[Tensor, Tensor]:
    """The same for each of several streams, joined in their order."""
    joined = torch.cat(freqs, dim=-2)
    return joined.real, joined.imag


def why_not_pairs(rotary: Any, head_dim: int, tokens: int, *, part: bool = False) -> str | None:
    """Why these cosines and sines are not the [tokens, head_dim] float32 that the models make.

    part: whether they may be narrower than a head.
    """
    if not isinstance(rotary, tuple) or len(rotary) != 2:
        return "the rotation is not given as cosines and sines"
    cos, sin = rotary
    if cos.ndim != 2 or cos.shape != sin.shape or cos.dtype != torch.float32 or sin.dtype != torch.float32:
        return "cosines and sines are not [tokens, head_dim] in float32"
    width = cos.shape[1]
    if width != head_dim and not (part and width < head_dim):
        return f"cosines and sines are not as wide as a head of {head_dim}"
    if cos.shape[0] != tokens:
        return "cosines and sines have not one row for each token"
    return None


def why_not_complex(freqs: Any, head_dim: int, *rows: int) -> str | None:
    """The same for factors that the models make. rows: tokens, or batch and tokens."""
    if not isinstance(freqs, Tensor) or freqs.dtype != torch.complex64 or freqs.shape != (*rows, head_dim // 2):
        return "the rotation is not head_dim / 2 factors in complex64 for each token"
    return None
