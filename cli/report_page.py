"""The page of the report: its head, a glance, every section with where it comes from, and the files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from numerics.cli.report_bisect import bisect
from numerics.cli.report_bytes import parity
from numerics.cli.report_files import MACHINE, Given, on_several
from numerics.cli.report_html import (
    NONE,
    Markup,
    Rows,
    bullets,
    code,
    count,
    element,
    joined,
    paragraph,
    plural,
    table,
    verdict,
)
from numerics.cli.report_models import models
from numerics.cli.report_precision import precision
from numerics.cli.report_section import Content
from numerics.cli.report_settings import environment, settings
from numerics.cli.report_speed import speed
from numerics.cli.report_trajectory import trajectory

STYLE: Final = Path(__file__).with_name("report.css")
NOT_RECORDED: Final = "not recorded"


@dataclass(frozen=True)
class Section:
    """A place on the page. kinds: of the files it is made from. how: commands that write one."""

    name: str
    title: str
    about: str
    kinds: tuple[str, ...]
    make: Callable[[Sequence[Given]], Content]
    how: tuple[str, ...]
    long: bool = False  # on paper it begins a page


SECTIONS: Final = (
    Section(
        "settings",
        "Settings",
        "Which preset holds for which op and model, who set it, and what that is in force instead of.",
        ("settings",),
        settings,
        ("numerics show --json > settings.json",),
    ),
    Section(
        "parity",
        "Parity",
        "Bytes, compared as integers: an exact preset has 0 elements that differ, or it is wrong.",
        ("parity", "verify"),
        parity,
        ("numerics verify --json > verify.json", "python benchmarks/parity.py --out parity.json ..."),
        long=True,
    ),
    Section(
        "speed",
        "Speed",
        "Time of each op over that of a device copy of the same bytes: near 1.0 there is little left to gain, below it "
        "the copy itself was slow. Where a case moves too little to tell, an empty kernel stands in place of the copy.",
        ("bench",),
        speed,
        ("numerics bench --out bench.json",),
        long=True,
    ),
    Section(
        "precision",
        "Precision",
        "How far a preset is from the same stage computed in float32 and float64. Exactness is about whose bytes, "
        "precision about how close to the truth these are.",
        ("precision",),
        precision,
        ("numerics precision --out precision.json",),
        long=True,
    ),
    Section(
        "trajectory",
        "Trajectory",
        "Presets through all layers and steps of a diffusion, each latent beside that of the unfused chain. "
        "The peak of these PSNRs is the range of the latent: compare presets with each other.",
        ("trajectory",),
        trajectory,
        ("numerics trajectory --out trajectory.json",),
        long=True,
    ),
    Section(
        "models",
        "Models",
        "Whole models, as their library ships them and with fused ops: every byte of their outputs, and their times.",
        ("models",),
        models,
        ("python benchmarks/models.py --out models.json",),
    ),
    Section(
        "bisect",
        "Bisect",
        "Which settings move the result of a program: the smallest set that turns A's result into B's.",
        ("bisect",),
        bisect,
        ("numerics bisect TARGET --from A --to B --out bisect.json",),
    ),
    Section(
        "environment",
        "Environment",
        "What the machine runs on which the settings were read.",
        ("environment",),
        environment,
        ("numerics doctor --json > environment.json",),
    ),
)
MARKS: Final = {"holds": "✓", "wrong": "✗", "measured": "●", "missing": NONE}


def page(given: Sequence[Given], title: str, made: str, version: str | None) -> str:
    """The whole document. made: the time. version: of this package."""
    style = STYLE.read_text(encoding="utf-8").strip()
    contents = {section: section.make(its) for section in SECTIONS if (its := files_of(section, given))}
    nav = [
        element(
            "li", element("a", section.title, href=f"#{section.name}", class_=None if section in contents else "none")
        )
        for section in SECTIONS
    ]
    nav.append(element("li", element("a", "Files", href="#files")))
    by = f"omni-numerics {version}" if version else "omni-numerics (a clone that is not installed)"
    head = element(
        "header",
        element("h1", title),
        paragraph(f"Made {_time(made)} from {plural(sum(each.sha256 is not None for each in given), 'file')} by {by}."),
        _glance(contents),
    )
    sections = [_section(section, files_of(section, given), contents.get(section)) for section in SECTIONS]
    body = element(
        "body",
        element("a", "To the sections", href="#main", class_="skip"),
        head,
        element("nav", element("ul", *nav), aria_label="Sections"),
        element("main", *sections, _files(given), id="main"),
    )
    meta = [
        element("meta", charset="utf-8"),
        # Nothing acts and nothing is fetched, even if a string of a file came through unescaped.
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    ]
    return f"<!doctype html>\n{element('html', element('head', *meta), body, lang='en')}\n"


def files_of(section: Section, given: Sequence[Given]) -> list[Given]:
    """The files that a section is made from."""
    return [each for each in given if each.kind.name in section.kinds]


def missing(given: Sequence[Given]) -> list[dict[str, Any]]:
    """Sections without a file, and how to make one, as JSON values."""
    return [{"section": each.name, "how": list(each.how)} for each in SECTIONS if not files_of(each, given)]


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _glance(contents: dict[Section, Content]) -> Markup:
    rows = []
    for section in SECTIONS:
        content = contents.get(section)
        state = content.state if content else "missing"
        words = (content.summary if content else "no file given",)
        if state in ("holds", "wrong"):
            said = verdict(state == "holds", joined(*words))
        else:
            said = joined(element("span", MARKS[state], aria_hidden="true", class_=state), " ", *words)
        rows.append(
            element("div", element("dt", element("a", section.title, href=f"#{section.name}")), element("dd", said))
        )
    return element("dl", *rows, class_="glance")


def _section(section: Section, given: Sequence[Given], content: Content | None) -> Markup:
    parts = [element("h2", section.title, id=f"{section.name}-title"), paragraph(section.about)]
    if content is None:
        parts += _how(section)
    else:
        parts += _origin(section, given)
        parts += content.body
    kind = "long" if content is not None and section.long else None
    return element("section", *parts, id=section.name, class_=kind, aria_labelledby=f"{section.name}-title")


def _how(section: Section) -> Iterator[Markup]:
    yield paragraph("No file was given. To make one:", class_="absent")
    yield from (element("pre", code(each), class_="how") for each in section.how)


def _origin(section: Section, given: Sequence[Given]) -> Iterator[Markup]:
    """From which files, where and when; and whether their rows can be compared with each other."""
    rows = [
        [
            code(each.name) if each.sha256 else each.name,
            code(each.short_hash) if each.sha256 else NONE,
            " to ".join(map(_time, each.when)) or NOT_RECORDED,
            machine,
        ]
        for each in given
        for machine in [_machines(each)]
    ]
    columns = ["file", "sha256", "measured", "on"]
    yield table(f"{section.name}-origin", "Where this comes from", columns, [Rows(rows)], class_="origin")
    if several := list(on_several(given)):
        text = "These rows were not all measured on the same machine or with the same versions; compare within a file:"
        yield element(
            "div", paragraph(element("strong", "Several machines. "), text), bullets(several), class_="notice"
        )


def _time(text: str) -> str:
    """`2026-11-30 21:34:22 UTC`; a time that is written otherwise stays as it is."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return text


def _machines(each: Given) -> Markup:
    lines = []
    for machine in each.machines:
        known = dict(machine)
        words = [known[name] if name == "gpu" else f"{name} {known[name]}" for name in MACHINE if name in known]
        lines.append(joined(", ".join(words)))
    return joined(*lines, between="<br>") if lines else joined(NOT_RECORDED)


def _files(given: Sequence[Given]) -> Markup:
    rows = [
        [
            code(each.name) if each.sha256 else each.name,
            each.kind.what,
            count(len(each.records)),
            count(each.size),
            code(each.sha256) if each.sha256 else NONE,
            joined(*(code(command) for command in each.commands), between="<br>") if each.commands else NOT_RECORDED,
        ]
        for each in given
    ]
    columns = ["file", "written by", "records", "bytes", "sha256", "command"]
    made = table(
        "files-table", "What this page was made from", columns, [Rows(rows)], numbers=columns[2:4], class_="files"
    )
    heading = element("h2", "Files", id="files-title")
    return element("section", heading, made, id="files", aria_labelledby="files-title")
