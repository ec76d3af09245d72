"""The files that a report is made from: what each is by its content, its hash, and where and when it was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from numerics.cli.report_measurements import AfterSearch, Header, ModelTimed, Precise, Search, Step, Timed
from numerics.cli.report_records import Base, Environment, Parity, Setting, Verified
from numerics.errors import ConfigurationError

MACHINE: Final = ("gpu", "driver", "cuda", "python", "torch", "triton", "numerics")
NO_GPU: Final = "no GPU"
SHORT_HASH: Final = 12
SHOWN_KEYS: Final = 6
Machine = tuple[tuple[str, str], ...]  # names of MACHINE and what they are


@dataclass(frozen=True)
class Kind:
    """What a file can be. marks: fields that its first record has, and that together no other kind has."""

    name: str
    what: str
    marks: frozenset[str]
    model: TypeAdapter[Any]
    rest: TypeAdapter[Any] | None = None  # of the records after the first, if they are others
    is_list: bool = True

    def fits(self, found: Any) -> bool:
        """Whether the content says that it is of this kind; whether all of it is sound is another question."""
        return not self.missing(found)

    def missing(self, found: Any) -> frozenset[str]:
        """The marks that are not there."""
        if isinstance(found, list) is not self.is_list:
            return self.marks
        first = found[0] if self.is_list and found else found
        return self.marks - first.keys() if isinstance(first, dict) else self.marks


def _kind(name: str, what: str, marks: str, model: type[Base], rest: Any = None) -> Kind:
    others = None if rest is None else TypeAdapter[Any](rest)
    return Kind(name, what, frozenset(marks.split()), TypeAdapter(model), others, is_list=model is not Environment)


KINDS: Final = (
    _kind("settings", "numerics show --json", "op model capability preset numerics sources fingerprint", Setting),
    _kind("verify", "numerics verify --json", "preset reference status cases rows differing", Verified),
    _kind("parity", "python benchmarks/parity.py --out FILE", "op preset elements elements_differing unfused", Parity),
    _kind("bench", "numerics bench --out FILE", "op case preset time_us ratio_to_copy", Timed),
    _kind("precision", "numerics precision --out FILE", "op case preset stage precision rmse", Precise),
    _kind("trajectory", "numerics trajectory --out FILE", "kind steps layers tokens width", Header, Step),
    _kind("bisect", "numerics bisect --out FILE", "kind target from to differences", Search, AfterSearch),
    _kind("models", "python benchmarks/models.py --out FILE", "model case verdict", ModelTimed),
    _kind("environment", "numerics doctor --json", "python platform packages fused_kernels problems", Environment),
)


@dataclass(frozen=True)
class Given:
    """One file, or what was looked up when the report was made, which has neither path nor hash."""

    kind: Kind
    name: str
    sha256: str | None
    size: int | None
    records: Sequence[Any]
    machines: tuple[Machine, ...]
    when: tuple[str, ...]  # the first and the last time that it records
    commands: tuple[str, ...]

    @property
    def short_hash(self) -> str:
        """Enough of the hash to tell files apart."""
        return "" if self.sha256 is None else self.sha256[:SHORT_HASH]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "file": self.name,
            "sha256": self.sha256,
            "bytes": self.size,
            "kind": self.kind.name,
            "made_by": self.kind.what,
            "records": len(self.records),
            "machines": [dict(each) for each in self.machines],
            "when": list(self.when),
            "commands": list(self.commands),
        }


def read(paths: Sequence[Path]) -> list[Given]:
    """All files. Raises ConfigurationError for one that is no such file, or is given twice."""
    found = [_read(path) for path in paths]
    seen: dict[str | None, str] = {}
    for path, each in zip(paths, found, strict=True):
        if each.sha256 in seen:
            raise ConfigurationError(f"{path}: the same content as {seen[each.sha256]}; give each result once")
        seen[each.sha256] = str(path)
    return found


def live(kind: str, found: Any, name: str, now: str) -> Given:
    """What a command found just now, in place of a file that it would have written."""
    (of_kind,) = (each for each in KINDS if each.name == kind)
    return _given(of_kind, found, name, None, when=(now,))


def _read(path: Path) -> Given:
    try:
        content = path.read_bytes()
        found = json.loads(content)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:  # text that is not UTF-8 is one, too
        raise ConfigurationError(f"{path}: not JSON: {error}. {_legal()}") from None
    if found == []:
        raise ConfigurationError(f"{path}: an empty list, which says neither what it is nor anything else. {_legal()}")
    for kind in KINDS:
        if kind.fits(found):
            return _given(kind, found, str(path), content)
    raise ConfigurationError(f"{path}: {_unknown(found)} {_legal()}")


def checked(of: str, found: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """What was read, for a command that shows its own file. Raises ConfigurationError for a value of another type."""
    (kind,) = (each for each in KINDS if each.name == of)
    _typed(kind, found, str(path))
    return found


def _given(kind: Kind, found: Any, name: str, content: bytes | None, when: tuple[str, ...] = ()) -> Given:
    raw = found if kind.is_list else [found]
    records = _typed(kind, raw, name)
    times = sorted({each["started"] for each in raw if isinstance(each.get("started"), str)})
    return Given(
        kind=kind,
        name=Path(name).name if content is not None else name,
        sha256=None if content is None else hashlib.sha256(content).hexdigest(),
        size=None if content is None else len(content),
        records=tuple(records),
        machines=_machines(raw),
        when=when or tuple(dict.fromkeys((*times[:1], *times[-1:]))),
        commands=tuple(dict.fromkeys(said for each in raw if isinstance(said := _about(each).get("command"), str))),
    )


def _typed(kind: Kind, raw: Sequence[Any], name: str) -> list[Any]:
    records = []
    for index, each in enumerate(raw):
        try:
            model = kind.rest if kind.rest is not None and index else kind.model
            records.append(model.validate_python(each))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            where = f"record {index}: " if kind.is_list else ""
            message = f"{where}{place + ': ' if place else ''}{first['msg'].lower()}, got {_short(first['input'])}"
            raise ConfigurationError(f"{name}: looks like the output of {kind.what}, but {message}") from None
    return records


def machine_of(record: Mapping[str, Any]) -> Machine:
    """What a record says of the machine: card, driver and versions, those that it knows."""
    record = _about(record)
    if isinstance(packages := record.get("packages"), dict):  # of doctor
        versions = {name: (packages.get(name) or {}).get("installed") for name in ("torch", "triton")}
        record = {"gpu": record.get("capability"), "python": record.get("python"), **versions}
    if record.get("gpu") is None and record.get("torch"):
        record = {**record, "gpu": NO_GPU}
    return tuple((name, said) for name in MACHINE if isinstance(said := record.get(name), str) and said)


def _about(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a record says what it was measured on: in itself, or in a table of its own."""
    machine = record.get("machine")
    return machine if isinstance(machine, dict) else record


def _machines(raw: Sequence[Mapping[str, Any]]) -> tuple[Machine, ...]:
    """Each once. One of which another record says the same and more is that other."""
    found = list(dict.fromkeys(filter(None, map(machine_of, raw))))
    return tuple(each for each in found if not any(set(each) < set(other) for other in found))


# --- Messages ---------------------------------------------------------------------------------------------------------


def _unknown(found: Any) -> str:
    """What came, and what it is nearest to."""
    first = found[0] if isinstance(found, list) else found
    if not isinstance(first, dict):
        return f"not a file that the report knows: {_short(found)}."
    came = ", ".join(list(first)[:SHOWN_KEYS]) + (", ..." if len(first) > SHOWN_KEYS else "")
    kind = min(KINDS, key=lambda each: len(each.missing(found)) / len(each.marks))
    missing = kind.missing(found)
    near = "" if missing == kind.marks else f"; nearest: {kind.what}, but there is no {', '.join(sorted(missing))}"
    shape = f"a list of {len(found)}, the first with" if isinstance(found, list) else "a table with"
    return f"not a file that the report knows: {shape} {came or 'nothing'}{near}."


def _legal() -> str:
    return f"Legal is what these write: {'; '.join(kind.what for kind in KINDS)}"


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."


def on_several(given: Sequence[Given]) -> Iterator[str]:
    """In words, what differs between the machines of these files; nothing if all rows come from one."""
    machines = [dict(machine) for each in given for machine in each.machines]
    for name in MACHINE:
        values = list(dict.fromkeys(machine[name] for machine in machines if name in machine))
        if len(values) > 1:
            yield f"{name}: {', '.join(values)}"
