"""What the report reads of settings, environment and compared bytes, typed: a value of another type is refused."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

SPELT: Final = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}  # JSON has no word for these
Number = Annotated[float, BeforeValidator(lambda given: SPELT.get(given, given) if isinstance(given, str) else given)]
Count = Annotated[int, Field(ge=0)]


class Base(BaseModel):
    """Of further fields a record may have any: later releases may write more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


# --- Settings and environment -----------------------------------------------------------------------------------------


class Shadow(Base):
    """A value, and who set it."""

    source: str
    location: str
    value: Any


class Source(Shadow):
    """A value in force, and what it is in force instead of."""

    shadows: list[Shadow] = []


class Claim(Base):
    """Whose bytes."""

    provider: str
    versions: str

    def __str__(self) -> str:
        return f"{self.provider} {self.versions}"


class Setting(Base):
    """An entry of `numerics show --json`."""

    op: str
    model: str | None
    capability: str | None
    preset: str
    modified: list[str] = []
    numerics: dict[str, Any]
    min_tokens: int
    reference: Claim | None = None
    fingerprint: str
    sources: dict[str, Source]
    when: list[Setting] = []

    @property
    def label(self) -> str:
        """The preset, and which of its knobs were changed."""
        return self.preset + (f" (modified: {', '.join(self.modified)})" if self.modified else "")


class Package(Base):
    """A package that this one depends on."""

    installed: str | None
    needs: str | None = None
    suits: bool


class Kernels(Base):
    """Whether fused kernels could run."""

    can_run: bool
    missing: list[str] = []


class Environment(Base):
    """What `numerics doctor --json` prints."""

    python: str
    platform: str
    package: dict[str, str | None] = {}
    packages: dict[str, Package]
    optional: dict[str, str | None] = {}
    capability: str | None
    fused_kernels: Kernels
    environment: dict[str, str] = {}
    problems: list[str]


# --- Bytes ------------------------------------------------------------------------------------------------------------


class Difference(Base):
    """The first element that differs; in place of its values their shapes, where these do."""

    op: str | None = None
    case: str
    output: str
    index: list[int]
    provider: Number | str
    computed: Number | str


class Compared(Base):
    """One comparison of `numerics verify`, or why there is none. shows: "claim", or what is shown instead."""

    op: str
    preset: str
    reference: str | None
    shows: str | None
    arm: str | None
    elements: Count
    elements_differing: Count
    max_ulp: Count
    absent: str | None = None
    not_fused: str | None = None
    error: str | None = None


class Verified(Base):
    """An entry of `numerics verify --json`."""

    preset: str
    reference: Claim | None
    status: str
    cases: Count
    rows: Count
    elements: Count
    differing: Count
    differences: list[Difference] = []
    errors: list[str] = []
    records: list[Compared] = []
    sees: dict[str, list[str]] = {}
    cannot_see: dict[str, list[str]] = {}


class Parity(Base):
    """A record of benchmarks/parity.py."""

    op: str
    preset: str
    elements: Count
    elements_differing: Count
    calls: Count
    unfused: list[str]
