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


def test_the_costs_that_are_admitted_are_the_measured_ones() -> None:
    section = " ".join(README.split("## Speed")[1].split("## ")[0].split())

    def ratio(op: str, case: str, preset: str) -> str:
        return f"{MEASURED[op, case, preset]['ratio_to_fast']:.2f}"

    modulation = "16384x5376-12groups"
    for preset in ("omni_native", "diffusers_aten"):
        low = ratio("rms_norm_indexed_scale_shift", modulation, preset)
        high = ratio("indexed_gate_rms_norm_scale_shift", modulation, preset)
        assert f"{low} to {high} times" in section, preset
    assert f"{ratio('fused_qk_norm_rope', '4608x48x64', 'vllm_cuda')} times." in section


def test_no_byte_differs_in_any_measured_file() -> None:
    parity = records("h200_parity.json")
    assert f"{sum(r['elements'] for r in parity):,} elements" in README.replace("\n", " ")
    assert {r["elements_differing"] for r in parity} == {0}
    assert not any(r["unfused"] for r in parity)
    exact = [r for r in MEASURED.values() if r["exact"]]
    assert exact
    assert not [r["case"] for r in exact if r["elements_differing"]]
