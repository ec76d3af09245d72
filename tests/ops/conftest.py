"""Numerics for tests of ops, and exact float32 arithmetic in Python to compare with."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from numerics.presets.file import load
from numerics.presets.schema import Numerics, Reduction

# Kernels are interpreted in a session of their own, whose result test_interpreted.py awaits.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
_sessions: list["subprocess.Popen[str]"] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start that session, so that it runs beside the other tests, on another core."""
    awaited = any("interpreted" in getattr(item, "fixturenames", ()) for item in session.items)
    if not awaited or session.config.option.collectonly or find_spec("triton") is None:
        return
    measured = session.config.pluginmanager.hasplugin("_cov")
    start = ["-m", "coverage", "run", "--parallel-mode", "-m", "pytest"] if measured else ["-m", "pytest"]
    options = [] if session.config.getini("pythonpath") else ["-o", "pythonpath="]  # an installed wheel is tested
    folder = Path(__file__).parent / "interpreted"
    _sessions.append(
        subprocess.Popen(
            [sys.executable, *start, "-q", "--no-header", "-p", "no:cacheprovider", *options, str(folder)],
            cwd=session.config.rootpath, env=os.environ | {"TRITON_INTERPRET": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
    )  # fmt: skip


def pytest_unconfigure() -> None:
    """End it if it still runs, after a failure or an interruption."""
    while _sessions:
        with _sessions.pop() as session:  # closes its pipe and waits
            session.kill()


@pytest.fixture(scope="session")
def interpreted() -> "subprocess.Popen[str]":
    """The session in which kernels are interpreted."""
    return _sessions[-1]


WARP_FOLD: Final = Reduction(vector="gcd8", threads="row/vector", lanes="adjacent", mean="divide")

Builder = Callable[..., Numerics]


@pytest.fixture(scope="session")
def build() -> Builder:
    """Numerics with some knobs given: by default any width, no rounding points, no contraction."""

    def builder(*points: str, reduction: Reduction | str = WARP_FOLD, **knobs: Any) -> Numerics:
        given = {"rms_norm_reduction": reduction, "enable_fp_fusion": False, "rounding_points": points, **knobs}
        return Numerics.model_validate(given)

    return builder


@pytest.fixture(scope="session")
def preset() -> Callable[[str], Numerics]:
    """The numerics of a packaged preset."""

    def by_name(name: str) -> Numerics:
        catalog = load()
        return catalog.presets[name].numerics(catalog.reductions)

    return by_name


@pytest.fixture(scope="session")
def same_bits() -> Callable[[Tensor, Tensor], bool]:
    """Whether two tensors have the same shape, dtype and bits, NaN payloads and signs of zero included."""

    def same(a: Tensor, b: Tensor) -> bool:
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return a.dtype == b.dtype and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))

    return same


@pytest.fixture(scope="session")
def nearest() -> Callable[[Fraction], float]:
    """The float32 nearest to a fraction, ties to even: the definition, without any float arithmetic."""

    def to_float32(value: Fraction) -> float:
        if value == 0:
            return 0.0
        size = abs(value)
        exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -126)
        while size >= Fraction(2) ** (exponent + 1):
            exponent += 1
        ulp = Fraction(2) ** (exponent - 23)
        quotient, rest = divmod(size, ulp)
        if 2 * rest > ulp or (2 * rest == ulp and quotient % 2):
            quotient += 1
        rounded = float(quotient * ulp)
        if rounded > struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]:
            rounded = float("inf")
        return rounded if value > 0 else -rounded

    return to_float32


WIDTH: Final = 32
OPS: Final = (
    "fused_add_rms_norm",
    "fused_joint_qkv_norm_rope",
    "fused_qk_norm_rope",
    "indexed_gate",
    "indexed_gate_rms_norm_scale_shift",
    "indexed_scale_shift_",
    "rms_norm",
    "rms_norm_indexed_scale_shift",
)
Arguments = Callable[..., dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses the fixture `every_op` runs for each public op."""
    if "every_op" in metafunc.fixturenames:
        metafunc.parametrize("every_op", OPS)


@pytest.fixture(scope="session")
def arguments() -> Arguments:
    """Arguments of an op, by name: random, of so many tokens, all of 32 columns; `numerics` is left out."""

    def build_arguments(op: str, tokens: int = 6, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(tokens)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)

        rows, weight = (tokens, WIDTH), {"weight": random(WIDTH)}
        affine = {"shift": random(3, WIDTH), "scale": random(3, WIDTH)}
        indices, eps = {"indices": torch.arange(tokens) % 3}, {"eps": 1e-6}
        if op == "fused_qk_norm_rope":
            weights = {"q_weight": random(WIDTH), "k_weight": random(WIDTH)}
            heads = {"q": random(1, tokens, 4, WIDTH), "k": random(1, tokens, 2, WIDTH)}
            return {**heads, **weights, "rope_table": random(tokens, 24), **eps, "interleaved": False}
        if op == "fused_joint_qkv_norm_rope":
            heads = {
                f"{stream}_{name}": random(1, tokens, 4 if name == "q" else 2, WIDTH)
                for stream in ("text", "image") for name in "qkv"
            }  # fmt: skip
            weights = {f"{stream}_{name}_weight": random(WIDTH) for stream in ("text", "image") for name in "qk"}
            return {**heads, **weights, "rope_table": random(2 * tokens, 24), **eps, "interleaved": True}
        found: dict[str, dict[str, Any]] = {
            "rms_norm": {"x": random(*rows), **weight, **eps},
            "fused_add_rms_norm": {"x": random(*rows), "residual": random(*rows), **weight, **eps},
            "rms_norm_indexed_scale_shift": {"x": random(*rows), **weight, **affine, **indices, **eps},
            "indexed_gate_rms_norm_scale_shift": {
                "residual": random(*rows), "gate": random(3, WIDTH), "branch": random(*rows), **weight, **affine,
                **indices, **eps,
            },
            "indexed_scale_shift_": {"x": random(*rows), **affine, **indices},
            "indexed_gate": {"x": random(*rows), "gate": random(3, WIDTH), "other": random(*rows), **indices},
        }  # fmt: skip
        return found[op]

    return build_arguments
