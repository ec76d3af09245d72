import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics import ops
from numerics.errors import ConfigurationError, RequirementError
from numerics.ops import fused_qk_norm_rope, indexed_gate, rms_norm
from numerics.ops.language import HAS_TRITON
from numerics.presets.schema import Numerics, Reduction

Builder = Callable[..., Numerics]
Preset = Callable[[str], Numerics]
SameBits = Callable[[Tensor, Tensor], bool]

BF16 = torch.bfloat16


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(BF16)


def test_a_name_a_resolution_and_its_numerics_are_the_same_call(preset: Preset, same_bits: SameBits) -> None:
    x = random(40, 128)
    resolution = numerics.resolve("rms_norm", preset="vllm_native")
    found = [rms_norm(x, x[0], 1e-6, numerics=given) for given in ("vllm_native", resolution, preset("vllm_native"))]
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])
    assert not same_bits(found[0], rms_norm(x, x[0], 1e-6, numerics="vllm_cuda"))


def test_without_numerics_the_settings_in_force_hold(same_bits: SameBits, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(40, 128)
    by_name = rms_norm(x, x[0], 1e-6, numerics="vllm_native")
    assert not same_bits(rms_norm(x, x[0], 1e-6), by_name)
    with numerics.use(preset="vllm_native"):
        assert same_bits(rms_norm(x, x[0], 1e-6), by_name)
    monkeypatch.setenv("VLLM_OMNI_FUSED_RMS_NORM_NUMERICS", "vllm_native")
    assert same_bits(rms_norm(x, x[0], 1e-6), by_name)


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"vlm_cuda.*nearest: vllm_cuda"):
        rms_norm(random(4, 128), None, 1e-6, numerics="vlm_cuda")


def test_the_settings_of_another_family_are_refused() -> None:
    resolution = numerics.resolve("fused_modulation", preset="vllm_cuda")
    with pytest.raises(ConfigurationError, match=r"rms_norm: got the settings of fused_modulation; legal: those of"):
        rms_norm(random(4, 128), None, 1e-6, numerics=resolution)


@pytest.mark.parametrize("tokens", [4, 0])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": torch.float32}, "requires dtype bfloat16 or float16, got float32"),
        ({"table": torch.float32}, "requires rope_table_dtype 'activation' (bfloat16 here), got float32"),
        ({"width": 64}, "it is declared for rows of 128 elements, not 64"),
    ],
)
def test_a_condition_that_does_not_hold_is_refused_at_the_call(tokens: int, change: dict[str, Any], words: str) -> None:
    width, dtype = change.get("width", 128), change.get("dtype", BF16)
    q = random(tokens, 2, width).to(dtype)
    rope = random(tokens, width).to(change.get("table", dtype))
    with pytest.raises(RequirementError, match=re.escape(words)) as error:
        fused_qk_norm_rope(q, q, None, None, rope, 1e-6, numerics="vllm_cuda_128")
    assert "preset 'vllm_cuda_128' (call, " in str(error.value)


def test_bare_numerics_are_refused_for_rows_without_a_declared_order(build: Builder) -> None:
    reduction = Reduction(vector=8, threads=16, lanes="adjacent", mean="divide", width=128, rows=(1, 7))
    q, rope = random(4, 1, 128), random(4, 128)
    fused_qk_norm_rope(q, q, None, None, rope, 1e-6, numerics=build(reduction=reduction))
    with pytest.raises(RequirementError, match=r"it is declared for 1 to 7 rows, not 8"):
        fused_qk_norm_rope(q, random(4, 2, 128), None, None, rope, 1e-6, numerics=build(reduction=reduction))


def test_an_op_without_a_norm_asks_for_no_order() -> None:
    x, gate, indices = random(4, 40), random(2, 40), torch.tensor([0, 1, 0, 1])
    assert indexed_gate(x, gate, x, indices, numerics="vllm_cuda_128").shape == x.shape


def test_a_file_or_a_variable_is_not_read_while_compiling(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = random(4, 128)
    for given in (None, "vllm_cuda"):
        with pytest.raises(ConfigurationError, match=r"pass numerics=resolve\('fused_rms_norm', \.\.\.\)"):
            rms_norm(x, None, 1e-6, numerics=given)
    assert rms_norm(x, None, 1e-6, numerics=build()).shape == x.shape
    assert rms_norm(x, None, 1e-6, numerics=numerics.resolve("rms_norm", preset="vllm_cuda")).shape == x.shape


def test_settings_that_depend_on_the_capability_are_those_without_one_on_a_cpu(
    tmp_path: Path, same_bits: SameBits
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[models.mine]\nfused_rms_norm = { preset = "vllm_native", '
        'when = [{ capability = "cuda:9", preset = "vllm_cuda" }] }\n',
        encoding="utf-8",
    )
    x = random(40, 128)
    numerics.configure(file)
    try:
        open_resolution = numerics.resolve("rms_norm", "mine")
    finally:
        numerics.configure(None)
    assert open_resolution.when
    expected = rms_norm(x, x[0], 1e-6, numerics="vllm_native")
    assert same_bits(rms_norm(x, x[0], 1e-6, numerics=open_resolution), expected)


def test_every_public_name_is_exported_once_in_order() -> None:
    assert ops.__all__ == sorted(set(ops.__all__))
    assert all(callable(getattr(ops, name)) for name in ops.__all__)
    assert {"can_fuse", "Decision", "dispatch_counts", "Dispatch", "reset_dispatch_counts"} <= set(ops.__all__)


def test_without_triton_every_op_runs_its_reference() -> None:
    program = """
import sys
sys.modules["triton"] = None
import torch
from numerics.ops import rms_norm, telemetry
print(rms_norm(torch.ones(1, 8), None, 1e-12, numerics="fast")[0, 0].item())
print([way.reason for way in telemetry.dispatch_counts()])
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:2] == ["1.0", "['Triton is not installed']"]


@pytest.mark.skipif(not HAS_TRITON, reason="without Triton there is no interpreter")
def test_an_interpreter_that_is_asked_for_after_the_import_is_an_error_that_names_the_variable() -> None:
    code = """
import os, torch, numerics.ops as ops
from numerics.errors import ConfigurationError
os.environ["TRITON_INTERPRET"] = "1"
try:
    ops.rms_norm(torch.ones(2, 128, dtype=torch.bfloat16), None, 1e-6, numerics="vllm_cuda")
except ConfigurationError as error:
    print(error)
"""
    without = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without).stdout
    assert said.startswith("TRITON_INTERPRET=1 came after numerics.ops was imported")
