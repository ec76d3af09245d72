"""What every command has in common: exit codes, messages, streams, and what it does not import."""

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

import numerics.cli.listing
from numerics.cli import options
from numerics.cli.app import app
from tests.cli.conftest import ENTRY, Command, spawn

COMMANDS: Final = tuple(get_command(app).commands)  # type: ignore[attr-defined]  # a group; its class is typer's own
NEEDS_TORCH: Final = {"bisect", "identify", "precision", "trajectory", "verify"}
LIGHT: Final = [
    ("show",),
    ("show", "--json"),
    ("list",),
    ("models",),
    ("explain", "vllm_cuda"),
    ("diff", "vllm_cuda", "vllm_native"),
    ("check",),
    ("schema",),
    ("bench", "--list"),
    ("doctor",),
]
PAGES: Final = [
    *LIGHT,
    ("show", "--full"),
    ("show", "--model", "minimax_h3"),
    ("explain", "aten_mean_2_8", "--width", "5376"),
]


# --- Usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_fits_80_columns(numerics: Command, command: str) -> None:
    found = numerics(command, "--help")
    assert found.code == 0
    assert "--json" in found.out
    assert max(map(len, found.out.splitlines())) <= 80


def test_help_names_every_command_whole_and_the_exit_codes(numerics: Command) -> None:
    found = numerics("--help")
    assert found.code == 0
    assert {line.split()[0] for line in found.out.splitlines() if re.match("  [a-z]", line)} >= set(COMMANDS)
    assert "..." not in found.out.split("Commands:")[1]
    for meaning in ("0 fine", "1 a check", "2 bad usage", "5 nothing was", "101 an internal error"):
        assert meaning in found.out.replace("\n  ", " ")


@pytest.mark.parametrize(
    "arguments", [(), ("explain",), ("show", "--modle", "flux2"), ("explain", "fast", "--width", "x")]
)
def test_bad_usage_exits_2(numerics: Command, arguments: tuple[str, ...]) -> None:
    found = numerics(*arguments)
    assert found.code == 2
    assert "Usage: numerics" in found.err + found.out


def test_a_misspelt_command_exits_2_and_names_the_nearest(numerics: Command) -> None:
    found = numerics("shwo")
    assert found.code == 2
    assert "'show'" in found.err
    assert found.out == ""


@pytest.mark.parametrize(
    ("installed", "shown"), [("1.2.3", "numerics 1.2.3\n"), (None, "numerics, from a clone that is not installed\n")]
)
def test_version_is_printed(
    numerics: Command, monkeypatch: pytest.MonkeyPatch, installed: str | None, shown: str
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    found = numerics("--version")
    assert (found.code, found.out) == (0, shown)


def test_shell_completion_is_offered(numerics: Command) -> None:
    assert "--install-completion" in numerics("--help").out


@pytest.mark.parametrize(
    ("names", "begun", "offered"),
    [
        (options.orders, "vllm_cuda_a", ["vllm_cuda_add", "vllm_cuda_add_unaligned"]),
        (options.orders, "trit", ["triton"]),
        (options.model_names, "diffusers:flux2", ["diffusers:flux2", "diffusers:flux2_klein"]),
        (options.model_names, "Flux2", ["Flux2Transformer2DModel"]),
        (options.ops, "fused_q", ["fused_qk_norm_rope"]),
        (options.presets, "vllm_n", ["vllm_native"]),
        (options.kinds, "rou", ["rounding_points"]),
    ],
)
def test_names_are_completed(names: Callable[[], Iterable[str]], begun: str, offered: list[str]) -> None:
    assert set(options.completing(names)(begun)) >= set(offered)
    assert all(name.startswith(begun) for name in options.completing(names)(begun))


def test_a_shell_is_offered_the_names() -> None:
    words = {"COMP_WORDS": "numerics show --model diffusers:flux2", "COMP_CWORD": "3"}
    found = spawn(_NUMERICS_COMPLETE="complete_bash", **words)
    assert found.out.split() == ["diffusers:flux2", "diffusers:flux2_klein"]


def test_completion_is_silent_in_a_broken_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERICS_CONFIG", "/no/such.toml")
    assert options.completing(options.presets)("v") == []


# --- What goes wrong --------------------------------------------------------------------------------------------------


def test_a_configuration_error_is_a_message_on_stderr(numerics: Command) -> None:
    found = numerics("--config", "/no/such.toml", "list")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Error: ")
    assert "'/no/such.toml' cannot be read" in found.err


@pytest.mark.parametrize("place", [("--config", "{}", "list"), ("list", "--config", "{}")])
def test_a_file_is_named_before_or_after_the_command(
    numerics: Command, write: Callable[..., Path], place: tuple[str, ...]
) -> None:
    path = write('[presets.mine]\nsummary = "mine"\nextends = "vllm_cuda"\n')
    found = numerics(*(word.format(path) for word in place), "presets", "--json")
    assert "mine" in [each["name"] for each in found.json["presets"]]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(*_: Any) -> None:
        raise KeyError("left out")

    monkeypatch.setattr(numerics.cli.listing, "entries", entries)


@pytest.mark.usefixtures("broken")
def test_an_internal_error_exits_101_with_a_short_message(numerics: Command) -> None:
    found = numerics("list")
    assert (found.code, found.out) == (101, "")
    assert found.err.startswith("Internal error: KeyError: 'left out'\n")
    assert "numerics --traceback" in found.err


@pytest.mark.usefixtures("broken")
def test_the_traceback_of_an_internal_error_is_shown_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from numerics.cli.app import main

    monkeypatch.setattr(sys, "argv", ["numerics", "--traceback", "list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 101
    assert "in entries" in capsys.readouterr().err


# --- Streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("list",), ("explain", "vllm_cuda", "--width", "6144", "--json")])
def test_a_reader_that_leaves_early_ends_the_command_in_silence(arguments: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize("arguments", PAGES, ids=" ".join)
def test_a_page_fits_80_columns_where_they_are_all_there_are(numerics: Command, arguments: tuple[str, ...]) -> None:
    found = numerics(*arguments, FORCE_COLOR="1", COLUMNS="80")
    assert found.err == ""
    assert "\x1b" not in found.out
    if "--json" not in arguments and arguments != ("schema",):
        assert max(map(len, found.out.splitlines())) <= 80
        assert not any(line.endswith(" ") for line in found.out.splitlines())


def test_a_row_of_a_piped_table_stays_on_its_line(numerics: Command) -> None:
    found = numerics("list", "presets")
    (row,) = [line for line in found.out.splitlines() if "vllm_cuda_bf16_rope " in line]
    assert len(row) > 100
    assert row.endswith("without vllm_flash_attn")
    assert numerics("list", "presets", COLUMNS="").out == found.out  # as where it is not set


def test_a_closed_pipe_has_the_exit_code_of_a_signal(numerics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(sys.stdout, "write", closed)
    assert numerics("list").code == 141


@pytest.mark.parametrize("command", ["list", "schema"])
@pytest.mark.parametrize(
    ("stdout", "code", "words"),
    [(">/dev/full", 2, b"Error: the output cannot be written: No space left on device\n"), (">&-", 0, b"")],
)
def test_output_that_cannot_be_written_is_no_internal_error(command: str, stdout: str, code: int, words: bytes) -> None:
    shell = ["sh", "-c", f'"$0" -c "$1" {command} {stdout}', sys.executable, ENTRY]
    found = subprocess.run(shell, check=False, capture_output=True)
    assert (found.returncode, found.stderr) == (code, words)


def on_terminal(*arguments: str, **environment: str) -> str:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY, *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    ):
        os.close(theirs)
        shown = io.BytesIO()
        try:
            while piece := os.read(ours, 4096):
                shown.write(piece)
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(ours)
    return shown.getvalue().decode()


def test_a_terminal_gets_bold_headings_unless_no_color_is_set() -> None:
    assert "\x1b[1m" in on_terminal("list", "ops")
    assert "\x1b" not in on_terminal("list", "ops", NO_COLOR="1")
    assert "\x1b[1m" in on_terminal("list", "ops", NO_COLOR="")


def test_json_is_plain_on_a_terminal() -> None:
    assert "\x1b" not in on_terminal("list", "ops", "--json")


def test_letters_that_an_encoding_lacks_are_replaced() -> None:
    found = spawn("explain", "vllm_cuda_128", PYTHONIOENCODING="ascii")
    assert found.code == 0
    assert "t0  ??" in found.out


# --- Imports ----------------------------------------------------------------------------------------------------------

LOADED: Final = """
import sys
from numerics.cli.app import main
sys.argv = ["numerics", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
print(*sys.modules, file=sys.stderr)
"""


def modules_of(*arguments: str, prelude: str = "") -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", prelude + LOADED, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [each for each in LIGHT if each[0] != "diff"], ids=" ".join)
def test_torch_and_triton_are_not_imported(arguments: tuple[str, ...]) -> None:
    assert not modules_of(*arguments) & {"torch", "triton"}


def test_every_other_command_runs_without_torch() -> None:
    # `report` writes a file: see test_report.py.
    assert {each[0] for each in LIGHT} | {"report"} == set(COMMANDS) - NEEDS_TORCH


@pytest.mark.parametrize("arguments", [("show",), ("models",), ("doctor",)])
def test_commands_work_where_torch_and_triton_cannot_be_imported(arguments: tuple[str, ...]) -> None:
    modules_of(*arguments, prelude="import sys; sys.modules['torch'] = sys.modules['triton'] = None\n")


@pytest.mark.parametrize("command", ["show", "list", "doctor"])
def test_json_is_printed_without_rich(command: str) -> None:
    assert not any(name.split(".")[0] == "rich" for name in modules_of(command, "--json"))
