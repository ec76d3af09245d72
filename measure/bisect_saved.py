"""A search of `bisect` in a file: written after each arm, and continued by the same command."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from numerics.environment import VARIABLES
from numerics.errors import ConfigurationError
from numerics.measure import result
from numerics.measure.bisect import Question
from numerics.measure.imported import file_of
from numerics.measure.machine import command, machine, sources
from numerics.measure.result import Record

COMMAND: Final = "numerics bisect"
# What must be the same for arms to be comparable, in the words of a message.
SAME: Final = {
    "target": "TARGET",
    "settings": "what --from and --to say",
    "metric": "--metric",
    "in_process": "--in-process",
    "tolerance": "--tolerance",
    "controls": "--controls",
    "gpu": "the GPU",
    "torch": "the release of torch",
    "triton": "the release of Triton",
    "sources": "the code of this package or of TARGET",
}
NEEDED: Final = {
    "arm": (
        *("name", "turned", "run", "status", "reason", "stderr", "seconds"),
        *("value", "digest", "from_a", "from_b", "used", "without_effect"),
    ),
    "verdict": ("result", "reason", "smallest", "others", "without_effect", "smaller_without_verdict", "unexpected"),
}


def header(question: Question, arguments: Sequence[str]) -> Record:
    """The first record. arguments: of the command line."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    aside = [name for names in VARIABLES.values() for name in names if name in os.environ]
    return {**_same(question), "set_aside": aside, "started": started, "command": command(arguments)}


def _same(question: Question) -> Record:
    """What an arm depends on. Of a function the file of its module counts; what that imports is not looked at."""
    target = question.target
    file = file_of(target.name) if target.is_function else None
    return {**question.header(), **machine(), "sources": sources([file] if file else ())}


def folder(path: Path) -> Path:
    """Where the tensors of A and B stay until there is a verdict."""
    return path.with_name(f"{path.name}.tensors")


def continued(path: Path, question: Question) -> tuple[list[Record], Record | None]:
    """The arms that have run, and the verdict if there is one; nothing where there is no such file.

    A search that decided nothing is not continued: it begins again. Raises ConfigurationError for a file that is no
    search, or is one of something else, and says of what.
    """
    if not path.exists():
        return [], None
    first, *others = result.records(path, COMMAND) or [{}]
    if first.get("kind") != "header" or any(name not in first for name in SAME):
        raise ConfigurationError(f"{path}: not from {COMMAND} --out; name another file")
    now = _same(question)
    for name, words in SAME.items():
        if first[name] != now[name]:
            what = f"was {_shown(first, name)} when it was begun, and is {_shown(now, name)}"
            if name == "sources":
                what = "was another when it was begun"
            raise ConfigurationError(f"{path}: {words} {what}; name another file, or remove it to begin again")
    for index, each in enumerate(others, 1):
        if missing := [name for name in NEEDED.get(each.get("kind", ""), ("kind",)) if name not in each]:
            raise ConfigurationError(f"{path}: record {index}: not from {COMMAND}: no {missing[0]!r}; remove the file")
    arms = [each for each in others if each["kind"] == "arm"]
    verdict = next((each for each in others if each["kind"] == "verdict"), None)
    return ([], None) if verdict is not None and verdict["result"] == "undecided" else (arms, verdict)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Raises ConfigurationError where another process searches into this file at the same time."""
    place = folder(path)
    place.mkdir(exist_ok=True)
    lock = os.open(place, os.O_RDONLY)  # ends with the process, however that ends
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"{path}: another search is writing it; name another file") from None
        yield
        with suppress(OSError):
            place.rmdir()  # unless tensors are in it
    finally:
        os.close(lock)


def _shown(header: Record, name: str) -> Any:
    if name == "settings":
        return f"{header['from']!r} and {header['to']!r} ({str(header[name])[:15]})"
    return repr(header[name])
