"""Settings of a piece of code and of the process: who sees them, and when they end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import numerics
from numerics import context
from numerics.errors import ConfigurationError
from numerics.presets.vocabulary import FAMILIES
from numerics.resolve import resolve


def _preset() -> str:
    return resolve("fused_modulation").preset


# --- use --------------------------------------------------------------------------------------------------------------


def test_use_holds_inside_and_ends_with_the_block() -> None:
    with numerics.use("bf16_affine"):
        assert _preset() == "bf16_affine"
        with numerics.use("vllm_cuda"):
            assert _preset() == "vllm_cuda"
        assert _preset() == "bf16_affine"
    assert _preset() == "fast"


def test_use_ends_when_the_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), numerics.use("bf16_affine"):
        raise ZeroDivisionError
    assert _preset() == "fast"


def test_use_reaches_all_families_or_the_one_of_an_op() -> None:
    with numerics.use("bf16_affine"):
        assert {resolve(family).preset for family in FAMILIES} == {"bf16_affine"}
    with numerics.use("bf16_affine", op="indexed_gate"):
        found = {family: resolve(family).preset for family in FAMILIES}
    assert found == {"fused_modulation": "bf16_affine", "fused_qk_norm_rope": "fast", "fused_rms_norm": "fast"}


def test_use_of_knobs_alone_keeps_the_preset_and_false_is_a_value() -> None:
    with numerics.use(enable_fp_fusion=False, rounding_points=[], min_tokens=0):
        found = resolve("fused_modulation")
    assert found.label == "fast (modified: enable_fp_fusion, rounding_points)"
    assert not found.numerics.enable_fp_fusion
    assert found.sources["min_tokens"].source == "context"


def test_use_says_where_it_stands() -> None:
    with numerics.use("bf16_affine"):
        location = resolve("fused_modulation").sources["preset"].location
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.startswith("def test_use_says_where")
    )
    assert location == f"numerics.use at test_context.py:{line + 1}"


def test_use_decorates_a_function() -> None:
    @numerics.use("bf16_affine")
    def decorated() -> tuple[str, str]:
        return _preset(), resolve("fused_modulation").sources["preset"].location

    for _ in range(2):
        preset, location = decorated()
        assert preset == "bf16_affine"
        assert location.startswith("numerics.use at test_context.py:")
    assert _preset() == "fast"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "nothing is given; name a preset, a knob or min_tokens"),
        ({"op": "fused_modulation"}, "nothing is given"),
        ({"enable_fp_fusion": None}, "nothing is given"),
        ({"preset": "vlm_cuda"}, r"preset 'vlm_cuda' \(context, numerics.use at .*no such preset; nearest: vllm_cuda"),
        ({"preset": "fast", "op": "fused_modulatoin"}, "op 'fused_modulatoin': no such op; nearest: fused_modulation"),
        ({"rms_norm_reduction": "vllm"}, "no such reduction"),
        ({"roundingpoints": []}, "knob 'roundingpoints' .*no such knob; nearest: rounding_points"),
    ],
)
def test_use_refuses_on_entering(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words), numerics.use(**arguments):
        pytest.fail("entered")
    assert _preset() == "fast"


# --- Who sees it ------------------------------------------------------------------------------------------------------


def test_threads_do_not_see_each_others_use() -> None:
    seen: dict[str, list[str]] = {}
    barrier = threading.Barrier(3, timeout=30)

    def work(preset: str | None) -> None:
        barrier.wait()
        if preset is None:
            barrier.wait()
            seen["none"] = [_preset()]
            barrier.wait()
            return
        with numerics.use(preset):
            barrier.wait()  # all are inside theirs
            seen[preset] = [_preset()]
            barrier.wait()
        seen[preset].append(_preset())

    with numerics.use(min_tokens=3):
        threads = [threading.Thread(target=work, args=(each,)) for each in ("bf16_affine", "vllm_cuda", None)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert seen == {"bf16_affine": ["bf16_affine", "fast"], "vllm_cuda": ["vllm_cuda", "fast"], "none": ["fast"]}


def test_asyncio_tasks_see_the_use_they_start_in_and_not_each_others() -> None:
    async def work(preset: str, inside: asyncio.Event, others: asyncio.Event) -> list[str]:
        seen = [_preset()]
        with numerics.use(preset):
            inside.set()
            await others.wait()
            seen.append(_preset())
        return [*seen, _preset()]

    async def both() -> list[list[str]]:
        first, second = asyncio.Event(), asyncio.Event()
        with numerics.use("bf16_affine"):
            tasks = [
                asyncio.create_task(work("vllm_cuda", first, second)),
                asyncio.create_task(work("omni_native", second, first)),
            ]
        assert _preset() == "fast"
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(both()) == [
        ["bf16_affine", "vllm_cuda", "bf16_affine"],
        ["bf16_affine", "omni_native", "bf16_affine"],
    ]


# --- configure --------------------------------------------------------------------------------------------------------


def _file(folder: Path, name: str, preset: str) -> Path:
    path = folder / name
    path.write_text(f"[ops.fused_modulation]\npreset = '{preset}'\n")
    return path


def test_configure_beats_the_variable_until_it_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERICS_CONFIG", str(_file(tmp_path, "by_variable.toml", "bf16_affine")))
    assert _preset() == "bf16_affine"
    assert context.configuration().set_by == "NUMERICS_CONFIG"
    numerics.configure(_file(tmp_path, "by_code.toml", "vllm_cuda"))
    assert _preset() == "vllm_cuda"
    assert resolve("fused_modulation").sources["preset"].location == "by_code.toml: ops.fused_modulation"
    assert context.configuration().set_by == "configure"
    numerics.configure(None)
    assert _preset() == "bf16_affine"
    monkeypatch.delenv("NUMERICS_CONFIG")
    assert _preset() == "fast"
    assert context.configuration().set_by is None


def test_configure_is_seen_by_every_thread(tmp_path: Path) -> None:
    numerics.configure(str(_file(tmp_path, "my.toml", "bf16_affine")))
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(_preset()))
    thread.start()
    thread.join(30)
    assert seen == ["bf16_affine"]


def test_a_changed_file_is_seen_at_the_next_configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, "my.toml", "bf16_affine")
    monkeypatch.setenv("NUMERICS_CONFIG", str(path))
    assert _preset() == "bf16_affine"
    _file(tmp_path, "my.toml", "vllm_cuda")
    assert _preset() == "bf16_affine"
    numerics.configure(None)
    assert _preset() == "vllm_cuda"


def test_a_file_that_is_not_legal_changes_nothing(tmp_path: Path) -> None:
    numerics.configure(_file(tmp_path, "my.toml", "bf16_affine"))
    with pytest.raises(ConfigurationError, match=r"wrong\.toml.*vlm_cuda"):
        numerics.configure(_file(tmp_path, "wrong.toml", "vlm_cuda"))
    with pytest.raises(ConfigurationError, match=r"missing\.toml"):
        numerics.configure(tmp_path / "missing.toml")
    with pytest.raises(ConfigurationError, match="name a file, or None"):
        numerics.configure("")
    assert _preset() == "bf16_affine"


def test_a_wrong_file_of_the_variable_is_an_error_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERICS_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(ConfigurationError, match=r"NUMERICS_CONFIG names: .*missing\.toml"):
        resolve("rms_norm")
    numerics.configure(_file(tmp_path, "my.toml", "bf16_affine"))
    assert _preset() == "bf16_affine", "what beats the variable is used instead"


def test_no_file_of_the_current_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("presets.toml", "numerics.toml", "my.toml"):
        _file(tmp_path, name, "bf16_affine")
    monkeypatch.chdir(tmp_path)
    assert _preset() == "fast"
