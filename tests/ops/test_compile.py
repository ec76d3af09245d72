"""Public ops under torch.compile: the same bytes as eager, whatever the backend, and refusals in the same words."""

import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import numerics
from numerics import ops
from numerics.errors import ConfigurationError, RequirementError
from numerics.presets.schema import Reduction

Arguments = Callable[..., dict[str, Any]]
Builder = Callable[..., Any]
SameBits = Callable[[Tensor, Tensor], bool]

GIVEN = pytest.mark.parametrize("given", ["resolution", "numerics"])


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def settings(op: str, given: str = "resolution", preset: str = "vllm_cuda") -> Any:
    resolution = numerics.resolve(op, preset=preset)
    return resolution if given == "resolution" else resolution.numerics


def between(op: str, given: Any) -> Callable[..., Any]:
    """The op amid others, whose results are written to."""

    def function(call: dict[str, Any]) -> Any:
        call = {name: arg + 1 if name in ("x", "q", "residual", "text_q") else arg for name, arg in call.items()}
        made = getattr(ops, op)(**call, numerics=given)
        return tuple(out * 1 for out in made) if isinstance(made, tuple) else made * 1

    return function


def equal(a: Any, b: Any, same_bits: SameBits) -> bool:
    pairs = list(zip(a, b, strict=True)) if isinstance(a, tuple) else [(a, b)]
    return all(same_bits(x, y) and x.stride() == y.stride() for x, y in pairs)


@GIVEN
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph_serves_every_number_of_tokens_with_the_bytes_of_eager(
    every_op: str, given: str, backend: str, arguments: Arguments, same_bits: SameBits
) -> None:
    function = between(every_op, settings(every_op, given))
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    assert equal(compiled(arguments(every_op)), function(arguments(every_op)), same_bits)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (6, 7, 300):  # the last with another regime of rows
            assert equal(compiled(arguments(every_op, tokens)), function(arguments(every_op, tokens)), same_bits)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++ on a CPU")
@pytest.mark.filterwarnings("ignore")  # of inductor, about itself
def test_inductor_computes_the_same_bytes(
    arguments: Arguments, same_bits: SameBits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    names = ("fused_qk_norm_rope", "indexed_scale_shift_", "rms_norm")
    functions = [between(op, settings(op)) for op in names]
    compiled = torch.compile(lambda calls: [f(call) for f, call in zip(functions, calls, strict=True)], fullgraph=True)
    found = compiled([arguments(op) for op in names])
    for op, function, out in zip(names, functions, found, strict=True):
        assert equal(out, function(arguments(op)), same_bits)


def test_the_graph_shows_the_numerics_in_words(every_op: str, arguments: Arguments) -> None:
    seen: list[torch.fx.Node] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.extend(node for node in graph.graph.nodes if str(node.target).startswith("numerics."))
        return graph.forward

    given = numerics.resolve(every_op, preset="vllm_cuda", min_tokens=3)
    torch.compile(between(every_op, given), fullgraph=True, backend=backend)(arguments(every_op))
    (node,) = seen
    assert str(node.target) == f"numerics.{every_op}.default"
    assert node.args[-2:] == (3, given.numerics.text)


# --- Which calls share a graph ----------------------------------------------------------------------------------------


def test_other_settings_are_another_graph(arguments: Arguments, same_bits: SameBits) -> None:
    call = arguments("rms_norm", 40)
    function = lambda given: ops.rms_norm(**call, numerics=given)  # noqa: E731
    counter = CompileCounter()
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    by_preset = [settings("rms_norm", preset=name) for name in ("vllm_cuda", "vllm_native")]
    for given in (*by_preset, *[each.numerics for each in by_preset]):
        assert same_bits(compiled(given), function(given))
    assert counter.frame_count == 4
    assert not same_bits(compiled(by_preset[0]), compiled(by_preset[1]))


def test_settings_that_differ_in_their_numerics_alone_are_told_apart() -> None:
    given, other = settings("rms_norm"), settings("rms_norm", preset="vllm_native")
    assert replace(given).key == given.key
    assert replace(given, numerics=other.numerics).key != given.key


def test_equal_settings_share_a_graph(arguments: Arguments) -> None:
    call = arguments("rms_norm")
    counter = CompileCounter()
    compiled = torch.compile(lambda given: ops.rms_norm(**call, numerics=given), fullgraph=True, backend=counter)
    given = settings("rms_norm")
    for each in (given, pickle.loads(pickle.dumps(given)), given):
        compiled(each)
    assert counter.frame_count == 1


class Block(nn.Module):
    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(width, generator=generator).bfloat16())
        self.settings = numerics.resolve("rms_norm", preset="vllm_cuda")

    def forward(self, x: Tensor) -> Tensor:
        return x + ops.rms_norm(x, self.weight, 1e-6, numerics=self.settings)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it for any input
@pytest.mark.parametrize("grad", [False, True])
def test_a_repeated_block_is_compiled_once(grad: bool, arguments: Arguments, same_bits: SameBits) -> None:
    blocks = [Block(32, seed) for seed in range(4)]
    x = arguments("rms_norm")["x"].requires_grad_(grad) * 1  # like what a block returns

    def run() -> Tensor:
        y: Tensor = x
        for block in blocks:
            y = block(y)
        return y

    with torch.set_grad_enabled(grad):
        expected = run()
        counter = CompileCounter()
        for block in blocks:
            block.compile(fullgraph=True, backend=counter)
        assert same_bits(run(), expected)
        assert same_bits(run(), expected)
    assert counter.frame_count == 1


# --- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("given", [None, "vllm_cuda"])
def test_settings_that_are_not_resolved_are_refused_in_our_words(
    every_op: str, given: str | None, fullgraph: bool, arguments: Arguments
) -> None:
    compiled = torch.compile(between(every_op, given), fullgraph=fullgraph, backend="eager")
    with pytest.raises(ConfigurationError) as error:
        compiled(arguments(every_op))
    assert f"{every_op}: got numerics={given!r} while compiling" in str(error.value)
    assert f"pass numerics=resolve({settings(every_op).op!r}, ...), resolved before" in str(error.value)


def test_settings_of_another_family_are_refused_in_our_words(arguments: Arguments) -> None:
    compiled = torch.compile(between("rms_norm", settings("indexed_gate")), backend="eager")
    with pytest.raises(ConfigurationError, match=r"rms_norm: got the settings of fused_modulation; legal: those of"):
        compiled(arguments("rms_norm"))


@pytest.mark.parametrize(
    ("preset", "change", "words"),
    [
        ("vllm_cuda", {"x": torch.ones(6, 32), "weight": torch.ones(32)}, "requires dtype bfloat16 or float16, got"),
        ("sglang_qk_norm", {}, "requires width from 64 to 256, got 32"),
        ("vllm_cuda_128", {}, "it is declared for rows of 128 elements, not 32"),
    ],
)
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_condition_that_does_not_hold_is_refused_in_our_words(
    preset: str, change: dict[str, Tensor], words: str, fullgraph: bool, arguments: Arguments
) -> None:
    given = settings("rms_norm", preset=preset)
    compiled = torch.compile(
        lambda call: ops.rms_norm(**call, numerics=given), fullgraph=fullgraph, dynamic=True, backend="eager"
    )
    with pytest.raises((RequirementError, torch._dynamo.exc.Unsupported), match=words) as error:
        compiled({**arguments("rms_norm"), **change})
    assert fullgraph or error.type is not torch._dynamo.exc.Unsupported
    assert "vllm_cuda" not in preset or not fullgraph or issubclass(error.type, RequirementError)


def test_a_rotation_table_of_another_dtype_is_refused_in_our_words(arguments: Arguments) -> None:
    call = arguments("fused_qk_norm_rope") | {"rope_table": torch.ones(6, 24)}
    compiled = torch.compile(between("fused_qk_norm_rope", settings("fused_qk_norm_rope")), backend="eager")
    with pytest.raises(RequirementError, match=r"requires rope_table_dtype 'activation' .bfloat16 here., got float32"):
        compiled(call)


def test_rows_without_a_declared_order_are_refused_when_the_graph_runs(build: Builder, arguments: Arguments) -> None:
    reduction = Reduction(vector=8, threads=4, lanes="adjacent", mean="divide", rows=(1, 7))
    given = build(reduction=reduction)
    compiled = torch.compile(
        lambda call: ops.rms_norm(**call, numerics=given), fullgraph=True, dynamic=True, backend="eager"
    )
    compiled(arguments("rms_norm", 6))
    with pytest.raises(RequirementError, match="it is declared for 1 to 7 rows, not 8"):
        compiled(arguments("rms_norm", 8))


def test_settings_that_depend_on_the_capability_are_bound_in_the_trace(
    tmp_path: Path, arguments: Arguments, same_bits: SameBits
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[models.mine]\nfused_rms_norm = { preset = "vllm_native", '
        'when = [{ capability = "cuda:9", preset = "vllm_cuda" }] }\n',
        encoding="utf-8",
    )
    numerics.configure(file)
    given = numerics.resolve("rms_norm", "mine")
    numerics.configure(None)
    call = arguments("rms_norm", 40)
    compiled = torch.compile(lambda: ops.rms_norm(**call, numerics=given), fullgraph=True, backend="eager")
    assert same_bits(compiled(), ops.rms_norm(**call, numerics="vllm_native"))


def test_packing_a_table_traces(same_bits: SameBits) -> None:
    angle = torch.randn(6, 12)
    given = settings("fused_qk_norm_rope")
    pack = lambda angle: ops.pack_qk_norm_rope_table(  # noqa: E731
        angle.cos(), angle.sin(), dtype=torch.bfloat16, identity_rows=2, numerics=given
    )
    compiled = torch.compile(pack, fullgraph=True, backend="eager")
    packed = compiled(angle)
    expected = ops.pack_qk_norm_rope_table(angle.cos(), angle.sin(), dtype=torch.bfloat16, identity_rows=2)
    assert packed is not None
    assert expected is not None
    assert same_bits(packed, expected)
