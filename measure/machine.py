"""What a measurement ran on and what it ran: the GPU, its driver, versions, and hashes of sources."""

import ctypes
import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from numerics.presets.file import PACKAGED
from numerics.requirements import installed

PACKAGES: Final = ("ops", "presets", "measure")  # whose sources decide what is measured
DRIVER_LETTERS: Final = 81  # NVML's bound for a version
DISTRIBUTION: Final = "omni-numerics"


@cache
def machine() -> dict[str, Any]:
    """Of the current CUDA device, as it stands in each record."""
    import torch  # noqa: PLC0415  # a saved result is read without it

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "driver": driver(),
        "cuda": torch.version.cuda or torch.version.hip,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed("triton"),
        "numerics": own_version(),
    }


def driver() -> str | None:
    """The version of NVIDIA's driver, or None where its library does not say."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(DRIVER_LETTERS)
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        return text.value.decode() if nvml.nvmlSystemGetDriverVersion(text, DRIVER_LETTERS) == 0 else None
    finally:
        nvml.nvmlShutdown()


def sources(more: Iterable[Path] = ()) -> dict[str, str]:
    """sha256 of the packages that decide what is measured, of the packaged presets, and of further files."""
    folders = Path(__file__).resolve().parent.parent  # of a checkout, or of the installed package
    hashes = {f"numerics.{name}": _hash(sorted((folders / name).glob("*.py"))) for name in PACKAGES}
    return {**hashes, PACKAGED.name: _hash([PACKAGED]), **{path.name: _hash([path]) for path in more}}


def command(arguments: Iterable[str]) -> str:
    """A command line without the folders of its paths, which say more about a machine than about a measurement."""
    return " ".join(_without_folder(each) for each in ("numerics", *arguments))


def _without_folder(argument: str) -> str:
    option, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    return (
        option + equals + (Path(value).name if Path(value).is_absolute() or value.startswith(("./", "../")) else value)
    )


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return f"sha256:{digest.hexdigest()}"


def own_version() -> str | None:
    """The version of this package, or None where it runs from a clone that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None  # run from a clone
