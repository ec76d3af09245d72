"""What a preset refuses: conditions of the process, and conditions of a call."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from numerics import requirements
from numerics.errors import RequirementError
from numerics.resolution import REMEMBERED_CALLS, Resolution
from numerics.resolve import resolve

if TYPE_CHECKING:
    from tests.numerics.conftest import Sources


def test_a_variable_that_must_not_be_set_is_read_on_every_call(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sources.applied():
        found = resolve("fused_qk_norm_rope", preset="exact")
        found.bind("cuda:9.0")
        for allowed in ("0", "", " 0 "):
            monkeypatch.setenv("VLLM_BATCH_INVARIANT", allowed)
            assert resolve("fused_qk_norm_rope", preset="exact") == found
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
        with pytest.raises(RequirementError) as raised:
            resolve("fused_qk_norm_rope", preset="exact")
        assert str(raised.value) == (
            "preset 'exact' (call, argument preset): requires the variable VLLM_BATCH_INVARIANT unset or '0', found '1'"
        )
        with pytest.raises(RequirementError, match="VLLM_BATCH_INVARIANT"):
            found.bind("cuda:9.0")
        assert resolve("fused_qk_norm_rope", preset="other").preset == "other", "it is no condition of this preset"


@pytest.mark.parametrize("changed", [{}, {"enable_fp_fusion": True}, {"rms_norm_reduction": "beta"}])
def test_a_backend_that_does_not_hold_is_refused_where_it_is_known(sources: Sources, changed: dict[str, Any]) -> None:
    for capability in (None, "cuda:9.0", "cuda:12.0", "cuda"):
        sources.resolve(preset="exact", capability=capability, **changed)
    with pytest.raises(RequirementError, match="requires backend 'cuda', found capability 'hip:gfx942'"):
        sources.resolve(preset="exact", capability="hip:gfx942", **changed)
    with pytest.raises(RequirementError, match="requires backend 'cuda', found capability 'hip:gfx942'"):
        sources.resolve(preset="exact", **changed).bind("hip:gfx942")


REQUIRING = """
[presets.fussy]
summary = "conditions"
extends = "other"
requires = { %s }
"""


def _fussy(sources: Sources, condition: str, **arguments: Any) -> Resolution:
    sources.models = "[models.known]\n" + REQUIRING % condition
    return sources.resolve(preset="fussy", **arguments)


def test_a_capability_that_does_not_hold_is_refused_where_it_is_known(sources: Sources) -> None:
    for capability in (None, "cuda", "cuda:9", "cuda:9.0"):
        _fussy(sources, "capability = 'cuda:9'", capability=capability)
    with pytest.raises(RequirementError, match=r"requires capability 'cuda:9', found 'cuda:10\.0'"):
        _fussy(sources, "capability = 'cuda:9'", capability="cuda:10.0")
    with pytest.raises(RequirementError, match=r"requires capability 'cuda:9', found 'cuda:10\.0'"):
        _fussy(sources, "capability = 'cuda:9'").bind("cuda:10.0")


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_version_out_of_range_is_refused_where_the_package_is_installed(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    versions: dict[str, str | None] = {"torch": None, "triton": None}
    monkeypatch.setattr(requirements, "installed", versions.__getitem__)
    condition = f"{package} = '>=2.9,<2.15'"
    _fussy(sources, condition)
    versions[package] = "2.14.1+cu130"
    _fussy(sources, condition)
    versions[package] = "2.15.0"
    with pytest.raises(RequirementError, match=rf"fussy.*requires {package} >=2.9,<2.15, found 2.15.0"):
        _fussy(sources, condition)


def test_versions_are_those_of_the_installed_distributions() -> None:
    code = (
        "import sys; from numerics.requirements import installed; found = installed('torch'), installed('triton');"
        "assert 'torch' not in sys.modules; import torch; print(found[0] == torch.__version__);"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "True"


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requirements.DISTRIBUTIONS, "torch", ("no-such-distribution-of-torch",))
    assert requirements.installed.__wrapped__("torch") is None


def test_a_call_that_fulfils_the_conditions_passes(sources: Sources) -> None:
    found = sources.resolve(preset="exact")
    for rows in (0, 1, 10**9):
        found.check_call(width=128, rows=rows, dtype="float16", rope_table_dtype="float16")
    found.check_call(width=None, rows=None, dtype="bfloat16")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"dtype": "float32"}, "requires dtype bfloat16 or float16, got float32"),
        (
            {"rope_table_dtype": "float32"},
            "requires rope_table_dtype 'activation' (bfloat16 here), got float32",
        ),
        ({"width": 96}, "rms_norm_reduction 'alpha': it is declared for rows of 128 elements, not 96"),
        ({"width": 96, "rows": 0}, "rms_norm_reduction 'alpha': it is declared for rows of 128 elements, not 96"),
    ],
)
def test_a_condition_of_the_call_that_does_not_hold_is_refused(
    sources: Sources, call: dict[str, Any], words: str
) -> None:
    found = sources.resolve(preset="exact")
    fine: dict[str, Any] = {"width": 128, "rows": 4, "dtype": "bfloat16", "rope_table_dtype": "bfloat16"}
    found.check_call(**fine)
    for _ in range(2):  # what passed is remembered, what did not is refused again
        found.check_call(**fine)
        with pytest.raises(RequirementError) as raised:
            found.check_call(**(fine | call))
        assert str(raised.value) == f"preset 'exact' (call, argument preset): {words}"


def test_a_float32_table_is_required_by_name(sources: Sources) -> None:
    found = _fussy(sources, "rope_table_dtype = 'float32'")
    found.check_call(width=128, rows=1, dtype="bfloat16", rope_table_dtype="float32")
    found.check_call(width=128, rows=1, dtype="bfloat16")
    with pytest.raises(RequirementError, match=r"requires rope_table_dtype 'float32' \(float32 here\), got bfloat16"):
        found.check_call(width=128, rows=1, dtype="bfloat16", rope_table_dtype="bfloat16")


@pytest.mark.parametrize(("condition", "legal"), [("[64, 128]", "from 64 to 128"), ("128", "128")])
def test_the_width_is_a_condition_until_the_reduction_is_another(sources: Sources, condition: str, legal: str) -> None:
    found = _fussy(sources, f"width = {condition}")
    found.check_call(width=128, rows=1, dtype="float32")
    found.check_call(width=None, rows=None, dtype="float32")
    with pytest.raises(RequirementError, match=f"preset 'fussy' .*: requires width {legal}, got 256$"):
        found.check_call(width=256, rows=1, dtype="float32")
    _fussy(sources, f"width = {condition}", rms_norm_reduction="triton").check_call(width=256, rows=1, dtype="float32")
    with pytest.raises(RequirementError, match="requires width"):
        _fussy(sources, f"width = {condition}", rope_rotation="separate").check_call(width=256, rows=1, dtype="float32")


def test_rows_are_a_condition_and_no_rows_count_as_one(sources: Sources) -> None:
    found = _fussy(sources, "rows = [1, 255]")
    found.check_call(width=128, rows=0, dtype="bfloat16")
    found.check_call(width=128, rows=255, dtype="bfloat16")
    with pytest.raises(RequirementError, match="requires rows from 1 to 255, got 256"):
        found.check_call(width=128, rows=256, dtype="bfloat16")


def test_another_reduction_brings_its_own_conditions_on_the_shape(sources: Sources) -> None:
    """The other conditions stay, as they do with `extends`."""
    found = sources.resolve(preset="exact", rms_norm_reduction="beta")
    found.check_call(width=256, rows=1, dtype="bfloat16")
    with pytest.raises(RequirementError, match="requires dtype"):
        found.check_call(width=256, rows=1, dtype="float32")
    found = sources.resolve(preset="other", rms_norm_reduction="alpha")
    with pytest.raises(
        RequirementError, match=r"'alpha' \(call, argument rms_norm_reduction\): it is declared for rows"
    ):
        found.check_call(width=256, rows=1, dtype="bfloat16")


def test_the_open_reduction_takes_any_shape(sources: Sources) -> None:
    sources.resolve(preset="fast").check_call(width=7, rows=3, dtype="float32", rope_table_dtype="bfloat16")


def test_remembered_calls_do_not_pile_up(sources: Sources) -> None:
    found = sources.resolve(preset="exact")
    for rows in range(3 * REMEMBERED_CALLS):
        found.check_call(width=128, rows=rows, dtype="bfloat16")
    assert len(found._passed) <= REMEMBERED_CALLS
    with pytest.raises(RequirementError):
        found.check_call(width=129, rows=1, dtype="bfloat16")
