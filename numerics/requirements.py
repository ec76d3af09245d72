"""The conditions of a preset: those of the process, checked when settings are resolved, and those of one call.

A condition about something unknown (a package that is not installed, a machine without a capability) refuses nothing: a
CPU computes what sm_90 computes.
"""

import os
from functools import cache
from typing import Final

from numerics.capability import components, matches, refines
from numerics.errors import RequirementError
from numerics.presets.schema import Requires
from numerics.presets.versions import admits

# The distributions under which each package is installed.
DISTRIBUTIONS: Final = {
    "torch": ("torch",),
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows"),
}


@cache
def installed(package: str) -> str | None:
    """The installed version of torch or Triton, without importing it; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # 10 ms that few presets need

    for distribution in DISTRIBUTIONS[package]:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def check_environment(requires: Requires, who: str) -> None:
    """Raises RequirementError if a variable that must be unset or have one value has another. Blank is unset."""
    for name, value in requires.env.items():
        found = os.environ.get(name)
        if found is not None and found.strip() not in ("", value):
            raise RequirementError(f"{who}: requires the variable {name} unset or {value!r}, found {found!r}")


def check_process(requires: Requires, capability: str | None, who: str) -> None:
    """Raises RequirementError if a version, the backend, the capability or a variable is known and does not hold."""
    for package in DISTRIBUTIONS:
        wanted = getattr(requires, package)
        found = None if wanted is None else installed(package)
        if found is not None and not admits(wanted, found):
            raise RequirementError(f"{who}: requires {package} {wanted}, found {found}")
    if capability is not None:
        if requires.backend is not None and components(capability)[0] != requires.backend:
            raise RequirementError(f"{who}: requires backend {requires.backend!r}, found capability {capability!r}")
        wanted = requires.capability
        if wanted is not None and not matches(wanted, capability) and not refines(wanted, capability):
            raise RequirementError(f"{who}: requires capability {wanted!r}, found {capability!r}")
    check_environment(requires, who)


def check_tensors(
    requires: Requires,
    who: str,
    *,
    width: int | None,
    rows: int | None,
    dtype: str,
    rope_table_dtype: str | None,
) -> None:
    """Raises RequirementError if a condition on the tensors of a call does not hold; None is a tensor it has not."""
    if requires.dtype is not None and dtype not in requires.dtype:
        raise RequirementError(f"{who}: requires dtype {' or '.join(requires.dtype)}, got {dtype}")
    if requires.rope_table_dtype is not None and rope_table_dtype is not None:
        wanted = dtype if requires.rope_table_dtype == "activation" else requires.rope_table_dtype
        if rope_table_dtype != wanted:
            condition = f"rope_table_dtype {requires.rope_table_dtype!r} ({wanted} here)"
            raise RequirementError(f"{who}: requires {condition}, got {rope_table_dtype}")
    for name, span, value in (("width", requires.width, width), ("rows", requires.rows, rows)):
        if span is None or value is None:
            continue
        low, high = span if isinstance(span, tuple) else (span, span)
        if not low <= value <= high:
            legal = str(low) if low == high else f"from {low} to {high}"
            raise RequirementError(f"{who}: requires {name} {legal}, got {value}")
