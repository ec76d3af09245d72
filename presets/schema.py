"""The Pydantic models of a presets file: what may be declared, and what must hold within each part."""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, StrictBool, field_validator, model_validator
from pydantic_core import CoreSchema

from numerics.presets.declaration import SPAN, Declaration, Span, Text, ascending
from numerics.presets.reduction import DeclaredReduction, Reduction, Source
from numerics.presets.versions import CLOSED_RANGE, RANGE, ClosedVersionRange, VersionRange
from numerics.presets.vocabulary import (
    CAPABILITY_SPELLING,
    FAMILIES,
    MAX_TOKENS,
    OPEN_REDUCTION,
    ROUNDING_POINTS,
    Family,
    Rotation,
    RoundingPoint,
)

__all__ = [
    "Choice",
    "DeclaredReduction",
    "Knobs",
    "Model",
    "Numerics",
    "Preset",
    "PresetFile",
    "Reduction",
    "Reference",
    "Requires",
    "Setting",
    "Source",
    "Span",
    "When",
]

Dtype = Literal["bfloat16", "float16", "float32"]
Backend = Literal["cuda", "hip", "npu"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ModelName = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*:)?[A-Za-z_][A-Za-z0-9_]*$")]
Capability = Annotated[str, Field(pattern=f"^({CAPABILITY_SPELLING})$")]
Tokens = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]

CAPABILITY: Final = "'cuda', 'cuda:9', 'cuda:9.0', 'hip:gfx942', 'npu:...'"


# --- Knobs and presets ------------------------------------------------------------------------------------------------


class Numerics(Declaration):
    """The exact floating-point behaviour of the fused ops: every knob, with the reduction as its declaration.

    Hashable; `text` is its canonical form, which custom ops carry, and `parse` reads it back.
    """

    rms_norm_reduction: Reduction | Literal["triton"]
    enable_fp_fusion: StrictBool
    rounding_points: tuple[RoundingPoint, ...]
    rope_rotation: Rotation = "separate"

    @field_validator("rounding_points", mode="after")
    @classmethod
    def _points_once_in_order(cls, points: tuple[RoundingPoint, ...]) -> tuple[RoundingPoint, ...]:
        return _sorted_points(points)

    def model_post_init(self, _context: object, /) -> None:
        """Cache the text, so that a compiler which traces code with numerics needs no more than to read it."""
        assert self.text

    @cached_property
    def text(self) -> str:
        """Canonical JSON: sorted keys, no blanks, a declaration's defaults left out."""
        reduction = self.rms_norm_reduction
        knobs = {
            "rms_norm_reduction": reduction
            if isinstance(reduction, str)
            else reduction.model_dump(mode="json", exclude_defaults=True),
            "enable_fp_fusion": self.enable_fp_fusion,
            "rounding_points": self.rounding_points,
            "rope_rotation": self.rope_rotation,
        }
        return json.dumps(knobs, sort_keys=True, separators=(",", ":"))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the canonical text; equal bits have equal fingerprints whatever they are called."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the canonical text back."""
        return cls.model_validate_json(text)

    @property
    def is_exact(self) -> bool:
        """Whether the knobs leave nothing open: a declared order, and no contraction by the compiler."""
        return self.rms_norm_reduction != OPEN_REDUCTION and not self.enable_fp_fusion


class Knobs(Declaration):
    """Knobs as a file writes them: the reduction by name, None where a knob is not given."""

    rms_norm_reduction: Name | None = Field(default=None, description="a reduction, or 'triton'")
    enable_fp_fusion: StrictBool | None = None
    rounding_points: tuple[RoundingPoint, ...] | None = Field(
        default=None, description=f"a list of {', '.join(map(repr, ROUNDING_POINTS))}"
    )
    rope_rotation: Rotation | None = None

    @field_validator("rounding_points", mode="after")
    @classmethod
    def _points_once_in_order(cls, points: tuple[RoundingPoint, ...] | None) -> tuple[RoundingPoint, ...] | None:
        return None if points is None else _sorted_points(points)

    @property
    def knobs(self) -> dict[str, object]:
        """The knobs that are given."""
        return {name: value for name in Knobs.model_fields if (value := getattr(self, name)) is not None}


class Reference(Declaration):
    """The unfused chain whose bytes a preset reproduces."""

    provider: Text
    versions: ClosedVersionRange = Field(description=CLOSED_RANGE)
    verified_on: tuple[Text, ...] = Field(default=(), description="a list of texts: GPU and versions")


class Requires(Declaration):
    """Conditions without which a preset refuses. An empty field asks for nothing."""

    dtype: Annotated[tuple[Dtype, ...], Field(min_length=1)] | None = Field(
        default=None, description="a list of 'bfloat16', 'float16', 'float32'"
    )
    rope_table_dtype: Literal["activation", "float32"] | None = None
    width: Span | None = Field(default=None, description=f"elements of a row: {SPAN}")
    rows: Span | None = Field(default=None, description=f"rows of a call: {SPAN}")
    capability: Capability | None = Field(default=None, description=CAPABILITY)
    backend: Backend | None = None
    torch: VersionRange | None = Field(default=None, description=RANGE)
    triton: VersionRange | None = Field(default=None, description=RANGE)
    env: dict[Text, Text] = Field(default={}, description="a table VARIABLE = 'the value that it may have'")

    @field_validator("width", "rows", mode="after")
    @classmethod
    def _spans_ascend(cls, value: Span | None) -> Span | None:
        return ascending(value)

    @model_validator(mode="after")
    def _capability_is_of_the_backend(self) -> Self:
        if self.capability and self.backend and self.capability.split(":")[0] != self.backend:
            raise ValueError(f"capability {self.capability!r} is not of backend {self.backend!r}; it can never hold")
        return self


class Preset(Knobs):
    """A `[presets.NAME]` table: knobs, with the reference that they reproduce and the conditions that it needs."""

    summary: Text
    extends: Name | None = Field(default=None, description="a preset")
    reference: Reference | None = None
    requires: Requires = Requires()


# --- Settings of ops and models ---------------------------------------------------------------------------------------


class Choice(Knobs):
    """A preset, knobs on top of it, and a token threshold; each may be left to a weaker layer."""

    preset: Name | None = Field(default=None, description="a preset")
    min_tokens: Tokens | None = Field(default=None, description=f"a number of tokens, 0 to {MAX_TOKENS}")


class When(Choice):
    """A choice for one capability, matched by component: `cuda:9` holds for `cuda:9.0`."""

    capability: Capability = Field(description=CAPABILITY)

    @model_validator(mode="after")
    def _chooses_something(self) -> Self:
        if len(self.model_fields_set) == 1:
            raise ValueError("nothing but a capability; name a preset, a knob or min_tokens")
        return self


class Setting(Choice):
    """What `[ops.FAMILY]` and each family of `[models.NAME]` say: a choice, and choices for some capabilities."""

    when: tuple[When, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone_is_a_preset(cls, value: object) -> object:
        return {"preset": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "description": "a preset"}, handler(schema)]}

    @field_validator("when", mode="after")
    @classmethod
    def _each_capability_once(cls, rows: tuple[When, ...]) -> tuple[When, ...]:
        names = [row.capability for row in rows]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"capability {repeated[0]!r} stands twice")
        return rows

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.model_fields_set <= {"when"} and not self.when:
            raise ValueError("an empty setting; name a preset, a knob or min_tokens")
        return self


class Model(Declaration):
    """`[models.NAME]`: what a model says about each family, and the classes that it is."""

    classes: tuple[Name, ...] = Field(default=(), description="a list of names of Python classes")
    fused_qk_norm_rope: Setting | None = None
    fused_modulation: Setting | None = None
    fused_rms_norm: Setting | None = None

    @cached_property
    def settings(self) -> Mapping[Family, Setting]:
        """Those that are given, by family."""
        return {family: found for family in FAMILIES if (found := getattr(self, family)) is not None}


class PresetFile(Declaration):
    """One presets file. `numerics.presets.file` reads it, joins it with the packaged one and checks the names."""

    reductions: dict[Name, DeclaredReduction] = Field(default={})
    presets: dict[Name, Preset] = Field(default={})
    ops: dict[Family, Setting] = Field(default={})
    models: dict[ModelName, Model] = Field(default={})

    def settings_of(self, model: str) -> Mapping[Family, Setting]:
        """What the file says about the families of a model; nothing where it does not name the model."""
        return self.models[model].settings if model in self.models else {}


def _sorted_points(points: tuple[RoundingPoint, ...]) -> tuple[RoundingPoint, ...]:
    if repeated := sorted({point for point in points if points.count(point) > 1}):
        raise ValueError(f"rounding point {repeated[0]!r} stands twice")
    return tuple(point for point in ROUNDING_POINTS if point in points)
