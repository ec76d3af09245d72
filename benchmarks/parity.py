"""Bytes of the fused kernels against the chains that the presets claim, over very many elements, on a GPU.

    python benchmarks/parity.py --vllm-library vllm_C.so --vllm-rotary rotary.py --out h200_parity.json

One record for each preset and op: how many elements were compared and how many differ. NaN that both sides computed
count as equal; everything else is compared as integers. Exits with 1 where any element differs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from numerics import ops
from numerics.measure.chains import TORCH
from numerics.measure.peers import Locations, found
from numerics.measure.stand_ins import import_file
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts
from numerics.resolve import resolve

BF16 = torch.bfloat16
AMPLITUDES = (1.0, 1e-3, 1e3)
WEIGHTS = ("random", "identity", "signed")
Norm = Callable[[Tensor, Tensor, float], Tensor]


# --- Chains -----------------------------------------------------------------------------------------------------------


def vllm_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """VLLM's compiled norm."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.ops._C.rms_norm(out, x.contiguous(), weight, eps)
    return out


def native_norm(x: Tensor, weight: Tensor, eps: float, *, two_roundings: bool) -> Tensor:
    """PyTorch's chain, with one rounding or two."""
    x32 = x.float()
    y = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return y.to(x.dtype) * weight if two_roundings else (weight.float() * y).to(x.dtype)


def aten_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """PyTorch's fused norm."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def rotate_complex(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """A complex product in float32."""
    assert interleaved
    turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.complex(cos, sin)[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def rotate_op_by_op(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Each step rounded to the activation dtype."""
    assert not interleaved
    cos, sin = cos.to(x.dtype)[:, None], sin.to(x.dtype)[:, None]
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos + (-b) * sin, b * cos + a * sin, rest), dim=-1)


@dataclass(frozen=True)
class Claim:
    """What a preset claims: norm and rotation, each as the provider has them."""

    preset: str
    norm: Norm
    rotate: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    table: torch.dtype
    pairings: tuple[bool, ...]  # interleaved
    elements: int
    eps: float = 1e-6


def claims(rotary: Callable[..., Tensor], most: int) -> Iterator[Claim]:
    """What each preset claims, and over how many elements that is tried."""

    def vllm_rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        return rotary(x, cos.contiguous(), sin.contiguous(), interleaved=interleaved)

    def one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return native_norm(x, weight, eps, two_roundings=False)

    def two(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return native_norm(x, weight, eps, two_roundings=True)

    both, separate = (True, False), TORCH.rotate
    assert separate is not None
    yield Claim("vllm_cuda_128", vllm_norm, vllm_rotate, BF16, both, most)
    yield Claim("vllm_cuda", vllm_norm, vllm_rotate, BF16, both, most)
    yield Claim("vllm_cuda_float32_table", vllm_norm, separate, torch.float32, both, most // 10)
    yield Claim("vllm_native", two, separate, BF16, both, most // 10)
    yield Claim("omni_native", one, separate, BF16, both, most // 10)
    yield Claim("diffusers_aten", aten_norm, separate, torch.float32, both, most // 10)
    yield Claim("diffusers_native", two, separate, torch.float32, both, most // 10)
    yield Claim("diffusers_complex", two, rotate_complex, torch.float32, (True,), most // 10)
    yield Claim("diffusers_bf16_rope", aten_norm, rotate_op_by_op, BF16, (False,), most // 10, 1e-5)


# --- Inputs -----------------------------------------------------------------------------------------------------------


def values(shape: tuple[int, ...], amplitude: float) -> Tensor:
    """Normal values with infinities, NaN and zeros of both signs in a few rows."""
    x = (torch.randn(shape, device="cuda") * amplitude).to(BF16)
    flat = x.view(-1)
    for place, special in enumerate((float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3e38, 1e-40)):
        flat[place * 1009 % flat.numel()] = special
    return x


def weight_of(kind: str, width: int) -> Tensor:
    """[width]: ones, positive, or of both signs."""
    if kind == "identity":
        return torch.ones(width, device="cuda", dtype=BF16)
    w = torch.randn(width, device="cuda") if kind == "signed" else torch.rand(width, device="cuda") + 0.5
    return w.to(BF16)


def differing(a: Tensor, b: Tensor) -> int:
    """Elements that are not the same bits, NaN on both sides aside."""
    bits = a.contiguous().view(torch.int16) != b.contiguous().view(torch.int16)
    return int((bits & ~(a.isnan() & b.isnan())).sum())


# --- Comparisons ------------------------------------------------------------------------------------------------------


def compare_heads(claim: Claim) -> tuple[int, int, int]:
    """Elements, differing elements and calls: heads of both counts, ragged and production tokens, strided QKV views."""
    elements = wrong = calls = 0
    shapes = cycle(product((4608, 4609, 1023, 257, 17, 1), (48, 24), AMPLITUDES, WEIGHTS, claim.pairings))
    while elements < claim.elements:
        tokens, heads, amplitude, kind, interleaved = next(shapes)
        qkv = values((tokens, 3 * heads, 128), amplitude)
        q, k = qkv[:, :heads], qkv[:, heads : 2 * heads]
        weights = weight_of(kind, 128), weight_of(kind, 128)
        rotary = 96 if not interleaved else 128
        angles = torch.rand(tokens, rotary // 2, device="cuda") * 6.2832
        angles[:1] = 0
        cos, sin = angles.cos().to(claim.table), angles.sin().to(claim.table)
        table = torch.cat((cos, sin), dim=-1)
        got = ops.fused_qk_norm_rope(
            q, k, *weights, table, claim.eps, interleaved=interleaved, numerics=resolved("fused_qk_norm_rope", claim)
        )
        for x, weight, out in zip((q, k), weights, got, strict=True):
            expected = claim.rotate(claim.norm(x, weight, claim.eps)[None], cos, sin, interleaved)[0]
            wrong += differing(out, expected)
            elements += out.numel()
        calls += 1
    return elements, wrong, calls


def compare_streams(claim: Claim) -> tuple[int, int, int]:
    """Elements, differing elements and calls: two streams, either of which may be empty."""
    elements = wrong = calls = 0
    shapes = cycle(product((1, 2), (48, 24), ((512, 4096), (77, 1001), (0, 300), (5, 0)), AMPLITUDES, WEIGHTS))
    while elements < claim.elements:
        batch, heads, (text, image), amplitude, kind = next(shapes)
        streams = [values((batch, tokens, 3, heads, 128), amplitude).unbind(2) for tokens in (text, image) if tokens]
        empty = torch.empty((batch, 0, heads, 128), device="cuda", dtype=BF16)
        if not text:
            streams.insert(0, (empty, empty, empty))
        if not image:
            streams.append((empty, empty, empty))
        weights = [weight_of(kind, 128) for _ in range(4)]
        angles = torch.rand(text + image, 64, device="cuda") * 6.2832
        cos, sin = angles.cos().to(claim.table), angles.sin().to(claim.table)
        interleaved = claim.pairings[0]
        got = ops.fused_joint_qkv_norm_rope(
            *streams[0], *streams[1], *weights, torch.cat((cos, sin), dim=-1), claim.eps, interleaved=interleaved,
            numerics=resolved("fused_joint_qkv_norm_rope", claim),
        )  # fmt: skip
        for place in range(3):
            parts = [stream[place] for stream in streams]
            if place < 2:
                parts = [
                    claim.norm(x, weights[2 * number + place], claim.eps) if x.numel() else x
                    for number, x in enumerate(parts)
                ]
            joined = torch.cat(parts, dim=1)
            expected = claim.rotate(joined, cos, sin, interleaved) if place < 2 else joined
            wrong += differing(got[place], expected)
            elements += expected.numel()
        calls += 1
    return elements, wrong, calls


def compare_rows(claim: Claim, op: str) -> tuple[int, int, int]:
    """Elements, differing elements and calls: rows below, at and above 256; wide, narrow and odd widths."""
    elements = wrong = calls = 0
    widths = (5376, 16384, 768, 1000) if claim.preset == "vllm_cuda" else (5376, 3072, 768)
    shapes = cycle(product((4096, 255, 256, 16, 4097), widths, AMPLITUDES, WEIGHTS))
    numerics = resolved(op, claim)
    while elements < claim.elements:
        rows, width, amplitude, kind = next(shapes)
        x, branch, weight = values((rows, width), amplitude), values((rows, width), amplitude), weight_of(kind, width)
        table = (torch.randn(12, 6 * width, device="cuda")).to(BF16)
        shift, scale, gate = table[:, :width], table[:, width : 2 * width], table[:, 2 * width : 3 * width]
        indices = torch.randint(0, 12, (rows,), device="cuda")

        def affine(y: Tensor) -> Tensor:
            return TORCH.indexed_scale_shift(y, shift, scale, indices)  # noqa: B023  # called at once

        got: Any
        if op == "rms_norm":
            got, expected = ops.rms_norm(x, weight, claim.eps, numerics=numerics), claim.norm(x, weight, claim.eps)
        elif op == "rms_norm_indexed_scale_shift":
            got = ops.rms_norm_indexed_scale_shift(x, weight, shift, scale, indices, claim.eps, numerics=numerics)
            expected = affine(claim.norm(x, weight, claim.eps))
        elif op == "indexed_gate_rms_norm_scale_shift":
            got = ops.indexed_gate_rms_norm_scale_shift(
                x, gate, branch, weight, shift, scale, indices, claim.eps, numerics=numerics
            )
            total = TORCH.indexed_gate(x, gate, branch, indices)
            expected = total, affine(claim.norm(total, weight, claim.eps))
        elif op == "indexed_gate":
            got = ops.indexed_gate(x, gate, branch, indices, numerics=numerics)
            expected = TORCH.indexed_gate(x, gate, branch, indices)
        elif op == "indexed_scale_shift_":
            expected = affine(x)
            got = ops.indexed_scale_shift_(x, shift, scale, indices, numerics=numerics)
        else:
            got = ops.fused_add_rms_norm(x, branch, weight, claim.eps, numerics=numerics)
            torch.ops._C.fused_add_rms_norm(x, branch, weight, claim.eps)
            expected = x, branch
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else ((got, expected),)
        for out, right in pairs:
            wrong += differing(out, right)
            elements += out.numel()
        calls += 1
    return elements, wrong, calls


def resolved(op: str, claim: Claim) -> Any:
    """The settings of a claim."""
    return resolve(op, preset=claim.preset)


# --- Command ----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Compare everything, print a line each, write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-library", type=Path, required=True, help="vLLM's compiled ops")
    parser.add_argument("--vllm-rotary", type=Path, required=True, help="its Triton rotary kernel")
    parser.add_argument("--elements", type=int, default=10**9, help="of vLLM's presets; a tenth for the others")
    parser.add_argument("--op", action="append", help="only this op; may be repeated")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found(Locations(given.vllm_library, given.vllm_rotary))
    rotary = import_file(given.vllm_rotary, "--vllm-rotary").apply_rotary
    torch.manual_seed(20261130)
    records = []
    work: list[tuple[str, Claim, Callable[[], tuple[int, int, int]]]] = []
    listed = list(claims(rotary, given.elements))
    work.extend(("fused_qk_norm_rope", claim, lambda c=claim: compare_heads(c)) for claim in listed)
    work.append(("fused_joint_qkv_norm_rope", listed[0], lambda: compare_streams(listed[0])))
    normed = ("rms_norm", "rms_norm_indexed_scale_shift", "indexed_gate_rms_norm_scale_shift")
    rows = [*product((listed[1], listed[4], listed[5]), normed)]
    rows += [(listed[1], "indexed_gate"), (listed[1], "indexed_scale_shift_")]
    work.extend((op, claim, lambda c=claim, o=op: compare_rows(c, o)) for claim, op in rows)
    added = Claim("vllm_cuda_add", vllm_norm, rotary, BF16, (True,), given.elements)
    work.append(("fused_add_rms_norm", added, lambda: compare_rows(added, "fused_add_rms_norm")))
    for op, claim, compare in work:
        if given.op and op not in given.op:
            continue
        reset_dispatch_counts()
        start = time.perf_counter()
        elements, wrong, calls = compare()
        unfused = {way.reason for way, count in dispatch_counts().items() if count and not way.fused}
        record = {
            "op": op, "preset": claim.preset, "elements": elements, "elements_differing": wrong, "calls": calls,
            "unfused": sorted(unfused), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "triton": triton.__version__, "vllm": given.vllm_library.name, "seed": 20261130,
        }  # fmt: skip
        records.append(record)
        line = f"{claim.preset:24} {op:36} {elements:>13,} elements, {wrong:,} differ, {calls} calls"
        print(f"{line}, {time.perf_counter() - start:.1f} s {sorted(unfused) or ''}", flush=True)
    given.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return int(any(record["elements_differing"] or record["unfused"] for record in records))


if __name__ == "__main__":
    sys.exit(main())
