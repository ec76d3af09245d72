"""`numerics doctor`: what this machine runs, and what is wrong with it."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from numerics.cli import doctor
from tests.cli.conftest import Command

Write = Callable[..., Path]
Installed = Callable[..., None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Pretends that these versions are installed, and no others."""

    def install(**versions: str) -> None:
        def version(name: str) -> str:
            if name.replace("-", "_") not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name.replace("-", "_")]

        needs = [
            "pydantic>=2.7",
            "torch>=2.11",
            'triton>=3.6; sys_platform == "linux"',
            "diffusers>=0.36; extra == 'diffusers'",
        ]
        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(metadata, "requires", lambda _: needs)
        monkeypatch.setattr(doctor, "installed", versions.get)

    return install


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    def find(capability: str | None) -> None:
        monkeypatch.setattr(doctor, "current", lambda: capability)

    return find


def words(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def test_versions_and_driver_are_named(
    numerics: Command, installed: Installed, driver: Callable[[str | None], None]
) -> None:
    installed(pydantic="2.9", torch="2.11.0+cu130", triton="3.6.0", vllm="0.29.0")
    driver("cuda:9.0")
    found = numerics("doctor", "--json")
    assert found.code == 0
    assert found.json["packages"]["torch"] == {"installed": "2.11.0+cu130", "needs": ">=2.11", "suits": True}
    assert set(found.json["packages"]) == {"pydantic", "torch", "triton"}
    assert found.json["optional"]["vllm"] == "0.29.0"
    assert found.json["optional"]["diffusers"] is None
    assert found.json["fused_kernels"] == {"can_run": True, "missing": []}
    shown = words(numerics("doctor").out)
    assert "capability cuda:9.0" in shown
    assert "fused kernels can run" in shown


def test_a_machine_without_torch_triton_and_gpu_is_no_problem(
    numerics: Command, installed: Installed, driver: Callable[[str | None], None]
) -> None:
    installed(pydantic="2.9")
    driver(None)
    found = numerics("doctor")
    shown = words(found.out)
    assert found.code == 0
    assert "torch not installed (needs >=2.11)" in shown
    assert "capability none: no CUDA driver, or no device" in shown
    assert "cannot run: torch is not installed, triton is not installed, no GPU that the CUDA driver knows" in shown


def test_a_torch_for_cpus_alone_cannot_run_the_kernels(
    numerics: Command, installed: Installed, driver: Callable[[str | None], None]
) -> None:
    installed(pydantic="2.9", torch="2.13.0+cpu", triton="3.9.0")
    driver("cuda:9.0")
    assert numerics("doctor", "--json").json["fused_kernels"]["missing"] == ["torch is built for CPUs alone"]


def test_a_version_that_is_too_old_is_a_problem(numerics: Command, installed: Installed) -> None:
    installed(pydantic="2.9", torch="2.6.0", triton="3.6.0")
    found = numerics("doctor", "--json")
    assert (found.code, found.json["problems"]) == (1, ["torch 2.6.0: omni-numerics needs >=2.11"])


def test_a_clone_that_is_not_installed_is_examined(numerics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    found = numerics("doctor", "--json")
    assert found.code == 0
    assert {"torch", "triton", "pydantic"} <= set(found.json["packages"])


def test_variables_that_are_set_are_shown_those_of_conditions_too(numerics: Command) -> None:
    found = numerics("doctor", "--json", NUMERICS_STRICT="1", VLLM_BATCH_INVARIANT="0")
    assert found.json["environment"] == {"NUMERICS_STRICT": "1", "VLLM_BATCH_INVARIANT": "0"}


def test_the_file_in_force_and_who_named_it_are_shown(numerics: Command, write: Write) -> None:
    path = write('[ops.fused_rms_norm]\npreset = "vllm_cuda"\n')
    assert numerics("doctor", "--json", "--config", path).json["config"] == {"path": str(path), "set_by": "--config"}
    found = numerics("doctor", "--json", NUMERICS_CONFIG=str(path))
    assert found.json["config"] == {"path": str(path), "set_by": "NUMERICS_CONFIG"}
    assert numerics("doctor", "--json").json["config"] == {"path": None, "set_by": None}


def test_a_broken_file_is_a_problem_and_no_obstacle(numerics: Command, write: Write) -> None:
    path = write('[ops.fused_rms_norm]\npreset = "fats"\n')
    found = numerics("doctor", "--json", NUMERICS_CONFIG=str(path))
    assert found.code == 1
    assert found.json["config"] == {"path": str(path), "set_by": "NUMERICS_CONFIG"}
    (problem,) = found.json["problems"]
    assert "nearest: fast" in problem
    assert "nearest: fast" in words(numerics("doctor", NUMERICS_CONFIG=str(path)).out)


def test_missing_package_data_is_a_problem(numerics: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "cli" / "doctor.py"))
    found = numerics("doctor", "--json")
    assert found.code == 1
    assert "golden data is missing; verify cannot run" in found.json["problems"][0]


# --- The plugin of vLLM -----------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package is installed."""
    found = metadata.EntryPoints([metadata.EntryPoint("numerics", "any:thing", "vllm.general_plugins")])
    monkeypatch.setattr(metadata, "entry_points", lambda **_: found)


@pytest.mark.usefixtures("plugin")
def test_the_plugin_is_off_unless_asked_for(numerics: Command, installed: Installed) -> None:
    installed(pydantic="2.9")
    found = numerics("doctor", "--json")
    assert (found.code, found.json["vllm_plugin"]) == (0, {"installs": [], "missing": []})
    assert "off (NUMERICS_INSTALL=1 turns it on)" in words(numerics("doctor").out)


@pytest.mark.usefixtures("plugin")
def test_engines_that_the_plugin_installs_in_are_named(numerics: Command, installed: Installed) -> None:
    installed(pydantic="2.9", vllm="0.29.0", vllm_omni="0.30.0")
    found = numerics("doctor", "--json", NUMERICS_INSTALL="vllm,vllm_omni", VLLM_PLUGINS="other,numerics")
    assert (found.code, found.json["vllm_plugin"]) == (0, {"installs": ["vllm_omni", "vllm"], "missing": []})
    assert "installs in vllm_omni, vllm" in words(numerics("doctor", NUMERICS_INSTALL="vllm,vllm_omni").out)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("variables", "versions", "reason"),
    [
        ({"VLLM_PLUGINS": "other"}, {"vllm_omni": "0.30.0"}, "VLLM_PLUGINS='other' does not name numerics"),
        ({"VLLM_PLUGINS": ""}, {"vllm_omni": "0.30.0"}, "VLLM_PLUGINS='' does not name numerics"),
        ({}, {}, "vllm_omni is not installed"),
        ({}, {"vllm_omni": "0.31.0"}, "vllm-omni 0.31.0 is not one of >=0.30,<0.31"),
    ],
)
def test_what_keeps_the_plugin_from_what_it_was_asked_for_is_a_problem(
    numerics: Command, installed: Installed, variables: dict[str, str], versions: dict[str, str], reason: str
) -> None:
    installed(pydantic="2.9", **versions)
    found = numerics("doctor", "--json", NUMERICS_INSTALL="1", **variables)
    assert found.code == 1
    assert found.json["vllm_plugin"]["missing"] == [reason]
    assert f"NUMERICS_INSTALL=1: {reason}" in found.json["problems"]


def test_a_clone_is_no_plugin(numerics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints([]))
    found = numerics("doctor", "--json", NUMERICS_INSTALL="1")
    assert "NUMERICS_INSTALL=1: omni-numerics is not installed, a clone is run" in found.json["problems"]


def test_an_illegal_engine_is_a_problem(numerics: Command) -> None:
    found = numerics("doctor", "--json", NUMERICS_INSTALL="sglang")
    assert (found.code, found.json["vllm_plugin"]["installs"]) == (1, None)
    assert any("'sglang' is no engine" in each for each in found.json["problems"])
    assert "vLLM would not start" in words(numerics("doctor", NUMERICS_INSTALL="sglang").out)
