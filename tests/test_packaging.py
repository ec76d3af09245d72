"""The package that users install: what is in it, what it weighs, what importing it brings along; its front pages."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from numerics.cli.app import app
from numerics.environment import KNOWN
from numerics.presets.file import load
from numerics.presets.vocabulary import OPS

ROOT: Final = Path(__file__).resolve().parent.parent
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: Final[dict[str, Any]] = PYPROJECT["project"]
FOLDERS: Final[dict[str, str]] = PYPROJECT["tool"]["setuptools"]["package-dir"]
MAX_WHEEL_BYTES: Final = 3_000_000


# --- Links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("package", "folder"), FOLDERS.items())
def test_link_agrees_with_mapping(package: str, folder: str) -> None:
    assert ROOT.joinpath(*package.split(".")).resolve() == ROOT / folder


def test_every_link_is_mapped() -> None:
    links = {f"numerics.{path.name}" for path in (ROOT / "numerics").iterdir() if path.is_symlink()}
    assert links | {"numerics"} == set(FOLDERS)


def test_every_mapped_folder_is_built_and_measured() -> None:
    tool = PYPROJECT["tool"]
    assert set(tool["setuptools"]["packages"]) == set(FOLDERS)
    assert set(tool["coverage"]["run"]["source"]) == set(FOLDERS.values())
    assert {path.replace("/", ".") for path in tool["pyright"]["include"]} == {*FOLDERS, "tests", "examples"}
    assert set(tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == set(FOLDERS.values()) - {"numerics"}


# --- Wheel ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist as a release is, in a copy: setuptools ships what an old egg-info lists."""
    clean, out = tmp_path_factory.mktemp("source") / "checkout", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, clean, symlinks=True, ignore=shutil.ignore_patterns(".*", "*.egg-info", "build", "dist"))
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out), str(clean)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_weighs_at_most_three_megabytes(wheel: Path) -> None:
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


def test_wheel_holds_every_module_and_data_file_of_the_mapped_folders(wheel_files: set[str]) -> None:
    expected = {
        f"{package.replace('.', '/')}/{path.name}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).iterdir()
        if path.suffix in {".py", ".toml", ".xz", ".json", ".typed", ".css"} and path.is_file()
    }
    shipped = {name for name in wheel_files if ".dist-info/" not in name}
    assert shipped == expected | {"numerics/presets.toml"}


def test_wheel_holds_golden_bytes_and_rsqrt_table(wheel_files: set[str]) -> None:
    assert {
        "numerics/presets.toml",
        "numerics/py.typed",
        "numerics/golden/providers_h200.pt.xz",
        "numerics/golden/rsqrt_approx_sm90_delta.xz",
    } <= wheel_files


def test_wheel_ships_its_licence_and_command(wheel: Path, wheel_files: set[str]) -> None:
    info = f"omni_numerics-{PROJECT['version']}.dist-info"
    assert f"{info}/licenses/LICENSE" in wheel_files
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        assert "numerics = numerics.cli.app:main" in entry_points
        plugin = "numerics = numerics.integrations.vllm_plugin:install_from_environment"
        assert f"[vllm.general_plugins]\n{plugin}" in entry_points
        assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()


# --- Dependencies and imports -----------------------------------------------------------------------------------------


def test_runtime_dependencies_are_ranges_without_an_upper_bound() -> None:
    names = {re.split(r"[>=<; ]", text)[0] for text in PROJECT["dependencies"]}
    assert names == {"pydantic", "tomli", "torch", "triton", "typer"}
    for text in PROJECT["dependencies"]:
        assert re.fullmatch(r"[a-z]+>=[\d.]+(; sys_platform == 'linux')?", text), text


@pytest.mark.parametrize(
    "module", ["numerics", "numerics.presets", "numerics.cli.app", "numerics.integrations.vllm_plugin"]
)
def test_import_brings_neither_torch_nor_triton(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'triton', 'numpy'}} & set(sys.modules)))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert seen.stdout.strip() == "[]"


# --- Front pages ------------------------------------------------------------------------------------------------------


def test_changelog_has_the_current_version() -> None:
    headings = re.findall(r"^## \[?([\w.]+)\]?", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert PROJECT["version"] in headings


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_on_front_pages_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join([*_blocks(page, "bash"), *_inline(page)])))
    assert named
    assert named <= targets


def test_commands_on_the_readme_exist() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    lines = "\n".join([*_blocks("README.md", "bash"), *_inline("README.md")])
    named = set(re.findall(r"^(?:\w+=\S+ )?numerics ([a-z]+)", lines, flags=re.MULTILINE))
    assert {"show", "explain", "verify"} <= named
    assert named <= known


def test_variables_presets_and_ops_on_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"fast", "vllm_cuda_128", "NUMERICS_CONFIG"} <= names
    assert names <= {*load().presets, *KNOWN, *OPS, *OPS.values()}


def test_toml_on_the_readme_is_a_valid_presets_file(tmp_path: Path) -> None:
    (block,) = _blocks("README.md", "toml")
    path = tmp_path / "engine.toml"
    path.write_text(block)
    assert {"my_engine", "my_engine_two_roundings"} <= load(path).presets.keys()


@pytest.mark.parametrize("number", [0, 1])
def test_python_on_the_readme_prints_what_its_comments_say(number: int, tmp_path: Path) -> None:
    block = _blocks("README.md", "python")[number]
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
    run = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert expected
    assert run.stdout.splitlines() == expected


def _blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def _inline(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())


def test_tracked_text_names_no_workplace_and_no_registry_host() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # Each spelt so that this file does not find itself.
    names = ["[/]work/", "[/]tmp/", "[.][.]/shared", "pypi[.]org", "pythonhosted[.]org"]
    found = subprocess.run(
        ["git", "grep", "-I", "-n", "-E", "|".join(names)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1, found.stdout + found.stderr
