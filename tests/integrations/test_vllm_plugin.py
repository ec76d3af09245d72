"""The plugin of vLLM: what the variable asks for, what is logged, and what workers have."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError
from numerics.integrations import vllm_omni, vllm_plugin
from tests.integrations.vllm_omni_package import FUSED_QK, Engine, imported, original


def test_the_plugin_does_nothing_unless_asked(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine()
    vllm_plugin.install_from_environment()
    assert vllm_omni.active() is None
    assert imported("qwen_image").fused_qk_norm_rope is original(FUSED_QK)
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
