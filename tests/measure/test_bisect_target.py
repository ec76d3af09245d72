"""One arm: a function or a command under generated settings, and what it comes to when it goes wrong."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from numerics.environment import VARIABLES
from numerics.errors import ConfigurationError
from numerics.measure.bisect_settings import SET_HERE
from numerics.measure.bisect_target import Outcome, Target, run

SETTINGS: Final = "[models.minimax_h3]\nfused_qk_norm_rope = {{ preset = 'vllm_cuda', enable_fp_fusion = {fusion} }}\n"
RESOLVES: Final = "from numerics import resolve; print('fusion', int(resolve('fused_qk_norm_rope', 'minimax_h3'){}))"
Arm = Callable[..., Outcome]


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> Arm:
    """Runs one."""
    here = str(root / "tests" / "measure")
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ["PYTHONPATH"]]))

    def once(name: str, settings: str = SETTINGS, *, fusion: bool = True, **options: Any) -> Outcome:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return run(Target(name, **options), settings.format(fusion=str(fusion).lower()), folder)

    return once


def python(code: str) -> str:
    """A command that runs it."""
    return f'{sys.executable} -c "{code}"'


# --- Functions --------------------------------------------------------------------------------------------------------


def test_a_fresh_process_sees_the_settings_that_a_module_keeps(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    import bisect_functions  # type: ignore[import-not-found]  # found through the fixture

    monkeypatch.setattr(bisect_functions, "KEPT", {})
    arm("bisect_functions:kept", fusion=False, in_process=True)
    assert arm("bisect_functions:kept", fusion=True, in_process=True).value == 0.0
    found = arm("bisect_functions:kept", fusion=True)
    assert found.value == 1.0
    assert [(each["op"], each["model"]) for each in found.resolved] == [("fused_qk_norm_rope", "minimax_h3")]


def test_a_process_that_dies_leaves_its_last_lines(arm: Arm) -> None:
    found = arm("bisect_functions:aborts", f"{SETTINGS}fused_modulation = 'vllm_cuda'\n", fusion=False)
    assert (found.status, found.reason.split(":")[0]) == ("crashed", "killed by SIGABRT")
    assert "about to die" in found.stderr
    assert [each["op"] for each in found.resolved] == ["fused_qk_norm_rope", "fused_modulation"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:f", "module 'no_such_module' cannot be imported"),
        ("bisect_functions:fragil", "has no function 'fragil'; nearest: fragile"),
    ],
)
def test_a_function_that_is_not_there_is_bad_usage(arm: Arm, name: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        arm(name, in_process=True)
    assert words in str(error.value)


def test_in_process_what_a_function_prints_is_not_on_stdout(arm: Arm, capsys: pytest.CaptureFixture[str]) -> None:
    assert arm("bisect_functions:loud", in_process=True).value == 1.0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "loud\n")


def test_a_function_that_exits_is_an_arm_without_a_verdict(arm: Arm) -> None:
    assert arm("bisect_functions:exits", in_process=True).status == "crashed"


def test_a_process_that_ends_before_its_function_returns_is_an_arm_without_a_verdict(arm: Arm) -> None:
    found = arm("bisect_functions:returns_too_early")
    assert (found.status, found.reason) == ("crashed", "exit code 0 before it returned")


def test_in_process_the_folder_is_as_before(arm: Arm) -> None:
    here = Path.cwd()
    assert arm("bisect_functions:wanders", in_process=True).status == "ok"
    assert Path.cwd() == here


@pytest.mark.parametrize(
    ("name", "words"), [("nothing", "returned nothing to compare"), ("twice", "several tensors of one name")]
)
def test_results_that_cannot_be_compared_are_bad_usage(arm: Arm, name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        arm(f"bisect_functions:{name}", in_process=True)


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status", "value"),
    [
        ("true", "ok", 0.0),
        ("exit 1", "ok", 1.0),
        ("exit 124", "ok", 1.0),
        ("exit 125", "crashed", None),
        ("no_such_command_at_all", "crashed", None),
        ("echo last words >&2; kill -SEGV $$", "crashed", None),
    ],
)
def test_an_exit_code_decides_unless_nothing_ran_to_its_end(
    arm: Arm, command: str, status: str, value: float | None
) -> None:
    found = arm(command)
    assert (found.status, found.value) == (status, value)
    if "SEGV" in command:
        assert (found.reason, found.stderr) == ("killed by SIGSEGV: last words", ("last words",))


@pytest.mark.parametrize(
    ("command", "metric", "value"),
    [
        ("echo PSNR 30.5; echo PSNR 33.25; exit 1", r"PSNR ([\d.]+)", 33.25),
        ("echo 1e-3", r"\S+", 1e-3),
        ("echo loss=nan >&2", "loss=(.*)", float("nan")),
    ],
)
def test_the_last_match_of_a_metric_decides_whatever_the_exit_code(
    arm: Arm, command: str, metric: str, value: float
) -> None:
    assert arm(command, metric=metric).value == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("command", "words"),
    [("echo PSNR; exit 7", "exit code 7; nothing printed matches"), ("echo 'PSNR 1.2.3'", "'1.2.3' is no number")],
)
def test_a_metric_that_is_not_there_is_no_verdict(arm: Arm, command: str, words: str) -> None:
    found = arm(command, metric=r"PSNR ([\d.]+)")
    assert found.status == "no metric"
    assert words in found.reason


def test_a_command_gets_the_settings_as_a_user_would_set_them(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in VARIABLES.values():
        monkeypatch.setenv(str(names.numerics), "no_such_preset")
    command = python(RESOLVES.format(".numerics.enable_fp_fusion"))
    found = [arm(command, fusion=fusion, metric="fusion (.*)") for fusion in (True, False)]
    assert [each.value for each in found] == [1.0, 0.0]
    assert found[0].resolved[0]["sources"]["preset"]["location"] == "settings.toml: models.minimax_h3"
    assert "NUMERICS_CONFIG" in SET_HERE


def test_settings_that_the_package_refuses_are_no_failure_of_the_command(
    arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    found = arm(python(RESOLVES.format(".numerics.enable_fp_fusion")))
    assert found.status == "refused"
    assert "requires the variable VLLM_BATCH_INVARIANT unset or '0', found '1'" in found.reason


def test_an_arm_that_takes_too_long_is_stopped_with_all_that_it_started(arm: Arm, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    started = time.monotonic()
    found = arm(f"(sleep 1; touch {alive}) & echo waiting >&2; sleep 60", timeout=0.3)
    assert time.monotonic() - started < 10
    assert (found.status, found.reason, found.stderr) == ("timed out", "after 0.3 s", ("waiting",))
    time.sleep(1)
    assert not alive.exists()


def test_half_a_line_of_a_killed_process_is_left_out(arm: Arm) -> None:
    command = python(RESOLVES.format(".numerics.enable_fp_fusion")) + '; printf \'{{"op": "half\' >> "$NUMERICS_RECORD"'
    assert len(arm(command.replace("{{", "{")).resolved) == 1


# --- Usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("m:f", {"metric": "x"}, "--metric: of no use for a function"),
        ("make test", {"in_process": True}, "--in-process: of no use for a command"),
        ("m:f", {"in_process": True, "timeout": 1.0}, "--timeout: nothing can stop"),
        ("make test", {"metric": "("}, "--metric '(': no regular expression"),
    ],
)
def test_options_that_do_not_go_together_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Target(name, **options)
    assert words in str(error.value)
