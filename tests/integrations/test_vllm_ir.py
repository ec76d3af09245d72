"""The provider of vLLM's IR ops, in a package of the form of vLLM's and, where that is installed, in vLLM itself."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from numerics import ops
from numerics.errors import ConfigurationError, RequirementError
from numerics.integrations import vllm_ir, vllm_plugin
from tests.integrations import vllm_package

OPS = ("rms_norm", "fused_add_rms_norm")
PRESETS = {"rms_norm": "vllm_cuda", "fused_add_rms_norm": "vllm_cuda_add"}
REAL = importlib.util.find_spec("vllm") is not None
pytestmark = pytest.mark.filterwarnings("ignore" if REAL else "error")  # vLLM's own


@pytest.fixture(
    params=[
        "form",
        pytest.param("vllm", marks=pytest.mark.skipif(not REAL, reason="vLLM is not installed")),
    ]
)
def ir(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The ops `vllm.ir.ops`. Afterwards nothing is installed in them."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}
    if request.param == "form":
        vllm_package.write(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        for name in before:
            del sys.modules[name]
    found = importlib.import_module("vllm.ir").ops
    yield found
    if (installed := vllm_ir.active()) is not None:
        installed.restore()
    assert not any("numerics" in getattr(found, name).impls for name in OPS)
    if request.param == "form":
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]
        sys.modules.update(before)


def rows(*shape: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return (*(torch.randn(shape).bfloat16() for _ in range(2)), torch.rand(shape[-1]).bfloat16())


def arguments(op: str, *shape: int) -> tuple[Any, ...]:
    x, residual, weight = rows(*shape)
    return (x, weight, 1e-6) if op == "rms_norm" else (x, residual, weight, 1e-6)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16))


def preferred(op: Any) -> None:
    """As vLLM does on CUDA with `--ir-op-priority.OP numerics`, if these tensors were there."""
    op.impls["numerics"].supported = True
    op.impls["numerics"]._supports_args = None
    op.set_default(["numerics"])


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(3, 64), (300, 2, 64)])
def test_the_provider_computes_vllm_s_bytes(ir: Any, name: str, shape: tuple[int, ...]) -> None:
    vllm_ir.install()
    op, args = getattr(ir, name), arguments(name, *shape)
    expected = getattr(ops, name)(*args, numerics=PRESETS[name])
    before = [each.clone() for each in args if isinstance(each, Tensor)]
    assert not same(op.impls["native"].impl_fn(*args), expected)
    preferred(op)
    assert same(op(*args), expected)
    assert same(op.impls["numerics"].impl_fn(*args, None), expected)
    assert all(map(same, before, (each for each in args if isinstance(each, Tensor)))), "inputs are not written to"


@pytest.mark.parametrize("name", OPS)
def test_nothing_is_used_unless_vllm_s_priority_names_it(ir: Any, name: str) -> None:
    op, args = getattr(ir, name), arguments(name, 3, 64)
    before = op(*args)
    vllm_ir.install()
    assert op.get_priority() == []
    assert same(op(*args), before)


@pytest.mark.parametrize("name", OPS)
def test_off_cuda_the_provider_is_not_supported(ir: Any, name: str) -> None:
    vllm_ir.install()
    impl = getattr(ir, name).impls["numerics"]
    assert impl.supported is importlib.import_module("vllm.platforms").current_platform.is_cuda()
    assert not impl.supports_args(*arguments(name, 3, 64))


class OnCuda:
    """What a provider looks at in a tensor."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


BF16, FP16, FP32 = map(OnCuda, (torch.bfloat16, torch.float16, torch.float32))
TAKEN = [
    ((BF16, BF16, None), True),
    ((FP16, FP16, None), True),
    ((BF16, None, None), True),
    ((BF16, FP32, None), False),
    ((FP32, FP32, None), False),  # the preset claims nothing of it
    ((BF16, BF16, 32), False),
]


@pytest.mark.parametrize(("case", "taken"), TAKEN)
def test_the_provider_takes_what_its_preset_takes(ir: Any, case: tuple[Any, Any, Any], taken: bool) -> None:
    vllm_ir.install()
    x, weight, size = case
    assert ir.rms_norm.impls["numerics"].supports_args(x, weight, 1e-6, size) is taken
    assert ir.fused_add_rms_norm.impls["numerics"].supports_args(x, x, weight, 1e-6, size) is taken
    assert not ir.fused_add_rms_norm.impls["numerics"].supports_args(BF16, FP32, BF16, 1e-6, None)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", OPS)
def test_a_graph_that_vllm_lowers_shows_the_settings_and_serves_any_number_of_rows(
    ir: Any, name: str, mode: str
) -> None:
    vllm_ir.install()
    implementation = getattr(ir, name).impls["numerics"].impl_fn
    *tensors, eps = arguments(name, 7, 64)
    graph = make_fx(lambda *args: implementation(*args, eps, None), tracing_mode=mode)(*tensors)  # type: ignore[arg-type]
    assert f"torch.ops.numerics.{name}.default" in graph.code
    assert '"threads":"row/vector"' in graph.code
    *tensors, _ = arguments(name, 300 if mode == "symbolic" else 7, 64)
    assert same(graph(*tensors), getattr(ops, name)(*tensors, eps, numerics=PRESETS[name]))


def test_other_settings_are_another_key_of_vllm_s_compiled_graphs(ir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for preset in ("", "bf16_affine", ""):
        monkeypatch.setenv("VLLM_OMNI_FUSED_RMS_NORM_NUMERICS", preset)
        installed = vllm_ir.install()
        seen.append([getattr(ir, name).impls["numerics"].uuid() for name in OPS])
        installed.restore()
    assert seen[0] == seen[2]
    assert not set(seen[0]) & set(seen[1])


def test_restoring_takes_the_provider_out_of_the_priority(ir: Any) -> None:
    installed = vllm_ir.install()
    preferred(ir.rms_norm)
    assert installed.replaced == tuple(f"vllm.ir.ops.{name}" for name in OPS)
    assert installed.restore() == ()
    assert "numerics" not in ir.rms_norm.get_priority()
    assert vllm_ir.active() is None
    vllm_ir.install()


def test_an_op_with_another_signature_gets_no_provider(
    ir: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other(numerics: Any, dtypes: Any) -> Any:
        def implementation(x: Tensor, epsilon: float) -> Tensor:
            return x

        return implementation, None

    monkeypatch.setitem(vllm_ir.MAKE, "rms_norm", other)
    installed = vllm_ir.install()
    assert "does not match" in installed.kept["vllm.ir.ops.rms_norm"]
    assert installed.replaced == ("vllm.ir.ops.fused_add_rms_norm",)
    assert any(
        "vllm.ir.ops.rms_norm gets no provider" in each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING
    )


def test_an_op_that_is_not_there_gets_no_provider(ir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ir, "fused_add_rms_norm")
    installed = vllm_ir.install()
    assert installed.kept["vllm.ir.ops.fused_add_rms_norm"] == "vLLM has no such op"
    installed.restore()
    monkeypatch.undo()


def test_a_condition_that_does_not_hold_is_an_error(ir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(RequirementError, match="VLLM_BATCH_INVARIANT"):
        vllm_ir.install()
    assert vllm_ir.active() is None


def test_an_engine_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_ir, "version", version)
    with pytest.raises(ConfigurationError, match="the package vllm is not installed"):
        vllm_ir.install()


def test_the_plugin_installs_it_where_it_is_named(ir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERICS_INSTALL", "vllm")
    vllm_plugin.install_from_environment()
    vllm_plugin.install_from_environment()
    assert "numerics" in ir.rms_norm.impls
