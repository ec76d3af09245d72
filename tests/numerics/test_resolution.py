"""What a resolution says of itself and which claims it makes."""

from __future__ import annotations

import json
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest

import numerics
from numerics.errors import ConfigurationError
from numerics.presets.file import load
from numerics.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.numerics.conftest import Sources

# --- JSON -------------------------------------------------------------------------------------------------------------

SHOWN = """
{"op": "fused_qk_norm_rope", "model": "flux2", "capability": "cuda:9.0", "preset": "vllm_cuda_128", "modified": [],
  "numerics": {"rms_norm_reduction": "vllm_cuda_128", "enable_fp_fusion": false, "rounding_points": ["qk_norm"],
               "rope_rotation": "separate"},
  "min_tokens": 0, "reference": {"provider": "vllm_c", "versions": ">=0.20,<0.34"}, "fingerprint": "sha256:...",
  "sources": {"preset": {"source": "environment", "location": "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS", "value": "vllm_cuda_128",
                         "shadows": [{"source": "user model", "location": "my.toml: models.flux2", "value": "fast"},
                                     {"source": "package model", "location": "presets.toml: models.flux2", "value": "vllm_cuda_128"},
                                     {"source": "package", "location": "presets.toml: ops.fused_qk_norm_rope", "value": "fast"}]},
              "min_tokens": {"source": "package", "location": "presets.toml: ops.fused_qk_norm_rope", "value": 0, "shadows": []}}}
"""  # noqa: E501  # as users see it


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my.toml"
    path.write_text("[models.flux2]\nfused_qk_norm_rope = 'fast'\n")
    monkeypatch.setenv("NUMERICS_CONFIG", str(path))
    return path


@pytest.mark.usefixtures("user_file")
def test_json_form_says_every_value_and_who_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS", "vllm_cuda_128")
    found = resolve("fused_qk_norm_rope", "flux2", capability="cuda:9.0")
    text = json.dumps(found.to_dict())
    assert re.search(r'"fingerprint": "sha256:[0-9a-f]{64}"', text)
    assert re.sub(r"sha256:[0-9a-f]{64}", "sha256:...", text) == json.dumps(json.loads(SHOWN))


def test_json_form_writes_lists_and_no_reference(sources: Sources) -> None:
    sources.said = {"call": {"rounding_points": ("norm", "qk_norm")}, "user": {"rounding_points": ()}}
    shown = sources.resolve().to_dict()
    assert shown["reference"] is None
    assert shown["modified"] == ["rounding_points"]
    assert shown["sources"]["rounding_points"] == {
        "source": "call",
        "location": "argument rounding_points",
        "value": ["norm", "qk_norm"],
        "shadows": [{"source": "user", "location": "my.toml: ops.fused_qk_norm_rope", "value": []}],
    }


def test_json_form_is_new_each_time(sources: Sources) -> None:
    found = sources.resolve()
    found.to_dict()["sources"]["preset"]["value"] = "other"
    assert found.to_dict()["sources"]["preset"]["value"] == "fast"


# --- Claims -----------------------------------------------------------------------------------------------------------


def test_a_changed_knob_drops_the_claim(sources: Sources) -> None:
    found = sources.resolve(preset="exact", enable_fp_fusion=True, rounding_points=["norm"])
    assert found.modified == ("enable_fp_fusion", "rounding_points")
    assert found.label == "exact (modified: enable_fp_fusion, rounding_points)"
    assert found.reference is None
    assert found.to_dict()["reference"] is None


def test_the_same_value_is_no_change(sources: Sources) -> None:
    plain = sources.resolve(preset="exact")
    same = sources.resolve(
        preset="exact",
        enable_fp_fusion=False,
        rounding_points=["qk_norm"],
        rope_rotation="separate",
        rms_norm_reduction="alpha",
    )
    assert (same.label, same.modified, same.fingerprint) == ("exact", (), plain.fingerprint)
    assert same.reference is not None
    assert same.reference.provider == "vllm_c"
    assert same.sources["enable_fp_fusion"].source == "call", "who set it is still said"


def test_a_reduction_of_equal_bits_under_another_name_is_no_change(sources: Sources) -> None:
    found = sources.resolve(preset="exact", rms_norm_reduction="alpha_again")
    assert (found.modified, found.reduction) == ((), "alpha_again")
    assert found.reference is not None
    assert found.fingerprint == sources.resolve(preset="exact").fingerprint


@pytest.mark.parametrize(
    "knob",
    [
        {"rms_norm_reduction": "beta"},
        {"rms_norm_reduction": "triton"},
        {"enable_fp_fusion": True},
        {"rounding_points": []},
        {"rope_rotation": "complex"},
    ],
)
def test_each_knob_changes_the_fingerprint_and_is_carried(sources: Sources, knob: dict[str, Any]) -> None:
    found = sources.resolve(preset="exact", **knob)
    assert found.fingerprint != sources.resolve(preset="exact").fingerprint
    assert found.modified == tuple(knob)
    assert found.fingerprint == found.numerics.fingerprint


def test_thresholds_and_sources_do_not_change_the_fingerprint(sources: Sources) -> None:
    by_call = sources.resolve(preset="exact")
    assert sources.resolve(preset="exact", min_tokens=9).fingerprint == by_call.fingerprint
    sources.said = {"user": {"preset": "exact"}}
    assert sources.resolve().fingerprint == by_call.fingerprint
    assert sources.resolve() != by_call, "another source is another resolution of the same numerics"
    assert sources.resolve().numerics == by_call.numerics


# --- The package's own file -------------------------------------------------------------------------------------------


def test_every_packaged_preset_resolves_for_every_family() -> None:
    for name, preset in load().presets.items():
        for variable, value in preset.requires.env.items():
            assert value.strip() == value, variable
        for family in load().packaged.ops:
            capability = preset.requires.capability
            found = resolve(family, preset=name, capability=capability)
            assert (found.preset, found.modified, found.reference) == (name, (), preset.reference)


def test_public_names_are_sorted_and_there() -> None:
    assert numerics.__all__ == sorted(numerics.__all__)
    assert all(hasattr(numerics, name) for name in numerics.__all__)
    assert callable(numerics.resolve), "the function, also after its module was imported"


def test_a_file_that_names_no_preset_for_an_op_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = tmp_path / "presets.toml"
    packaged.write_text("[presets]\n")
    monkeypatch.setattr("numerics.presets.file.PACKAGED", packaged)
    numerics.configure(None)
    with pytest.raises(ConfigurationError, match=r"ops\.fused_rms_norm: names no preset, and nothing else does"):
        resolve("fused_rms_norm")


def test_who_set_a_value_cannot_be_overwritten() -> None:
    found = resolve("fused_qk_norm_rope", "flux2")
    with pytest.raises(TypeError):
        found.sources["preset"] = found.sources["min_tokens"]  # type: ignore[index]  # what the test tries
    assert pickle.loads(pickle.dumps(found)) == found
