"""What the records of a run say of each preset, and of the run."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from numerics.measure.verify_golden import golden_cases, seen
from numerics.measure.verify_subject import GOLDEN, Plan, Record
from numerics.presets.checks import ResolvedPreset

VERIFIED: Final = "verified"
DIFFERS: Final = "differs"
DECLARED: Final = "declared, not verified"
NO_CLAIM: Final = "no reference claimed"
ALWAYS: Final = ("reference", "shows", "case", "arm")  # null as well
Found = dict[str, Any]


def found(plan: Plan, records: Sequence[Record], *, with_sight: bool = True) -> list[Found]:
    """For each preset, as JSON values. with_sight: and what its golden bytes can see, which takes a moment."""
    summaries = {name: _of_preset(plan, plan.catalog.presets[name], of_preset(records, name)) for name in plan.presets}
    for name, summary in summaries.items():
        if with_sight and summary["status"] != DIFFERS:  # a byte that differs anyway shows nothing
            summary.update(_sight(plan, plan.catalog.presets[name]))
    return list(summaries.values())


def of_preset(records: Iterable[Record], name: str) -> list[Record]:
    """The records of one preset."""
    return [each for each in records if each["preset"] == name]


def as_json(found: Sequence[Found]) -> list[Found]:
    """As it is printed and saved: fields of records that do not apply are left out."""
    return [{**each, "records": [_without_nothing(record) for record in each["records"]]} for each in found]


def _without_nothing(record: Record) -> Record:
    return {name: value for name, value in record.items() if value is not None or name in ALWAYS}


def is_wrong(record: Record) -> bool:
    """Whether bytes differ, or something failed."""
    return bool(record["elements_differing"] or record["error"])


def shows_claim(record: Record) -> bool:
    """Whether bytes of what the preset claims were compared."""
    return bool(record["shows"] == "claim" and record["elements"])


def _of_preset(plan: Plan, preset: ResolvedPreset, records: list[Record]) -> Found:
    """cases, rows, elements and differing are those of what the preset claims; `records` has the rest."""
    reference = preset.reference
    claims = [each for each in records if shows_claim(each)]
    wrong = [each for each in records if is_wrong(each)]
    return {
        "preset": preset.name,
        "reference": reference and {"provider": reference.provider, "versions": reference.versions},
        "status": DIFFERS if wrong else VERIFIED if claims else DECLARED if reference else NO_CLAIM,
        "device": str(plan.device),
        "cases": len({(each["op"], each["case"]) for each in claims}),
        "rows": sum(each["rows"] for each in claims),
        "elements": sum(each["elements"] for each in claims),
        "differing": sum(each["elements_differing"] for each in records),
        "differences": [_difference(each) for each in wrong if each["first"]],
        "errors": [f"{each['op']}: {each['error']}" for each in wrong if each["error"]],
        "records": records,
    }


def _sight(plan: Plan, preset: ResolvedPreset) -> Found:
    cases = golden_cases(plan.catalog, preset, plan.ops) if GOLDEN in plan.references else []
    if not cases:
        return {}
    orders = {name: reduction.bits for name, reduction in plan.catalog.reductions.items()}
    sees, blind = seen(orders, preset.numerics(plan.catalog.reductions), cases)
    return {"sees": sees, "cannot_see": blind}


def _difference(record: Record) -> dict[str, Any]:
    """The first element that differs, and both values."""
    first = record["first"]
    return {
        "op": record["op"],
        "reference": record["reference"],
        "case": record["case"],
        "output": first["output"],
        "index": first["index"],
        "provider": first["reference"],
        "computed": first["computed"],
    }
