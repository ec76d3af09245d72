"""The report's settings and their sources, and the environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from numerics.cli import words
from numerics.cli.report_files import Given
from numerics.cli.report_html import NONE, Cell, Markup, Rows, bullets, code, element, joined, paragraph, plural, table
from numerics.cli.report_records import Environment, Setting, Source
from numerics.cli.report_section import Content
from numerics.presets.vocabulary import KNOBS

SHORT: Final = len("sha256:") + 12


def settings(given: Sequence[Given]) -> Content:
    """Settings by family with who set each value, and what the presets in force mean."""
    body: list[Markup] = []
    for at, each in enumerate(given):
        found: list[Setting] = list(each.records)
        body += [_by_family(found, op, f"settings-{at}") for op in dict.fromkeys(setting.op for setting in found)]
        body.append(_meanings(found, f"settings-{at}"))
    entries = [setting for each in given for setting in each.records]
    changed = [s for s in entries if any(not source.source.startswith("package") for source in s.sources.values())]
    who = f"{len(changed)} set by a user, the environment or a call" if changed else "all as packaged"
    return Content("measured", f"{plural(len(entries), 'setting')}, {who}", body)


def _by_family(found: Sequence[Setting], op: str, name: str) -> Markup:
    rows = [
        [shown, _preset(row), _sources(row), _shadowed(row), f"{row.min_tokens:,}", str(row.reference or NONE)]
        for setting in found
        if setting.op == op
        for shown, row in _with_when(setting)
    ]
    places = words.listed(dict.fromkeys(s.capability or "capability unknown" for s in found if s.op == op))
    caption = joined("Settings of ", code(op), f" ({places})")
    columns = ["model", "preset", "set by", "instead of", "from tokens", "whose bytes"]
    return table(f"{name}-{op}", caption, columns, [Rows(rows)], numbers=["from tokens"], class_="settings")


def _with_when(setting: Setting) -> Iterator[tuple[Cell, Setting]]:
    yield code(setting.model) if setting.model else "any other", setting
    for row in setting.when:
        yield joined("on ", code(row.capability or "any")), row


def _preset(setting: Setting) -> Markup:
    note = element("span", f" modified: {', '.join(setting.modified)}", class_="note") if setting.modified else ""
    return joined(code(setting.preset), note)


def _sources(setting: Setting) -> Markup:
    """One line for the preset, and for every knob that another layer set."""
    shown = {name: source for name, source in setting.sources.items() if name == "preset" or _elsewhere(name, setting)}
    lines = [_source(name, source, alone=len(shown) == 1) for name, source in shown.items()]
    return joined(*lines, between="<br>")


def _elsewhere(name: str, setting: Setting) -> bool:
    """Whether who set this has to be said beside who set the preset."""
    source = setting.sources[name]
    return name != "min_tokens" or bool(source.value) or bool(source.shadows)


def _source(name: str, source: Source, *, alone: bool) -> Markup:
    return joined("" if alone else f"{name}: ", source.source, ", ", code(source.location))


def _shadowed(setting: Setting) -> Cell:
    lines = [
        joined(code(words.value(shadow.value)), f" ({shadow.source})")
        for source in setting.sources.values()
        for shadow in source.shadows
    ]
    return joined(*lines, between="<br>") if lines else NONE


def _meanings(found: Sequence[Setting], name: str) -> Markup:
    """Each preset in force once, with its knobs: names say nothing by themselves."""
    once: dict[tuple[str, str], dict[str, Any]] = {}
    for setting in found:
        for row in (setting, *setting.when):
            once.setdefault((row.label, row.fingerprint), row.numerics)
    rows = [
        [code(label), *(_knob(knobs.get(knob)) for knob in KNOBS), code(fingerprint[:SHORT])]
        for (label, fingerprint), knobs in sorted(once.items())
    ]
    caption = "What these presets mean: their knobs, and the first digits of their fingerprints"
    return table(f"{name}-presets", caption, ["preset", *KNOBS, "fingerprint"], [Rows(rows)])


def _knob(value: Any) -> Cell:
    return NONE if value is None else words.value(value)


# --- Environment ------------------------------------------------------------------------------------------------------


def environment(given: Sequence[Given]) -> Content:
    """Versions, device and problems of one machine or of several."""
    body: list[Markup] = []
    problems: list[str] = []
    for at, each in enumerate(given):
        (found,) = each.records
        body += _machine(found, f"environment-{at}")
        problems += found.problems
    if problems:
        return Content("wrong", plural(len(problems), "problem"), body)
    device = words.listed(found.capability or "no GPU" for each in given for found in each.records)
    return Content("holds", f"no problems; {device}", body)


def _machine(found: Environment, name: str) -> Iterator[Markup]:
    runs = "can run" if found.fused_kernels.can_run else f"cannot run: {words.listed(found.fused_kernels.missing)}"
    rows: list[list[Cell]] = [
        ["Python", found.python],
        ["platform", found.platform],
        ["omni-numerics", found.package.get("version") or "from a clone that is not installed"],
        *([package, _version(each.installed, each.needs, each.suits)] for package, each in found.packages.items()),
        ["capability", found.capability or "none: no CUDA driver, or no device"],
        ["fused kernels", runs],
        *([variable, code(value)] for variable, value in found.environment.items()),
    ]
    yield table(f"{name}-machine", "What the machine runs", ["", "version or value"], [Rows(rows)], class_="pairs")
    there = [f"{package} {version}" for package, version in found.optional.items() if version]
    yield paragraph(f"Optional packages that are installed: {words.listed(there)}.")
    if found.problems:
        yield element("h3", "Problems")
        yield bullets(found.problems)


def _version(installed: str | None, needs: str | None, suits: bool) -> str:
    version = installed or "not installed"
    return version if suits or not needs else f"{version} (needs {needs})"
