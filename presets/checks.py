"""Joins the reductions and presets of a file with those below it, applies `extends`, and checks every name."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from numerics.errors import nearest
from numerics.presets.declaration import Span, bounds, words
from numerics.presets.locate import Key
from numerics.presets.problems import Problem, quoted
from numerics.presets.schema import Choice, DeclaredReduction, Numerics, Preset, PresetFile, Reference, Requires
from numerics.presets.vocabulary import KNOBS, OPEN_REDUCTION

Origin = Literal["package", "user"]


@dataclass(frozen=True)
class ResolvedPreset:
    """A preset with `extends` applied: all four knobs, the reduction by its name."""

    name: str
    summary: str
    knobs: Mapping[str, Any]
    reference: Reference | None
    requires: Requires
    extends: str | None
    origin: Origin

    def numerics(self, reductions: Mapping[str, DeclaredReduction]) -> Numerics:
        """The knobs with the reduction as its declaration."""
        name = self.knobs["rms_norm_reduction"]
        return Numerics(
            **{**self.knobs, "rms_norm_reduction": name if name == OPEN_REDUCTION else reductions[name].bits}
        )


class Unread(NamedTuple):
    """Names that a file declares in tables that are not legal. What names them is not wrong for that."""

    reductions: frozenset[str]
    presets: frozenset[str]


def flatten(
    file: PresetFile,
    origin: Origin,
    reductions_below: Mapping[str, DeclaredReduction],
    presets_below: Mapping[str, ResolvedPreset],
    unread: Unread,
) -> tuple[dict[str, DeclaredReduction], dict[str, ResolvedPreset], list[Problem]]:
    """The reductions and presets of this file on top of those below, and what is wrong with them."""
    problems = [
        *_taken("reductions", file.reductions, [*reductions_below, OPEN_REDUCTION]),
        *_taken("presets", file.presets, presets_below),
    ]
    reductions = {**file.reductions, **reductions_below}
    presets = dict(presets_below)
    for name in file.presets:
        problems += _flatten_preset(name, file.presets, presets, origin, unread)
    for name, preset in file.presets.items():
        if name not in presets_below and name in presets:
            problems += _check_preset(preset, presets[name], reductions, unread)
    return reductions, presets, problems


def check_settings(
    file: PresetFile,
    reductions: Mapping[str, DeclaredReduction],
    presets: Mapping[str, ResolvedPreset],
    unread: Unread,
) -> list[Problem]:
    """What is wrong with the presets and reductions that settings of ops and models name."""
    problems: list[Problem] = []
    known = {*presets, *file.presets, *unread.presets}  # what is wrong with a preset is said once, about itself
    for key, choice in _choices(file):
        if choice.preset is not None and choice.preset not in known:
            problems.append(_no_such((*key, "preset"), "preset", choice.preset, known))
        problems += _check_reduction(key, choice.rms_norm_reduction, reductions, unread)
    return problems


def check_classes(file: PresetFile, below: Iterable[PresetFile]) -> list[Problem]:
    """What is wrong with the names of models and classes: one that is both would hold for nobody who looks it up."""
    files = (file, *below)
    models = {model for each in files for model in each.models}
    classes = {name: model for each in files for model, entry in each.models.items() for name in entry.classes}
    problems = [
        Problem(("models", model), f"the class of model {classes[model]!r}; write [models.{quoted(classes[model])}]")
        for model in file.models
        if model in classes
    ]
    problems += [
        Problem(("models", model, "classes", index), f"got {name!r}, which is a model; legal: names of classes")
        for model, entry in file.models.items()
        for index, name in enumerate(entry.classes)
        if name in models and name not in file.models
    ]
    return problems


def _choices(file: PresetFile) -> Iterator[tuple[Key, Choice]]:
    settings = [(Key(("ops", family)), setting) for family, setting in file.ops.items()]
    for model, entry in file.models.items():
        settings += [(("models", model, family), setting) for family, setting in entry.settings.items()]
    for key, setting in settings:
        yield key, setting
        for index, row in enumerate(setting.when):
            yield (*key, "when", index), row


# --- Names ------------------------------------------------------------------------------------------------------------


def _taken(kind: Literal["reductions", "presets"], names: Iterable[str], below: Iterable[str]) -> list[Problem]:
    taken = set(below)
    cure = "write extends = {name!r}" if kind == "presets" else "a preset of your own that names it"
    return [
        Problem(
            (kind, name),
            f"{name!r} is taken by the package; use another name and {cure.format(name=name)}",
        )
        for name in names
        if name in taken
    ]


def _no_such(key: Key, kind: str, name: str, known: Iterable[str]) -> Problem:
    return Problem(key, f"got {name!r}; no such {kind}{nearest(name, known)}")


def _check_reduction(
    key: Key, name: str | None, reductions: Mapping[str, DeclaredReduction], unread: Unread
) -> list[Problem]:
    known = {*reductions, *unread.reductions, OPEN_REDUCTION}
    if name is None or name in known:
        return []
    return [_no_such((*key, "rms_norm_reduction"), "reduction", name, known)]


# --- Presets ----------------------------------------------------------------------------------------------------------


def _flatten_preset(
    name: str,
    declared: Mapping[str, Preset],
    presets: dict[str, ResolvedPreset],
    origin: Origin,
    unread: Unread,
    above: tuple[str, ...] = (),  # the presets that extend this one
) -> list[Problem]:
    """Adds the preset, and those that it extends, to `presets`."""
    if name in presets:
        return []
    preset = declared[name]
    key = ("presets", name)
    if preset.extends is None:
        return _add(preset, name, None, presets, origin)
    chain = (*above, name)
    if preset.extends in chain:
        circle = " extends ".join(map(repr, (*chain[chain.index(preset.extends) :], preset.extends)))
        return [Problem((*key, "extends"), f"goes in a circle: {circle}")]
    if preset.extends in unread.presets:
        return []
    if preset.extends not in declared and preset.extends not in presets:
        return [_no_such((*key, "extends"), "preset", preset.extends, {*presets, *declared})]
    problems = _flatten_preset(preset.extends, declared, presets, origin, unread, chain)
    if base := presets.get(preset.extends):
        problems += _add(preset, name, base, presets, origin)
    return problems


def _add(
    preset: Preset, name: str, base: ResolvedPreset | None, presets: dict[str, ResolvedPreset], origin: Origin
) -> list[Problem]:
    knobs: dict[str, Any] = {"rope_rotation": "separate"} | (dict(base.knobs) if base else {}) | preset.knobs
    if missing := [knob for knob in KNOBS if knob not in knobs]:
        cure = "a preset that extends none gives every knob but rope_rotation"
        return [Problem(("presets", name), f"{', '.join(missing)} not given; {cure}")]
    requires = preset.requires
    reference = preset.reference
    if base:
        given = {field: getattr(preset.requires, field) for field in preset.requires.model_fields_set}
        try:
            requires = Requires.model_validate(base.requires.model_dump() | given)
        except ValidationError as error:
            return [Problem(("presets", name, "requires"), str(error.errors()[0]["ctx"]["error"]))]
        if reference is None and knobs == base.knobs:
            reference = base.reference
    presets[name] = ResolvedPreset(name, preset.summary, knobs, reference, requires, preset.extends, origin)
    return []


def _check_preset(
    preset: Preset, resolved: ResolvedPreset, reductions: Mapping[str, DeclaredReduction], unread: Unread
) -> list[Problem]:
    key = ("presets", resolved.name)
    if problems := _check_reduction(key, preset.rms_norm_reduction, reductions, unread):
        return problems
    name = resolved.knobs["rms_norm_reduction"]
    if resolved.reference is not None:
        cure = "a preset with a reference leaves nothing open; drop the reference"
        if name == OPEN_REDUCTION:
            problems.append(Problem((*key, "rms_norm_reduction"), f"got {name!r}; {cure}, or name a declared order"))
        if resolved.knobs["enable_fp_fusion"]:
            problems.append(Problem((*key, "enable_fp_fusion"), f"got true; {cure}, or write false"))
    if reduction := reductions.get(name):
        problems += _check_spans((*key, "requires"), resolved.requires, name, reduction)
    return problems


def _check_spans(key: Key, requires: Requires, name: str, reduction: DeclaredReduction) -> list[Problem]:
    problems = []
    for field, wanted, declared in (
        ("width", requires.width, reduction.width),
        ("rows", requires.rows, reduction.rows),
    ):
        if wanted is not None and declared is not None and not _covers(declared, wanted):
            message = f"got {words(wanted)}; reduction {name!r} is declared for {words(declared)}"
            problems.append(Problem((*key, field), message))
    if not problems and isinstance(requires.width, int):
        rows = requires.rows or reduction.rows or 1
        try:
            reduction.order(requires.width, bounds(rows)[0])
        except ValueError as error:
            problems.append(Problem((*key, "width"), f"got {requires.width}; reduction {name!r}: {error}"))
    return problems


def _covers(outer: Span, inner: Span) -> bool:
    (low, high), (from_, to) = bounds(outer), bounds(inner)
    return low <= from_ and to <= high
