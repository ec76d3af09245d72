"""What a resolution says of itself, what it refuses, and that it travels."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import numerics
from numerics import requirements
from numerics.errors import ConfigurationError, RequirementError
from numerics.presets.file import load
from numerics.resolution import REMEMBERED_CALLS, Resolution
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
    by_call = sources.resolve(preset="exact", min_tokens=9)
    sources.said = {"user": {"preset": "exact"}}
    assert sources.resolve().fingerprint == by_call.fingerprint
    assert sources.resolve() != by_call


# --- Conditions -------------------------------------------------------------------------------------------------------


def test_a_variable_that_must_not_be_set_is_read_on_every_call(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sources.applied():
        found = resolve("fused_qk_norm_rope", preset="exact")
        for allowed in ("0", "", " 0 "):
            monkeypatch.setenv("VLLM_BATCH_INVARIANT", allowed)
            assert resolve("fused_qk_norm_rope", preset="exact") == found
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
        with pytest.raises(RequirementError) as raised:
            resolve("fused_qk_norm_rope", preset="exact")
        assert str(raised.value) == (
            "preset 'exact' (call, argument preset): requires the variable VLLM_BATCH_INVARIANT unset or '0', found '1'"
        )
        with pytest.raises(RequirementError, match="VLLM_BATCH_INVARIANT"):
            found.bind("cuda:9.0")
        assert resolve("fused_qk_norm_rope", preset="other").preset == "other", "it is no condition of this preset"


@pytest.mark.parametrize("changed", [{}, {"enable_fp_fusion": True}, {"rms_norm_reduction": "beta"}])
def test_a_backend_that_does_not_hold_is_refused_where_it_is_known(sources: Sources, changed: dict[str, Any]) -> None:
    for capability in (None, "cuda:9.0", "cuda:12.0", "cuda"):
        sources.resolve(preset="exact", capability=capability, **changed)
    with pytest.raises(RequirementError, match="requires backend 'cuda', found capability 'hip:gfx942'"):
        sources.resolve(preset="exact", capability="hip:gfx942", **changed)
    with pytest.raises(RequirementError, match="requires backend 'cuda', found capability 'hip:gfx942'"):
        sources.resolve(preset="exact", **changed).bind("hip:gfx942")


REQUIRING = """
[presets.fussy]
summary = "conditions"
extends = "other"
requires = { %s }
"""


def _fussy(sources: Sources, condition: str, **arguments: Any) -> Resolution:
    sources.models = "[models.known]\n" + REQUIRING % condition
    return sources.resolve(preset="fussy", **arguments)


def test_a_capability_that_does_not_hold_is_refused_where_it_is_known(sources: Sources) -> None:
    for capability in (None, "cuda", "cuda:9", "cuda:9.0"):
        _fussy(sources, "capability = 'cuda:9'", capability=capability)
    with pytest.raises(RequirementError, match=r"requires capability 'cuda:9', found 'cuda:10\.0'"):
        _fussy(sources, "capability = 'cuda:9'", capability="cuda:10.0")
    with pytest.raises(RequirementError, match=r"requires capability 'cuda:9', found 'cuda:10\.0'"):
        _fussy(sources, "capability = 'cuda:9'").bind("cuda:10.0")


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_version_out_of_range_is_refused_where_the_package_is_installed(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    versions: dict[str, str | None] = {"torch": None, "triton": None}
    monkeypatch.setattr(requirements, "installed", versions.__getitem__)
    condition = f"{package} = '>=2.9,<2.15'"
    _fussy(sources, condition)
    versions[package] = "2.14.1+cu130"
    _fussy(sources, condition)
    versions[package] = "2.15.0"
    with pytest.raises(RequirementError, match=rf"fussy.*requires {package} >=2.9,<2.15, found 2.15.0"):
        _fussy(sources, condition)


def test_versions_are_those_of_the_installed_distributions() -> None:
    code = (
        "import sys; from numerics.requirements import installed; found = installed('torch'), installed('triton');"
        "assert 'torch' not in sys.modules; import torch; print(found[0] == torch.__version__);"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "True"


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requirements.DISTRIBUTIONS, "torch", ("no-such-distribution-of-torch",))
    assert requirements.installed.__wrapped__("torch") is None


def test_a_call_that_fulfils_the_conditions_passes(sources: Sources) -> None:
    found = sources.resolve(preset="exact")
    for rows in (0, 1, 10**9):
        found.check_call(width=128, rows=rows, dtype="float16", rope_table_dtype="float16")
    found.check_call(width=None, rows=None, dtype="bfloat16")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"dtype": "float32"}, "requires dtype bfloat16 or float16, got float32"),
        (
            {"rope_table_dtype": "float32"},
            "requires rope_table_dtype 'activation' (bfloat16 here), got float32",
        ),
        ({"width": 96}, "rms_norm_reduction 'alpha': it is declared for rows of 128 elements, not 96"),
        ({"width": 96, "rows": 0}, "rms_norm_reduction 'alpha': it is declared for rows of 128 elements, not 96"),
    ],
)
def test_a_condition_of_the_call_that_does_not_hold_is_refused(
    sources: Sources, call: dict[str, Any], words: str
) -> None:
    found = sources.resolve(preset="exact")
    fine: dict[str, Any] = {"width": 128, "rows": 4, "dtype": "bfloat16", "rope_table_dtype": "bfloat16"}
    found.check_call(**fine)
    for _ in range(2):
        with pytest.raises(RequirementError) as raised:
            found.check_call(**(fine | call))
        assert str(raised.value) == f"preset 'exact' (call, argument preset): {words}"


def test_a_float32_table_is_required_by_name(sources: Sources) -> None:
    found = _fussy(sources, "rope_table_dtype = 'float32'")
    found.check_call(width=128, rows=1, dtype="bfloat16", rope_table_dtype="float32")
    found.check_call(width=128, rows=1, dtype="bfloat16")
    with pytest.raises(RequirementError, match=r"requires rope_table_dtype 'float32' \(float32 here\), got bfloat16"):
        found.check_call(width=128, rows=1, dtype="bfloat16", rope_table_dtype="bfloat16")


@pytest.mark.parametrize(("condition", "legal"), [("[64, 128]", "from 64 to 128"), ("128", "128")])
def test_the_width_is_a_condition_until_the_reduction_is_another(sources: Sources, condition: str, legal: str) -> None:
    found = _fussy(sources, f"width = {condition}")
    found.check_call(width=128, rows=1, dtype="float32")
    found.check_call(width=None, rows=None, dtype="float32")
    with pytest.raises(RequirementError, match=f"preset 'fussy' .*: requires width {legal}, got 256$"):
        found.check_call(width=256, rows=1, dtype="float32")
    _fussy(sources, f"width = {condition}", rms_norm_reduction="triton").check_call(width=256, rows=1, dtype="float32")
    with pytest.raises(RequirementError, match="requires width"):
        _fussy(sources, f"width = {condition}", rope_rotation="separate").check_call(width=256, rows=1, dtype="float32")


def test_rows_are_a_condition_and_no_rows_count_as_one(sources: Sources) -> None:
    found = _fussy(sources, "rows = [1, 255]")
    found.check_call(width=128, rows=0, dtype="bfloat16")
    found.check_call(width=128, rows=255, dtype="bfloat16")
    with pytest.raises(RequirementError, match="requires rows from 1 to 255, got 256"):
        found.check_call(width=128, rows=256, dtype="bfloat16")


def test_another_reduction_brings_its_own_conditions_on_the_shape(sources: Sources) -> None:
    """The other conditions stay, as they do with `extends`."""
    found = sources.resolve(preset="exact", rms_norm_reduction="beta")
    found.check_call(width=256, rows=1, dtype="bfloat16")
    with pytest.raises(RequirementError, match="requires dtype"):
        found.check_call(width=256, rows=1, dtype="float32")
    found = sources.resolve(preset="other", rms_norm_reduction="alpha")
    with pytest.raises(
        RequirementError, match=r"'alpha' \(call, argument rms_norm_reduction\): it is declared for rows"
    ):
        found.check_call(width=256, rows=1, dtype="bfloat16")


def test_the_open_reduction_takes_any_shape(sources: Sources) -> None:
    sources.resolve(preset="fast").check_call(width=7, rows=3, dtype="float32", rope_table_dtype="bfloat16")


def test_remembered_calls_do_not_pile_up(sources: Sources) -> None:
    found = sources.resolve(preset="exact")
    for rows in range(3 * REMEMBERED_CALLS):
        found.check_call(width=128, rows=rows, dtype="bfloat16")
    assert len(found._passed) <= REMEMBERED_CALLS
    with pytest.raises(RequirementError):
        found.check_call(width=129, rows=1, dtype="bfloat16")


# --- Travelling -------------------------------------------------------------------------------------------------------


def test_resolving_again_gives_the_same_object(sources: Sources) -> None:
    with sources.applied():
        assert resolve("fused_qk_norm_rope", preset="exact") is resolve("fused_qk_norm_rope", preset="exact")


def test_copies_are_equal_and_hash_alike(sources: Sources) -> None:
    found = sources.resolve(preset="exact", rounding_points=["norm"])
    found.bind("cuda:9.0").check_call(width=128, rows=1, dtype="bfloat16")
    for twin in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert twin == found
        assert hash(twin) == hash(found)
        assert twin is not found
        assert twin.to_dict() == found.to_dict()
        assert {found: 1}[twin] == 1
    assert found != sources.resolve(preset="exact")
    assert found != "exact"


def test_a_resolution_cannot_be_changed(sources: Sources) -> None:
    with pytest.raises(AttributeError):
        sources.resolve().min_tokens = 3  # type: ignore[misc]


def test_pickled_settings_hold_in_a_process_that_knows_nothing_of_them(sources: Sources, tmp_path: Path) -> None:
    """Neither the file, the context nor the variables are there: the value itself travels."""
    found = sources.resolve(preset="exact", rounding_points=["norm"], min_tokens=0)
    (tmp_path / "resolution").write_bytes(pickle.dumps(found))
    code = (
        "import json, pathlib, pickle, sys\n"
        "found = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "found.bind('cuda:9.0').check_call(width=128, rows=1, dtype='bfloat16')\n"
        "print(json.dumps(found.to_dict()))"
    )
    for seed in ("1", "2"):
        seen = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "resolution")],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert json.loads(seen.stdout) == json.loads(json.dumps(found.to_dict()))


WORKERS = """
import json, multiprocessing, os
import numerics
from numerics.resolution import Resolution

def in_child(queue):
    queue.put(numerics.resolve("fused_modulation").to_dict())

if __name__ == "__main__":
    with numerics.use("bf16_affine", min_tokens=0):
        found = numerics.resolve("fused_modulation")
        seen = [found.to_dict()]
        for method in ("spawn", "fork"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                seen.append(pool.apply(Resolution.to_dict, (found,)))  # by value
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue,))  # by inheritance
        child.start()
        seen.append(queue.get(timeout=30))
        child.join()
    seen[-1]["sources"] = seen[0]["sources"]  # a different line resolved it
    print(len(seen), all(each == seen[0] for each in seen), seen[0]["preset"])
"""


def test_spawned_and_forked_workers_get_the_settings_they_are_handed(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    seen = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["4", "True", "bf16_affine"]


def test_every_rank_resolves_the_same(user_file: Path) -> None:
    code = (
        "import json, numerics\n"
        "from numerics.presets.file import load\n"
        "models = [None, *load().model_names()]\n"
        "print(json.dumps([numerics.resolve(op, m).to_dict() for m in models for op in sorted(load().packaged.ops)]))"
    )
    ranks = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(ranks) == 1


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
