"""A search of `bisect` in a file: written after each arm, and continued by the same command."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from numerics.environment import VARIABLES
from numerics.errors import ConfigurationError
from numerics.measure import result
from numerics.measure.bisect import Question
from numerics.measure.machine import command, machine
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
}


def header(question: Question, arguments: Sequence[str]) -> Record:
    """The first record. arguments: of the command line."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    aside = [name for names in VARIABLES.values() for name in names if name in os.environ]
    return {**question.header(), **machine(), "set_aside": aside, "started": started, "command": command(arguments)}


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
    now = {**question.header(), **machine()}
    for name, words in SAME.items():
        if first[name] != now[name]:
            raise ConfigurationError(
                f"{path}: {words} was {_shown(first, name)} when it was begun, and is {_shown(now, name)}; "
                "name another file, or remove it to begin again"
            )
    arms = [each for each in others if each["kind"] == "arm"]
    verdict = next((each for each in others if each["kind"] == "verdict"), None)
    return ([], None) if verdict is not None and verdict["result"] == "undecided" else (arms, verdict)


def _shown(header: Record, name: str) -> Any:
    if name == "settings":
        return f"{header['from']!r} and {header['to']!r} ({header[name][:15]})"
    return repr(header[name])
