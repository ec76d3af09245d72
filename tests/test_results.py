"""Figures that the README quotes are those of the measured files."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def records(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


MEASURED = {(r["op"], r["case"], r["preset"]): r for r in records("h200_qk.json") + records("h200_modulation.json")}
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| `(\w+)` \| `([\w+-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.-]+) \| ([\d.-]+) \|$", re.MULTILINE
)


def test_the_speed_table_says_what_was_measured() -> None:
    rows = ROW.findall(README)
    assert len(rows) == 8
    for op, case, *quoted in rows:
        record = MEASURED[op, case, "vllm_cuda"]
        peers = [record["peer_us"].get(name) for name in ("vllm", "vllm_omni")]
        ratios = ["-" if us is None else f"{us / record['time_us']:.2f}" for us in peers]
        measured = [f"{record['time_us']:.1f}", f"{record['ratio_to_copy']:.3f}", f"{record['ratio_to_fast']:.3f}"]
        assert quoted == measured + ratios, case
        assert record["elements_differing"] == 0


COST = re.compile(r"^\| `(\w+)` \| `([\w+-]+)` \| `(\w+)` \| ([\d.]+) \|$", re.MULTILINE)


def test_every_case_in_which_exactness_costs_is_listed() -> None:
    listed = {(op, case, preset): ratio for op, case, preset, ratio in COST.findall(README)}
    measured = {key: record["ratio_to_fast"] for key, record in MEASURED.items() if record["exact"]}
    assert listed == {key: f"{ratio:.2f}" for key, ratio in measured.items() if ratio is not None and ratio > 1.02}


def test_no_byte_differs_in_any_measured_file() -> None:
    parity = records("h200_parity.json")
    assert f"{sum(r['elements'] for r in parity):,} elements" in README.replace("\n", " ")
    assert {r["elements_differing"] for r in parity} == {0}
    assert not any(r["unfused"] for r in parity)
    exact = [r for r in MEASURED.values() if r["exact"]]
    assert exact
    assert not [r["case"] for r in exact if r["elements_differing"]]
