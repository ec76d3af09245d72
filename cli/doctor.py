"""`numerics doctor`: what this machine runs, without importing torch or triton."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numerics import environment
from numerics.capability import current
from numerics.cli import words
from numerics.cli.check import environment_problems, settings_problems
from numerics.cli.render import grid, heading, indented
from numerics.context import configuration
from numerics.errors import ConfigurationError
from numerics.integrations.vllm_omni import VERSIONS
from numerics.presets.file import PACKAGED
from numerics.presets.versions import admits
from numerics.requirements import installed

if TYPE_CHECKING:
    from rich.console import RenderableType

DISTRIBUTION: Final = "omni-numerics"
# Packages whose chains presets reproduce, or that an extra brings: useful, never needed.
OPTIONAL: Final = ("vllm", "vllm-omni", "diffusers", "flashinfer-python", "quack-kernels", "matplotlib")
SET_BY: Final = {"configure": "--config"}  # nothing else calls `configure` in this process
REQUIREMENT: Final = re.compile(r"([A-Za-z0-9_.-]+)\s*([<>=.,\d\s]*)(?:;.*)?")
PLUGIN: Final = "numerics"  # our entry point among vLLM's plugins
FEWEST_DATA_FILES: Final = 2  # provider bytes, and reciprocal square roots


def examined() -> dict[str, Any]:
    """Everything that the command reports, as JSON values."""
    packages = _packages()
    capability = current()
    plugin, environs = _plugin(), environment_problems()
    problems = [*_data_problems(), *environs, *(settings_problems(environs) or [])]
    problems += [
        f"{name} {each['installed']}: {DISTRIBUTION} needs {each['needs']}"
        for name, each in packages.items()
        if not each["suits"] and each["installed"]
    ]
    if plugin["installs"]:
        problems += [f"{environment.INSTALL}={os.environ[environment.INSTALL]}: {each}" for each in plugin["missing"]]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "package": {"version": _version(DISTRIBUTION), "location": str(Path(environment.__file__).parent)},
        "packages": packages,
        "optional": {name: _version(name) for name in OPTIONAL},
        "capability": capability,
        "fused_kernels": _obstacles(packages, capability),
        "config": _config(),
        "vllm_plugin": plugin,
        "environment": {name: os.environ[name] for name in _variables() if name in os.environ},
        "problems": list(dict.fromkeys(problems)),
    }


def _packages() -> dict[str, dict[str, Any]]:
    """What the package depends on: the version that is installed, and the one that it needs."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a clone
        declared = ["pydantic", "tomli", "torch", "triton", "typer"]
    found = {}
    for text in declared:
        match = REQUIREMENT.fullmatch(text)
        if match is None or "extra ==" in text:
            continue
        name, needs = match[1], match[2].strip()
        version = installed(name) if name in ("torch", "triton") else _version(name)
        suits = version is not None and (not needs or admits(needs, version))
        found[name] = {"installed": version, "needs": needs or None, "suits": suits}
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _obstacles(packages: dict[str, dict[str, Any]], capability: str | None) -> dict[str, Any]:
    """Whether a fused kernel could run here, as far as versions and the driver tell."""
    missing = [
        f"{name} is not installed" for name in ("torch", "triton") if not packages.get(name, {}).get("installed")
    ]
    if str(packages.get("torch", {}).get("installed")).endswith("+cpu"):
        missing.append("torch is built for CPUs alone")
    if capability is None:
        missing.append("no GPU that the CUDA driver knows")
    return {"can_run": not missing, "missing": missing}


def _config() -> dict[str, Any]:
    try:
        found = configuration()
    except ConfigurationError:
        return {"path": environment.config(), "set_by": environment.CONFIG}
    path = found.catalog.user_path
    return {"path": None if path is None else str(path), "set_by": SET_BY.get(found.set_by or "", found.set_by)}


def _plugin() -> dict[str, Any]:
    """Whether vLLM would load the plugin in a process with this environment, and what it would install the ops in."""
    group = metadata.entry_points(group="vllm.general_plugins")
    allowed = os.environ.get("VLLM_PLUGINS")  # as vLLM reads it: names joined by commas; unset admits every plugin
    missing = [] if any(each.name == PLUGIN for each in group) else [f"{DISTRIBUTION} is not installed, a clone is run"]
    if allowed is not None and PLUGIN not in allowed.split(","):
        missing.append(f"VLLM_PLUGINS={allowed!r} does not name {PLUGIN}")
    try:
        engines: tuple[str, ...] | None = environment.installs()
    except ConfigurationError:
        engines = None  # it is among the problems
    missing += [f"{each} is not installed" for each in engines or () if _version(each.replace("_", "-")) is None]
    omni = _version("vllm-omni") if engines and "vllm_omni" in engines else None
    if omni is not None and not admits(VERSIONS, omni):
        missing.append(f"vllm-omni {omni} is not one of {VERSIONS}")
    return {"installs": None if engines is None else list(engines), "missing": missing}


def _variables() -> list[str]:
    """The variables that are read, and those on which a preset depends."""
    try:
        presets = list(configuration().catalog.presets.values())
    except ConfigurationError:
        presets = []
    return [*environment.KNOWN, *sorted({name for preset in presets for name in preset.requires.env})]


def _data_problems() -> list[str]:
    golden = Path(__file__).resolve().parent.parent / "golden"
    problems = [] if PACKAGED.is_file() else [f"{PACKAGED}: the packaged presets are missing"]
    if len(list(golden.glob("*.xz"))) < FEWEST_DATA_FILES:
        problems.append(f"{golden}: golden data is missing; verify cannot run")
    return problems


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> Iterator[RenderableType]:
    """What `examined` found, for people."""
    kernels, config = found["fused_kernels"], found["config"]
    yield heading("This machine")
    yield grid(
        [
            ("python", f"{found['python']} on {found['platform']}"),
            (DISTRIBUTION, f"{found['package']['version'] or 'not installed'} ({found['package']['location']})"),
            *((name, _package_words(each)) for name, each in found["packages"].items()),
            ("capability", found["capability"] or "none: no CUDA driver, or no device"),
            (
                "fused kernels",
                "can run"
                if kernels["can_run"]
                else f"cannot run: {words.listed(kernels['missing'])}; the references can",
            ),
        ]
    )
    yield ""
    yield heading("Optional packages")
    yield grid([(name, version or "-") for name, version in found["optional"].items()])
    yield ""
    yield heading("Settings")
    yield grid(
        [
            (
                "your file",
                f"{config['path']} (set by {config['set_by']})"
                if config["path"]
                else f"none (name one with {environment.CONFIG})",
            ),
            ("vLLM's plugin", _plugin_words(found["vllm_plugin"])),
            *((name, value) for name, value in found["environment"].items()),
        ]
    )
    yield ""
    yield heading("Problems", "" if found["problems"] else ": none")
    for problem in found["problems"]:
        yield indented(problem)


def _package_words(found: dict[str, Any]) -> str:
    version = found["installed"] or "not installed"
    return version if found["suits"] or not found["needs"] else f"{version} (needs {found['needs']})"


def _plugin_words(found: dict[str, Any]) -> str:
    if found["installs"] is None:
        return f"{environment.INSTALL} is not legal: vLLM would not start"
    if not found["installs"]:
        return f"off ({environment.INSTALL}=1 turns it on)"
    engines = f"installs in {words.listed(found['installs'])}"
    return f"{engines}, but see the problems" if found["missing"] else engines
