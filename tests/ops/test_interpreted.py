"""Runs the tests of `interpreted/`, each file in a session in which Triton interprets kernels on the CPU."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
FEWEST = 30  # tests of a file: none of them is there for less


@pytest.fixture(scope="module")
def sessions(root: Path, pytestconfig: pytest.Config) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """A session for each file; all at once, since each keeps one core busy."""
    measured = pytestconfig.pluginmanager.hasplugin("_cov")
    start = ["-m", "coverage", "run", "--parallel-mode", "-m", "pytest"] if measured else ["-m", "pytest"]
    options = [] if pytestconfig.getini("pythonpath") else ["-o", "pythonpath="]  # an installed wheel is tested
    command = [sys.executable, *start, "-q", "--no-header", "-p", "no:cacheprovider", *options]
    started = {
        file: subprocess.Popen(
            [*command, str(FOLDER / file)], cwd=root, env=os.environ | {"TRITON_INTERPRET": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for file in FILES
    }  # fmt: skip
    yield started
    for session in started.values():
        with session:  # closes its pipe and waits
            session.kill()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is installed on Linux alone")
@pytest.mark.parametrize("file", FILES)
def test_kernels_are_interpreted(file: str, sessions: dict[str, "subprocess.Popen[str]"]) -> None:
    said, _ = sessions[file].communicate()
    assert sessions[file].returncode == 0, said
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= FEWEST, said
