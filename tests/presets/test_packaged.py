"""The packaged file: what it promises about itself."""

import re
import subprocess
import sys
import time
from typing import get_args

import pytest

from numerics.presets.file import PACKAGED, load
from numerics.presets.schema import PresetFile, Reduction, Reference, Requires
from numerics.presets.versions import clauses
from numerics.presets.vocabulary import FAMILIES, OPEN_REDUCTION, ROUNDING_POINTS, Family, RoundingPoint

CATALOG = load()
TEXT = PACKAGED.read_text(encoding="utf-8")
UNFUSED = tuple(point for point in ROUNDING_POINTS if point not in ("normalized", "rope_product"))
TWO_ROUNDINGS = tuple(point for point in ROUNDING_POINTS if point != "rope_product")
OP_BY_OP = tuple(point for point in ROUNDING_POINTS if point != "normalized")


def test_the_three_first_presets_are_as_designed() -> None:
    fast, affine, exact = (CATALOG.presets[name] for name in ("fast", "bf16_affine", "vllm_cuda_128"))
    assert fast.knobs == {
        "rms_norm_reduction": "triton",
        "enable_fp_fusion": True,
        "rounding_points": ("residual", "qk_norm"),
        "rope_rotation": "separate",
    }
    assert affine.knobs == {
        "rms_norm_reduction": "triton",
        "enable_fp_fusion": False,
        "rounding_points": UNFUSED,
        "rope_rotation": "separate",
    }
    assert exact.knobs == {
        "rms_norm_reduction": "vllm_cuda_128",
        "enable_fp_fusion": False,
        "rounding_points": ("qk_norm",),
        "rope_rotation": "separate",
    }
    assert exact.summary == "Bit-identical to vLLM's CUDA RMSNorm followed by eager RoPE"
    assert exact.requires == Requires(
        dtype=("bfloat16", "float16"),
        rope_table_dtype="activation",
        backend="cuda",
        env={"VLLM_BATCH_INVARIANT": "0"},
    )


@pytest.mark.parametrize(
    ("name", "provider", "reduction", "points", "table"),
    [
        ("vllm_cuda", "vllm_c", "vllm_cuda", UNFUSED, "activation"),
        ("vllm_cuda_float32_table", "vllm_c", "vllm_cuda", UNFUSED, "float32"),
        ("vllm_cuda_bf16_rope", "vllm_c_bf16_rope", "vllm_cuda", OP_BY_OP, "activation"),
        ("vllm_cuda_add", "vllm_c_add", "vllm_cuda_add", UNFUSED, "activation"),
        ("vllm_cuda_0_19", "vllm_c", "vllm_cuda", TWO_ROUNDINGS, "activation"),
        ("vllm_cuda_0_11", "vllm_c", "vllm_cuda_0_11", TWO_ROUNDINGS, "activation"),
        ("vllm_cuda_batch_invariant", "vllm_c", "vllm_cuda_batch_invariant", UNFUSED, "activation"),
        ("vllm_native", "vllm_native", "aten_mean", TWO_ROUNDINGS, "activation"),
        ("omni_native", "omni_native", "aten_mean", UNFUSED, "activation"),
        ("omni_aten", "omni_aten", "aten_rms_norm", UNFUSED, "activation"),
        ("diffusers_aten", "diffusers_aten", "aten_rms_norm", UNFUSED, "float32"),
        ("diffusers_native", "diffusers_native", "aten_mean", TWO_ROUNDINGS, "float32"),
        ("diffusers_complex", "diffusers_complex", "aten_mean", TWO_ROUNDINGS, "float32"),
        ("diffusers_bf16_rope", "diffusers_bf16_rope", "aten_rms_norm", OP_BY_OP, "activation"),
        ("flashinfer", "flashinfer", "flashinfer", UNFUSED, None),
        ("flashinfer_cuda", "flashinfer_cuda", "flashinfer_cuda", UNFUSED, None),
        ("quack", "quack", "quack", UNFUSED, None),
        ("sglang_qk_norm", "sglang", "sglang_qk_norm", UNFUSED, None),
        ("apex", "apex", "apex", TWO_ROUNDINGS, None),
    ],
)
def test_an_exact_preset_is_the_chain_of_its_provider(
    name: str, provider: str, reduction: str, points: tuple[str, ...], table: str | None
) -> None:
    preset = CATALOG.presets[name]
    assert preset.reference is not None
    assert preset.reference.provider == provider
    assert preset.knobs["rms_norm_reduction"] == reduction
    assert preset.knobs["rounding_points"] == points
    assert preset.knobs["rope_rotation"] == ("complex" if name == "diffusers_complex" else "separate")
    assert preset.requires.rope_table_dtype == table
    assert preset.requires.backend == "cuda"
    assert "float32" not in (preset.requires.dtype or ())


def test_the_eras_of_vllm_do_not_overlap() -> None:
    versions = {
        name: reference.versions
        for name in ("vllm_cuda_0_11", "vllm_cuda_0_19", "vllm_cuda", "vllm_cuda_batch_invariant")
        if (reference := CATALOG.presets[name].reference)
    }
    assert versions == {
        "vllm_cuda_0_11": ">=0.6.0,<=0.11.0",
        "vllm_cuda_0_19": ">=0.11.1,<0.20",
        "vllm_cuda": ">=0.20,<0.34",
        "vllm_cuda_batch_invariant": ">=0.27,<0.34",
    }


# Chains whose bytes were captured on an H200
MEASURED = {
    "vllm_c",
    "vllm_c_add",
    "vllm_c_bf16_rope",
    "vllm_native",
    "omni_native",
    "diffusers_aten",
    "diffusers_native",
    "diffusers_complex",
    "diffusers_bf16_rope",
}


@pytest.mark.parametrize("name", [name for name, preset in CATALOG.presets.items() if preset.reference])
def test_only_captured_chains_are_called_verified(name: str) -> None:
    preset = CATALOG.presets[name]
    assert isinstance(preset.reference, Reference)
    of_another_era = name in ("vllm_cuda_0_11", "vllm_cuda_0_19", "vllm_cuda_batch_invariant")
    captured = preset.reference.provider in MEASURED and not of_another_era
    expected = ("NVIDIA H200, vLLM 0.29.0, torch 2.11.0, Triton 3.6.0",) if captured else ()
    assert preset.reference.verified_on == expected
    assert preset.numerics(CATALOG.reductions).is_exact


@pytest.mark.parametrize("name", CATALOG.reductions)
def test_every_reduction_has_a_source_with_a_closed_range(name: str) -> None:
    source = CATALOG.reductions[name].source
    assert source is not None
    assert source.provider
    assert source.location
    assert len(clauses(source.versions)) == 2


@pytest.mark.parametrize("name", CATALOG.presets)
def test_every_preset_has_numerics_and_a_summary_on_one_line(name: str) -> None:
    preset = CATALOG.presets[name]
    numerics = preset.numerics(CATALOG.reductions)
    assert (numerics.rms_norm_reduction == OPEN_REDUCTION) is (name in ("fast", "bf16_affine"))
    assert 10 < len(preset.summary) < 120
    assert "\n" not in preset.summary


@pytest.mark.parametrize("name", [name for name in CATALOG.presets if name not in ("fast", "bf16_affine")])
def test_every_exact_preset_has_an_order_for_heads_of_128_or_says_why_not(name: str) -> None:
    preset = CATALOG.presets[name]
    reduction = CATALOG.reductions[preset.knobs["rms_norm_reduction"]]
    assert reduction.order(128, 4608 * 48).width == 128


def test_no_two_presets_are_the_same_in_all_but_name() -> None:
    seen = {
        (preset.numerics(CATALOG.reductions).text, preset.requires.model_dump_json(), str(preset.reference))
        for preset in CATALOG.presets.values()
    }
    assert len(seen) == len(CATALOG.presets)


# --- Settings ---------------------------------------------------------------------------------------------------------

NAMES = [
    "flux2",
    "flux2_klein",
    "flux",
    "qwen_image",
    "hunyuan_video_15",
    "z_image",
    "ovis_image",
    "minimax_h3",
    "boogu_image",
]
VLLM = {"vllm:rms_norm": "vllm_cuda", "vllm:fused_add_rms_norm": "vllm_cuda_add"}
DIFFUSERS = {
    "flux": "diffusers_aten",
    "flux2": "diffusers_aten",
    "flux2_klein": "diffusers_aten",
    "ovis_image": "diffusers_aten",
    "hunyuan_video_15": "diffusers_native",
    "qwen_image": "diffusers_complex",
    "z_image": "diffusers_complex",
    "minimax_h3": "diffusers_bf16_rope",
}


def setting(model: str, family: Family) -> str | None:
    found = CATALOG.packaged.settings_of(model).get(family)
    return found.preset if found else None


def test_every_family_has_a_preset_and_a_threshold() -> None:
    assert {family: (each.preset, each.min_tokens) for family, each in CATALOG.packaged.ops.items()} == dict.fromkeys(
        FAMILIES, ("fast", 0)
    )


def test_the_models_are_listed() -> None:
    assert CATALOG.model_names() == sorted([*NAMES, *VLLM, *(f"diffusers:{name}" for name in DIFFUSERS)])


@pytest.mark.parametrize("model", NAMES)
def test_a_model_takes_the_exact_preset_of_vllm_omni_s_chain(model: str) -> None:
    qk = {"qwen_image": "omni_aten", "boogu_image": "vllm_cuda_float32_table"}.get(model, "vllm_cuda_128")
    norm = {"qwen_image": "omni_aten"}.get(model, "vllm_cuda")
    assert setting(model, "fused_qk_norm_rope") == qk
    assert setting(model, "fused_rms_norm") == norm
    assert setting(model, "fused_modulation") == ("vllm_cuda" if model == "minimax_h3" else None)


@pytest.mark.parametrize(("op", "preset"), VLLM.items())
def test_an_op_of_vllm_takes_the_exact_preset_of_its_kernel(op: str, preset: str) -> None:
    assert {family: setting(op, family) for family in FAMILIES if setting(op, family)} == {"fused_rms_norm": preset}


@pytest.mark.parametrize(("model", "preset"), DIFFUSERS.items())
def test_a_model_of_diffusers_takes_its_chain(model: str, preset: str) -> None:
    assert setting(f"diffusers:{model}", "fused_qk_norm_rope") == preset
    assert setting(f"diffusers:{model}", "fused_rms_norm") == preset
    assert setting(f"diffusers:{model}", "fused_modulation") == (preset if model == "minimax_h3" else None)


def test_every_class_is_of_one_model() -> None:
    assert [len(models) for models in CATALOG.classes().values()] == [1] * 9


# --- The header -------------------------------------------------------------------------------------------------------


def _header() -> str:
    return TEXT[: TEXT.index("\n[")]


@pytest.mark.parametrize("field", sorted({*Reduction.model_fields, "summary", "source", *Requires.model_fields}))
def test_the_header_explains_every_field(field: str) -> None:
    assert re.search(rf"\b{field}\b", _header())


@pytest.mark.parametrize("word", sorted({*FAMILIES, *get_args(RoundingPoint), *PresetFile.model_fields}))
def test_the_header_names_every_word_of_the_vocabulary(word: str) -> None:
    assert re.search(rf"\b{word}\b", _header())


# --- Cost -------------------------------------------------------------------------------------------------------------


def test_loading_brings_neither_torch_nor_triton_nor_numpy() -> None:
    code = (
        "import sys, numerics.presets.file as f; f.load(); print({'torch', 'triton', 'numpy', 'rich'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_loading_again_is_two_looks_at_the_file_system() -> None:
    load()
    start = time.perf_counter()
    for _ in range(1000):
        load()
    assert (time.perf_counter() - start) / 1000 < 100e-6  # 3 us where nothing else runs
