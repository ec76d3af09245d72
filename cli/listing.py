"""`numerics list`: presets, reductions, rounding points, ops and models, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from numerics.cli import words
from numerics.cli.explain import OPEN_SUMMARY
from numerics.cli.render import heading, table
from numerics.errors import ConfigurationError, nearest
from numerics.presets.file import Catalog
from numerics.presets.schema import Choice
from numerics.presets.vocabulary import OP_SUMMARIES, OPEN_REDUCTION, OPS, ROUNDING_POINTS

if TYPE_CHECKING:
    from rich.console import RenderableType


Entry = dict[str, Any]


def entries(catalog: Catalog, kind: str | None) -> dict[str, list[Entry]]:
    """Everything of a kind, or of every kind. Raises ConfigurationError for an unknown kind."""
    if kind is not None and kind not in LISTS:
        raise ConfigurationError(f"{kind!r}: no such kind{nearest(kind, LISTS)}")
    return {each: LISTS[each](catalog) for each in LISTS if kind in (None, each)}


def _presets(catalog: Catalog) -> list[Entry]:
    return [
        {
            "name": name,
            "summary": preset.summary,
            "origin": preset.origin,
            "reference": words.claim(preset.reference) if preset.reference else None,
            "verified": bool(preset.reference and preset.reference.verified_on),
            "exact": preset.numerics(catalog.reductions).is_exact,
        }
        for name, preset in catalog.presets.items()
    ]


def _reductions(catalog: Catalog) -> list[Entry]:
    declared = [
        {
            "name": name,
            "summary": reduction.summary,
            "origin": catalog.origin("reductions", name),
            "source": f"{reduction.source.provider} {reduction.source.versions}" if reduction.source else None,
        }
        for name, reduction in catalog.reductions.items()
    ]
    return [*declared, {"name": OPEN_REDUCTION, "summary": OPEN_SUMMARY, "origin": "package", "source": None}]


def _rounding_points(_: Catalog) -> list[Entry]:
    return [
        {"name": point, "summary": what, "families": list(words.families_with(point))}
        for point, what in ROUNDING_POINTS.items()
    ]


def _ops(_: Catalog) -> list[Entry]:
    return [{"name": op, "summary": OP_SUMMARIES[op], "family": family} for op, family in OPS.items()]


def _models(catalog: Catalog) -> list[Entry]:
    return [
        {"name": name, "summary": _summary(settings), "settings": settings}
        for name in catalog.model_names()
        for settings in [list(_settings(catalog, name))]
    ]


def _settings(catalog: Catalog, model: str) -> Iterator[dict[str, str]]:
    for file, origin in ((catalog.packaged, "package"), (catalog.user, "user")):
        for family, setting in file.settings_of(model).items() if file else ():
            words_of_rows = [f"on {row.capability} {_choice(row)}" for row in setting.when]
            said = "; ".join(filter(None, [_choice(setting), *words_of_rows]))
            yield {"family": family, "origin": origin, "setting": said}


def _summary(settings: list[dict[str, str]]) -> str:
    return "; ".join(f"{each['family']} = {each['setting']}" for each in settings)


def _choice(choice: Choice) -> str:
    given = [] if choice.preset is None else [choice.preset]
    given += [f"{knob} = {words.value(value)}" for knob, value in choice.knobs.items()]
    return ", ".join([*given, *([] if choice.min_tokens is None else [f"min_tokens = {choice.min_tokens}"])])


LISTS: Final[dict[str, Callable[[Catalog], list[Entry]]]] = {
    "presets": _presets,
    "reductions": _reductions,
    "rounding_points": _rounding_points,
    "ops": _ops,
    "models": _models,
}
KINDS: Final = tuple(LISTS)


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: dict[str, list[Entry]]) -> Iterator[RenderableType]:
    """One table a kind."""
    for index, (kind, listed) in enumerate(found.items()):
        if index:
            yield ""
        yield heading(kind.replace("_", " ").capitalize())
        yield TABLES[kind](listed)


def _preset_table(listed: list[Entry]) -> RenderableType:
    def bytes_of(entry: Entry) -> str:
        if not entry["exact"]:
            return "left open"
        return "verified" if entry["verified"] else "declared" if entry["reference"] else "no claim"

    return table(["name", "bytes", "summary"], [(each["name"], bytes_of(each), each["summary"]) for each in listed])


def _plain_table(listed: list[Entry]) -> RenderableType:
    return table(["name", "summary"], [(each["name"], each["summary"]) for each in listed])


def _point_table(listed: list[Entry]) -> RenderableType:
    rows = [(each["name"], each["summary"], words.listed(each["families"])) for each in listed]
    return table(["name", "what is rounded", "families"], rows)


def _op_table(listed: list[Entry]) -> RenderableType:
    return table(["name", "family", "summary"], [(each["name"], each["family"], each["summary"]) for each in listed])


def _model_table(listed: list[Entry]) -> RenderableType:
    rows = [
        (each["name"] if index == 0 else "", said["family"], said["setting"], said["origin"])
        for each in listed
        for index, said in enumerate(each["settings"])
    ]
    return table(["name", "family", "setting", "by"], rows)


TABLES: Final[dict[str, Callable[[list[Entry]], RenderableType]]] = {
    "presets": _preset_table,
    "reductions": _plain_table,
    "rounding_points": _point_table,
    "ops": _op_table,
    "models": _model_table,
}
