"""Rebinding of the fused ops in vLLM-Omni's models: where, when, by which settings, and back."""

import importlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import numerics
from numerics import ops, resolve
from numerics.errors import ConfigurationError, RequirementError
from numerics.integrations import vllm_omni, vllm_omni_ops, vllm_plugin
from numerics.ops.telemetry import dispatch_counts
from tests.integrations import vllm_omni_package

MODULES = {model.name: model.module for model in vllm_omni.MODELS}
QK: Final = "fused_qk_norm_rope"
MIN_TOKENS = "fused_qk_norm_rope_min_tokens"
Engine = Callable[..., Path]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Makes the package importable, instead of the real one. Afterwards nothing of it is left."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm_omni"}
    finders = list(sys.meta_path)

    def make(version: str = "0.30.0", **changes: tuple[str, str]) -> Path:
        vllm_omni_package.write(tmp_path, version)
        for name, (old, new) in changes.items():
            (path,) = tmp_path.rglob(f"{name}.py")
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        monkeypatch.syspath_prepend(tmp_path)
        _forget()
        return tmp_path

    yield make
    if (installed := vllm_omni.active()) is not None:
        installed.restore()
    assert sys.meta_path == finders
    _forget()
    sys.modules.update(before)


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_omni"]:
        del sys.modules[name]


def imported(model: str) -> Any:
    return importlib.import_module(MODULES[model])


def original(name: str) -> Any:
    return getattr(importlib.import_module(vllm_omni.LAYERS[name]), name)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tensors of the tests were on CUDA."""
    monkeypatch.setattr(vllm_omni_ops, "is_ours", lambda x: isinstance(x, Tensor))


# --- What is replaced -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["models", "plugin"])
def test_every_function_of_every_model_is_replaced_whichever_comes_first(engine: Engine, first: str) -> None:
    engine()
    if first == "models":
        for name in MODULES:
            imported(name)
    installed = vllm_omni.install()
    if first == "plugin":
        assert installed.replaced == ()
        assert installed.waiting == set(MODULES.values())
    for model in vllm_omni.MODELS:
        module = imported(model.name)
        for name in model.functions:
            if name != MIN_TOKENS:
                assert getattr(module, name) is not original(name)
                assert f"{model.module}.{name}" in installed.replaced
    assert len(installed.replaced) == 5 + 1 + 1
    assert installed.waiting == set()


def test_the_defining_module_keeps_its_own(engine: Engine) -> None:
    engine()
    vllm_omni.install()
    imported("qwen_image")
    assert original(QK).__module__ == vllm_omni.LAYERS[QK]


def test_a_reloaded_module_is_replaced_again(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    module = imported("boogu_image")
    before = module.fused_qk_norm_rope
    importlib.reload(module)
    assert module.fused_qk_norm_rope not in (before, original(QK))
    installed.restore()
    assert module.fused_qk_norm_rope is original(QK)


def test_a_module_has_its_own_loader_and_source(engine: Engine) -> None:
    folder = engine()
    vllm_omni.install()
    module = imported("qwen_image")
    assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
    assert module.__spec__.loader is module.__loader__
    assert Path(module.__file__).is_relative_to(folder)


def test_what_stands_in_pickles_by_name(engine: Engine) -> None:
    engine()
    vllm_omni.install()
    function = imported("minimax_h3").indexed_gate
    assert pickle.loads(pickle.dumps(function)) is function


def test_installing_twice_changes_nothing(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    function = imported("qwen_image").fused_qk_norm_rope
    assert vllm_omni.install() is installed
    assert imported("qwen_image").fused_qk_norm_rope is function


# --- Back -------------------------------------------------------------------------------------------------------------


def test_restored_modules_have_their_own_functions_and_later_ones_too(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    early = imported("minimax_h3")
    assert installed.restore() == ()
    late = imported("qwen_image")
    assert early.fused_qk_norm_rope is late.fused_qk_norm_rope is original(QK)
    assert early.indexed_gate is original("indexed_gate")
    assert vllm_omni.active() is None
    assert installed.replaced == ()


def test_what_something_else_replaced_since_is_left_alone_and_named(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    module = imported("qwen_image")
    module.fused_qk_norm_rope = other = lambda: None
    assert installed.restore() == (f"{MODULES['qwen_image']}.{QK}",)
    assert module.fused_qk_norm_rope is other


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.29.3", "0.31.0", "1.0"])
def test_an_unknown_version_is_left_as_it_is_and_logged(
    engine: Engine, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine(version)
    installed = vllm_omni.install()
    assert imported("qwen_image").fused_qk_norm_rope is original(QK)
    assert installed.replaced == ()
    assert "legal: vllm-omni >=0.30,<0.31" in installed.kept[f"{MODULES['qwen_image']}.{QK}"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"nothing is replaced in vllm-omni {version}" in record.getMessage()


UNKNOWN = {
    "another default": ("rotary_dim: int | None = None", "rotary_dim: int = 128"),
    "one more argument": ("interleaved: bool = False,\n", "interleaved: bool = False,\n    scale: float = 1.0,\n"),
    "another kind": ("    *,\n    head_dim", "    head_dim"),
    "another name": ("    rope_table: torch.Tensor,\n", "    table: torch.Tensor,\n"),
}


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_a_function_of_another_signature_is_left_as_it_is_and_logged(
    engine: Engine, change: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    engine(fused_qk_norm_rope=change)
    installed = vllm_omni.install()
    path = f"{MODULES['qwen_image']}.{QK}"
    assert imported("qwen_image").fused_qk_norm_rope is original(QK)
    assert path not in installed.replaced
    assert "its signature is (q, k, q_weight" in installed.kept[path]
    assert any(each.levelno == logging.WARNING and path in each.getMessage() for each in caplog.records)


def test_a_name_that_a_module_lacks_is_logged(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine(minimax_h3_transformer=("    indexed_gate,\n", ""))
    installed = vllm_omni.install()
    imported("minimax_h3")
    assert installed.kept[f"{MODULES['minimax_h3']}.indexed_gate"] == "the module has no such name"
    assert "indexed_gate is left as it is: the module has no such name" in caplog.text
    assert f"{MODULES['minimax_h3']}.indexed_scale_shift_" in installed.replaced


def test_where_torch_is_built_for_rocm_nothing_is_replaced(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    installed = vllm_omni.install()
    assert imported("qwen_image").fused_qk_norm_rope is original(QK)
    assert "ROCm" in installed.kept[f"{MODULES['qwen_image']}.{QK}"]


def test_a_function_that_something_else_replaced_before_is_left_as_it_is(engine: Engine) -> None:
    engine()
    module = imported("qwen_image")

    def patched(*args: Any) -> None: ...

    module.fused_qk_norm_rope = patched
    installed = vllm_omni.install()
    assert module.fused_qk_norm_rope is patched
    assert f"{__name__}.{patched.__qualname__}, not the function of" in installed.kept[f"{MODULES['qwen_image']}.{QK}"]


def test_an_engine_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_omni, "version", version)
    with pytest.raises(ConfigurationError, match="the package vllm-omni is not installed"):
        vllm_omni.install()
    assert vllm_omni.active() is None


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_each_model_has_its_own_settings_and_the_record_says_who_set_them(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    presets = {key: found.preset for key, found in installed.settings.items() if not isinstance(found, Exception)}
    assert presets == {
        ("minimax_h3", QK): "vllm_cuda_128",
        ("minimax_h3", "fused_modulation"): "vllm_cuda",
        ("qwen_image", QK): "omni_aten",
        ("boogu_image", QK): "vllm_cuda_float32_table",
    }
    assert (
        f"qwen_image: {QK} by omni_aten (package model: presets.toml: models.qwen_image), sha256:"
        f"{resolve(QK, 'qwen_image').fingerprint.partition(':')[2]}" in str(installed)
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
    assert isinstance(installed.settings["minimax_h3", QK], RequirementError)
    assert f"minimax_h3: {QK}: refused, its calls raise: preset 'vllm_cuda_128'" in str(installed)
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
        q, k, q_weight, k_weight, rope_table, eps, interleaved=interleaved, numerics=resolve(QK, model)
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


# --- The plugin -------------------------------------------------------------------------------------------------------


def test_the_plugin_does_nothing_unless_asked(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine()
    vllm_plugin.install_from_environment()
    assert vllm_omni.active() is None
    assert imported("qwen_image").fused_qk_norm_rope is original(QK)
    assert not caplog.records


@pytest.mark.parametrize("value", ["1", "vllm_omni"])
def test_the_plugin_installs_what_the_variable_names_and_logs_it_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine()
    monkeypatch.setenv("NUMERICS_INSTALL", value)
    with caplog.at_level(logging.INFO, "vllm.plugins.numerics"):
        for _ in range(2):
            vllm_plugin.install_from_environment()
    installed = vllm_omni.active()
    assert installed is not None
    messages = [each.getMessage() for each in caplog.records]
    assert messages[0] == f"numerics: installed in vllm-omni 0.30.0, settings {installed.fingerprint}"
    assert messages[1:] == [f"numerics: {line}" for line in installed.lines()]


def test_a_misspelt_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NUMERICS_INSTAL", "1")
    vllm_plugin.install_from_environment()
    (record,) = caplog.records
    assert record.getMessage() == "numerics: NUMERICS_INSTAL is set, which nothing reads; nearest: NUMERICS_INSTALL"


def test_an_unknown_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERICS_INSTALL", "sglang")
    with pytest.raises(ConfigurationError, match="'sglang' is no engine"):
        vllm_plugin.install_from_environment()


WORKERS = """
import multiprocessing, os, sys
from numerics.integrations import vllm_omni, vllm_plugin

def spawned():
    vllm_plugin.install_from_environment()
    print(vllm_omni.active().fingerprint, "torch" in sys.modules, flush=True)

def forked():
    print(vllm_omni.active().fingerprint, "torch" in sys.modules, flush=True)

if __name__ == "__main__":
    spawned()
    fork = multiprocessing.get_context("fork")
    os.environ["VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS"] = "fast"  # too late: values were passed, not names
    process = fork.Process(target=forked)
    process.start()
    process.join()
    del os.environ["VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS"]
    process = multiprocessing.get_context("spawn").Process(target=spawned)
    process.start()
    process.join()
"""


def test_workers_forked_and_spawned_have_the_settings_of_their_parent_without_torch(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = engine()
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    monkeypatch.setenv("NUMERICS_INSTALL", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert lines[0].endswith(" False")
