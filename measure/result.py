"""A result: a list of records, one for each case and preset, as JSON."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from numerics.errors import ConfigurationError

Record = dict[str, Any]
Key = tuple[str, str, str]

# What every record has; a value is null where it does not apply or was not measured.
FIELDS: Final = (
    "op",
    "case",
    "preset",
    "exact",  # whether every bit is declared
    "clock",  # "graph": GPU time in a CUDA graph; "host": time of a call on the host
    "refused",  # the preset's condition that does not hold for the case
    "error",
    "not_fused",  # why the op ran its reference
    "time_us",
    "copy_us",
    "ratio_to_copy",
    "empty_us",  # an empty kernel, in place of the copy, where a case moves little
    "ratio_to_empty",
    "ratio_to_fast",
    "eager_us",
    "pack_us",  # making the rotation table, which a model does once
    "peer_us",
    "peers",
    "absent",  # peers that are not there, and why
    "reference",
    "elements",
    "elements_differing",
    "differing",  # before and after timing, and of a call from the one before
    "moved_bytes",
    "times",  # median, spread and samples of "graph" and "eager", or of "host"
    "rounds",
    "seed",
    "inputs",
    "inputs_changed",
    "fingerprint",
    "gpu",
    "driver",
    "cuda",
    "python",
    "torch",
    "triton",
    "numerics",
    "peer_versions",
    "sources",
    "started",
    "command",
)
NEEDED: Final = ("op", "case", "preset", "time_us", "gpu")


def record(**values: Any) -> Record:
    """A record with every field, in the same order. Raises TypeError for one that there is not."""
    if unknown := values.keys() - set(FIELDS):
        raise TypeError(f"no such field: {', '.join(sorted(unknown))}")
    return {field: values.get(field) for field in FIELDS}


def key(each: Mapping[str, Any]) -> Key:
    """What makes a record the same measurement as one of another result."""
    return each["op"], each["case"], each["preset"]


def is_wrong(each: Mapping[str, Any]) -> bool:
    """Whether bytes differ that must not, a call does not repeat itself, or an arm failed."""
    differing = each.get("differing") or {}
    return bool(
        each.get("error")
        or each.get("inputs_changed")
        or differing.get("repeated")
        or (each.get("exact") and each.get("elements_differing"))
    )


def write(path: Path, records: Sequence[Record]) -> None:
    """Whole or not at all. Raises ConfigurationError where the path cannot be written to."""
    with _beside(path) as part:
        part.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def check_writable(path: Path) -> None:
    """Raises what `write` would, and leaves alone what is there."""
    with _beside(path) as part:
        part.touch()
        part.unlink()


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    try:
        yield path.with_name(f"{path.name}.{os.getpid()}.part")  # its own, where two commands write one path
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def read(path: Path) -> list[Record]:
    """A result that `write` wrote. Raises ConfigurationError if it is not one."""
    return records(path, "numerics bench", NEEDED)


def records(path: Path, command: str, needed: Sequence[str] = (), how: str = " --out FILE") -> list[Record]:
    """What a command wrote. Raises ConfigurationError where it is no list of records that have what is needed.

    how: the options with which the command writes it.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:  # text that is not UTF-8 is one, too
        raise ConfigurationError(f"{path}: not JSON: {error}; write it with: {command}{how}") from None
    if not isinstance(found, list):
        raise ConfigurationError(f"{path}: got {type(found).__name__}, not the list that {command} writes")
    for index, each in enumerate(found):
        if not isinstance(each, dict):
            raise ConfigurationError(f"{path}: record {index}: not from {command}: got {each!r}, not a table")
        if missing := [name for name in needed if name not in each]:
            raise ConfigurationError(f"{path}: record {index}: not from {command}: no {missing[0]!r}")
    return found


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A ratio, as it stands in a record."""
    return None if value is None else round(value, digits)


def ratio(over: float | None, under: float | None) -> float | None:
    """Rounded; None where one of both is missing."""
    return rounded(over / under) if over is not None and under else None
