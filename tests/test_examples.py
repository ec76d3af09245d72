"""The examples run as they stand, at the size at which they are written, and end as they say."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics.cli.check import checked
from numerics.ops.telemetry import reset_dispatch_counts

EXAMPLES = Path(__file__).parent.parent / "examples"
# Of diffusers and transformers about each other; what an example of ours warns of is an error.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those for a CPU"),
]


@pytest.fixture(autouse=True)
def _counts_from_zero() -> None:
    reset_dispatch_counts()


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str]:
    """The exit code, and what was printed."""
    script, *others = map(str, arguments)
    monkeypatch.setattr(sys, "argv", [script, *others])
    code: Any = None
    try:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().out


def test_every_example_is_tested_and_fits_on_a_page() -> None:
    found = {str(path.relative_to(EXAMPLES)): path.read_text().count("\n") for path in EXAMPLES.rglob("*.py")}
    assert set(found) == {"text_to_image.py", "accuracy_job.py", "per_model_override/in_force.py"}
    assert max(found.values()) < 100


def test_the_readme_names_every_example() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    assert all(path.name in readme for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".toml"))


def test_text_to_image_saves_both_images_and_counts_every_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, said = run(monkeypatch, capsys, "text_to_image.py", "--steps", 2, "--pixels", 32, "--out", tmp_path)
    assert code == 0
    assert "transformer: diffusers:flux2 by diffusers_aten (package model: presets.toml" in said
    assert "4 replaced: " in said
    for op in ("fused_joint_qkv_norm_rope", "fused_qk_norm_rope"):  # two blocks each, in two steps
        assert f"{op}: 4 calls by the reference: " in said
    assert f"of {3 * 32 * 32} values of the image differ" in said
    assert {path.name for path in tmp_path.iterdir()} == {"stock.png", "fused.png"}


@pytest.mark.parametrize(
    ("arguments", "code", "red"),
    [
        (("--candidate", "diffusers_aten", "--differing", 0), 0, 0),
        (("--candidate", "diffusers_native", "--differing", 0, "--psnr", 200), 1, 2),
    ],
)
def test_the_accuracy_job_is_green_for_equal_bytes_and_red_beyond_a_limit(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    code: int,
    red: int,
) -> None:
    found, said = run(monkeypatch, capsys, "accuracy_job.py", *arguments)
    assert found == code
    assert sum(line.startswith("red ") for line in said.splitlines()) == red
    assert ("numerics bisect accuracy_job:denoised --from diffusers_aten --to diffusers_native" in said) == bool(red)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--candidate", "diffusers_atem"), "nearest: diffusers_aten"), (("--reference", ""), "no such preset")],
)
def test_the_accuracy_job_is_not_red_for_a_misspelt_preset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["accuracy_job.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "accuracy_job.py"), run_name="__main__")
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_text_to_image_says_at_once_that_a_folder_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileExistsError):
        run(monkeypatch, capsys, "text_to_image.py", "--steps", 1, "--pixels", 32, "--out", file)
    assert capsys.readouterr().out == ""


def test_the_presets_file_of_the_override_is_legal() -> None:
    path = EXAMPLES / "per_model_override" / "my.toml"
    assert checked([path], None, None)["files"] == {str(path): []}
    assert tomllib.loads(path.read_text())["models"]


def test_the_override_holds_for_its_model_and_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(monkeypatch, capsys, "per_model_override/in_force.py")
    assert code is None
    by_name, by_class, other, omni, mine, inside = _first_lines(said)
    assert (
        by_name
        == by_class
        == 'diffusers:flux2: fast, from 1024 tokens, by user model (my.toml: models."diffusers:flux2")'
    )
    assert other.startswith("diffusers:flux: diffusers_aten, from 0 tokens, by package model")
    assert omni.startswith("flux2: vllm_cuda_128, from 0 tokens, by package model")
    assert mine == "my_transformer: vllm_cuda, from 0 tokens, by user model (my.toml: models.my_transformer)"
    assert inside.startswith("diffusers:flux2: vllm_cuda, from 1024 tokens, by context (numerics.use at in_force.py:")


def _first_lines(said: str) -> list[str]:
    """What is in force, without what it beats."""
    return [line.strip() for line in said.splitlines() if line.startswith("    ") and not line.startswith("     ")]
