"""Joins the reductions and presets of a file with those below it, applies `extends`, and checks every name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numerics.errors import nearest
from numerics.presets.problems import Problem
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


def flatten(
    file: PresetFile,
    origin: Origin,
    reductions_below: Mapping[str, DeclaredReduction],
    presets_below: Mapping[str, ResolvedPreset],
) -> tuple[dict[str, DeclaredReduction], dict[str, ResolvedPreset], list[Problem]]:
    """The reductions and presets of this file on top of those below, and what is wrong with them."""
    problems: list[Problem] = []
    for name in file.reductions:
        if name == OPEN_REDUCTION:
            problems.append(
                Problem(
                    ("reductions", name),
                    f"{name!r} is the reduction whose order is left open to Triton; choose another name",
                )
            )
        elif name in reductions_below:
            problems.append(
                Problem(
                    ("reductions", name),
                    "the package declares this reduction, and its bits stay; choose another name, and let a preset that extends a packaged one use it",
                )
            )
    for name in file.presets:
        if name in presets_below:
            problems.append(
                Problem(
                    ("presets", name),
                    f"the package declares this preset, and its bits stay; choose another name and write extends = {name!r}",
                )
            )
    reductions = {**file.reductions, **reductions_below}
    presets = dict(presets_below)
    for name in file.presets:
        if name not in presets_below:
            problems.extend(_resolve(name, file.presets, presets, origin))
    for name, preset in file.presets.items():
        if name in presets and name not in presets_below:
            problems.extend(_check_preset(preset, presets[name], reductions))
    return reductions, presets, problems


def check_names(
    file: PresetFile, reductions: Mapping[str, DeclaredReduction], presets: Mapping[str, ResolvedPreset]
) -> list[Problem]:
    """Presets and reductions that a setting of an op or a model names and nobody declares."""
    problems = []
    for key, choice in _choices(file):
        if choice.preset is not None and choice.preset not in presets:
            problems.append(
                Problem((*key, "preset"), f"got {choice.preset!r}; no such preset{nearest(choice.preset, presets)}")
            )
        problems.extend(_check_reduction(key, choice.rms_norm_reduction, reductions))
    return problems


def _choices(file: PresetFile) -> Iterator[tuple[tuple[str | int, ...], Choice]]:
    settings = [(("ops", family), setting) for family, setting in file.ops.items()]
    for model, families in file.models.items():
        settings += [(("models", model, family), setting) for family, setting in families.items()]
    for key, setting in settings:
        yield key, setting
        for index, row in enumerate(setting.when):
            yield (*key, "when", index), row


def _check_reduction(
    key: tuple[str | int, ...], name: str | None, reductions: Mapping[str, DeclaredReduction]
) -> list[Problem]:
    if name is None or name == OPEN_REDUCTION or name in reductions:
        return []
    return [
        Problem(
            (*key, "rms_norm_reduction"),
            f"got {name!r}; no such reduction{nearest(name, [*reductions, OPEN_REDUCTION])}",
        )
    ]


def _resolve(
    name: str,
    declared: Mapping[str, Preset],
    presets: dict[str, ResolvedPreset],
    origin: Origin,
    chain: tuple[str, ...] = (),
) -> list[Problem]:
    if name in presets:
        return []
    preset = declared[name]
    problems: list[Problem] = []
    base: ResolvedPreset | None = None
    if preset.extends is not None:
        if preset.extends not in presets and preset.extends not in declared:
            return [
                Problem(
                    ("presets", name, "extends"),
                    f"got {preset.extends!r}; no such preset{nearest(preset.extends, [*presets, *declared])}",
                )
            ]
        if preset.extends == name or preset.extends in chain:
            return [
                Problem(
                    ("presets", name, "extends"),
                    f"got {preset.extends!r}; a circle: {' extends '.join((*chain, name, preset.extends))}",
                )
            ]
        problems = _resolve(preset.extends, declared, presets, origin, (*chain, name))
        if preset.extends not in presets:
            return problems
        base = presets[preset.extends]
    knobs: dict[str, Any] = {"rope_rotation": "separate", **(base.knobs if base else {}), **preset.knobs}
    if missing := [knob for knob in KNOBS if knob not in knobs]:
        return [
            *problems,
            Problem(("presets", name), f"{', '.join(missing)} not given; a preset sets every knob or extends another"),
        ]
    requires = preset.requires
    reference = preset.reference
    if base:
        requires = base.requires.model_copy(
            update={field: getattr(requires, field) for field in requires.model_fields_set}
        )
        if reference is None and knobs == base.knobs:
            reference = base.reference
    presets[name] = ResolvedPreset(name, preset.summary, knobs, reference, requires, preset.extends, origin)
    return problems


def _check_preset(
    preset: Preset, resolved: ResolvedPreset, reductions: Mapping[str, DeclaredReduction]
) -> list[Problem]:
    key = ("presets", resolved.name)
    return _check_reduction(key, preset.rms_norm_reduction, reductions)
