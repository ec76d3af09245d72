"""`numerics check`: files, variables, settings in force, and drift from saved ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import numerics.cli.check
from numerics.presets.file import PACKAGED
from tests.cli.conftest import Command, spawn

Write = Callable[..., Path]
QK = "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS"
FINE = '[presets.mine]\nsummary = "mine"\nextends = "vllm_cuda"\n'
TWO_PROBLEMS = '[presets.mine]\nsummary = "mine"\nextends = "vlm_cuda"\n\n[ops.fused_rms_norm]\npreset = "fats"\n'
# Tables that are not legal by themselves, one of them named by another, and legal ones that name what is not there.
BOTH_KINDS = """[presets.broken]
summary = "x"
enable_fp_fuson = true
extends = "vllm_cuda"
[presets.mine]
summary = "x"
rms_norm_reduction = "triton"
extends = "vlm_cuda"
[models.flux2]
fused_qk_norm_rope = "broken"
fused_rms_norm = { preset = "fast", min_tokens = -1 }
[models.flux]
fused_qk_norm_rope = "mine"
fused_rms_norm = "fats"
"""


# --- Files ------------------------------------------------------------------------------------------------------------


def test_a_legal_file_exits_0(numerics: Command, write: Write) -> None:
    path = write(FINE)
    found = numerics("check", path)
    assert (found.code, found.out.splitlines()[0]) == (0, f"{path}: fine")


def test_every_problem_of_every_file_is_listed_with_its_line(numerics: Command, write: Write) -> None:
    a, b = write(TWO_PROBLEMS, "a.toml"), write(FINE, "b.toml")
    found = numerics("check", a, b, "--json")
    assert found.code == 1
    problems = found.json["files"][str(a)]
    assert [problem.split(": ")[0] for problem in problems] == [f"{a}:3", f"{a}:6"]
    assert "nearest: vllm_cuda" in problems[0]
    assert "nearest: fast" in problems[1]
    assert found.json["files"][str(b)] == []


def test_problems_are_on_stdout_a_whole_line_each(numerics: Command, write: Write) -> None:
    path = write(TWO_PROBLEMS)
    found = numerics("check", path)
    assert (found.code, found.err) == (1, "")
    assert found.out.splitlines() == [*numerics("check", path, "--json").json["files"][str(path)], "environment: fine"]


def test_the_packaged_file_is_legal(numerics: Command) -> None:
    assert numerics("check", PACKAGED).code == 0


@pytest.mark.parametrize("name", ["no.toml", "."])
def test_a_path_that_cannot_be_read_exits_2(numerics: Command, tmp_path: Path, write: Write, name: str) -> None:
    found = numerics("check", write(TWO_PROBLEMS), tmp_path / name)
    assert (found.code, found.out) == (2, "")
    assert f"{tmp_path / name}: cannot be read: " in found.err


def test_every_path_that_cannot_be_read_is_listed(numerics: Command, tmp_path: Path) -> None:
    found = numerics("check", tmp_path / "a.toml", tmp_path / "b.toml")
    assert [line.split(": ")[-1] for line in found.err.splitlines()] == ["no such file or directory"] * 2


def test_problems_within_tables_and_of_names_between_them_are_listed_at_once(numerics: Command, write: Write) -> None:
    path = write(BOTH_KINDS)
    found = numerics("check", path, "--json").json["files"][str(path)]
    assert [problem.split(": ")[0] for problem in found] == [f"{path}:{line}" for line in (3, 8, 11, 14)]
    assert "no such key; nearest: enable_fp_fusion" in found[0]
    assert "no such preset; nearest: vllm_cuda" in found[1]
    assert "legal: a number of tokens" in found[2]
    assert "no such preset; nearest: fast" in found[3]


# --- Environment and settings in force --------------------------------------------------------------------------------


def test_settings_in_force_are_checked_without_a_file(numerics: Command) -> None:
    found = numerics("check", "--json")
    assert (found.code, found.json) == (0, {"files": {}, "environment": [], "settings": [], "drift": None})


def test_a_misspelt_variable_is_a_problem() -> None:
    found = spawn("check", VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERIC="fast")
    assert found.code == 1
    assert f"VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERIC: no such variable; nearest: {QK}" in found.out


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("NUMERICS_STRICT", "yes", "NUMERICS_STRICT"),
        ("NUMERICS_CHECK_INDICES", "yes", "NUMERICS_CHECK_INDICES"),
        ("VLLM_OMNI_FUSED_RMS_NORM_MIN_TOKENS", "-1", "digits 0 to 9"),
        ("VLLM_OMNI_FUSED_MODULATION_NUMERICS", "fast,x=1", "'x'"),
    ],
)
def test_an_illegal_value_is_a_problem_of_the_environment(
    numerics: Command, variable: str, value: str, message: str
) -> None:
    found = numerics("check", "--json", **{variable: value})
    assert found.code == 1
    (problem,) = found.json["environment"]
    assert message in problem
    assert found.json["settings"] is None


def test_a_name_that_no_file_declares_is_a_problem_of_the_settings(numerics: Command) -> None:
    found = numerics("check", "--json", **{QK: "vlm_cuda"})
    assert found.code == 1
    (problem,) = found.json["settings"]
    assert "nearest: vllm_cuda" in problem


def test_a_condition_that_does_not_hold_here_is_a_problem(numerics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    found = numerics("check", "--json", VLLM_BATCH_INVARIANT="1")
    assert found.code == 1
    assert any("VLLM_BATCH_INVARIANT unset or '0'" in problem for problem in found.json["settings"])


def test_the_file_that_the_variable_names_is_checked(numerics: Command, write: Write) -> None:
    found = numerics("check", "--json", NUMERICS_CONFIG=str(write(TWO_PROBLEMS)))
    assert (found.code, len(found.json["settings"])) == (1, 2)


def test_problems_of_the_environment_and_of_the_file_that_it_names_are_all_listed(
    numerics: Command, write: Write
) -> None:
    found = numerics("check", "--json", NUMERICS_CONFIG=str(write(TWO_PROBLEMS)), NUMERICS_STRICT="yes")
    assert (found.code, len(found.json["environment"]), len(found.json["settings"])) == (1, 1, 2)


def test_the_file_in_force_is_named(numerics: Command, write: Write) -> None:
    path = write(FINE)
    assert f"settings in force: fine ({path})" in numerics("check", "--config", path).out


# --- Drift ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(numerics: Command, write: Write) -> Path:
    return write(numerics("show", "--json").out, "saved.json")


def test_settings_that_are_the_saved_ones_exit_0(numerics: Command, saved: Path) -> None:
    found = numerics("check", "--fingerprint", saved)
    assert (found.code, "the settings in force are the saved ones" in found.out) == (0, True)


def test_a_drift_exits_1_and_names_both_values(numerics: Command, saved: Path) -> None:
    found = numerics("check", "--fingerprint", saved, "--json", VLLM_OMNI_FUSED_MODULATION_NUMERICS="bf16_affine")
    assert found.code == 1
    of_default = [each for each in found.json["drift"]["differences"] if each["model"] is None]
    assert {(each["op"], each["what"]) for each in of_default} >= {("fused_modulation", "preset")}
    assert ("fast", "bf16_affine") in [(each["a"], each["b"]) for each in of_default]
    assert {each["op"] for each in found.json["drift"]["differences"]} == {"fused_modulation"}
    shown = numerics("check", "--fingerprint", saved, VLLM_OMNI_FUSED_MODULATION_NUMERICS="bf16_affine").out
    assert "fast -> bf16_affine" in shown


def test_a_declaration_that_changed_is_a_drift(numerics: Command, write: Write) -> None:
    mine = '[reductions.r]\nsummary = "r"\nwidth = 128\nvector = 8\nthreads = 16\nlanes = "{}"\nmean = "divide"\n'
    mine += '[presets.p]\nsummary = "p"\nextends = "vllm_cuda_128"\nrms_norm_reduction = "r"\n'
    mine += '[ops.fused_rms_norm]\npreset = "p"\n'
    before, after = write(mine.format("adjacent"), "a.toml"), write(mine.format("halves"), "b.toml")
    path = write(numerics("show", "--json", "--op", "rms_norm", "--config", before).out, "saved.json")
    assert numerics("check", "--fingerprint", path, "--config", before).code == 0
    found = numerics("check", "--fingerprint", path, "--config", after, "--json")
    assert found.code == 1
    assert "fingerprint" in {each["what"] for each in found.json["drift"]["differences"]}


def test_the_capability_of_the_machine_counts(numerics: Command, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics_check(), "current", lambda: "cuda:9.0")
    found = numerics("check", "--fingerprint", saved, "--json")
    assert found.code == 1
    assert {(each["what"], each["a"], each["b"]) for each in found.json["drift"]["differences"]} == {
        ("capability", None, "cuda:9.0")
    }


def test_without_a_driver_the_saved_capability_counts(numerics: Command, write: Write) -> None:
    path = write(numerics("show", "--json", "--capability", "cuda:9.0").out, "saved.json")
    assert numerics("check", "--fingerprint", path).code == 0
    assert numerics("check", "--fingerprint", path, "--capability", "cuda:10.0").code == 1


def test_a_setting_that_is_refused_now_is_a_drift(numerics: Command, saved: Path, write: Write) -> None:
    settings = json.loads(saved.read_text())
    path = write(json.dumps([{**settings[0], "model": "gone"}, settings[0]]), "b.json")
    found = numerics("check", "--fingerprint", path, "--json")
    assert found.code == 1
    (difference,) = found.json["drift"]["differences"]
    assert (difference["model"], difference["what"], difference["a"]) == ("gone", "setting", "present")
    assert difference["b"].startswith("refused: model 'gone': no such model")


def test_a_saved_file_that_is_missing_exits_2(numerics: Command, tmp_path: Path) -> None:
    found = numerics("check", "--fingerprint", tmp_path / "no.json")
    assert (found.code, "cannot be read: no such file or directory" in found.err) == (2, True)


def numerics_check() -> object:
    """The module, which the fixture's name hides."""
    return numerics.cli.check


def test_what_is_no_capability_is_refused(numerics: Command) -> None:
    found = numerics("check", "--capability", "hopper")
    assert found.code == 2
    assert "capability 'hopper': not a capability" in found.err
