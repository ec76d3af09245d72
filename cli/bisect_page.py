"""The page of `numerics bisect`: the verdict, what each difference moves by itself, and what had no verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from numerics.cli.render import grid, heading, indented, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from numerics.measure.result import Record

LINES: Final = 3  # of an arm's stderr; --json has more
RESULTS: Final = {"explained": "explained", "equal": "no difference", "undecided": "nothing decided"}


def page(found: Sequence[Record]) -> Iterator[RenderableType]:
    """Records: header, arms, verdict."""
    header, *arms, verdict = found
    yield heading(header["target"], f": {RESULTS[verdict['result']]}")
    yield grid(_summary(header, arms, verdict))
    if verdict["smallest"]:
        yield ""
        yield from _smallest(header, verdict)
    if alone := [arm for arm in arms if len(arm["turned"]) == 1 and arm["run"] == 1 and _is_between(header, arm)]:
        yield ""
        yield heading("Each by itself", ", beside A")
        yield _singles(header, alone)
    if verdict["without_effect"]:
        yield ""
        yield heading("Not seen by the target")
        yield grid(_without_effect(header, verdict))
    yield from _last_words(header, arms, verdict)


def _last_words(header: Record, arms: Sequence[Record], verdict: Record) -> Iterator[RenderableType]:
    """Of arms without a verdict; and of a command that failed, where that decided nothing."""
    told = [arm for arm in arms if arm["status"] != "ok"]
    if not told and verdict["result"] == "undecided" and header["counts"] == "exit code":
        told = [arm for arm in arms if arm["value"]][:1]
    if told:
        yield ""
        yield heading("Last words of arms that failed")
    for arm in told:
        yield indented(
            f"{arm['name']}: {arm['status']}: {arm['reason']}" if arm["reason"] else f"{arm['name']}: exit code"
        )
        yield from (indented(line, 4) for line in arm["stderr"][-LINES:])


def _summary(header: Record, arms: Sequence[Record], verdict: Record) -> Iterator[tuple[str, str]]:
    yield "A", header["from"]
    yield "B", header["to"]
    for side in ("a", "b"):
        again = [arm for arm in arms if arm["run"] > 1 and _is_end(header, arm, side) and arm[f"from_{side}"]]
        if again:
            times = f"{len(again) + 1} times"
            apart = dict.fromkeys(distance(arm[f"from_{side}"], header) for arm in again)
            yield f"control {side.upper()}", f"run {times}: {'; '.join(apart)}"
    if first := next((arm for arm in arms if _is_end(header, arm, "b") and arm["from_a"]), None):
        yield "B beside A", distance(first["from_a"], header)
    if header["set_aside"]:
        yield "set aside", f"{', '.join(header['set_aside'])}: A and B say all that counts"
    if header["tolerance"]:
        yield "tolerance", f"{header['tolerance']:g}: results no farther apart count as equal"
    yield "arms", f"{len(arms)}, {sum(arm['seconds'] for arm in arms):.1f} s"
    if verdict["reason"]:
        yield "because", verdict["reason"]


def _is_end(header: Record, arm: Record, side: str) -> bool:
    return len(arm["turned"]) == (0 if side == "a" else len(header["differences"]))


def _is_between(header: Record, arm: Record) -> bool:
    """Not B, where there is but one difference, unless that is all there is to show."""
    return len(header["differences"]) > 1 or arm["from_a"] is not None


def _smallest(header: Record, verdict: Record) -> Iterator[RenderableType]:
    chosen = verdict["smallest"]
    read = [str(index) for index, atom in enumerate(header["differences"]) if atom["applies"]]
    many = len(set(read) - verdict["without_effect"].keys())
    yield heading("Smallest set", f": {len(chosen)} of {many} differences that the target can see")
    yield _differences(header, chosen)
    if len(chosen) > 2:
        yield "B's result is only reached by more than a pair; without any one of these it is lost."
    if verdict["others"]:
        yield "Each of these gives B's result by itself as well:"
        yield _differences(header, verdict["others"])
    if verdict["smaller_without_verdict"]:
        yield f"{verdict['smaller_without_verdict']} smaller sets had no verdict, so one of them may be enough."
    if verdict["unexpected"]:
        names = ", ".join(header["differences"][index]["what"] for index in verdict["unexpected"])
        yield f"No op of this package was seen to read this: {names}. The target reads it by itself."


def _differences(header: Record, indices: Sequence[int]) -> RenderableType:
    rows = [_change(header["differences"][index]) for index in indices]
    return table(["  difference", "A", "B"], rows, whole=["A", "B"])


def _change(atom: Mapping[str, Any]) -> tuple[RenderableType, str, str]:
    return lines(f"  {atom['what']}", f"  {_place(atom)}"), atom["a"], atom["b"]


def _place(atom: Mapping[str, Any]) -> str:
    return f"{atom['op']}, {atom['model'] or 'any other model'}"


def _singles(header: Record, alone: Sequence[Record]) -> RenderableType:
    tensors = any("elements" in (arm["from_a"] or {}) for arm in alone)
    numbers = (
        ["exit"]
        if header["counts"] == "exit code"
        else ["differ", "PSNR dB", "max abs"]
        if tensors
        else ["number", "change"]
    )
    columns = ["  difference", *numbers]
    rows = []
    for arm in alone:
        atom = header["differences"][arm["turned"][0]]
        what = lines(f"  {atom['what']}: {atom['a']} -> {atom['b']}", f"  {_place(atom)}")
        rows.append((what, *_numbers(arm, header, len(numbers)), _result(header, arm)))
    return table([*columns, "result"], rows, whole=["result"], right=columns[1:])


def _numbers(arm: Record, header: Record, count: int) -> tuple[str, ...]:
    found = arm["from_a"]
    if found is None or "shapes" in found:
        return ("-",) * count
    if header["counts"] == "exit code":
        return ("fails" if arm["value"] else "succeeds",)
    if "change" in found:
        return _number(arm["value"]), _number(found["change"])
    return str(found["elements_differing"]), _number(found["psnr_db"], 5), _number(found["max_abs"])


def _result(header: Record, arm: Record) -> str:
    """Whose result it is."""
    from numerics.measure.bisect_compare import is_within

    if arm["status"] != "ok":
        return str(arm["status"])
    if arm["without_effect"]:
        return "not seen"
    tolerance = header["tolerance"]
    if arm["from_b"] is None or is_within(arm["from_b"], tolerance):
        return "B's"
    return "A's" if is_within(arm["from_a"], tolerance) else "moves"


def _without_effect(header: Record, verdict: Record) -> Iterator[tuple[str, str]]:
    """By reason, op and differences; models that are alike stand together."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for index, why in verdict["without_effect"].items():
        atom = header["differences"][int(index)]
        reasons.setdefault(why, {}).setdefault(atom["op"], []).append(atom["model"] or "any other model")
    for why, families in reasons.items():
        for op, models in families.items():
            distinct = dict.fromkeys(models)
            whose = ", ".join(distinct) if len(distinct) <= LINES else f"{len(distinct)} models"
            yield op, f"{why}: {len(models)} differences of {whose}"


def distance(found: Mapping[str, Any], header: Record) -> str:
    """How far one result is from another, in words."""
    if "shapes" in found:
        return f"other results: {found['shapes']}"
    if "change" in found and header["counts"] == "exit code":
        return {0: "the same exit status", 1: "fails", -1: "succeeds"}[int(found["change"])]
    if "change" in found:
        return f"another number, by {_number(found['change'])}" if float(found["change"]) else "the same number"
    if not found["elements_differing"]:
        return "the same bytes"
    where = f", most in {found['worst']}" if found["worst"] else ""
    numbers = f"PSNR {_number(found['psnr_db'], 5)} dB, max abs {_number(found['max_abs'])}"
    return f"{found['elements_differing']} of {found['elements']} elements differ, {numbers}{where}"


def _number(value: float | str | None, digits: int = 4) -> str:
    return "-" if value is None or math.isnan(float(value)) else f"{float(value):.{digits}g}"
