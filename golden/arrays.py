"""The packaged arrays: a torch.save of names and tensors, compressed with lzma."""

import io
import lzma
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

PACKAGED: Final = "providers_h200.pt.xz"
# Two positions, since elements have two bytes; equal stretches of two outputs may lie anywhere in the file.
FILTERS: Final = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 24, "lc": 3, "lp": 1, "pb": 1}
]


@cache
def load() -> Mapping[str, Tensor]:
    """Every array by its name: bfloat16, float32 and int64 tensors, in the memory of the CPU. Not to be written to."""
    return MappingProxyType(unpack(files("numerics.golden").joinpath(PACKAGED).read_bytes()))


def unpack(packed: bytes) -> dict[str, Tensor]:
    """What `pack` packed."""
    arrays: dict[str, Tensor] = torch.load(io.BytesIO(lzma.decompress(packed)), weights_only=True)
    return arrays


def pack(arrays: Mapping[str, Tensor]) -> bytes:
    """The arrays as a file. Outputs of two providers that differ little cost little more than one of them."""
    plain = io.BytesIO()
    torch.save({name: tensor.contiguous() for name, tensor in arrays.items()}, plain)
    return lzma.compress(plain.getvalue(), format=lzma.FORMAT_XZ, filters=FILTERS)
