"""`numerics precision` on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.measure import precision
from numerics.measure.precision import Precision, Record, Turn
from tests.cli.conftest import Command

SMALL = ("precision", "--device", "cpu", "--elements", 20_000)


def test_a_page_answers_whether_a_preset_is_closer_than_fast(numerics: Command) -> None:
    found = numerics(*SMALL, "--op", "rms_norm", "--preset", "fast", "--preset", "vllm_native")
    assert (found.code, found.err) == (0, "")
    rows = {line.split()[0]: line.split() for line in found.out.split("closer,")[0].splitlines() if line[:1] == " "}
    assert rows["norm"][1:] == ["RMSE", "/", "fast", "max", "bias", "closer", "further"]
    assert rows["fast"][2] == "1.00000"
    assert float(rows["vllm_native"][2]) > 1.2
    assert rows["vllm_native"][5] == "0"
    assert int(rows["vllm_native"][6]) > 1000
    assert "Ran its eager reference; its kernel adds and contracts otherwise\n  fast (rms_norm)" in found.out
    assert "21504 values in 1 stages, cpu, torch" in found.out


def test_a_saved_result_is_shown_again_and_printed_as_json(numerics: Command, tmp_path: Path) -> None:
    path = tmp_path / "precision.json"
    first = numerics(*SMALL, "--op", "fused_rms_norm", "--preset", "fast", "--preset", "vllm_cuda", "--out", path)
    saved = json.loads(path.read_text())
    assert numerics("precision", path).out == first.out
    assert numerics("precision", path, "--json").json == saved
    options = "--elements 20000 --op fused_rms_norm --preset fast --preset vllm_cuda --out precision.json"
    assert {each["command"] for each in saved} == {f"numerics precision --device cpu {options}"}
    assert {each["op"] for each in saved} == {"rms_norm", "fused_add_rms_norm"}


def test_a_value_of_another_type_is_refused_and_one_that_is_missing_is_a_dash(
    numerics: Command, tmp_path: Path
) -> None:
    path = tmp_path / "precision.json"
    numerics(*SMALL, "--op", "rms_norm", "--preset", "fast", "--out", path)
    records = json.loads(path.read_text())
    path.write_text(json.dumps([{**each, "refused": {}} for each in records]))
    found = numerics("precision", path)
    assert found.code == 2
    assert f"{path}: looks like the output of numerics precision --out FILE, but record 0: refused: " in found.err
    for each in records:
        del each["max_abs"], each["against"], each["elements"]
    path.write_text(json.dumps(records))
    assert numerics("precision", path).code == 0


def test_an_op_is_saved_as_soon_as_it_is_measured(
    numerics: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "precision.json"
    take = Precision.take

    def breaks_later(self: Precision, turn: Turn) -> list[Record]:
        if turn[0].op == "fused_add_rms_norm":
            raise KeyboardInterrupt
        return take(self, turn)

    monkeypatch.setattr(precision.Precision, "take", breaks_later)
    numerics(*SMALL, "--op", "fused_rms_norm", "--preset", "fast", "--out", path)
    assert {each["op"] for each in json.loads(path.read_text())} == {"rms_norm"}


def test_where_every_preset_refuses_nothing_was_verified(numerics: Command) -> None:
    found = numerics(*SMALL, "--op", "rms_norm", "--preset", "vllm_cuda_128")
    assert found.code == 5
    assert "rows of 128 elements, not 5376" in " ".join(found.out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--preset", "vlm_cuda"), "preset 'vlm_cuda': no such preset; nearest: vllm_cuda"),
        (("--op", "rms_nrom"), "op 'rms_nrom': no such op or family; nearest: rms_norm"),
        (("--device", "gpu"), "--device gpu: no such device; legal: cuda, cuda:N, cpu"),
        (("--device", "cuda"), "--device cuda: no CUDA device"),
        (("--out", "there/is/none.json"), "there/is/none.json: cannot be written"),
    ],
)
def test_bad_usage_exits_2_before_the_work(
    numerics: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "Precision", None)
    found = numerics("precision", *arguments)
    assert found.code == 2
    assert said in found.err


def test_a_saved_result_is_not_measured_again(numerics: Command, tmp_path: Path) -> None:
    path = tmp_path / "precision.json"
    path.write_text("[]")
    found = numerics("precision", path, "--op", "rms_norm", "--elements", 5)
    assert (found.code, found.out) == (2, "")
    assert "--op, --elements: of no use with a saved RESULT" in found.err
    assert numerics("precision", path).code == 5
    path.write_text('[{"op": "rms_norm"}]')
    assert "record 0: not from numerics precision: no 'case'" in numerics("precision", path).err
