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
