"""`numerics identify` on a CPU."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command

SMALL = ("--device", "cpu", "--width", 128, "--rows", 16)


def test_a_preset_is_identified(numerics: Command) -> None:
    found = numerics("identify", "numerics:vllm_cuda", *SMALL)
    assert found.code == 0
    assert found.out.startswith("numerics:vllm_cuda: identified\n")
    assert 'rms_norm_reduction = "vllm_cuda"\n' in found.out
    assert "cannot see" in found.out
    assert "width 128, 16 rows" in found.err


def test_json_has_every_cell(numerics: Command) -> None:
    found = numerics("identify", "numerics:vllm_native", *SMALL, "--rows", 1, "--json")
    assert found.code == 0
    assert (found.json["identified"], found.json["rounding"]) == (True, "two")
    assert "vllm_native" in found.json["presets"]
    assert [(cell["rows"], cell["identified"]) for cell in found.json["cells"]] == [(16, True), (1, True)]
    assert found.json["batch"] == {"128": True}


def test_a_function_of_a_module_with_an_order_of_its_own_exits_1(
    numerics: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_norms.py").write_text("import torch\n\ndef norm(x, weight, eps):\n    return x * float('nan')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = numerics("identify", "my_norms:norm", *SMALL)
    assert found.code == 1
    assert "a stale output" in found.out


@pytest.mark.parametrize("where", ["at its import", "in a call"])
def test_a_callable_that_exits_is_not_identified(
    numerics: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    name = f"exits_{where.replace(' ', '_')}"
    body = "sys.exit(0)" if where == "at its import" else "def norm(x, weight, eps):\n    sys.exit(0)"
    (tmp_path / f"{name}.py").write_text(f"import sys\n{body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = numerics("identify", f"{name}:norm", *SMALL)
    assert found.code == 2
    assert "SystemExit: 0" in found.err


def test_what_a_callable_prints_is_not_in_the_json(
    numerics: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_norm.py").write_text("def norm(x, weight, eps):\n    print('loud')\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = numerics("identify", "loud_norm:norm", *SMALL, "--json")
    assert "loud" in found.err
    assert found.json["callable"] == "loud_norm:norm"


@pytest.mark.parametrize("options", [("--seed", 2**63), ("--device", "meta"), ("--width", 1)])
def test_what_cannot_be_asked_is_bad_usage(numerics: Command, options: tuple[object, ...]) -> None:
    assert numerics("identify", "aten", *options).code == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:norm", "module 'no_such_module' cannot be imported"),
        ("torch:no_such_function", "module 'torch' has no function 'no_such_function'"),
        ("atn", "nearest: aten"),
        ("numerics:vlm_cuda", "nearest: vllm_cuda"),
        ("math:sqrt", "does not take (x, weight, eps)"),
        ("vllm", "vLLM is not installed"),
    ],
)
def test_bad_usage_says_what_is_wrong(numerics: Command, name: str, said: str) -> None:
    found = numerics("identify", name, *SMALL)
    assert found.code == 2
    assert said in found.err


def test_a_device_or_dtype_that_is_not_there_is_bad_usage(numerics: Command) -> None:
    assert numerics("identify", "aten", "--device", "nowhere").code == 2
    assert "nearest: float16" in numerics("identify", "aten", "--dtype", "float61").err
