"""The command line as its users meet it: arguments in, two streams and an exit code out."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from numerics.cli.app import main
from numerics.context import configure

ENTRY: Final = "from numerics.cli.app import main; main()"


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __post_init__(self) -> None:
        assert "Traceback" not in self.err, self.err


Command = Callable[..., Result]


@pytest.fixture(autouse=True)
def _this_process_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)


@pytest.fixture
def numerics(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process."""

    def run(*arguments: object, **environment: str) -> Result:
        capsys.readouterr()
        configure(None)  # as in a process of its own
        with monkeypatch.context() as during:
            for name, value in environment.items():
                during.setenv(name, value)
            during.setattr(sys, "argv", ["numerics", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code
        out, err = capsys.readouterr()
        return Result(code if isinstance(code, int) else 0, out, err)

    return run


def spawn(*arguments: object, **environment: str) -> Result:
    """Runs the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file, such as a presets file of one's own."""

    def write(text: str, name: str = "my.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
