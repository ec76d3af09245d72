"""`numerics verify`: presets against their providers' bytes, and what those bytes can see."""

import importlib.util
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from numerics.cli.render import with_progress
from numerics.golden.arrays import load as arrays
from numerics.golden.captured import CASES
from numerics.golden.replay import run
from numerics.presets.file import load
from tests.cli.conftest import ENTRY, Command

Write = Callable[..., Path]
CATALOG = load()
OF_VLLM = 'reference = { provider = "vllm_c", versions = ">=0.20,<0.34" }\n'
RIGHT = f'[presets.right]\nsummary = "vLLM again"\nextends = "vllm_cuda_128"\n{OF_VLLM}'
WRONG = f'[presets.wrong]\nsummary = "not vLLM"\nextends = "vllm_cuda_128"\nrounding_points = []\n{OF_VLLM}'


def words(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def everything() -> dict[str, dict[str, object]]:
    """What verify says about every preset."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", ENTRY, "verify", "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {each["preset"]: each for each in json.loads(done.stdout)}


Everything = dict[str, dict[str, object]]


def test_every_preset_with_a_reference_is_there(everything: Everything) -> None:
    assert set(everything) == {name for name, preset in CATALOG.presets.items() if preset.reference}


def test_what_is_verified_has_no_differing_element(everything: Everything) -> None:
    verified = [each for each in everything.values() if each["status"] == "verified"]
    assert {"vllm_cuda_128", "vllm_cuda", "diffusers_aten", "omni_native"} <= {str(each["preset"]) for each in verified}
    for each in verified:
        assert each["differing"] == 0
        assert int(str(each["elements"])) >= int(str(each["rows"])) > 0


def test_what_was_never_captured_is_declared_and_not_verified(everything: Everything) -> None:
    assert everything["apex"]["status"] == "declared, not verified"
    assert everything["apex"]["elements"] == 0


def test_the_file_says_verified_of_what_is_verified(everything: Everything) -> None:
    for name, each in everything.items():
        reference = CATALOG.presets[name].reference
        assert reference is not None
        assert bool(reference.verified_on) == (each["status"] == "verified"), name


def test_knobs_that_the_bytes_can_see_are_named(everything: Everything) -> None:
    found = everything["vllm_cuda_128"]
    sees, blind = found["sees"], found["cannot_see"]
    assert isinstance(sees, dict)
    assert isinstance(blind, dict)
    assert {"without qk_norm", "with normalized", "with rope_product"} == set(sees["rounding_points"])
    assert "aten_rms_norm" in sees["rms_norm_reduction"]
    assert "rms_norm_reduction" not in blind  # an order that is the same tree is no change
    assert blind["rope_rotation"] == ["complex"]  # a table in bfloat16: both products are exact


def test_a_page_says_what_was_compared_and_what_the_bytes_see(numerics: Command) -> None:
    found = numerics("verify", "--preset", "vllm_cuda_128", COLUMNS="80")
    assert (found.code, found.err) == (0, "")
    shown = words(found.out)
    assert "preset reference cases rows elements differ vllm_cuda_128 vllm_c >=0.20,<0.34" in shown
    assert "does not see" in shown
    assert "enable_fp_fusion" in shown
    assert "1 verified, 0 differ, 0 not verified; 0 of " in shown
    assert max(map(len, found.out.splitlines())) <= 80


# --- Presets of one's own ---------------------------------------------------------------------------------------------


def test_a_preset_of_ones_own_is_verified(numerics: Command, write: Write) -> None:
    found = numerics("verify", "--preset", "right", "--config", write(RIGHT), "--json")
    assert (found.code, found.json[0]["status"]) == (0, "verified")


def test_a_preset_that_differs_exits_1_with_the_first_element_and_both_values(numerics: Command, write: Write) -> None:
    path = write(WRONG)
    found = numerics("verify", "--preset", "wrong", "--op", "fused_qk_norm_rope", "--config", path, "--json")
    assert found.code == 1
    (wrong,) = found.json
    assert wrong["status"] == "differs"
    assert wrong["differing"] > 0
    assert "sees" not in wrong
    first = wrong["differences"][0]
    (case,) = [case for case in CASES if case.name == first["case"]]
    catalog = load(path)
    computed = run(case, catalog.presets["wrong"].numerics(catalog.reductions))[first["output"]]
    golden = arrays()[case.outputs[first["output"]]]
    unequal = (computed.view(torch.int16) != golden.view(torch.int16)) & ~(computed.isnan() & golden.isnan())
    assert first["index"] == unequal.nonzero()[0].tolist()
    index = tuple(first["index"])
    assert (first["provider"], first["computed"]) == (golden[index].item(), computed[index].item())
    shown = numerics("verify", "--preset", "wrong", "--op", "fused_qk_norm_rope", "--config", path)
    assert shown.code == 1
    assert "wrong differs from vllm_c >=0.20,<0.34" in shown.out
    assert repr(first["provider"]) in shown.out


def test_one_difference_among_verified_presets_exits_1(numerics: Command, write: Write) -> None:
    found = numerics("verify", "--op", "fused_qk_norm_rope", "--config", write(WRONG + RIGHT), "--json")
    statuses = {each["preset"]: each["status"] for each in found.json}
    assert found.code == 1
    assert (statuses["wrong"], statuses["right"], statuses["vllm_cuda_128"]) == ("differs", "verified", "verified")


def test_a_reference_of_another_version_is_not_verified(numerics: Command, write: Write) -> None:
    path = write(RIGHT.replace(">=0.20,<0.34", ">=0.20,<0.29"))
    assert numerics("verify", "--preset", "right", "--config", path).code == 5


# --- Nothing to verify ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--preset", "apex", "--op", "indexed_gate"), "declared, not verified"),
        (("--preset", "fast"), "no reference claimed"),
        (("--preset", "vllm_cuda_add", "--op", "fused_modulation"), "declared, not verified"),
    ],
)
def test_nothing_verified_exits_5(numerics: Command, arguments: tuple[str, ...], status: str) -> None:
    assert [each["status"] for each in numerics("verify", *arguments, "--json").json] == [status]
    found = numerics("verify", *arguments)
    assert found.code == 5
    assert status in found.out
    assert "0 verified, 0 differ, 1 not verified" in found.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--preset", "vlm_cuda"), "nearest: vllm_cuda"), (("--op", "rms_nrm"), "nearest: rms_norm")],
)
def test_an_unknown_name_exits_2(numerics: Command, arguments: tuple[str, ...], message: str) -> None:
    found = numerics("verify", *arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_what_cannot_be_imported_is_named(numerics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("numerics.measure.verify")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numerics.golden.replay", None)
    found = numerics("verify")
    assert found.code == 2
    assert found.err == "Error: verify computes with numerics.golden.replay, which is not installed\n"


def test_without_torch_the_message_names_it() -> None:
    blocked = f"import sys; sys.modules['torch'] = None; {ENTRY}"
    done = subprocess.run([sys.executable, "-c", blocked, "verify"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: verify computes with torch, which is not installed\n"


# --- Progress ---------------------------------------------------------------------------------------------------------


def test_a_bar_counts_the_presets_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert list(with_progress(["a", "b"], str.upper)) == ["a", "b"]
    out, err = capsys.readouterr()
    assert out == ""
    assert "/2" in err


def test_progress_is_drawn_on_a_terminals_stderr_alone() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY, "verify", "--preset", "vllm_cuda_128", "--reference", "golden", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.read().startswith(b"[")
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(ours)
    assert b"vllm_cuda_128" in shown
    assert process.returncode == 0


def test_every_preset_that_is_named_is_verified(numerics: Command) -> None:
    found = numerics(
        "verify", "--preset", "vllm_cuda_128", "--preset", "diffusers_complex", "--op", "rms_norm", "--json"
    )
    assert [each["preset"] for each in found.json] == ["vllm_cuda_128", "diffusers_complex"]


# --- References, devices, files ---------------------------------------------------------------------------------------


def test_live_steps_stand_beside_golden_bytes(numerics: Command) -> None:
    found = numerics("verify", "--preset", "diffusers_aten", "--op", "fused_qk_norm_rope", "--json")
    assert found.code == 0
    shows = {(each["reference"], each["shows"]) for each in found.json[0]["records"] if each["elements"]}
    installed = {("diffusers", "steps")} if importlib.util.find_spec("diffusers") else set()
    assert shows == {("golden", "claim"), ("aten", "steps")} | installed
    assert found.json[0]["device"] == "cpu"


def test_what_is_no_proof_of_a_claim_verifies_nothing(numerics: Command) -> None:
    arguments = ("verify", "--preset", "sglang_qk_norm", "--op", "rms_norm", "--device", "cpu")
    found = numerics(*arguments, "--json")
    (declared,) = found.json
    assert (found.code, declared["status"], declared["elements"]) == (5, "declared, not verified", 0)
    assert sum(each["elements"] for each in declared["records"] if each["shows"] == "declaration")
    shown = words(numerics(*arguments).out)
    assert "it proves no claim" in shown
    assert "not on this device" in shown


def test_one_reference_is_all_that_is_compared(numerics: Command) -> None:
    found = numerics("verify", "--preset", "vllm_cuda_128", "--reference", "golden", "--json")
    assert {each["reference"] for each in found.json[0]["records"]} == {"golden"}


def test_what_is_saved_is_what_is_printed(numerics: Command, tmp_path: Path) -> None:
    import json

    path = tmp_path / "verify.json"
    printed = numerics("verify", "--preset", "omni_native", "--op", "indexed_gate", "--json", "--out", path)
    assert json.loads(path.read_text(encoding="utf-8")) == printed.json
    assert printed.json[0]["machine"]["torch"] == torch.__version__
    assert datetime.fromisoformat(printed.json[0]["started"]) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reference", "goldn"), "nearest: golden"),
        (("--device", "gpu"), "legal: cuda, cuda:N, cpu"),
        (("--vllm-version", "0.29.0"), "of no use without --vllm-library"),
        (("--vllm-library", "nope.so"), "--vllm-library nope.so: no such file"),
        (("--vllm-rotary", "nope.py"), "--vllm-rotary nope.py: no such file"),
        (("--elements", "-1"), "--elements"),
    ],
)
def test_an_option_that_means_nothing_exits_2(numerics: Command, arguments: tuple[str, ...], message: str) -> None:
    found = numerics("verify", *arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_several_processes_return_what_one_does(numerics: Command) -> None:
    import json

    arguments = ["verify", "--preset", "omni_native", "--op", "indexed_gate", "--json", "--jobs"]
    done = subprocess.run([sys.executable, "-c", ENTRY, *arguments, "2"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (several,) = json.loads(done.stdout)
    (one,) = numerics(*arguments, "1").json
    assert several["records"] == one["records"]
