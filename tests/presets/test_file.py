"""Reading files: what joins, what stays apart, what is read again, and what cannot be read."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError
from numerics.presets.file import PACKAGED, Catalog, load

Loaded = Callable[[str], Catalog]
Problems = Callable[[str], list[str]]
Write = Callable[[str], Path]

MINE = "[presets.mine]\nsummary = 'x'\nextends = 'vllm_cuda'\n"
ORDER = "summary = 'x'\nvector = 4\nthreads = 32\nlanes = 'halves'\nmean = 'divide'\n"


# --- Joining ----------------------------------------------------------------------------------------------------------


def test_the_packaged_file_alone_is_the_default() -> None:
    catalog = load()
    assert catalog.user is None
    assert catalog.user_path is None
    assert {"fast", "bf16_affine", "vllm_cuda_128"} <= catalog.presets.keys()


def test_a_user_s_file_adds_to_the_packaged_one(loaded: Loaded) -> None:
    catalog = loaded(f"[reductions.my_order]\n{ORDER}{MINE}rms_norm_reduction = 'my_order'\n")
    assert load().presets.items() <= catalog.presets.items()
    assert load().reductions.items() <= catalog.reductions.items()
    assert catalog.presets["mine"].origin == "user"
    assert catalog.presets["fast"].origin == "package"
    assert (
        catalog.presets["mine"].numerics(catalog.reductions).rms_norm_reduction == catalog.reductions["my_order"].bits
    )


def test_an_empty_file_changes_nothing(loaded: Loaded) -> None:
    assert loaded("").presets == load().presets


def test_settings_of_the_two_files_stay_apart(loaded: Loaded) -> None:
    catalog = loaded("[models.flux2]\nfused_qk_norm_rope = 'fast'\n[models.mine]\nfused_rms_norm = 'fast'\n")
    assert catalog.user is not None
    assert catalog.packaged is load().packaged
    assert catalog.packaged.settings_of("flux2")["fused_qk_norm_rope"].preset == "vllm_cuda_128"
    assert catalog.user.settings_of("flux2")["fused_qk_norm_rope"].preset == "fast"
    assert catalog.model_names() == sorted([*load().model_names(), "mine"])


def test_a_name_has_an_origin(loaded: Loaded) -> None:
    catalog = loaded(f"{MINE}[reductions.my_order]\n{ORDER}[models.flux2]\nfused_rms_norm = 'mine'\n")
    assert catalog.origin("presets", "mine") == "user"
    assert catalog.origin("presets", "fast") == "package"
    assert catalog.origin("reductions", "my_order") == "user"
    assert catalog.origin("reductions", "aten_mean") == "package"
    assert catalog.origin("models", "flux2") == "user"
    assert catalog.origin("models", "flux") == "package"
    assert catalog.origin("ops", "fused_rms_norm") == "package"
    with pytest.raises(KeyError):
        catalog.origin("presets", "absent")


def test_a_catalog_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        load().presets["mine"] = load().presets["fast"]  # type: ignore[index]  # what it refuses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "\n[presets.fast]\nsummary = 'x'\nextends = 'bf16_affine'\n",
            "2: presets.fast: 'fast' is taken by the package; use another name and write extends = 'fast'",
        ),
        (
            f"\n[reductions.aten_mean]\n{ORDER}",
            (
                "2: reductions.aten_mean: 'aten_mean' is taken by the package; use another name and a "
                "preset of your own that names it"
            ),
        ),
        (
            f"\n[reductions.triton]\n{ORDER}",
            (
                "2: reductions.triton: 'triton' is taken by the package; use another name and a "
                "preset of your own that names it"
            ),
        ),
    ],
)
def test_a_packaged_name_cannot_be_redefined(problems: Problems, text: str, expected: str) -> None:
    assert problems(text) == [f"my.toml:{expected}"]


@pytest.mark.parametrize(
    "setting", ["'mine'", "{ preset = 'mine' }", "{ when = [{ capability = 'cuda', preset = 'mine' }] }"]
)
def test_a_setting_may_be_a_name_or_a_table(loaded: Loaded, setting: str) -> None:
    catalog = loaded(f"{MINE}[models.m]\nfused_rms_norm = {setting}\n")
    assert catalog.user is not None
    found = catalog.user.settings_of("m")["fused_rms_norm"]
    assert "mine" in (found.preset, *(row.preset for row in found.when))


@pytest.mark.parametrize("setting", ["min_tokens = 7", "enable_fp_fusion = false", "rounding_points = []"])
def test_a_setting_may_leave_the_preset_to_a_weaker_layer(loaded: Loaded, setting: str) -> None:
    catalog = loaded(f"[ops.fused_rms_norm]\n{setting}\n")
    assert catalog.user is not None
    assert catalog.user.ops["fused_rms_norm"].preset is None


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_once(write: Write) -> None:
    path = write(MINE)
    assert load(path) is load(str(path))
    assert load() is load()


def test_a_changed_file_is_read_again(write: Write) -> None:
    path = write(MINE)
    before = load(path)
    path.write_text(MINE.replace("mine", "more"), encoding="utf-8")
    os.utime(path, ns=(0, 0))
    assert "mine" in before.presets
    assert "more" in load(path).presets


def test_one_relative_path_in_two_folders_is_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "my.toml").write_text(f"[models.{name:5}]\nfused_rms_norm = 'fast'\n", encoding="utf-8")
        os.utime(folder / "my.toml", ns=(0, 0))
        monkeypatch.chdir(folder)
        assert name in load("my.toml").model_names()


def test_nothing_is_read_from_the_current_folder_by_accident(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(MINE).with_name("my.toml").rename(write(MINE).with_name("presets.toml")).parent)
    assert "mine" not in load().presets


def test_the_packaged_file_stands_beside_the_package() -> None:
    assert PACKAGED.name == "presets.toml"
    assert PACKAGED.is_file()


@pytest.mark.parametrize(
    ("path", "reason"),
    [("absent.toml", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte")],
)
def test_what_is_no_file_is_named(path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert str(caught.value) == f"{path!r} cannot be read as a presets file: {reason}"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(write: Write) -> None:
    path = write(MINE)
    path.chmod(0)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        load(path)


def test_what_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# one\n# two \xe9\n")
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:2: not UTF-8 text: byte 0xe9"


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINE.encode())
    assert "mine" in load(path).presets


def test_an_error_is_said_again(write: Write) -> None:
    path = write("[models]\nflux2 = 1\n")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"my\.toml:2: models\.flux2: got 1"):
            load(path)
