"""The tensors of a case: made from a seed, laid out as in a model, and recognised by a hash."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from zlib import crc32

import torch
from torch import Tensor

from numerics.measure.cases import Case, Heads, Rows, Streams

EPS: Final = 1e-6
MODULATION: Final = 0.1  # keeps what an op in place makes of its own results finite for long
TABLES: Final = 6  # shift, scale and gate of two norms: one projection, of which they are slices

# Multipliers of the hash: odd, so that each is a bijection of 64 bits (Steele, Lea and Flood, 2014: SplitMix64's).
MIX: Final = (-7046029254386353131, -4658895280553007687)
CHUNK: Final = 1 << 24

ARGUMENTS: Final = {
    "rms_norm": ("x", "weight"),
    "fused_add_rms_norm": ("x", "residual", "weight"),
    "rms_norm_indexed_scale_shift": ("x", "weight", "shift", "scale", "indices"),
    "indexed_gate_rms_norm_scale_shift": ("residual", "gate", "branch", "weight", "shift", "scale", "indices"),
    "indexed_scale_shift_": ("x", "shift", "scale", "indices"),
    "indexed_gate": ("x", "gate", "other", "indices"),
}


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case by the names of the op's arguments; cos and sin in place of the rotation table."""

    case: Case
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]  # arguments that are no tensors

    @property
    def device(self) -> torch.device:
        """Of all tensors."""
        return next(iter(self.tensors.values())).device

    def arguments(self, table_dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
        """Of the public op, but for its numerics."""
        given = {name: x for name, x in self.tensors.items() if name not in ("cos", "sin")}
        if "cos" in self.tensors:
            given["rope_table"] = torch.cat(self.halves(table_dtype), dim=-1)
        return {**given, **self.settings}

    def halves(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cos and sin [tokens, rotary_dim / 2] as an unfused chain holds them."""
        return self.tensors["cos"].to(dtype), self.tensors["sin"].to(dtype)

    @cached_property
    def hash(self) -> str:
        """Of every tensor's bytes, as they were when first asked."""
        return hash_of(self.tensors)


def make(case: Case, device: torch.device, seed: int, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    """The tensors of a case: standard normal, but for modulation tables of a tenth of that; the same for a seed."""
    generator = torch.Generator(device).manual_seed(seed ^ crc32(case.path.encode()))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    def angles(tokens: int, rotary_dim: int) -> dict[str, Tensor]:
        theta = torch.rand(tokens, rotary_dim // 2, generator=generator, device=device) * (2 * math.pi)
        return {"cos": theta.cos(), "sin": theta.sin()}

    match case.geometry:
        case Heads() as it:
            qkv = random(it.tokens, it.q_heads + 2 * it.k_heads, it.head_dim)
            tensors = {"q": qkv[:, : it.q_heads], "k": qkv[:, it.q_heads : it.q_heads + it.k_heads]}
            tensors |= {name: random(it.head_dim) for name in ("q_weight", "k_weight")}
            tensors |= angles(it.tokens, it.rotary_dim)
            return Inputs(case, tensors, {"eps": EPS, "interleaved": it.interleaved})
        case Streams() as it:
            tensors = {}
            for stream, tokens in (("text", it.text), ("image", it.image)):
                qkv = random(it.batch, tokens, 3, it.heads, it.head_dim)
                tensors |= {f"{stream}_{name}": qkv[:, :, place] for place, name in enumerate("qkv")}
                tensors |= {f"{stream}_{name}_weight": random(it.head_dim) for name in "qk"}
            tensors |= angles(it.text + it.image, it.head_dim)
            return Inputs(case, tensors, {"eps": EPS, "interleaved": True})
        case Rows() as it:
            names = ARGUMENTS[it.op]
            tables = (random(it.groups, TABLES * it.width) * MODULATION).chunk(TABLES, dim=1) if it.groups else ()
            tensors = dict(zip(("shift", "scale", "gate"), tables, strict=False))
            tensors |= {
                name: random(it.rows, it.width) for name in ("x", "residual", "branch", "other") if name in names
            }
            tensors["weight"] = random(it.width)
            tensors["indices"] = torch.randint(max(it.groups, 1), (it.rows,), generator=generator, device=device)
            return Inputs(case, {name: tensors[name] for name in names}, {"eps": EPS} if "norm" in it.op else {})


# --- Hash -------------------------------------------------------------------------------------------------------------


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, dtypes and bytes. Computed where the tensors are, which for a GPU spares the copy."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {list(x.shape)} {_mixed(x)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _mixed(x: Tensor) -> int:
    """64 bits made of every element and its position."""
    bits = x.contiguous().view(-1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    total = 0
    for start in range(0, len(bits), CHUNK):
        block = bits[start : start + CHUNK].long()
        place = torch.arange(start + 1, start + 1 + len(block), device=x.device)
        mixed = (block ^ (place * MIX[0])) * MIX[1]
        mixed = (mixed ^ (mixed >> 29)) * MIX[0]
        total += int((mixed ^ (mixed >> 32)).sum())
    return total % 2**64
