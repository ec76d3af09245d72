"""Rebinding of the fused ops in vLLM-Omni's models: where, when, and back."""

import importlib
import logging
import pickle
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.errors import ConfigurationError
from numerics.integrations import vllm_omni
from tests.integrations.vllm_omni_package import FUSED_QK, MIN_TOKENS, MODULES, Engine, imported, original

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
    assert original(FUSED_QK).__module__ == vllm_omni.LAYERS[FUSED_QK]


def test_a_reloaded_module_is_replaced_again(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    module = imported("boogu_image")
    before = module.fused_qk_norm_rope
    importlib.reload(module)
    assert module.fused_qk_norm_rope not in (before, original(FUSED_QK))
    installed.restore()
    assert module.fused_qk_norm_rope is original(FUSED_QK)


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
    assert early.fused_qk_norm_rope is late.fused_qk_norm_rope is original(FUSED_QK)
    assert early.indexed_gate is original("indexed_gate")
    assert vllm_omni.active() is None
    assert installed.replaced == ()


def test_what_something_else_replaced_since_is_left_alone_and_named(engine: Engine) -> None:
    engine()
    installed = vllm_omni.install()
    module = imported("qwen_image")
    module.fused_qk_norm_rope = other = lambda: None
    assert installed.restore() == (f"{MODULES['qwen_image']}.{FUSED_QK}",)
    assert module.fused_qk_norm_rope is other


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.29.3", "0.31.0", "1.0"])
def test_an_unknown_version_is_left_as_it_is_and_logged(
    engine: Engine, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine(version)
    installed = vllm_omni.install()
    assert imported("qwen_image").fused_qk_norm_rope is original(FUSED_QK)
    assert installed.replaced == ()
    assert "legal: vllm-omni >=0.30,<0.31" in installed.kept[f"{MODULES['qwen_image']}.{FUSED_QK}"]
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
    path = f"{MODULES['qwen_image']}.{FUSED_QK}"
    assert imported("qwen_image").fused_qk_norm_rope is original(FUSED_QK)
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
    assert imported("qwen_image").fused_qk_norm_rope is original(FUSED_QK)
    assert "ROCm" in installed.kept[f"{MODULES['qwen_image']}.{FUSED_QK}"]


def test_a_function_that_something_else_replaced_before_is_left_as_it_is(engine: Engine) -> None:
    engine()
    module = imported("qwen_image")

    def patched(*args: Any) -> None: ...

    module.fused_qk_norm_rope = patched
    installed = vllm_omni.install()
    assert module.fused_qk_norm_rope is patched
    assert (
        f"{__name__}.{patched.__qualname__}, not the function of"
        in installed.kept[f"{MODULES['qwen_image']}.{FUSED_QK}"]
    )


def test_an_engine_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_omni, "version", version)
    with pytest.raises(ConfigurationError, match="the package vllm-omni is not installed"):
        vllm_omni.install()
    assert vllm_omni.active() is None
