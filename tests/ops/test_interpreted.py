"""Awaits the session that runs the tests of `interpreted/`, in which Triton interprets kernels on the CPU."""

import importlib.util
import re
import subprocess

import pytest

FEWEST = 700  # tests: none of the files is left out


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is installed on Linux alone")
def test_kernels_are_interpreted(interpreted: "subprocess.Popen[str]") -> None:
    said, _ = interpreted.communicate()
    assert interpreted.returncode == 0, said
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= FEWEST, said
