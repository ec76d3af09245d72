"""What a result says of the machine and the sources."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.measure import machine
from numerics.presets.file import PACKAGED


def test_versions_are_those_that_run() -> None:
    found = machine.machine()
    assert found["torch"] == torch.__version__
    assert set(found) == {"gpu", "driver", "cuda", "python", "torch", "triton", "numerics"}


def test_sources_are_hashed_by_package_and_file(tmp_path: Path) -> None:
    extra = tmp_path / "rotary.py"
    extra.write_text("1")
    found = machine.sources([extra])
    assert set(found) == {"numerics.ops", "numerics.presets", "numerics.measure", PACKAGED.name, "rotary.py"}
    assert len(set(found.values())) == len(found)
    extra.write_text("2")
    changed = machine.sources([extra])
    assert {name for name in found if found[name] != changed[name]} == {"rotary.py"}


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("/home/someone/result.json", "result.json"),
        ("--out=/home/someone/result.json", "--out=result.json"),
        ("../above/result.json", "result.json"),
        ("folder/result.json", "folder/result.json"),
        ("rms_norm/*", "rms_norm/*"),
        ("--rounds=3", "--rounds=3"),
    ],
)
def test_a_command_is_kept_without_the_folders_of_a_machine(argument: str, shown: str) -> None:
    assert machine.command(["bench", argument]) == f"numerics bench {shown}"


# --- Driver -----------------------------------------------------------------------------------------------------------


class Nvml:
    """In place of NVIDIA's library."""

    def __init__(self, *, starts: bool = True) -> None:
        self.open = 0
        self._starts = starts

    def nvmlInit_v2(self) -> int:  # noqa: N802  # the library's name
        self.open += self._starts
        return 0 if self._starts else 9

    def nvmlSystemGetDriverVersion(self, text: Any, letters: int) -> int:  # noqa: N802  # the library's name
        assert letters >= 80
        text.value = b"580.65.06"
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802  # the library's name
        self.open -= 1
        return 0


def test_the_driver_is_asked_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: nvml)
    assert machine.driver() == "580.65.06"
    assert nvml.open == 0


def test_a_driver_that_does_not_start_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Nvml(starts=False))
    assert machine.driver() is None


def test_a_machine_without_a_driver_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert machine.driver() is None
