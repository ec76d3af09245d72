"""Targets of `bisect`, imported by name: `bisect_functions:qk`. Each looks up its settings as a program does."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Final

import torch
from torch import Tensor

from numerics import Numerics, Resolution, resolve
from numerics.presets.vocabulary import FAMILIES, Family

MODEL: Final = "minimax_h3"

KEPT: dict[str, Resolution] = {}  # as a module that looks up its settings once
_calls = itertools.count()


def of(family: Family) -> Numerics:
    return resolve(family, MODEL).numerics


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def qk(width: int = 128, tokens: int = 64) -> dict[str, Tensor]:
    """A norm of q and k and their rotation, in both dtypes: points show in one, orders in the other.

    The other families are looked up, and not used.
    """
    from numerics import ops  # a fresh process that needs none is quicker

    settings = [resolve(family, MODEL) for family in FAMILIES]
    made: dict[str, Tensor] = {}
    for dtype in (torch.bfloat16, torch.float32):
        q, k = (randn(tokens, 4, width, seed=seed).to(dtype) for seed in (1, 2))
        cos, sin = (randn(tokens, width // 2, seed=seed) for seed in (3, 4))
        table = ops.pack_qk_norm_rope_table(cos, sin, dtype=dtype, numerics=settings[0])
        assert table is not None
        weight = randn(width, seed=5).to(dtype)
        out = ops.fused_qk_norm_rope(q, k, weight, weight, table, 1e-6, numerics=settings[0])
        made |= {f"{name}{8 * q.element_size()}": each for name, each in zip("qk", out, strict=True)}
    return made


def odd() -> dict[str, Tensor]:
    """Rows whose width is no power of two, so that dividing and multiplying are not the same; in float32."""
    from numerics import ops  # a fresh process that needs none is quicker

    x = randn(512, 120).float()
    return {"out": ops.rms_norm(x, None, 1e-6, numerics=of("fused_rms_norm"))}


def modulation() -> Tensor:
    """Every step of a modulation."""
    from numerics import ops  # a fresh process that needs none is quicker

    x, branch, weight = randn(64, 96), randn(64, 96, seed=1), randn(96, seed=2)
    rows = [randn(4, 96, seed=seed) for seed in (3, 4, 5)]
    indices = torch.arange(64) % 4
    made = ops.indexed_gate_rms_norm_scale_shift(
        x, rows[0], branch, weight, rows[1], rows[2], indices, 1e-5, numerics=of("fused_modulation")
    )
    return made[1]


def contraction() -> Tensor:
    """What the eager reference does not show: a product and a sum, contracted or not."""
    a, b, c = (randn(256, seed=seed).float() / 3 for seed in (1, 2, 3))
    exact = (a.double() * b.double() + c.double()).float()
    return exact if of("fused_qk_norm_rope").enable_fp_fusion else a * b + c


def threshold() -> float:
    """The share of calls that a model hands to the op."""
    least = resolve("fused_qk_norm_rope", MODEL).min_tokens
    return sum(tokens >= least for tokens in (16, 256, 4096)) / 3


def only_together() -> Tensor:
    """Two settings that move nothing by themselves, one of each family."""
    both = of("fused_qk_norm_rope").enable_fp_fusion and "norm" in of("fused_modulation").rounding_points
    return torch.full((8,), 1.0 if both else 0.0)


def three() -> Tensor:
    """Each moves the result, and only all three make it B's."""
    qk, modulation = of("fused_qk_norm_rope"), of("fused_modulation")
    seen = (qk.enable_fp_fusion, "norm" in modulation.rounding_points, "scaled" in modulation.rounding_points)
    return torch.tensor([float(all(seen)), float(seen[0]), 0.0])


def beyond() -> float:
    """It reads a point that no op of the family has."""
    return float("norm" in of("fused_qk_norm_rope").rounding_points)


def noisy() -> Tensor:
    return torch.tensor([next(_calls) * 1e-3, float(of("fused_qk_norm_rope").enable_fp_fusion)])


def kept() -> float:
    """Settings that are looked up once."""
    if "qk" not in KEPT:
        KEPT["qk"] = resolve("fused_qk_norm_rope", MODEL)
    return float(KEPT["qk"].numerics.enable_fp_fusion)


def named() -> float:
    """The call names its own knob, which is stronger than any file."""
    return float(resolve("fused_qk_norm_rope", MODEL, enable_fp_fusion=False).numerics.enable_fp_fusion)


def constant() -> float:
    return 1.0


def planted() -> float:
    """B's result by fusion; the norm point alone goes wrong, and does nothing in B."""
    fusion, norm = of("fused_qk_norm_rope").enable_fp_fusion, "norm" in of("fused_modulation").rounding_points
    if norm and not fusion:
        raise RuntimeError("planted")
    return float(fusion)


def fragile() -> float:
    """B's result by both; the norm point alone goes wrong."""
    return float(planted() and "norm" in of("fused_modulation").rounding_points)


def aborts() -> float:
    """As `planted`, but the process dies."""
    try:
        return planted()
    except RuntimeError:
        sys.stderr.write("about to die\n")
        sys.stderr.flush()
        os.abort()


def hangs() -> float:
    """As `planted`, but it does not return."""
    try:
        return planted()
    except RuntimeError:
        time.sleep(60)
        raise


def refused() -> Tensor:
    """Rows of a width that only some orders are declared for."""
    from numerics import ops  # a fresh process that needs none is quicker

    return ops.rms_norm(randn(4, 96), None, 1e-6, numerics=of("fused_rms_norm"))


def loud() -> float:
    print("loud")  # noqa: T201
    return 1.0


def exits() -> float:
    sys.exit(3)


def strange() -> str:
    return "text"


def returns_too_early() -> float:
    """Its process ends well, and nothing is returned."""
    os._exit(0)


def wanders() -> float:
    os.chdir("/")
    return float("nan")


def nothing() -> dict[str, Tensor]:
    return {"left": torch.empty(0)}


def twice() -> dict[object, Tensor]:
    return {1: torch.ones(1), "1": torch.zeros(1)}
