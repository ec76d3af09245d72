"""One layer of settings: what a single source says, whether a table of a file, a variable, a context or an argument."""

from dataclasses import dataclass
from typing import Any, Final, TypedDict, get_args

from numerics.errors import ConfigurationError, nearest
from numerics.presets.file import Catalog
from numerics.presets.vocabulary import (
    FAMILIES,
    KNOBS,
    MAX_TOKENS,
    OPEN_REDUCTION,
    OPS,
    ROUNDING_POINTS,
    Family,
    Rotation,
)
from numerics.resolution import Source, Value

EMPTY_LIST: Final = "none"
FAMILY_OF: Final[dict[str, Family]] = {**OPS, **{family: family for family in FAMILIES}}


class KnobArguments(TypedDict, total=False):
    """Knobs as Python arguments, the reduction by its name; None is not given, False and an empty list are values."""

    rms_norm_reduction: str | None
    enable_fp_fusion: bool | None
    rounding_points: tuple[str, ...] | list[str] | None
    rope_rotation: str | None


@dataclass(frozen=True)
class Layer:
    """What one source says; None and an absent knob are left to weaker layers."""

    source: Source
    location: str
    preset: str | None = None
    knobs: tuple[tuple[str, Value], ...] = ()  # on top of the preset, in the order of KNOBS
    min_tokens: int | None = None

    @property
    def who(self) -> str:
        """For messages: `(environment, VLLM_OMNI_FUSED_RMS_NORM_NUMERICS)`."""
        return f"({self.source}, {self.location})"

    def check_names(self, catalog: Catalog) -> None:
        """Raises ConfigurationError if the preset or the reduction is not declared."""
        if self.preset is not None and self.preset not in catalog.presets:
            raise ConfigurationError(
                f"preset {self.preset!r} {self.who}: no such preset{nearest(self.preset, catalog.presets)}"
            )
        for knob, value in self.knobs:
            if knob == "rms_norm_reduction" and value != OPEN_REDUCTION and value not in catalog.reductions:
                names = [*catalog.reductions, OPEN_REDUCTION]
                raise ConfigurationError(
                    f"rms_norm_reduction {value!r} {self.who}: no such reduction{nearest(str(value), names)}"
                )


def family_of(op: object) -> Family:
    """The family of an op, or the family itself. Raises ConfigurationError for any other name."""
    if isinstance(op, str) and op in FAMILY_OF:
        return FAMILY_OF[op]
    raise ConfigurationError(f"op {op!r}: no such op{nearest(str(op), FAMILY_OF)}")


def checked_layer(layer: Layer) -> Layer:
    """The layer with its values checked and rounding points in the order of the arithmetic.

    Raises ConfigurationError for a value of the wrong type, an unknown knob, point or rotation, or a point that stands
    twice. Whether preset and reduction exist is for `Layer.check_names`.
    """
    who = layer.who
    if layer.preset is not None and not isinstance(layer.preset, str):
        raise ConfigurationError(f"preset {layer.preset!r} {who}: write a preset's name")
    if layer.min_tokens is not None and (type(layer.min_tokens) is not int or not 0 <= layer.min_tokens <= MAX_TOKENS):
        raise ConfigurationError(f"min_tokens {layer.min_tokens!r} {who}: write an integer, 0 to {MAX_TOKENS}")
    given = {knob: checked_knob(knob, value, who) for knob, value in layer.knobs}
    knobs = tuple((knob, given[knob]) for knob in KNOBS if knob in given)
    return Layer(layer.source, layer.location, layer.preset, knobs, layer.min_tokens)


def checked_knob(knob: str, value: Any, who: str) -> Value:
    """A knob's value in its canonical form. Raises ConfigurationError, naming the knob, what came and who set it."""
    if knob not in KNOBS:
        raise ConfigurationError(f"knob {knob!r} {who}: no such knob{nearest(knob, KNOBS)}")
    if knob == "enable_fp_fusion":
        if not isinstance(value, bool):
            raise ConfigurationError(f"{knob} {value!r} {who}: write true or false")
        return value
    if knob == "rounding_points":
        return _checked_points(value, who)
    if not isinstance(value, str):
        raise ConfigurationError(f"{knob} {value!r} {who}: write a name")
    if knob == "rope_rotation" and value not in get_args(Rotation):
        raise ConfigurationError(f"{knob} {value!r} {who}: no such rotation{nearest(value, get_args(Rotation))}")
    return value


def knob_text(knob: str, value: Value) -> str:
    """A knob as the environment writes it: `enable_fp_fusion=false`, `rounding_points=norm+scaled`."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = "+".join(value) or EMPTY_LIST if isinstance(value, tuple) else str(value)
    return f"{knob}={text}"


def _checked_points(value: Any, who: str) -> tuple[str, ...]:
    if not isinstance(value, tuple | list):
        raise ConfigurationError(f"rounding_points {value!r} {who}: write a list of rounding points")
    for point in value:
        if not isinstance(point, str) or point not in ROUNDING_POINTS:
            raise ConfigurationError(
                f"rounding_points {point!r} {who}: no such rounding point{nearest(str(point), ROUNDING_POINTS)}"
            )
        if value.count(point) > 1:
            raise ConfigurationError(f"rounding_points {point!r} {who}: stands twice")
    return tuple(point for point in ROUNDING_POINTS if point in value)
