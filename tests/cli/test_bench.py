"""`numerics bench`: lists, saved results and comparisons without a GPU, and a run with a clock that counts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics import ops
from numerics.measure import cases, clock, peers
from numerics.measure.cases import CASES
from numerics.measure.result import read, record, write
from tests.cli.conftest import Command
from tests.measure.conftest import CountingClock, shrunk

RECORDS = [
    record(
        op="rms_norm",
        case="16384x5376",
        preset=preset,
        exact=preset != "fast",
        clock="graph",
        time_us=time,
        copy_us=80.0,
        ratio_to_copy=time / 80,
        ratio_to_fast=time / 84,
        peer_us={"vllm": 126.0},
        peers={"vllm": {"differing": {"repeated": 0}}},
        absent={"torch": "it is not here"},
        reference="vLLM's ops (0.29.0)",
        elements=1000,
        elements_differing=7 if preset == "fast" else 0,
        differing={"before": 0, "repeated": 0, "after": 0},
        gpu="NVIDIA H200",
        torch="2.11.0",
    )
    for preset, time in (("fast", 84.0), ("vllm_cuda", 84.5))
]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    write(path, RECORDS)
    return path


def changed(path: Path, name: str = "later.json", index: int = 1, **values: Any) -> Path:
    records = read(path)
    records[index] |= values
    write(path.with_name(name), records)
    return path.with_name(name)


def words(text: str) -> str:
    """Without the line breaks of a narrow page."""
    return " ".join(text.split())


# --- Without a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_leaves_an_earlier_result_alone(numerics: Command, saved: Path) -> None:
    found = numerics("bench", "--out", saved)
    assert (found.code, found.out, found.err) == (2, "", "Error: no CUDA device; bench measures kernels\n")
    assert len(read(saved)) == len(RECORDS)


def test_without_torch_the_message_names_it(numerics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("numerics.measure.clock")
    monkeypatch.setitem(sys.modules, "numerics.measure.clock", None)
    found = numerics("bench")
    assert found.code == 2
    assert found.err == "Error: bench measures with numerics.measure.clock, which is not installed\n"


def test_cases_are_listed(numerics: Command) -> None:
    found = numerics("bench", "--list", "--json").json
    assert [(each["op"], each["case"]) for each in found] == [(case.op, case.name) for case in CASES]
    shown = numerics("bench", "--list", "--op", "fused_modulation").out
    assert "16384x5376-12groups  352.3  fast, vllm_cuda" in shown
    assert "rms_norm: RMSNorm\n" not in shown


def test_a_choice_narrows_the_list(numerics: Command) -> None:
    arguments = ("--case", "*/16384x5376", "--case", "1x5376", "--preset", "omni_native", "--op", "rms_norm")
    found = numerics("bench", "--list", "--json", *arguments).json
    assert [(each["case"], each["presets"]) for each in found] == [
        ("16384x5376", ["omni_native"]),
        ("1x5376", ["omni_native"]),
    ]
    assert len(numerics("bench", "--list", "--json", "--quick").json) == sum(case.headline for case in CASES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--op", "rms_nrm"), "op 'rms_nrm': no such op or family; nearest: rms_norm"),
        (("--case", "x"), "case 'x': matches none"),
        (("--list", "--out", "x.json"), "--out: of no use with --list, which measures nothing"),
        (("--preset", "vlm_cuda"), "preset 'vlm_cuda': no such preset; nearest: vllm_cuda"),
        (("--peer", "vlm"), "peer 'vlm': no such peer; nearest: vllm"),
        (("--tolerance", "0.1"), "--tolerance: of no use without --compare"),
        (("--tolerance", "inf", "--compare", "x.json"), "--tolerance: got inf; legal: a number, 0 or more"),
        (("--tolerance", "nan", "--compare", "x.json"), "greater than or equal to 0"),
        (("--plot", "a.gif"), "--plot a.gif: legal endings: .pdf, .png, .svg"),
        (("--compare", "none.json"), "none.json: cannot be read: no such file or directory"),
        (("none.json",), "none.json: cannot be read: no such file or directory"),
    ],
)
def test_what_does_not_exist_exits_2(numerics: Command, arguments: tuple[str, ...], message: str) -> None:
    found = numerics("bench", *arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_a_plot_without_matplotlib_names_the_extra(
    numerics: Command, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = numerics("bench", saved, "--plot", saved.with_name("bars.svg"))
    assert found.code == 2
    assert "pip install 'omni-numerics[plot]'" in found.err


# --- A saved result ---------------------------------------------------------------------------------------------------


def test_a_saved_result_is_shown_with_ratios(numerics: Command, saved: Path) -> None:
    found = numerics("bench", saved, COLUMNS="80")
    assert found.code == 0
    lines = [line.split() for line in found.out.splitlines()]
    assert ["16384x5376", "80.00", "a", "copy"] in lines
    assert ["fast", "84.00", "1.050", "1.000", "7", "vllm", "1.50"] in lines
    assert ["vllm_cuda", "84.50", "1.056", "1.006", "0", "vllm", "1.49"] in lines
    assert "vLLM's ops (0.29.0)" in found.out
    assert "torch: it is not here" in found.out
    assert "0 of 1000 elements of exact presets differ; NVIDIA H200, torch 2.11.0" in words(found.out)
    assert max(map(len, found.out.splitlines())) <= 80


def test_a_saved_result_is_printed_as_json(numerics: Command, saved: Path) -> None:
    assert numerics("bench", saved, "--json").json == read(saved)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"elements_differing": 3}, "Differs rms_norm/16384x5376, vllm_cuda: 3 of 1000 elements"),
        ({"differing": {"repeated": 2}}, "Not the same twice rms_norm/16384x5376, vllm_cuda: 2 elements"),
        ({"error": "MemoryError", "time_us": None}, "Failed MemoryError (rms_norm/16384x5376, vllm_cuda)"),
        ({"inputs_changed": True}, "Wrote into the inputs of the other arms rms_norm/16384x5376"),
    ],
)
def test_what_is_wrong_is_named_and_exits_1(numerics: Command, saved: Path, values: dict[str, Any], shown: str) -> None:
    found = numerics("bench", changed(saved, **values))
    assert found.code == 1
    assert shown in words(found.out)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (
            {"refused": "requires width 128", "time_us": None},
            "Refused requires width 128 (rms_norm/16384x5376, vllm_cuda)",
        ),
        ({"not_fused": "no kernel"}, "Not fused no kernel (rms_norm/16384x5376, vllm_cuda)"),
        (
            {"peers": {"vllm": {"differing": {"repeated": 4}}}},
            "Not the same twice rms_norm/16384x5376, vllm: 4 elements",
        ),
    ],
)
def test_what_is_no_fault_of_ours_is_named_and_exits_0(
    numerics: Command, saved: Path, values: dict[str, Any], shown: str
) -> None:
    found = numerics("bench", changed(saved, **values))
    assert found.code == 0
    assert shown in words(found.out)


@pytest.mark.parametrize(
    "values",
    [
        {"time_us": "fast"},
        {"op": {}},
        {"peers": {"vllm": 1}},
        {"peer_us": {"vllm": None}},
        {"not_fused": 7},
        {"driver": 1.5},
        {"differing": "none"},
    ],
)
def test_a_value_of_another_type_is_refused(numerics: Command, saved: Path, values: dict[str, Any]) -> None:
    path = changed(saved, **values)
    for arguments in ((path,), (saved, "--compare", path)):
        found = numerics("bench", *arguments)
        assert found.code == 2
        message = f"{path}: looks like the output of numerics bench --out FILE, but record 1: {next(iter(values))}"
        assert message in found.err


def test_a_result_without_a_time_exits_5(numerics: Command, saved: Path) -> None:
    nothing = changed(changed(saved, time_us=None), index=0, time_us=None)
    assert numerics("bench", nothing).code == 5
    write(saved, [])
    assert numerics("bench", saved).code == 5


def test_what_to_measure_is_refused_with_a_saved_result(numerics: Command, saved: Path) -> None:
    found = numerics("bench", saved, "--op", "rms_norm", "--quick", "--vllm-omni", "somewhere")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Error: --op, --quick, --vllm-omni: of no use with a saved RESULT")


# --- Comparison -------------------------------------------------------------------------------------------------------


def test_two_results_are_compared(numerics: Command, saved: Path) -> None:
    later = changed(saved, time_us=88.0)
    found = numerics("bench", "--compare", saved, later)
    assert found.code == 0
    assert "84.50 88.00 1.041" in words(found.out)
    assert "0 of 2 slower by more than 5%" in found.out
    found = numerics("bench", "--compare", saved, later, "--tolerance", "0.04")
    assert found.code == 1
    assert "88.00 1.041 slower" in words(found.out)
    assert numerics("bench", "--compare", later, saved, "--tolerance", "0").code == 0  # it became faster


def test_a_comparison_is_json_and_names_what_one_result_lacks(numerics: Command, saved: Path) -> None:
    later = changed(saved, case="16384x4096", time_us=1.0)
    found = numerics("bench", "--compare", saved, later, "--json")
    assert found.code == 0
    assert [(each["case"], each["ratio"], each["slower"]) for each in found.json] == [
        ("16384x5376", 1.0, False),
        ("16384x5376", None, False),
        ("16384x4096", None, False),
    ]


def test_results_of_other_cases_cannot_be_compared(numerics: Command, saved: Path) -> None:
    write(saved.with_name("later.json"), [RECORDS[0] | {"case": "1x5376"}])
    assert numerics("bench", "--compare", saved, saved.with_name("later.json")).code == 5


def test_another_machine_is_named(numerics: Command, saved: Path) -> None:
    later = changed(changed(saved, gpu="NVIDIA H100"), index=0, gpu="NVIDIA H100")
    found = numerics("bench", "--compare", saved, later)
    assert "gpu: NVIDIA H200, now NVIDIA H100" in found.out


# --- A run ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingClock:
    """A run of two small cases on a CPU."""
    made = CountingClock()
    monkeypatch.setattr(clock, "CudaClock", lambda: made)
    small = [shrunk(case) for case in CASES if case.name == "16384x768"]
    monkeypatch.setattr(cases, "CASES", tuple(small))
    monkeypatch.setattr(peers, "_inductor", lambda _: peers._torch())
    return made


def test_a_run_is_shown_saved_and_can_be_compared(numerics: Command, counting: CountingClock, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    found = numerics("bench", "--out", out, "--rounds", 2)
    assert found.code == 0
    assert found.err == ""
    records = read(out)
    assert [(each["op"], each["case"], each["preset"]) for each in records] == [
        ("rms_norm", "3x768", "fast"),
        ("rms_norm", "3x768", "vllm_cuda"),
        ("fused_add_rms_norm", "3x768", "fast"),
        ("fused_add_rms_norm", "3x768", "vllm_cuda_add"),
    ]
    assert {each["command"] for each in records} == {"numerics bench --out result.json --rounds 2"}
    assert {each["times"]["graph"]["samples"] for each in records} == {4}
    assert {each["seed"] for each in records} == {0}
    assert counting.released == 2
    assert "vllm: vLLM is not installed; --vllm-library FILE names its compiled ops" in words(found.out)
    again = numerics("bench", "--compare", out, "--rounds", 2, "--case", "rms_norm/*", "--json")
    assert [each["preset"] for each in again.json] == ["fast", "vllm_cuda"]
    assert again.code == 1  # a clock that counts on finds everything slower


def test_a_quick_run_asks_for_less(numerics: Command, counting: CountingClock) -> None:
    records = numerics("bench", "--quick", "--case", "rms_norm/*", "--json").json
    assert {each["rounds"] for each in records} == {3}
    assert set(records[0]["peer_us"]) == {"torch"}
    assert counting.released == 1


def test_peers_are_chosen_by_name(numerics: Command, counting: CountingClock) -> None:
    records = numerics("bench", "--peer", "inductor", "--case", "rms_norm/*", "--json").json
    assert set(records[0]["peer_us"]) == {"inductor"}
    assert records[0]["absent"] == {}
    assert counting.released == 1


@pytest.mark.usefixtures("counting")
def test_a_seed_makes_other_inputs(numerics: Command) -> None:
    first, second = (numerics("bench", "--json", "--seed", seed, "--rounds", 1).json for seed in (1, 2))
    assert first[0]["inputs"] != second[0]["inputs"]


def test_a_run_in_which_bytes_differ_exits_1_and_saves_what_it_found(
    numerics: Command, counting: CountingClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    op = ops.rms_norm

    def faulty(*arguments: Any, **given: Any) -> torch.Tensor:
        out = op(*arguments, **given)
        out.view(torch.int16)[0, 0] += 1
        return out

    monkeypatch.setattr(ops, "rms_norm", faulty)
    found = numerics("bench", "--out", tmp_path / "result.json", "--rounds", 1)
    assert found.code == 1
    assert "Differs rms_norm/3x768, vllm_cuda: 1 of 2304 elements" in words(found.out)
    assert len(read(tmp_path / "result.json")) == 4
    assert counting.released == 2


def test_an_interrupted_run_has_saved_the_cases_before(
    numerics: Command, counting: CountingClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted() -> None:
        counting.released += 1
        if counting.released == 2:
            raise RuntimeError("the machine was taken away")

    monkeypatch.setattr(counting, "release", interrupted)
    assert numerics("bench", "--out", tmp_path / "result.json", "--rounds", 1).code == 101
    assert [each["op"] for each in read(tmp_path / "result.json")] == ["rms_norm"] * 2


def test_a_result_that_cannot_be_saved_stops_the_run_before_it_begins(
    numerics: Command, counting: CountingClock, tmp_path: Path
) -> None:
    found = numerics("bench", "--out", tmp_path / "none" / "result.json")
    assert found.code == 2
    assert "cannot be written" in found.err
    assert counting.captured == []


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "numerics.cli", "bench", "--list", "--json", "--op", "indexed_gate"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [each["op"] for each in json.loads(done.stdout)] == ["indexed_gate"]
