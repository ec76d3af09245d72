"""The settings in force for one family of ops, one model and one capability, each with the source that set it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from numerics.capability import checked, matches, most_specific
from numerics.errors import ConfigurationError, RequirementError
from numerics.presets.schema import Numerics, Reference, Requires
from numerics.presets.vocabulary import Family
from numerics.requirements import check_environment, check_process, check_tensors

# Weakest first.
Source = Literal["package", "package model", "user", "user model", "environment", "context", "call"]
Value = str | bool | int | tuple[str, ...]

REMEMBERED_CALLS = 1024  # of one resolution; a call that passed is not checked again

_by_key: dict[str, Resolution] = {}


@dataclass(frozen=True)
class Shadow:
    """A value that a stronger source overrides."""

    source: Source
    location: str
    value: Value


@dataclass(frozen=True)
class Provenance:
    """A value in force: who set it, where, and what it shadows, strongest first.

    The preset also shadows the knobs that it discards, as text such as `enable_fp_fusion=false`. So everything that any
    source said is found once: in force, or shadowed.
    """

    source: Source
    location: str
    value: Value
    shadows: tuple[Shadow, ...] = ()

    @property
    def chain(self) -> tuple[Shadow, ...]:
        """The value in force and those that it shadows, strongest first."""
        return (Shadow(self.source, self.location, self.value), *self.shadows)


@dataclass(frozen=True, eq=False)
class Resolution:
    """The settings for one (family, model, capability). Immutable, hashable, and pickles with all that it needs.

    `key` names the content: a compiler that traces code with a resolution reads and guards it alone.

    Without a capability, where an entry of a file depends on it, `when` holds one resolution for each pattern of these
    entries, and `bind` picks one; the other fields then say what holds where no pattern does.
    """

    op: Family
    model: str | None
    capability: str | None
    preset: str
    modified: tuple[str, ...]  # knobs whose value differs from the preset's
    numerics: Numerics
    reduction: str  # the name of the reduction, `triton` included
    min_tokens: int
    reference: Reference | None  # None if modified: the claim holds for the preset's own knobs
    requires: Requires
    sources: Mapping[str, Provenance]  # "preset", "min_tokens", and each knob that is set on top of the preset
    when: tuple[tuple[str, Resolution], ...] = ()  # (capability pattern, what holds there)
    key: str = field(init=False, repr=False)  # of all of it: equal resolutions have equal keys, and no others

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))  # resolutions are shared
        content = (
            self.op, self.model, self.capability, self.label, self.reduction, dict(self.sources), self.numerics.text,
            self.min_tokens, self.reference and self.reference.model_dump_json(), self.requires.model_dump_json(),
            *((pattern, row.key) for pattern, row in self.when),
        )  # fmt: skip
        key = hashlib.sha256(repr(content).encode()).hexdigest()
        object.__setattr__(self, "key", key)
        _by_key[key] = self

    @property
    def label(self) -> str:
        """The preset's name, and what was changed: `vllm_cuda_128 (modified: enable_fp_fusion)`."""
        return f"{self.preset} (modified: {', '.join(self.modified)})" if self.modified else self.preset

    @property
    def fingerprint(self) -> str:
        """sha256 of the knobs and the declared order: equal bits have equal fingerprints, whatever they are called."""
        return self.numerics.fingerprint

    def bind(self, capability: str | None) -> Resolution:
        """What holds on a device of this capability; None is a device that has none, such as a CPU.

        Raises RequirementError if the settings were resolved for another capability, or if the preset that holds here
        has a condition on versions, variables, backend or capability that does not.
        """
        if not self.when and capability in (None, self.capability):
            return self
        bound = self._bound.get(capability)
        if bound is None:
            bound = self._bound[capability] = self._bind(capability)
        check_environment(bound.requires, bound.who)
        return bound

    def check_call(
        self, *, width: int | None, rows: int | None, dtype: str, rope_table_dtype: str | None = None
    ) -> None:
        """Raise RequirementError unless the preset and its reduction hold for a call.

        width: elements of a normalised row, and rows: how many rows the unfused norm would see; None for an op without
        a norm. dtype: of the activations, and rope_table_dtype: of the rotation table or None without one, both as
        `bfloat16`. Zero rows are checked like one.
        """
        call = (width, rows, dtype, rope_table_dtype)
        if call in self._passed:
            return
        if self.when:
            patterns = ", ".join(pattern for pattern, _ in self.when)
            raise ConfigurationError(
                f"{self.who}: the settings of {self.op} depend on the capability ({patterns}); "
                "call bind(capability) before using them"
            )
        rows = None if rows is None else max(rows, 1)
        check_tensors(self.requires, self.who, width=width, rows=rows, dtype=dtype, rope_table_dtype=rope_table_dtype)
        if width is not None and rows is not None:
            self._check_order(width, rows)
        if len(self._passed) >= REMEMBERED_CALLS:
            self._passed.clear()
        self._passed.add(call)

    def to_dict(self) -> dict[str, Any]:
        """The resolution as JSON values; `when` appears only while it is open."""
        reference = self.reference
        knobs = self.numerics
        shown: dict[str, Any] = {
            "op": self.op,
            "model": self.model,
            "capability": self.capability,
            "preset": self.preset,
            "modified": list(self.modified),
            "numerics": {
                "rms_norm_reduction": self.reduction,
                "enable_fp_fusion": knobs.enable_fp_fusion,
                "rounding_points": list(knobs.rounding_points),
                "rope_rotation": knobs.rope_rotation,
            },
            "min_tokens": self.min_tokens,
            "reference": reference and {"provider": reference.provider, "versions": reference.versions},
            "fingerprint": self.fingerprint,
            "sources": {name: _provenance(found) for name, found in self.sources.items()},
        }
        if self.when:
            shown["when"] = [row.to_dict() for _, row in self.when]
        return shown

    @cached_property
    def who(self) -> str:
        """The preset and who named it, as a message begins: `preset 'fast' (user, my.toml: ops.fused_rms_norm)`."""
        found = self.sources["preset"]
        return f"preset {self.label!r} ({found.source}, {found.location})"

    def _check_order(self, width: int, rows: int) -> None:
        reduction = self.numerics.rms_norm_reduction
        if isinstance(reduction, str):
            return
        try:
            reduction.order(width, rows)
        except ValueError as error:
            found = self.sources.get("rms_norm_reduction")
            knob = f"rms_norm_reduction {self.reduction!r}" + (f" ({found.source}, {found.location})" if found else "")
            raise RequirementError(f"{self.who}: {knob}: {error}") from None

    def _bind(self, capability: str | None) -> Resolution:
        known = self.capability if capability is None else checked(capability)
        if self.capability is not None and not matches(self.capability, known):
            raise RequirementError(
                f"{self.who}: the settings of {self.op} were resolved for capability {self.capability!r} and cannot be "
                f"used on {capability!r}; resolve them without a capability, or for this one"
            )
        pattern = most_specific(tuple(pattern for pattern, _ in self.when), known)
        row = self if pattern is None else dict(self.when)[pattern]
        bound = replace(row, capability=known, when=())
        check_process(bound.requires, known, bound.who)
        return bound

    @cached_property
    def _bound(self) -> dict[str | None, Resolution]:
        return {}

    @cached_property
    def _passed(self) -> set[tuple[int | None, int | None, str, str | None]]:
        return set()

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.model, self.capability, self.preset, self.min_tokens, self.fingerprint))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Resolution):
            return NotImplemented
        return self.key == other.key  # quick: each call of an op looks for settings like these

    def __getstate__(self) -> dict[str, Any]:  # the fields alone, without what was remembered on the way
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init} | {
            "sources": dict(self.sources)
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()


def by_key(key: str) -> Resolution:
    """A resolution of this process, by its key."""
    return _by_key[key]


def _provenance(found: Provenance) -> dict[str, Any]:
    in_force, *shadows = (_shadow(shadow) for shadow in found.chain)
    return {**in_force, "shadows": shadows}


def _shadow(shadow: Shadow) -> dict[str, Any]:
    value = list(shadow.value) if isinstance(shadow.value, tuple) else shadow.value
    return {"source": shadow.source, "location": shadow.location, "value": value}
