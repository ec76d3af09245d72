"""The target of `bisect`, run under the settings of an arm: in this process, in one of its own, or as a command."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from traceback import format_exception
from typing import IO, Any, Final, Literal

from numerics.environment import CONFIG, RECORD
from numerics.errors import ConfigurationError
from numerics.measure.bisect_settings import SET_HERE, environment_of
from numerics.measure.bisect_worker import ANSWER, TENSORS, answer
from numerics.ops.dispatch import forget_used

Status = Literal["ok", "refused", "crashed", "timed out", "no metric"]

FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
REFUSED: Final = re.compile(r"^numerics\.errors\.(?:RequirementError|ConfigurationError): (.*)$", re.MULTILINE)
SKIPPED: Final = 125  # as `git bisect run` has it: no verdict; a shell's own failures and signals come after it
LAST_LINES: Final = 20
LAST_BYTES: Final = 8192


@dataclass(frozen=True)
class Target:
    """What is run, and what of it counts."""

    name: str  # module:function, or a command for the shell
    metric: str | None = None  # a regular expression, whose last match counts
    in_process: bool = False
    timeout: float | None = None  # seconds of an arm

    def __post_init__(self) -> None:
        if self.is_function and self.metric is not None:
            raise ConfigurationError("--metric: of no use for a function, which returns what counts")
        if self.in_process and not self.is_function:
            raise ConfigurationError("--in-process: of no use for a command; legal with module:function")
        if self.in_process and self.timeout is not None:
            raise ConfigurationError("--timeout: nothing can stop what runs in this process; leave out --in-process")
        try:
            re.compile(self.metric or "")
        except re.error as error:
            raise ConfigurationError(f"--metric {self.metric!r}: no regular expression: {error}") from None

    @property
    def is_function(self) -> bool:
        """Whether it is `module:function`."""
        return FUNCTION.fullmatch(self.name) is not None

    @property
    def counts(self) -> Literal["return value", "metric", "exit code"]:
        """What of it is compared."""
        return "return value" if self.is_function else "exit code" if self.metric is None else "metric"


@dataclass(frozen=True)
class Outcome:
    """What an arm came to."""

    status: Status
    reason: str = ""
    stderr: tuple[str, ...] = ()  # its last lines
    value: float | None = None  # of a number or a metric; of a command without a metric 0 for success and 1 for failure
    digest: str | None = None
    tensors: Path | None = None
    resolved: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # in their JSON form
    seconds: float = 0.0


def run(target: Target, settings: str, folder: Path) -> Outcome:
    """An arm with these settings, a presets file. folder: an empty one of its own.

    Raises ConfigurationError where the target is none.
    """
    config, record = folder / "settings.toml", folder / "resolved.jsonl"
    config.write_text(settings, encoding="utf-8")
    variables = {CONFIG: str(config), RECORD: str(record)}
    started = perf_counter()
    found = _here(target, variables, folder) if target.in_process else _elsewhere(target, variables, folder)
    return Outcome(**{**found, "resolved": tuple(_lines(record)), "seconds": round(perf_counter() - started, 3)})


def _here(target: Target, variables: Mapping[str, str], folder: Path) -> dict[str, Any]:
    forget_used()
    try:
        # What it prints is not what the command prints, and where it goes is not where a relative --out lies.
        with environment_of(variables), redirect_stdout(sys.stderr), chdir(Path.cwd()):
            return _answered(answer(target.name, folder), folder)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the target raises, the search goes on
        lines = "".join(format_exception(error)).splitlines()
        return {"status": "crashed", "reason": f"{type(error).__name__}: {error}", "stderr": tuple(lines[-LAST_LINES:])}


def _elsewhere(target: Target, variables: Mapping[str, str], folder: Path) -> dict[str, Any]:
    worker = [sys.executable, "-m", "numerics.measure.bisect_worker", target.name, str(folder)]
    others = {name: value for name, value in os.environ.items() if name not in SET_HERE}
    command: list[str] | str = worker if target.is_function else target.name
    with (
        (folder / "out").open("wb") as out,
        (folder / "err").open("wb") as err,
        _group(command, out, err, {**others, **variables}) as process,
    ):
        try:
            code: int | None = process.wait(target.timeout)
        except subprocess.TimeoutExpired:
            code = None
    last = tuple(_text(folder / "err", LAST_BYTES).splitlines()[-LAST_LINES:])
    if code is None:
        return {"status": "timed out", "reason": f"after {target.timeout:g} s", "stderr": last}
    if target.is_function and code == 0:
        if not (folder / ANSWER).exists():
            return {"status": "crashed", "reason": "exit code 0 before it returned", "stderr": last}
        return _answered(json.loads((folder / ANSWER).read_text(encoding="utf-8")), folder)
    found = {"stderr": last, **_exited(target, code, folder)}
    if found["status"] == "crashed" and last:
        found["reason"] += f": {last[-1]}"
    return found


@contextmanager
def _group(
    command: list[str] | str, out: IO[bytes], err: IO[bytes], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which ends with the block together with those that it started. Text is for the shell."""
    process = subprocess.Popen(  # noqa: S603  # the user's own command line, with all that a shell offers
        command,
        shell=isinstance(command, str),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answered(found: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    if "misused" in found:
        raise ConfigurationError(found["misused"])
    if "refused" in found:
        return {"status": "refused", "reason": found["refused"]}
    tensors = folder / TENSORS if "digest" in found else None
    return {"status": "ok", "value": found.get("value"), "digest": found.get("digest"), "tensors": tensors}


def _exited(target: Target, code: int, folder: Path) -> dict[str, Any]:
    """What the exit code of a process says, and the metric that it printed."""
    if code and (refused := REFUSED.findall(_text(folder / "err"))):
        return {"status": "refused", "reason": refused[-1]}
    if code < 0:
        return {"status": "crashed", "reason": f"killed by {_signal(-code)}"}
    if target.is_function or code >= SKIPPED:
        return {"status": "crashed", "reason": f"exit code {code}"}
    if target.metric is None:
        return {"status": "ok", "value": float(code != 0)}
    for stream in ("out", "err"):
        if matches := list(re.finditer(target.metric, _text(folder / stream), re.MULTILINE)):
            text = matches[-1][1 if matches[-1].re.groups else 0]
            try:
                return {"status": "ok", "value": float(text)}
            except (TypeError, ValueError):
                return {"status": "no metric", "reason": f"exit code {code}; {text!r} is no number"}
    return {"status": "no metric", "reason": f"exit code {code}; nothing printed matches {target.metric!r}"}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(path: Path, last: int | None = None) -> str:
    with path.open("rb") as file:
        if last is not None:
            file.seek(max(path.stat().st_size - last, 0))
        return file.read().decode("utf-8", "replace")


def _lines(record: Path) -> Iterator[Mapping[str, Any]]:
    """What was resolved. The last line of a process that was killed may be half of one."""
    for line in record.read_text(encoding="utf-8", errors="replace").splitlines() if record.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue
