"""Resolves settings: seven layers, weakest first, become one Resolution that knows who set each value.

1. `[ops.X]` of the packaged file  2. `[models.M]` of the packaged file  3. `[ops.X]` of the user's file
4. `[models.M]` of the user's file  5. environment  6. `with numerics.use(...)`  7. arguments of the call.

A layer that names a preset discards the knobs of weaker layers; one that names only knobs keeps the preset below. Lists
replace. In a setting with `when`, the one most specific row that matches is a layer on top of the setting itself.

For a model `ENGINE:NAME` the model layer of a file is `models.NAME` with `models."ENGINE:NAME"` on top of it: an engine
changes what it says and no more, and across files the user's `models.NAME` is stronger than anything packaged. The name
itself must be declared in full: an engine that no file knows is an error and does not fall back to another's chain.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from numerics import context, environment
from numerics.capability import checked, most_specific, refines
from numerics.context import Configuration
from numerics.errors import ConfigurationError
from numerics.layers import FAMILY_OF, KnobArguments, Layer, checked_layer, family_of, knob_text
from numerics.presets.checks import ResolvedPreset
from numerics.presets.file import PACKAGED, Catalog
from numerics.presets.schema import Choice, Reference, Requires, Setting
from numerics.presets.vocabulary import KNOBS, OPEN_REDUCTION, Family
from numerics.requirements import check_environment, check_process
from numerics.resolution import Provenance, Resolution, Shadow, Source, Value

__all__ = ["Provenance", "Resolution", "Shadow", "Source", "resolve"]

REMEMBERED = 4096  # resolutions of one configuration

_names_checked = False


def resolve(
    op: str,
    model: str | None = None,
    *,
    capability: str | None = None,
    preset: str | None = None,
    min_tokens: int | None = None,
    **knobs: Unpack[KnobArguments],
) -> Resolution:
    """The settings in force now for a family of ops and a model. The environment is read on every call.

    Args:
        op: a family, or one of its ops, which share their settings.
        model: a declared model, such as `flux2` or `diffusers:flux2`, or the class of one, such as
            `Flux2Transformer2DModel`; None for the settings of the op alone.
        capability: such as `cuda:9.0`. Without it, or with `cuda:9`, where an entry depends on more, the resolution is
            open and `Resolution.bind` settles it.
        preset: name of a preset; stronger than any other source.
        min_tokens: tokens below which a model keeps its own chain.
        **knobs: rms_norm_reduction (by name), enable_fp_fusion, rounding_points, rope_rotation; None is not given.

    Raises:
        ConfigurationError: a name or value of any source that says something about this op and model is not legal.
        RequirementError: a condition of the preset on versions, variables, backend or capability does not hold.
    """
    try:
        family = FAMILY_OF[op]
    except (KeyError, TypeError):
        family = family_of(op)
    if not isinstance(model, str | None):
        raise ConfigurationError(f"model {model!r}: write a model's name")
    if capability is not None:
        checked(capability)
    call = () if preset is None and min_tokens is None and not knobs else _call(preset, min_tokens, knobs)
    configuration = context.configuration()
    texts = environment.texts(family)
    used = context.layers(family)
    key = (family, model, capability, texts, used, call)
    found = configuration.resolutions.get(key)
    if found is None:
        _check_variable_names()
        above = (*environment.parse(family, texts), *used, *call)
        found = _resolve(configuration, family, model, capability, above)
        if not found.when:
            check_process(found.requires, capability, found.who)
        if path := environment.record():
            _record(Path(path), found)
        if len(configuration.resolutions) >= REMEMBERED:
            configuration.resolutions.clear()
        configuration.resolutions[key] = found
    elif found.requires.env and not found.when:
        check_environment(found.requires, found.who)
    return found


def declared(op: str, model: str | None = None, *, capability: str | None = None) -> Resolution:
    """What files, environment and context say, whether or not the preset's conditions hold in this process.

    Raises ConfigurationError as `resolve` does.
    """
    family = family_of(op)
    above = (*environment.read(family), *context.layers(family))
    return _resolve(context.configuration(), family, model, capability, above)


def _record(path: Path, found: Resolution) -> None:
    """Add a line of JSON. One write each, so that processes that share a file do not mix their lines."""
    line = json.dumps(found.to_dict(), separators=(",", ":")) + "\n"
    try:
        with path.open("ab", buffering=0) as file:
            file.write(line.encode())
    except OSError as error:
        raise ConfigurationError(f"{environment.RECORD}={str(path)!r}: cannot be written: {error.strerror}") from None


# --- Layers -----------------------------------------------------------------------------------------------------------


def _call(preset: str | None, min_tokens: int | None, knobs: Any) -> tuple[Layer, ...]:
    """The arguments of a call, each at a location of its own."""
    given = [
        Layer("call", f"argument {knob}", knobs=((knob, value),)) for knob, value in knobs.items() if value is not None
    ]
    if min_tokens is not None:
        given.insert(0, Layer("call", "argument min_tokens", min_tokens=min_tokens))
    if preset is not None:
        given.insert(0, Layer("call", "argument preset", preset=preset))
    return tuple(checked_layer(layer) for layer in given)


def _settings(catalog: Catalog, family: Family, model: str | None) -> Iterator[tuple[Source, str, Setting]]:
    """The tables of both files about the family and the model, weakest first."""
    entries = [] if model is None else [model] if ":" not in model else [model.split(":", 1)[1], model]
    user = catalog.user_path.name if catalog.user_path else ""
    words: list[tuple[Any, str, Source, Source]] = [
        (catalog.packaged, PACKAGED.name, "package", "package model"),
        (catalog.user, user, "user", "user model"),
    ]
    for file, name, of_op, of_model in words:
        if file is None:
            continue
        if family in file.ops:
            yield of_op, f"{name}: ops.{family}", file.ops[family]
        for entry in entries:
            if family in file.settings_of(entry):
                key = entry if re.fullmatch(r"\w+", entry) else f'"{entry}"'
                yield of_model, f"{name}: models.{key}", file.settings_of(entry)[family]


def _file_layers(catalog: Catalog, family: Family, model: str | None, capability: str | None) -> Iterator[Layer]:
    for source, location, setting in _settings(catalog, family, model):
        if setting.preset is not None or setting.knobs or setting.min_tokens is not None:
            yield _layer(source, location, setting)
        rows = {row.capability: row for row in setting.when}
        pattern = most_specific(tuple(rows), capability)
        if pattern is not None:
            yield _layer(source, f"{location}, when {pattern}", rows[pattern])


def _layer(source: Source, location: str, choice: Choice) -> Layer:
    return Layer(source, location, choice.preset, tuple(choice.knobs.items()), choice.min_tokens)  # type: ignore[arg-type]


# --- Merging ----------------------------------------------------------------------------------------------------------


def _resolve(
    configuration: Configuration, family: Family, model: str | None, capability: str | None, above: tuple[Layer, ...]
) -> Resolution:
    catalog = configuration.catalog
    if model is not None:
        model = catalog.model_named(model)

    def at(pattern: str | None) -> Resolution:
        below = _file_layers(catalog, family, model, pattern)
        return _merge(catalog, family, model, pattern, (*below, *above))

    settings = list(_settings(catalog, family, model))
    patterns = sorted({row.capability for _, _, setting in settings for row in setting.when})
    finer = [pattern for pattern in patterns if capability is None or refines(pattern, capability)]
    found = at(capability)
    if finer:
        # The patterns that hold for a capability are the beginnings of the longest of them: one row a pattern is all.
        return replace(found, when=tuple((pattern, at(pattern)) for pattern in finer))
    return found


@dataclass(frozen=True)
class _Said:
    """One value that a layer says."""

    rank: int  # of the layer; larger is stronger
    layer: Layer
    value: Value

    def shadow(self, knob: str | None = None) -> Shadow:
        """The value as it is, or as text that names the knob."""
        value = self.value if knob is None else knob_text(knob, self.value)
        return Shadow(self.layer.source, self.layer.location, value)


def _merge(
    catalog: Catalog, family: Family, model: str | None, capability: str | None, layers: tuple[Layer, ...]
) -> Resolution:
    said: dict[str, list[_Said]] = {}  # weakest first
    on_top: set[str] = set()
    for rank, layer in enumerate(layers):
        layer.check_names(catalog)
        if layer.preset is not None:
            said.setdefault("preset", []).append(_Said(rank, layer, layer.preset))
            on_top.clear()
        if layer.min_tokens is not None:
            said.setdefault("min_tokens", []).append(_Said(rank, layer, layer.min_tokens))
        for knob, value in layer.knobs:
            said.setdefault(knob, []).append(_Said(rank, layer, value))
            on_top.add(knob)
    for item in ("preset", "min_tokens"):
        if item not in said:
            raise ConfigurationError(f"{PACKAGED.name}: ops.{family}: names no {item}, and nothing else does")
    named = ("preset", "min_tokens", *(knob for knob in KNOBS if knob in on_top))
    sources = {item: _provenance(item, said, on_top) for item in named}
    preset = catalog.presets[str(sources["preset"].value)]
    knobs: dict[str, Any] = {**preset.knobs}
    knobs.update({knob: sources[knob].value for knob in KNOBS if knob in on_top})
    modified = tuple(knob for knob in KNOBS if not _same(catalog, knob, knobs[knob], preset.knobs[knob]))
    min_tokens = sources["min_tokens"].value
    assert isinstance(min_tokens, int)
    return Resolution(
        op=family,
        model=model,
        capability=capability,
        preset=preset.name,
        modified=modified,
        numerics=replace(preset, knobs=knobs).numerics(catalog.reductions),
        reduction=knobs["rms_norm_reduction"],
        min_tokens=min_tokens,
        reference=_reference(preset, modified),
        requires=_requires(preset, modified),
        sources=sources,
    )


def _provenance(item: str, said: dict[str, list[_Said]], on_top: set[str]) -> Provenance:
    *weaker, winner = said[item]
    shadows = [(each.rank, each.shadow()) for each in weaker]
    if item == "preset":  # it also shadows the knobs that it discards, unless a stronger layer sets them again
        discarded = [(knob, each) for knob in KNOBS if knob not in on_top for each in said.get(knob, ())]
        shadows += [(each.rank, each.shadow(knob)) for knob, each in discarded]
    shadows.sort(key=lambda pair: pair[0], reverse=True)
    return Provenance(winner.layer.source, winner.layer.location, winner.value, tuple(shadow for _, shadow in shadows))


def _same(catalog: Catalog, knob: str, value: Any, of_preset: Any) -> bool:
    """Equal bits, so that a reduction under another name is no modification."""
    if value == of_preset or knob != "rms_norm_reduction" or OPEN_REDUCTION in (value, of_preset):
        return bool(value == of_preset)
    return catalog.reductions[value].bits == catalog.reductions[of_preset].bits


def _reference(preset: ResolvedPreset, modified: tuple[str, ...]) -> Reference | None:
    return None if modified else preset.reference


def _requires(preset: ResolvedPreset, modified: tuple[str, ...]) -> Requires:
    """A modified preset keeps its conditions, as `extends` does, but those on the shape of a reduction that it lost."""
    if "rms_norm_reduction" not in modified:
        return preset.requires
    return preset.requires.model_copy(update={"width": None, "rows": None})


def _check_variable_names() -> None:
    """Once a process: a misspelt variable would be read by nobody."""
    global _names_checked  # noqa: PLW0603
    if not _names_checked:
        environment.check_names()
        _names_checked = True
