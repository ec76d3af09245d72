"""What `bisect` compares: two settings, each read place by place, and the single differences between them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numerics.capability import most_specific
from numerics.context import configuration, configure
from numerics.environment import CONFIG, RECORD, VARIABLES
from numerics.errors import ConfigurationError
from numerics.layers import family_of
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import Catalog
from numerics.presets.schema import DeclaredReduction, Numerics, Requires
from numerics.presets.vocabulary import FAMILIES, OPEN_REDUCTION, ROUNDING_POINTS, Family
from numerics.resolution import Resolution
from numerics.resolve import declared

Place = tuple[Family, str | None]  # an op family, and a model; None: any model that has no entry

POINT: Final = "rounding point "
CONDITIONS: Final = "conditions"
ROUNDED: Final = "rounded"
SET_HERE: Final = (*(name for names in VARIABLES.values() for name in names if name), CONFIG, RECORD)


@dataclass(frozen=True)
class Chosen:
    """What a setting says about one place."""

    preset: str
    requires: Requires
    reduction: str
    numerics: Numerics
    min_tokens: int

    def texts(self) -> dict[str, str]:
        """Each value that can be turned by itself."""
        knobs = self.numerics
        points = {POINT + point: _rounded(point in knobs.rounding_points) for point in ROUNDING_POINTS}
        return {
            "rms_norm_reduction": self.reduction,
            "enable_fp_fusion": str(knobs.enable_fp_fusion).lower(),
            **points,
            "rope_rotation": knobs.rope_rotation,
            "min_tokens": str(self.min_tokens),
            CONDITIONS: self.preset,
        }


@dataclass(frozen=True)
class Setting:
    """A or B: its name as given, what it says about each place, and what the user's file beside it declares."""

    name: str
    places: Mapping[Place, Chosen]
    reductions: Mapping[str, DeclaredReduction]
    presets: Mapping[str, ResolvedPreset]
    classes: Mapping[str, tuple[str, ...]]  # of models


@dataclass(frozen=True)
class Atom:
    """One knob, or one rounding point, of one op family and one model that A and B set differently."""

    op: Family
    model: str | None
    what: str  # a knob, min_tokens, `rounding point NAME`, or `conditions`
    a: str
    b: str
    applies: bool  # whether it can change the bytes of the family

    @property
    def place(self) -> Place:
        """Where it is turned."""
        return self.op, self.model

    @property
    def name(self) -> str:
        """`fused_qk_norm_rope, flux2: enable_fp_fusion`."""
        return f"{self.op}, {self.model or 'any other model'}: {self.what}"


def atoms_of(a: Setting, b: Setting) -> list[Atom]:
    """Every difference. A place that only one of them speaks about has none."""
    return [
        Atom(*place, what, left, right, _applies(place[0], what))
        for place in a.places
        if place in b.places
        for what, left, right in _differences(a.places[place], b.places[place])
    ]


def _differences(a: Chosen, b: Chosen) -> Iterator[tuple[str, str, str]]:
    right = b.texts()
    for what, left in a.texts().items():
        if what == "rms_norm_reduction":  # two names of one declaration are no difference
            differ = a.numerics.rms_norm_reduction != b.numerics.rms_norm_reduction
        else:
            differ = a.requires != b.requires if what == CONDITIONS else left != right[what]
        if differ:
            yield what, left, right[what]


def _applies(family: Family, what: str) -> bool:
    if what.startswith(POINT):
        return what.removeprefix(POINT) in FAMILIES[family]
    return "rope_product" in FAMILIES[family] if what == "rope_rotation" else what != CONDITIONS


def _rounded(there: bool) -> str:
    return ROUNDED if there else "float32"


def text_of(what: str, setting: Mapping[str, Any]) -> str:
    """One value of a resolution in its JSON form, as `Chosen.texts` writes it."""
    if what == "min_tokens":
        return str(setting["min_tokens"])
    if what == CONDITIONS:
        return str(setting["preset"])
    knobs = setting["numerics"]
    if what.startswith(POINT):
        return _rounded(what.removeprefix(POINT) in knobs["rounding_points"])
    return str(knobs[what]).lower() if isinstance(knobs[what], bool) else str(knobs[what])


# --- Reading ----------------------------------------------------------------------------------------------------------


@contextmanager
def environment_of(variables: Mapping[str, str], config: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """These variables of this package and no others, and the file that `config` names.

    Afterwards the variables are as before, and so is the file that was in force.
    """
    now = _configured_path()
    before = {name: os.environ.pop(name) for name in SET_HERE if name in os.environ}
    try:
        os.environ.update(variables)
        configure(config)
        yield
    finally:
        for name in SET_HERE:
            os.environ.pop(name, None)
        os.environ.update(before)
        configure(now)


def of_file(name: str, capability: str | None) -> Setting:
    """What a presets file says as NUMERICS_CONFIG. Raises ConfigurationError."""
    with environment_of({}, name):
        return _read(name, capability)


def of_text(name: str, capability: str | None) -> Setting:
    """What a preset or `PRESET,knob=value,...` says as the variable of every family. Raises ConfigurationError."""
    path = configuration().catalog.user_path
    variables = {names.numerics: name for names in VARIABLES.values() if names.numerics}
    with environment_of(variables, path):
        return _read(name, capability)


def of_saved(name: str, saved: Sequence[Mapping[str, Any]], capability: str | None) -> Setting:
    """What `numerics show --json` printed.

    Raises ConfigurationError for a preset or a reduction that is not declared here, or not as it was.
    """
    catalog = configuration().catalog
    places: dict[Place, Chosen] = {}
    for top in saved:
        rows = {row["capability"]: row for row in top.get("when", ())}
        pattern = most_specific(tuple(rows), capability)
        each = top if pattern is None else rows[pattern]
        try:
            places[family_of(top["op"]), top["model"]] = _saved(each, catalog)
        except (KeyError, TypeError, ValueError) as error:
            what = f"no such declaration: {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(
                f"{name}: {top['op']}, model {top['model']}: {what}; name the presets file with --config"
            ) from None
    return _setting(name, catalog, places)


def _saved(each: Mapping[str, Any], catalog: Catalog) -> Chosen:
    knobs, preset = dict(each["numerics"]), catalog.presets[each["preset"]]
    reduction = knobs["rms_norm_reduction"]
    declaration = reduction if reduction == OPEN_REDUCTION else catalog.reductions[reduction].bits
    numerics = Numerics(**{**knobs, "rms_norm_reduction": declaration})
    if numerics.fingerprint != each["fingerprint"]:
        raise ConfigurationError(f"reduction {reduction!r} is not declared here as it was when this was saved")
    return Chosen(preset.name, preset.requires, reduction, numerics, each["min_tokens"])


def _read(name: str, capability: str | None) -> Setting:
    catalog = configuration().catalog
    places: list[Place] = [(family, model) for family in FAMILIES for model in (None, *catalog.model_names())]
    return _setting(name, catalog, {place: _chosen(declared(*place), capability) for place in places})


def _setting(name: str, catalog: Catalog, places: Mapping[Place, Chosen]) -> Setting:
    user = catalog.user
    return Setting(
        name,
        places,
        reductions=dict(user.reductions) if user else {},
        presets={each: preset for each, preset in catalog.presets.items() if preset.origin == "user"},
        classes={model: entry.classes for model, entry in user.models.items()} if user else {},
    )


def _configured_path() -> Path | None:
    """The file that was given to `configure`."""
    found = configuration()
    return found.catalog.user_path if found.set_by == "configure" else None


def _chosen(found: Resolution, capability: str | None) -> Chosen:
    rows = dict(found.when)
    pattern = most_specific(tuple(rows), capability)
    each = found if pattern is None else rows[pattern]
    preset = configuration().catalog.presets[each.preset]
    return Chosen(each.preset, preset.requires, each.reduction, each.numerics, each.min_tokens)
