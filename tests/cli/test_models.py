"""`numerics models`: every known model, who fuses it, and the settings in force for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numerics.integrations.supported import GEOMETRY, SUPPORTED, VLLM_OMNI
from numerics.presets.file import load
from numerics.presets.vocabulary import OPS
from tests.cli.conftest import Command

CATALOG = load()
Write = Callable[..., Path]


# --- What the table says ----------------------------------------------------------------------------------------------


def test_every_packaged_model_has_a_geometry() -> None:
    models = {name for name in CATALOG.packaged.models if not name.startswith("vllm:")}  # those are ops
    assert {name.rpartition(":")[2] for name in models} == set(GEOMETRY)


def test_heads_and_widths_come_in_pairs() -> None:
    assert all(len(each.heads) == len(each.width) for each in GEOMETRY.values())


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_class_leads_to_the_settings_that_apply_takes(name: str) -> None:
    assert CATALOG.model_named(name) == SUPPORTED[name].models[0]


def test_supported_models_have_settings_for_the_ops_that_they_use() -> None:
    served = {model: by.ops for by in SUPPORTED.values() for model in by.models} | dict(VLLM_OMNI)
    for model, ops in served.items():
        assert {OPS[op] for op in ops} <= set(CATALOG.packaged.settings_of(model)), model


# --- The command ------------------------------------------------------------------------------------------------------


def test_every_model_is_listed_with_who_set_its_preset(numerics: Command) -> None:
    found = numerics("models", "--json")
    assert found.code == 0
    assert [each["name"] for each in found.json] == CATALOG.model_names()
    assert all(
        setting["sources"]["preset"]["source"] == "package model" for each in found.json for setting in each["settings"]
    )


def test_one_model_is_shown_by_name_or_class(numerics: Command) -> None:
    (by_name,) = numerics("models", "--model", "diffusers:minimax_h3", "--json").json
    (by_class,) = numerics("models", "--model", "MiniMaxH3Transformer3DModel", "--json").json
    assert by_name == by_class
    assert by_name["classes"] == ["MiniMaxH3Transformer3DModel"]
    assert by_name["geometry"]["rotary_dim"] == 96
    assert by_name["geometry"]["interleaved"] is False
    assert [each["op"] for each in by_name["settings"]] == ["fused_qk_norm_rope", "fused_modulation", "fused_rms_norm"]


def test_a_class_is_said_to_be_a_model(numerics: Command) -> None:
    for command in ("models", "show"):
        found = " ".join(numerics(command, "--model", "Flux2Transformer2DModel").out.split())
        assert (
            "Flux2Transformer2DModel is model diffusers:flux2; without guidance embeddings diffusers:flux2_klein"
            in found
        )
    assert " is model " not in numerics("models", "--model", "flux2").out


def test_the_page_has_all_that_json_has_about_a_model(numerics: Command) -> None:
    page = " ".join(numerics("models", "--model", "boogu_image").out.split())
    for words in (
        "Fused by numerics.integrations.vllm_omni",
        "boogu_image, class BooguImageTransformer2DModel",
        "24 heads (8 of k) of 120, all rotated, interleaved; joint and single streams; width 2880; eps 1e-05",
        "ops fused_qk_norm_rope",
        "fused_qk_norm_rope vllm_cuda_float32_table (package model, presets.toml: models.boogu_image)",
    ):
        assert words in page


def test_a_model_that_no_integration_fuses_says_so(numerics: Command) -> None:
    found = numerics("models", "--model", "z_image")
    assert "Settings alone: pass numerics.resolve(OP, MODEL) to the ops" in found.out


def test_settings_are_those_in_force(numerics: Command, write: Write) -> None:
    path = write(
        '[models."diffusers:flux2"]\nfused_qk_norm_rope = { preset = "fast", min_tokens = 7, '
        'when = [{ capability = "cuda:10", preset = "flashinfer" }] }\n[models.mine]\nclasses = ["Mine"]\n'
    )
    page = " ".join(numerics("models", "--model", "Flux2Transformer2DModel", "--config", path).out.split())
    assert 'fast (user model, my.toml: models."diffusers:flux2")' in page
    assert 'on cuda:10: flashinfer (user model, my.toml: models."diffusers:flux2", when cuda:10)' in page
    assert "from 7 tokens" in page
    (mine,) = numerics("models", "--model", "Mine", "--config", path, "--json").json
    assert mine == {
        "name": "mine",
        "classes": ["Mine"],
        "integration": None,
        "geometry": None,
        "ops": [],
        "settings": [],
    }


def test_an_unknown_model_exits_2_and_names_the_nearest(numerics: Command) -> None:
    found = numerics("models", "--model", "flux2_klien")
    assert found.code == 2
    assert "nearest: flux2_klein" in found.err


def test_nothing_is_printed_where_a_setting_is_wrong(numerics: Command) -> None:
    found = numerics("models", "--model", "flux2", VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS="vlm_cuda")
    assert (found.code, found.out) == (2, "")
    assert "nearest: vllm_cuda" in found.err


def test_a_setting_that_this_process_refuses_is_an_error_after_the_others(numerics: Command) -> None:
    found = numerics("models", "--json", VLLM_BATCH_INVARIANT="1")
    assert found.code == 2
    assert "VLLM_BATCH_INVARIANT" in found.err
    assert [each["name"] for each in found.json] == CATALOG.model_names()
