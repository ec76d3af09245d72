"""Capabilities such as `cuda:9.0` and `hip:gfx942`: how they are written and matched, and what this machine has.

A pattern holds for a capability if its components are the first components of it: `cuda:9` holds for `cuda:9.0` and
not for `cuda:90`. The driver library is asked directly, so that no framework has to be imported.
"""

import ctypes
import re
from functools import lru_cache
from typing import Final

from numerics.errors import ConfigurationError
from numerics.presets.vocabulary import CAPABILITY_SPELLING

LEGAL: Final = "cuda:MAJOR.MINOR, hip:gfxNAME or npu:NAME, or the first components of one"
SPELLING: Final = re.compile(CAPABILITY_SPELLING)

COMPUTE_CAPABILITY_MAJOR: Final = 75  # CUdevice_attribute of the CUDA driver API, cuda.h
COMPUTE_CAPABILITY_MINOR: Final = 76


def components(capability: str) -> tuple[str, ...]:
    """The parts that are compared: 'cuda:9.0' -> ('cuda', '9', '0')."""
    return tuple(re.split("[:.]", capability))


def specificity(pattern: str) -> int:
    """How many components a pattern fixes; of two patterns that hold for one capability the larger wins."""
    return len(components(pattern))


def matches(pattern: str, capability: str | None) -> bool:
    """Whether the pattern holds. Nothing is known of a missing capability, so no pattern holds for it."""
    if capability is None:
        return False
    parts = components(pattern)
    return components(capability)[: len(parts)] == parts


def refines(pattern: str, capability: str) -> bool:
    """Whether the pattern says more than the capability and does not contradict it."""
    return pattern != capability and matches(capability, pattern)


def most_specific(patterns: tuple[str, ...], capability: str | None) -> str | None:
    """The pattern with the most components among those that hold, or None."""
    return max((p for p in patterns if matches(p, capability)), key=specificity, default=None)


def checked(capability: object) -> str:
    """The capability, if it is written as one. Raises ConfigurationError otherwise."""
    if not isinstance(capability, str) or SPELLING.fullmatch(capability) is None:
        raise ConfigurationError(f"capability {capability!r}: not a capability; write {LEGAL}")
    return capability


@lru_cache(maxsize=1)
def current() -> str | None:
    """The capability of CUDA device 0, `cuda:9.0` on an H200, or None without a driver or a device.

    Asks the driver library through ctypes; imports no framework and creates no context on the device. It initialises
    the driver, which a process that forks CUDA workers must not do, so `resolve` never calls this.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        return _device_0(cuda)
    except (OSError, AttributeError):  # no such library, or one that lacks a function
        return None


def _device_0(cuda: ctypes.CDLL) -> str | None:
    count, device = ctypes.c_int(), ctypes.c_int()
    major, minor = ctypes.c_int(), ctypes.c_int()
    succeeded = (
        cuda.cuInit(0) == 0
        and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
        and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
        and cuda.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device) == 0
        and cuda.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device) == 0
    )
    return f"cuda:{major.value}.{minor.value}" if succeeded else None
