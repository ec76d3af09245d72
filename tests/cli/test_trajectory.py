"""`numerics trajectory` on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.measure import trajectory
from tests.cli.conftest import Command

SMALL = ("trajectory", "--device", "cpu", "--steps", 2, "--layers", 2, "--tokens", 36, "--width", 256)


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_page_has_steps_verdicts_and_calls(numerics: Command, tmp_path: Path) -> None:
    found = numerics(*SMALL, "--out", tmp_path / "result.json")
    assert (found.code, found.err) == (0, "")
    rows = {tuple(line.split())[:2]: line.split() for line in found.out.splitlines() if line.startswith("  step")}
    assert rows["step", "2"][2:4] == ["inf", "inf"]
    assert float(rows["step", "2"][4]) < float(rows["step", "1"][4])
    assert "vllm_cuda claims these bytes: equal in each of 2 steps" in found.out
    assert "The chain run twice: 0 of 2304 elements differ in each of 2 steps" in found.out
    assert "4 indexed_gate_rms_norm_scale_shift; not fused in vllm_cuda, bf16_affine" in found.out
    saved = json.loads((tmp_path / "result.json").read_text())
    assert [each["kind"] for each in saved] == ["header"] + ["step"] * 8


def test_json_is_what_is_saved(numerics: Command, tmp_path: Path) -> None:
    found = numerics(*SMALL, "--preset", "fast", "--preset", "fast", "--out", tmp_path / "result.json", "--json")
    assert found.json == json.loads((tmp_path / "result.json").read_text())
    assert [each["preset"] for each in found.json[1:]] == ["control", "control", "fast", "fast"]


def test_op_widens_what_differs(numerics: Command) -> None:
    found = numerics(*SMALL, "--preset", "vllm_cuda", "--op", "rms_norm", "--json")
    assert found.code == 0
    assert found.json[0]["families"] == ["fused_modulation", "fused_rms_norm"]
    assert found.json[0]["calls"]["vllm_cuda"]["rms_norm"] == 2


@pytest.mark.parametrize(("arm", "said"), [("vllm_cuda", "Differs: vllm_cuda claims"), ("control", "Not reproducible")])
def test_a_difference_that_must_not_be_exits_1(
    numerics: Command, monkeypatch: pytest.MonkeyPatch, arm: str, said: str
) -> None:
    compared = trajectory.Trajectory._record

    def off_by_one(self: trajectory.Trajectory, name: str, *rest: Any) -> trajectory.Record:
        found = compared(self, name, *rest)
        return found | {"elements_differing": int(name == arm and found["step"] == 2)}

    monkeypatch.setattr(trajectory.Trajectory, "_record", off_by_one)
    found = numerics(*SMALL, "--preset", "vllm_cuda")
    assert found.code == 1
    assert said in found.out
    assert "from step 2 on" in found.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--preset", "vlm_cuda"), "preset 'vlm_cuda': no such preset; nearest: vllm_cuda"),
        (("--op", "rms_nrom"), "rms_norm"),
        (("--width", 95), "width: got 95; legal: at least 96"),
        (("--device", "gpu"), "--device gpu: no such device; legal: cuda, cuda:N, cpu"),
        (("--device", "cuda"), "--device cuda: no CUDA device; on a CPU: --device cpu --steps 2"),
        (("--plot", "lines.gif"), "--plot lines.gif"),
        (("--out", "there/is/none.json"), "there/is/none.json: cannot be written"),
        (("--vllm-library", "none.so"), "--vllm-library none.so: no such file"),
    ],
)
@pytest.mark.usefixtures("_no_gpu")
def test_bad_usage_exits_2_before_the_work(
    numerics: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], said: str
) -> None:
    monkeypatch.setattr(trajectory, "Dit", None)
    kept = {name: value for name, value in zip(SMALL[1::2], SMALL[2::2], strict=True) if name not in arguments}
    found = numerics("trajectory", *(word for option in kept.items() for word in option), *arguments)
    assert found.code == 2
    assert said in found.err
