"""The report's parity: kernels against whole chains, and presets against the bytes of their providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numerics.cli.report_files import Given
from numerics.cli.report_html import Markup, bullets, code, plural
from numerics.cli.report_matrix import Counted, Line, matrix
from numerics.cli.report_records import Parity, Verified
from numerics.cli.report_section import Content, rows_of
from numerics.cli.report_verify import claims, is_wrong


def parity(given: Sequence[Given]) -> Content:
    """A matrix of preset and op for each file of kernels, then what `verify` compared."""
    body: list[Markup] = []
    kernels = [(each, list[Parity](each.records)) for each in rows_of(given, "parity")]
    verified = [(each, list[Verified](each.records)) for each in rows_of(given, "verify")]
    for at, (each, records) in enumerate(kernels):
        body.append(_matrix(records, f"parity-{at}", _named(each, len(kernels))))
        body.append(bullets(_unfused(records)))
    for at, (each, found) in enumerate(verified):
        body += claims(found, f"verify-{at}", _named(each, len(verified)))
    pairs = [(record.elements, record.elements_differing) for _, records in kernels for record in records]
    pairs += [(found.elements, found.differing) for _, every in verified for found in every]
    compared, differing = (sum(column) for column in zip(*pairs, strict=True))
    unfused = sum(bool(record.unfused) for _, records in kernels for record in records)
    wrong = sum(is_wrong(found) for _, every in verified for found in every)
    notes = [f"{differing:,} of {compared:,} elements differ"] if compared else ["nothing was compared"]
    notes += [f"{plural(unfused, 'comparison')} not fused"] if unfused else []
    notes += [f"{plural(wrong, 'preset')} of verify wrong"] if wrong else []
    return Content("wrong" if differing or unfused or wrong or not compared else "holds", ", ".join(notes), body)


def _named(each: Given, files: int) -> str:
    return f" ({each.name} {each.short_hash})" if files > 1 else ""


def _matrix(records: Sequence[Parity], name: str, which: str) -> Markup:
    lines: dict[str, dict[str, Counted]] = {}
    for each in records:
        counted = Counted(each.elements, each.elements_differing, "not fused" if each.unfused else "")
        lines.setdefault(each.preset, {})[each.op] = counted
    caption = f"Elements whose bytes differ between fused kernel and the chain that the preset claims{which}"
    return matrix(name, caption, "preset", [(None, [Line(code(preset), cells) for preset, cells in lines.items()])])


def _unfused(records: Sequence[Parity]) -> Iterator[str]:
    for each in records:
        if each.unfused:
            why = "; ".join(each.unfused)
            yield f"{each.op}, {each.preset}: the op ran its reference, so no kernel was tested: {why}"
