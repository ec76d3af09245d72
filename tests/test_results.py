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
    assert max(ratio for ratio in measured.values() if ratio is not None) < 1.035, "the README says 3 % at most"


def test_no_byte_differs_in_any_measured_file() -> None:
    parity = records("h200_parity.json")
    assert f"{sum(r['elements'] for r in parity):,} elements" in README.replace("\n", " ")
    assert {r["elements_differing"] for r in parity} == {0}
    assert not any(r["unfused"] for r in parity)
    verified = records("h200_verify.json")
    assert f"verified {sum(r['status'] == 'verified' for r in verified)} presets" in README.replace("\n", " ")
    many = records("h200_verify_vllm.json")
    for preset in (*verified, *many):
        assert preset["status"] in {"verified", "declared, not verified"}, preset["preset"]
        assert not preset["errors"]
        assert not [r for r in preset["records"] if r["elements_differing"]]
    live = [
        r
        for preset in many
        for r in preset["records"]
        if r["reference"] == "vllm" and "production" in (r["case"] or "")
    ]
    assert min(r["elements"] for r in live) >= 10**9
    exact = [r for r in MEASURED.values() if r["exact"]]
    assert exact
    assert not [r["case"] for r in exact if r["elements_differing"]]


def test_the_trajectory_is_as_measured() -> None:
    steps = [r for r in records("h200_trajectory.json") if r["kind"] == "step"]
    last = {r["preset"]: r for r in steps if r["step"] == max(each["step"] for each in steps)}
    assert {r["elements_differing"] for r in steps if r["preset"] == "vllm_cuda"} == {0}
    for name in ("bf16_affine", "fast"):
        assert re.search(rf"`{name}` {last[name]['psnr_db']:.2f}\s+dB", README)
        assert round(100 * last[name]["elements_differing"] / last[name]["elements"]) == 77


PRECISION = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


def test_the_precision_table_says_what_was_measured() -> None:
    measured = {
        (r["op"], r["stage"], r["preset"]): r["rmse"]
        for r in records("h200_precision.json")
        if r["precision"] == "float64" and r["table"] != "rounded" and "half" not in r["case"]
    }
    rows = PRECISION.findall(README)
    assert len(rows) == 4
    for op, stage, *ratios in rows:
        fast = measured[op, stage, "fast"]
        assert ratios == [f"{measured[op, stage, name] / fast:.2f}" for name in ("vllm_cuda", "vllm_native")]


MODEL = re.compile(r"^\| `(diffusers:\w+)` \| (.+) -> (.+) \| (.+) \| (.+) -> (.+) \| (.+) \|$", re.MULTILINE)


def test_the_table_of_models_says_what_was_measured() -> None:
    measured = records("h200_models.json")
    equal = {(r["model"], r["case"][:7]): r for r in measured if r["verdict"] == "equal"}
    assert {r["verdict"] for r in measured} == {"equal", "stated"}
    rows = MODEL.findall(README)
    assert len(rows) == 8
    assert len(equal) == 16
    for name, *quoted in rows:
        for batch, figures in (("batch 1", quoted[:3]), ("batch 2", quoted[3:])):
            r = equal[name, batch]
            assert figures == [f"{r['stock_ms']:.1f}", f"{r['ours_ms']:.1f}", f"{r['stock_over_ours']:.2f}"]
            assert (r["elements_differing"], r["restored_differing"]) == (0, 0)
            assert r["fused_calls"] == r["expected_calls"]
