"""What the report reads of measured times, errors, trajectories and searches, typed as in report_records.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from numerics.cli.report_records import Base, Count, Number

# --- Speed ------------------------------------------------------------------------------------------------------------


class Times(Base):
    """Of one clock."""

    spread: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None


class Peer(Base):
    """What `numerics bench` says of a peer beside its time."""

    differing: dict[str, int | None] | None = None


class Timed(Base):
    """A record of `numerics bench`."""

    op: str
    case: str
    preset: str
    exact: bool | None = None
    clock: str | None = None
    refused: str | None = None
    error: str | None = None
    not_fused: str | None = None
    time_us: float | None
    copy_us: float | None = None
    ratio_to_copy: float | None
    ratio_to_empty: float | None = None
    ratio_to_fast: float | None = None
    peer_us: dict[str, float] | None = None
    absent: dict[str, str] | None = None
    reference: str | None = None
    elements: Count | None = None
    elements_differing: Count | None = None
    differing: dict[str, int | None] | None = None
    times: dict[str, Times] | None = None
    inputs_changed: bool | None = None
    peers: dict[str, Peer] | None = None
    gpu: str | None = None
    driver: str | None = None
    torch: str | None = None
    triton: str | None = None


class ModelTimed(Base):
    """A record of benchmarks/models.py: a stock model beside a fused one, or why there is none."""

    model: str
    case: str
    verdict: str
    error: str | None = None
    preset: str | None = None
    elements: Count | None = None
    elements_differing: Count | None = None
    stock_ms: float | None = None
    ours_ms: float | None = None
    stock_over_ours: float | None = None
    ceiling: float | None = None
    ceiling_is: str | None = None
    fused_calls: int | dict[str, int] | None = None
    not_fused: list[str] = Field(default_factory=list)


# --- Trajectory -------------------------------------------------------------------------------------------------------


class Header(Base):
    """The first record of `numerics trajectory`."""

    kind: Literal["header"]
    reference: str
    steps: int
    layers: int
    tokens: int
    width: int
    not_fused: dict[str, dict[str, str]] = Field(default_factory=dict)


class Step(Base):
    """A later record: the latent of a preset after a step, beside the reference's."""

    kind: Literal["step"]
    preset: str
    step: int
    psnr_db: Number
    max_abs: Number
    max_ulp: int
    elements_differing: Count
    elements: Count
    bias: Number
    ssim: Number | None = None
    claims_reference: bool


# --- Precision --------------------------------------------------------------------------------------------------------


class Standing(Base):
    """Values that are closer to the truth than another preset's, as close, and further from it."""

    closer: Count
    tied: Count
    further: Count


class Precise(Base):
    """A record of `numerics precision`."""

    op: str
    case: str
    preset: str
    stage: str | None  # with the next two: null where the preset is refused
    precision: str | None
    table: str | None = None
    rmse: Number | None
    max_abs: Number | None = None
    bias: Number | None = None
    rms: Number | None = None
    elements: Count | None = None
    exact: bool | None = None
    computed_by: str | None = None
    same_as: str | None = None
    refused: str | None = None
    against: dict[str, Standing] = Field(default_factory=dict)


# --- Bisect -----------------------------------------------------------------------------------------------------------


class Turn(Base):
    """A difference between A and B, which an arm may turn."""

    op: str
    model: str | None
    what: str
    a: str
    b: str


class Search(Base):
    """The first record of `numerics bisect`."""

    kind: Literal["header"]
    target: str
    from_: str = Field(alias="from")
    to: str
    counts: str
    tolerance: float
    differences: list[Turn]


class Distance(Base):
    """How far one result is from another: tensors by elements, numbers by their change."""

    shapes: str | None = None
    change: Number | None = None
    elements: Count | None = None
    elements_differing: Count | None = None
    max_abs: Number | None = None
    psnr_db: Number | None = None
    worst: str | None = None


class Arm(Base):
    """A run of the target under one set of turns."""

    kind: Literal["arm"]
    name: str
    turned: list[Count]
    run: int
    status: str
    reason: str
    from_a: Distance | None
    from_b: Distance | None


class Verdict(Base):
    """The last record, where the search came to its end."""

    kind: Literal["verdict"]
    result: Literal["explained", "equal", "undecided"]
    reason: str
    smallest: list[Count]
    others: list[Count]


AfterSearch = Annotated[Arm | Verdict, Field(discriminator="kind")]
