"""Options that take one value are given once, for every command."""

import subprocess
import sys
from typing import Any

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "--list", "--seed", 1, "--seed=2"), "--seed: given 2 times, '1' and '2'; legal: once"),
        (("show", "--op", "rms_norm", "--op", "rms_norm"), "--op: given 2 times, 'rms_norm' and 'rms_norm'"),
        (("--config", "a.toml", "--config=b.toml", "list"), "--config: given 2 times, 'a.toml' and 'b.toml'"),
    ],
)
def test_a_second_value_is_refused_and_both_are_named(numerics: Command, arguments: tuple[Any, ...], said: str) -> None:
    found = numerics(*arguments)
    assert (found.code, found.out) == (2, "")
    assert said in found.err


def test_flags_and_options_of_several_values_may_be_repeated(numerics: Command) -> None:
    names = ("--op", "rms_norm", "--op", "indexed_gate")
    found = numerics("bench", "--list", "--json", "--json", *names)
    assert {each["op"] for each in found.json} == {"rms_norm", "indexed_gate"}


def test_what_a_parser_refuses_is_still_its_message(numerics: Command) -> None:
    found = numerics("show", "--modle", "x")
    assert found.code == 2
    assert "No such option: --modle" in found.err


def test_the_package_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "numerics", "list", "ops"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "fused_qk_norm_rope" in done.stdout
