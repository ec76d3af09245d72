"""The report's trajectory: how far each preset's latent is from the reference's, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from numerics.cli.report_charts import Line, line_chart
from numerics.cli.report_files import Given
from numerics.cli.report_html import (
    NONE,
    Cell,
    Markup,
    Rows,
    bullets,
    code,
    count,
    element,
    joined,
    number,
    paragraph,
    plural,
    scientific,
    table,
    verdict,
)
from numerics.cli.report_measurements import Header, Step
from numerics.cli.report_section import Content

CONTROL: Final = "control"  # the reference, run again


def trajectory(given: Sequence[Given]) -> Content:
    """For each file a chart, PSNR of every step, what the last latents differ in, and the verdicts."""
    body: list[Markup] = []
    lines: list[str] = []
    good = True
    for at, each in enumerate(given):
        header, *steps = each.records
        arms: dict[str, list[Step]] = {}
        for step in steps:
            arms.setdefault(step.preset, []).append(step)
        if len(given) > 1:
            body.append(element("h3", f"{each.name} {each.short_hash}"))
        body += _run(header, arms, f"trajectory-{at}")
        wrong = sorted({step.preset for step in steps if step.claims_reference and step.elements_differing})
        good = good and not wrong
        lines += [f"{name} should be equal in every step and is not" for name in wrong]
        lines += [_end(name, arm) for name, arm in arms.items() if name not in (CONTROL, *wrong)]
    return Content("holds" if good else "wrong", "; ".join(lines), body)


def _end(name: str, steps: Sequence[Step]) -> str:
    """How a preset came out, in a few words."""
    if not any(step.elements_differing for step in steps):
        return f"{name} equal in each of {len(steps)} steps"
    return f"{name} {_db(steps[-1])} dB after step {steps[-1].step}"


def _run(header: Header, arms: dict[str, list[Step]], name: str) -> Iterator[Markup]:
    presets = {preset: steps for preset, steps in arms.items() if preset != CONTROL}
    yield paragraph(
        f"{header.layers} layers, {header.steps} steps, {header.tokens:,} tokens of {header.width:,}. Compared with: ",
        header.reference,
        ".",
    )
    yield bullets(_verdicts(header, arms))
    if not presets:
        return
    lines = [Line(preset, [(step.step, step.psnr_db) for step in steps]) for preset, steps in presets.items()]
    ends = "; ".join(f"{preset} {_db(steps[-1])} dB after step {steps[-1].step}" for preset, steps in presets.items())
    description = (
        f"{plural(len(lines), 'line')} over {header.steps} steps: {ends}. The axis does not begin at 0; a band above "
        "it stands for infinity, where all values are equal. The table below holds the numbers."
    )
    yield line_chart(f"{name}-chart", "PSNR of the latent over steps", description, lines, "dB")
    columns = ["preset", "PSNR, dB", "elements that differ", "of", "max abs", "max ULP", "bias", "SSIM"]
    rows = [_last(preset, steps[-1]) for preset, steps in presets.items()]
    yield table(f"{name}-last", "After the last step", columns, [Rows(rows)], numbers=columns[1:])
    every = [
        [str(at + 1), *(_db(steps[at]) if at < len(steps) else NONE for steps in presets.values())]
        for at in range(max(map(len, presets.values())))
    ]
    columns = ["step", *presets]
    yield table(f"{name}-steps", "PSNR of the latent after every step, dB", columns, [Rows(every)], numbers=columns)


def _verdicts(header: Header, arms: dict[str, list[Step]]) -> Iterator[Markup]:
    for name, steps in arms.items():
        if not steps[0].claims_reference and name != CONTROL:
            continue
        first = next((step.step for step in steps if step.elements_differing), None)
        who = "The chain run twice" if name == CONTROL else joined(code(name), ", which claims these bytes")
        said = f"equal in each of {len(steps)} steps" if first is None else f"differs from step {first} on"
        yield joined(who, ": ", verdict(first is None, said))
    reasons: dict[str, set[str]] = {}
    for name, ops in header.not_fused.items():
        for why in ops.values():
            reasons.setdefault(why, set()).add(name)
    for why, names in reasons.items():
        yield joined(f"Not fused in {', '.join(sorted(names))}: {why}")


def _last(preset: str, step: Step) -> list[Cell]:
    return [
        code(preset),
        _db(step),
        count(step.elements_differing),
        count(step.elements),
        number(step.max_abs, 4),
        count(step.max_ulp),
        scientific(step.bias),
        number(step.ssim, 6),
    ]


def _db(step: Step) -> str:
    return number(step.psnr_db, 2)
