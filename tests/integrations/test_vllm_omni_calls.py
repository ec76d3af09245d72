"""With which settings the models of vLLM-Omni call the fused ops, and what they get."""

from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics import ops, resolve
from numerics.errors import ConfigurationError, RequirementError
from numerics.integrations import vllm_omni
from numerics.ops.telemetry import dispatch_counts
from tests.integrations.vllm_omni_package import FUSED_QK, MIN_TOKENS, MODULES, Engine, imported

# --- Settings ---------------------------------------------------------------------------------------------------------


def test_each_model_has_its_own_settings_and_the_record_says_who_set_them(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    presets = {key: found.preset for key, found in installed.settings.items() if not isinstance(found, Exception)}
    assert presets == {
        ("minimax_h3", FUSED_QK): "vllm_cuda_128",
        ("minimax_h3", "fused_modulation"): "vllm_cuda",
        ("qwen_image", FUSED_QK): "omni_aten",
        ("boogu_image", FUSED_QK): "vllm_cuda_float32_table",
    }
    assert (
        f"qwen_image: {FUSED_QK} by omni_aten (package model: presets.toml: models.qwen_image), sha256:"
        f"{resolve(FUSED_QK, 'qwen_image').fingerprint.partition(':')[2]}" in str(installed)
    )


def test_settings_are_resolved_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    monkeypatch.setenv("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS", "bf16_affine")
    installed = vllm_omni.install()
    before = installed.fingerprint
    monkeypatch.setenv("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS", "fast")
    imported("qwen_image")
    assert "bf16_affine (environment" in str(installed)
    assert vllm_omni.install().fingerprint == before


def test_other_bits_have_another_fingerprint(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    seen = []
    for preset in ("", "bf16_affine", "bf16_affine,enable_fp_fusion=true", "bf16_affine"):
        monkeypatch.setenv("VLLM_OMNI_FUSED_MODULATION_NUMERICS", preset)
        installed = vllm_omni.install()
        seen.append(installed.fingerprint)
        installed.restore()
    assert len(set(seen)) == 3
    assert seen[1] == seen[3]


def test_an_illegal_setting_is_an_error_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    monkeypatch.setenv("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS", "omni_atem")
    with pytest.raises(ConfigurationError, match="nearest: omni_aten"):
        vllm_omni.install()
    assert vllm_omni.active() is None


@pytest.mark.usefixtures("everywhere")
def test_a_condition_that_does_not_hold_is_the_error_of_that_model_s_calls(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    installed = vllm_omni.install()
    assert isinstance(installed.settings["minimax_h3", FUSED_QK], RequirementError)
    assert f"minimax_h3: {FUSED_QK}: refused, its calls raise: preset 'vllm_cuda_128'" in str(installed)
    with pytest.raises(RequirementError, match="VLLM_BATCH_INVARIANT"):
        imported("minimax_h3").attention(*qk(interleaved=False))
    imported("qwen_image").attention(*qk(table=torch.float32))


def test_a_threshold_of_a_file_is_the_model_s(engine: Engine) -> None:
    path = engine() / "mine.toml"
    path.write_text("[models.qwen_image]\nfused_qk_norm_rope = { min_tokens = 77 }\n")
    numerics.configure(path)
    installed = vllm_omni.install()
    qwen, boogu = imported("qwen_image"), imported("boogu_image")
    assert (qwen.fuses(76), qwen.fuses(77)) == (False, True)
    assert (boogu.fuses(2047), boogu.fuses(2048)) == (False, True)
    assert "no file sets min_tokens" in installed.kept[f"{MODULES['boogu_image']}.{MIN_TOKENS}"]
    installed.restore()
    assert not qwen.fuses(2047)


# --- Calls ------------------------------------------------------------------------------------------------------------


def qk(*, interleaved: bool = True, table: torch.dtype = torch.bfloat16) -> tuple[Any, ...]:
    """As the models call: q, k, weights, table, eps."""
    torch.manual_seed(0)
    rotary = 128 if interleaved else 96
    q, k = torch.randn(5, 6, 128).bfloat16(), torch.randn(5, 2, 128).bfloat16()
    weights = [torch.rand(128).bfloat16() for _ in range(2)]
    angles = torch.rand(5, rotary // 2)
    return q, k, *weights, torch.cat([angles.cos(), angles.sin()], dim=-1).to(table), 1e-6


def modulation() -> dict[str, Any]:
    torch.manual_seed(0)
    rows = {name: torch.randn(7, 64).bfloat16() for name in ("x", "branch")}
    tables = {name: torch.randn(3, 64).bfloat16() for name in ("shift", "scale", "gate")}
    return {**rows, **tables, "weight": torch.rand(64).bfloat16(), "indices": torch.tensor([0, 2, 1, 1, 0, 2, 2])}


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16))


def test_off_cuda_the_original_is_called(engine: Engine) -> None:
    engine()
    vllm_omni.install()
    args = qk(interleaved=False)
    q, _ = imported("minimax_h3").attention(*args)
    assert same(q, args[0]), "the original copies"
    assert not dispatch_counts()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("model", "table"),
    [("minimax_h3", torch.bfloat16), ("qwen_image", torch.float32), ("boogu_image", torch.float32)],
)
def test_a_call_arrives_at_ours_with_the_settings_of_its_model(engine: Engine, model: str, table: torch.dtype) -> None:
    engine()
    vllm_omni.install()
    interleaved = model != "minimax_h3"
    q, k, q_weight, k_weight, rope_table, eps = qk(interleaved=interleaved, table=table)
    found = imported(model).attention(q, k, q_weight, k_weight, rope_table, eps)
    if model == "qwen_image":  # its chain rounds the table before it rotates
        rope_table = rope_table.bfloat16()
    expected = ops.fused_qk_norm_rope(
        q, k, q_weight, k_weight, rope_table, eps, interleaved=interleaved, numerics=resolve(FUSED_QK, model)
    )
    assert all(map(same, found, expected))


@pytest.mark.usefixtures("everywhere")
def test_a_table_is_not_rounded_for_a_preset_that_does_not_ask_for_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine()
    monkeypatch.setenv("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS", "bf16_affine")
    vllm_omni.install()
    args = qk(table=torch.float32)
    found = imported("qwen_image").attention(*args)
    assert all(map(same, found, ops.fused_qk_norm_rope(*args, interleaved=True, numerics="bf16_affine")))


@pytest.mark.usefixtures("everywhere")
def test_modulation_arrives_at_ours(engine: Engine) -> None:
    engine()
    vllm_omni.install()
    module, found = imported("minimax_h3"), resolve("fused_modulation", "minimax_h3")
    m = modulation()
    tables = m["shift"], m["scale"], m["indices"]
    h = ops.rms_norm_indexed_scale_shift(m["x"], m["weight"], *tables, 1e-5, numerics=found)
    x, h = ops.indexed_gate_rms_norm_scale_shift(
        m["x"], m["gate"], h + m["branch"], m["weight"], *tables, 1e-5, numerics=found
    )
    expected = ops.indexed_gate(x, m["gate"], h, m["indices"], numerics=found)
    assert same(module.block(**m, eps=1e-5), expected)
    rows = m["x"].clone()
    assert module.final(rows, *tables) is rows
    assert same(rows, ops.indexed_scale_shift_(m["x"].clone(), *tables, numerics=found))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("model", ["minimax_h3", "qwen_image"])
def test_a_call_is_compiled_without_a_graph_break(engine: Engine, model: str) -> None:
    engine()
    vllm_omni.install()
    args = qk(interleaved=model != "minimax_h3", table=torch.bfloat16 if model == "minimax_h3" else torch.float32)
    attention = imported(model).attention
    compiled: Any = torch.compile(attention, backend="eager", fullgraph=True, dynamic=True)
    assert all(map(same, compiled(*args), attention(*args)))
