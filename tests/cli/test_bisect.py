"""`numerics bisect` as its users meet it: functions here, and commands in fresh processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from numerics.measure.bisect_saved import alone
from tests.cli.conftest import ENTRY, Command, Result

# Looks up one setting, and says how far its image is from the reference's.
JOB: Final = """
import sys, time
from numerics import resolve

found = resolve("fused_modulation", "minimax_h3").numerics
psnr = 40.0 - 5.5 * ("norm" not in found.rounding_points) - 1.25 * ("scaled" not in found.rounding_points)
with open("runs", "a") as file:
    file.write("run\\n")
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
print("PSNR", psnr)
sys.exit(psnr < 35)
"""
TARGETS: Final = """
import torch
from numerics import resolve

def image():
    found = resolve("fused_modulation", "minimax_h3").numerics
    with open("runs", "a") as file:
        file.write("run\\n")
    return {"latent": torch.tensor([float("norm" in found.rounding_points), 1.0, 0.5])}

def lost():
    found = resolve("fused_modulation", "minimax_h3").numerics
    return 1.0 if "norm" not in found.rounding_points else float("nan")

def psnr():
    found = resolve("fused_modulation", "minimax_h3").numerics
    return 40.0 - 5.5 * ("norm" not in found.rounding_points) - 1.25 * ("scaled" not in found.rounding_points)
"""
A: Final = "vllm_cuda"
B: Final = "vllm_cuda,rounding_points=gate_product+residual+one_plus_scale"
NORM: Final = ("fused_modulation", "minimax_h3", "rounding point norm")
Bisect = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a job in it."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "bisect_image.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def bisect(numerics: Command, folder: Path) -> Bisect:
    """Runs the command."""

    def run(target: str, *options: object, a: object = A, b: object = B) -> Result:
        return numerics("bisect", target, "--from", a, "--to", b, *options)

    return run


def job(*arguments: object) -> str:
    return " ".join([sys.executable, "job.py", *map(str, arguments)])


def smallest(records: list[dict[str, Any]]) -> set[tuple[str, str | None, str]]:
    atoms = [records[0]["differences"][index] for index in records[-1]["smallest"]]
    return {(atom["op"], atom["model"], atom["what"]) for atom in atoms}


# --- What is found ----------------------------------------------------------------------------------------------------


def test_a_function_in_process_is_explained(bisect: Bisect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = bisect("bisect_image:image", "--in-process")
    assert found.code == 1
    assert found.out.startswith("bisect_image:image: explained\n")
    lines = found.out.splitlines()
    at = lines.index("Smallest set: 1 of 2 differences that the target can see")
    assert lines[at + 2].split() == ["rounding", "point", "norm", "rounded", "float32"]
    assert lines[at + 3].strip() == "fused_modulation, minimax_h3"
    assert "control A   run 2 times: the same bytes" in found.out
    told = " ".join(found.out.split())
    assert "B beside A 1 of 3 elements differ, PSNR -1.2494 dB, max abs 1, most in latent" in told
    assert "never used by the target" in found.out
    assert max(map(len, lines)) <= 80


def test_a_command_is_explained_by_its_exit_code(bisect: Bisect) -> None:
    found = bisect(job(), "--json")
    assert found.code == 1
    assert smallest(found.json) == {NORM}
    assert {arm["value"] for arm in found.json[1:-1]} == {0.0, 1.0}


def test_a_command_is_explained_by_its_metric(bisect: Bisect) -> None:
    found = bisect(job(), "--metric", r"PSNR (\S+)", "--json")
    assert found.code == 1
    assert smallest(found.json) == {NORM, (*NORM[:2], "rounding point scaled")}
    singles = {arm["name"]: arm["from_a"]["change"] for arm in found.json[1:-1] if len(arm["turned"]) == 1}
    assert singles == {
        "fused_modulation, minimax_h3: rounding point norm": -5.5,
        "fused_modulation, minimax_h3: rounding point scaled": -1.25,
    }


def test_a_number_within_the_tolerance_is_explained_by_what_matters(bisect: Bisect) -> None:
    found = bisect("bisect_image:psnr", "--in-process", "--tolerance", 1.5)
    assert found.code == 1
    assert "Smallest set: 1 of 2" in found.out
    assert "tolerance   1.5" in found.out


def test_presets_files_and_saved_settings_are_settings(bisect: Bisect, numerics: Command, folder: Path) -> None:
    saved = folder / "reference.json"
    saved.write_text(numerics("show", "--model", "minimax_h3", "--json").out)
    (folder / "production.toml").write_text(
        '[models.minimax_h3]\nfused_modulation = { rounding_points = ["residual"] }\n'
    )
    found = bisect("bisect_image:image", "--in-process", "--json", a=saved, b="production.toml")
    assert found.code == 1
    assert smallest(found.json) == {NORM}


def test_a_preset_is_not_taken_for_a_file_of_its_name(bisect: Bisect, folder: Path) -> None:
    (folder / A).write_text("no presets file")
    assert bisect("bisect_image:image", "--in-process").code == 1


def test_equal_settings_exit_0(bisect: Bisect) -> None:
    found = bisect("bisect_image:image", "--in-process", b="vllm_cuda_bf16_rope")
    assert found.code == 5  # the target was not seen to use what differs
    found = bisect("bisect_image:image", "--in-process", b="vllm_cuda,rms_norm_reduction=aten_mean")
    assert found.code == 0
    assert found.out.startswith("bisect_image:image: no difference\n")


def test_settings_without_a_difference_are_said_so_without_a_run(bisect: Bisect, folder: Path) -> None:
    found = bisect(job(), b=A)
    assert (found.code, (folder / "runs").exists()) == (0, False)
    assert "A and B say the same" in found.out


def test_a_job_that_fails_for_another_reason_decides_nothing_and_shows_why(bisect: Bisect, folder: Path) -> None:
    (folder / "job.py").write_text("import sys; sys.exit('no such file: model.bin')")
    found = bisect(job())
    assert found.code == 5
    assert "no such file: model.bin" in found.out


def test_variables_that_are_set_aside_are_named(numerics: Command, folder: Path) -> None:
    arguments = ("bisect", "bisect_image:image", "--from", A, "--to", B, "--in-process")
    found = numerics(*arguments, VLLM_OMNI_FUSED_MODULATION_NUMERICS="fast")
    assert found.code == 1
    assert "set aside   VLLM_OMNI_FUSED_MODULATION_NUMERICS" in found.out


# --- Saved and continued ----------------------------------------------------------------------------------------------


def test_a_finished_search_is_shown_again_without_a_run(bisect: Bisect, folder: Path) -> None:
    first = bisect("bisect_image:image", "--in-process", "--out", "search.json", "--json")
    runs = (folder / "runs").read_text()
    again = bisect("bisect_image:image", "--in-process", "--out", "search.json", "--json")
    assert again.code == 1
    assert again.json[1:] == first.json[1:] == json.loads((folder / "search.json").read_text())[1:]
    assert (folder / "runs").read_text() == runs


def test_a_killed_search_continues_from_what_it_saved(bisect: Bisect, folder: Path) -> None:
    command = [*map(str, ("bisect", job(0.1), "--from", A, "--to", B, "--out", "search.json"))]
    with subprocess.Popen([sys.executable, "-c", ENTRY, *command], cwd=folder, stdout=subprocess.DEVNULL) as process:
        while len(_arms(folder / "search.json")) < 2:
            time.sleep(0.02)
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    before = _arms(folder / "search.json")
    started = len((folder / "runs").read_text().splitlines())
    found = bisect(job(0.1), "--out", "search.json", "--json")
    assert smallest(found.json) == {NORM}
    assert found.json[1 : 1 + len(before)] == before
    ran = len((folder / "runs").read_text().splitlines()) - started
    assert ran in {len(found.json) - 2 - len(before), len(found.json) - 1 - len(before)}  # the killed one may run on


def _arms(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())[1:] if path.exists() else []


def test_tensors_are_kept_beside_the_file_until_there_is_a_verdict(bisect: Bisect, folder: Path) -> None:
    bisect("bisect_image:image", "--in-process", "--out", "search.json")
    assert sorted(path.name for path in folder.iterdir() if "search" in path.name) == ["search.json"]


@pytest.mark.parametrize(
    ("options", "b", "words"),
    [
        (("--tolerance", 1), B, "--tolerance was 0.0 when it was begun, and is 1.0; name another file"),
        (("--metric", "PSNR"), B, "--metric was None"),
        ((), "vllm_native", "what --from and --to say was 'vllm_cuda' and 'vllm_cuda,rounding_points="),
    ],
)
def test_a_file_of_something_else_is_refused(
    bisect: Bisect, folder: Path, options: tuple[object, ...], b: str, words: str
) -> None:
    (folder / "job.py").write_text("")  # decides nothing, and quickly
    bisect(job(), "--out", "search.json", "--controls", 2)
    found = bisect(job(), "--out", "search.json", *options, b=b)
    assert found.code == 2
    assert f"search.json: {words}" in found.err


def test_a_search_that_was_stopped_exits_130_and_says_how_to_go_on(
    bisect: Bisect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bisect_image  # type: ignore[import-not-found]  # found through the fixture

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bisect_image, "image", stop)
    found = bisect("bisect_image:image", "--in-process", "--out", "search.json")
    assert found.code == 130
    assert "Stopped after 0 arms; the same command continues from search.json" in found.err


@pytest.mark.parametrize("which", ["arm", "verdict"])
def test_a_file_with_half_a_record_is_refused(bisect: Bisect, folder: Path, which: str) -> None:
    bisect("bisect_image:image", "--in-process", "--out", "search.json")
    records = json.loads((folder / "search.json").read_text())
    at = 1 if which == "arm" else len(records) - 1
    for key in ("kind", "reason"):
        short = {name: value for name, value in records[at].items() if name != key}
        (folder / "search.json").write_text(json.dumps([*records[:at], short, *records[at + 1 :]]))
        found = bisect("bisect_image:image", "--in-process", "--out", "search.json")
        assert found.code == 2
        assert f"record {at}: not from numerics bisect: no '{key}'" in found.err


def test_a_search_is_not_continued_with_another_function(bisect: Bisect, folder: Path) -> None:
    bisect("bisect_image:image", "--in-process", "--out", "search.json")
    (folder / "bisect_image.py").write_text(TARGETS + "# edited\n")
    found = bisect("bisect_image:image", "--in-process", "--out", "search.json")
    assert found.code == 2
    assert "search.json: the code of this package or of TARGET was another when it was begun" in found.err


def test_two_searches_do_not_write_one_file(bisect: Bisect, folder: Path) -> None:
    with alone(folder / "search.json"):
        found = bisect("bisect_image:image", "--in-process", "--out", "search.json")
    assert found.code == 2
    assert "search.json: another search is writing it" in found.err
    assert bisect("bisect_image:image", "--in-process", "--out", "search.json").code == 1
    assert not (folder / "search.json.tensors").exists()


def test_a_number_that_is_none_is_json_and_can_be_continued(bisect: Bisect, folder: Path) -> None:
    arguments = ("bisect_image:lost", "--in-process", "--out", "search.json", "--json")
    found = bisect(*arguments)
    assert {arm["value"] for arm in found.json[1:-1] if arm["turned"] == []} == {"nan"}
    assert "NaN" not in found.out
    (folder / "search.json").write_text(json.dumps(found.json[:3]))
    again = bisect(*arguments)
    assert (again.code, again.json[-1]) == (found.code, found.json[-1])


# --- Usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ((), {"a": "vlm_cuda"}, "--from 'vlm_cuda': preset 'vlm_cuda' "),
        ((), {"b": "missing.toml"}, "--to 'missing.toml': 'missing.toml' cannot be read"),
        ((), {"b": "missing.json"}, "--to 'missing.json': missing.json: cannot be read"),
        (("--in-process",), {}, "--in-process: of no use for a command"),
        (("--tolerance", "inf"), {}, "--tolerance: got inf"),
        (("--capability", "cuda9"), {}, "capability 'cuda9': not a capability"),
        (("--out", "no/such/folder.json"), {}, "no/such/folder.json: cannot be written"),
    ],
)
def test_bad_usage_exits_2(bisect: Bisect, options: tuple[object, ...], changes: dict[str, str], words: str) -> None:
    found = bisect("make test", *options, **changes)
    assert found.code == 2
    assert words in found.err


def test_a_function_that_is_not_there_is_bad_usage(bisect: Bisect) -> None:
    found = bisect("bisect_image:picture", "--in-process")
    assert found.code == 2
    assert "module 'bisect_image' has no function 'picture'" in found.err
