"""Kernels on a CUDA device: graphs, compilation, offsets beyond 32 bits, and the bytes of the CPU's references."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics import ops
from numerics.ops.telemetry import reset_dispatch_counts

Arguments = Callable[..., dict[str, Any]]
SameBits = Callable[[Tensor, Tensor], bool]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of Inductor, about itself
]


@pytest.fixture(autouse=True)
def _fused_and_forgotten() -> Iterator[None]:
    """On a GPU each call of a test takes its kernel; nothing compiled is left behind."""
    torch.compiler.reset()
    reset_dispatch_counts()
    yield
    torch.compiler.reset()
    torch.cuda.empty_cache()
    counts = ops.dispatch_counts()
    assert any(way.fused for way in counts), counts
    assert all(way.fused or "'cpu'" in way.reason for way in counts), counts


def settings(op: str) -> Any:
    return numerics.resolve(op, preset="vllm_cuda")


def called(op: str, call: dict[str, Any]) -> tuple[Tensor, ...]:
    made = getattr(ops, op)(**call, numerics=settings(op))
    return made if isinstance(made, tuple) else (made,)


def moved(call: dict[str, Any]) -> dict[str, Any]:
    return {name: arg.cuda() if isinstance(arg, Tensor) else arg for name, arg in call.items()}


def equal(a: tuple[Tensor, ...], b: tuple[Tensor, ...], same_bits: SameBits) -> bool:
    return all(same_bits(x.cpu(), y.cpu()) and x.stride() == y.stride() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("tokens", [1, 6, 255, 256, 300])
def test_a_gpu_returns_the_bytes_of_a_cpu(
    every_op: str, tokens: int, arguments: Arguments, same_bits: SameBits
) -> None:
    call = arguments(every_op, tokens)
    on_gpu = called(every_op, moved(call))
    assert all(out.is_cuda for out in on_gpu)
    assert equal(on_gpu, called(every_op, call), same_bits)


def test_no_tokens_are_no_work(every_op: str, arguments: Arguments) -> None:
    empty = moved(arguments(every_op))
    for name, arg in empty.items():
        if name in {"x", "residual", "branch", "other", "indices", "rope_table"}:
            empty[name] = arg[:0]
        elif isinstance(arg, Tensor) and arg.ndim == 4:  # [1, tokens, heads, width]
            empty[name] = arg[:, :0]
    assert all(out.numel() == 0 for out in called(every_op, empty))


def test_a_replayed_graph_computes_with_new_inputs(every_op: str, arguments: Arguments, same_bits: SameBits) -> None:
    static = moved(arguments(every_op, 300))
    called(every_op, {name: arg.clone() if isinstance(arg, Tensor) else arg for name, arg in static.items()})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = called(every_op, static)
    for seed in (1, 2):
        fresh = arguments(every_op, 300)
        for name, arg in fresh.items():
            if isinstance(arg, Tensor) and arg.is_floating_point():
                fresh[name] = torch.roll(arg, seed, -1)
            if isinstance(arg, Tensor):
                static[name].copy_(fresh[name])
        if every_op != "indexed_scale_shift_":  # which writes into its input
            for each in out:
                each.fill_(float("nan"))
        graph.replay()
        assert equal(out, called(every_op, fresh), same_bits)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_computes_the_same_bytes_for_every_number_of_tokens(
    every_op: str, mode: str, arguments: Arguments, same_bits: SameBits
) -> None:
    given = settings(every_op)

    def function(call: dict[str, Any]) -> tuple[Tensor, ...]:
        call = {name: arg + 1 if name in ("x", "q", "residual", "text_q") else arg for name, arg in call.items()}
        made = getattr(ops, every_op)(**call, numerics=given)
        return tuple(out * 1 for out in (made if isinstance(made, tuple) else (made,)))

    compiled = torch.compile(function, fullgraph=True, dynamic=True, mode=mode)
    compiled(moved(arguments(every_op)))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (7, 300, 300, 9):
            call = moved(arguments(every_op, tokens))
            assert equal(tuple(x.clone() for x in compiled(call)), function(call), same_bits)


# --- Addresses --------------------------------------------------------------------------------------------------------

FAR = 1 << 30  # elements between tokens: the third lies beyond 2**31, and beyond 2**32 bytes


def far_apart(*shape: int) -> Tensor:
    """Random bfloat16 whose first dimension has so large a stride."""
    buffer = torch.empty((shape[0] - 1) * FAR + torch.Size(shape[1:]).numel(), dtype=torch.bfloat16, device="cuda")
    x = buffer.as_strided(shape, (FAR, *torch.empty(shape[1:], device="meta").stride()))
    return x.copy_(torch.randn(shape, device="cuda"))


def test_strides_beyond_32_bits(same_bits: SameBits) -> None:
    q, table, weight = far_apart(4, 3, 128), far_apart(4, 128), torch.randn(128, device="cuda").bfloat16()
    given = numerics.resolve("fused_qk_norm_rope", preset="vllm_cuda_128")
    for interleaved in (False, True):
        found = ops.fused_qk_norm_rope(q, q, weight, weight, table, 1e-6, interleaved=interleaved, numerics=given)
        close = q.contiguous()
        expected = ops.fused_qk_norm_rope(
            close, close, weight, weight, table.contiguous(), 1e-6, interleaved=interleaved, numerics=given
        )
        assert equal(found, expected, same_bits)


def test_rows_and_tables_beyond_32_bits(same_bits: SameBits) -> None:
    x, tables, weight = far_apart(4, 768), far_apart(4, 768), torch.randn(768, device="cuda").bfloat16()
    indices = torch.tensor([3, 2, 0, 3], device="cuda")
    given = numerics.resolve("fused_modulation", preset="vllm_cuda")
    found, expected = (
        ops.indexed_gate_rms_norm_scale_shift(rows, each, rows, weight, each, each, indices, 1e-6, numerics=given)
        for rows, each in ((x, tables), (x.contiguous(), tables.contiguous()))
    )
    assert equal(found, expected, same_bits)


def test_more_elements_than_32_bits_count(same_bits: SameBits) -> None:
    tokens, part = 720_000, 300
    q = torch.randn(tokens, 24, 128, device="cuda", dtype=torch.bfloat16)
    k, weight = q[:, :1], torch.randn(128, device="cuda").bfloat16()
    table = torch.randn(tokens, 128, device="cuda").bfloat16()
    assert q.numel() > 2**31
    given = numerics.resolve("fused_qk_norm_rope", preset="vllm_cuda_128")
    found = ops.fused_qk_norm_rope(q, k, weight, weight, table, 1e-6, interleaved=True, numerics=given)
    for start in (0, 65_535 - part // 2, 699_050 - part // 2, tokens - part):  # 2**16 tokens, 2**31 elements
        rows = slice(start, start + part)
        one = ops.fused_qk_norm_rope(
            q[rows], k[rows], weight, weight, table[rows], 1e-6, interleaved=True, numerics=given
        )
        assert equal(tuple(out[rows] for out in found), one, same_bits)


def test_more_rows_than_32_bits_count(same_bits: SameBits) -> None:
    rows, part = 420_000, 300
    x = torch.randn(rows, 5376, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(5376, device="cuda").bfloat16()
    assert x.numel() > 2**31
    found = ops.rms_norm(x, weight, 1e-6, numerics="vllm_cuda")
    for start in (0, 65_535 - part // 2, 399_457 - part // 2, rows - part):
        some = slice(start, start + part)
        assert same_bits(found[some], ops.rms_norm(x[some], weight, 1e-6, numerics="vllm_cuda"))
