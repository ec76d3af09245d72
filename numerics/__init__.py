"""Named floating-point behaviour for fused kernels: what a preset means, and which one is in force where.

Importing this brings neither torch nor triton along; `numerics.ops` holds the kernels and their references.
The function `resolve` hides the module that defines it: take its names with `from numerics.resolve import ...`.
"""

from numerics.context import configure, use
from numerics.errors import (
    ConfigurationError,
    InputError,
    MissingExtraError,
    NotFusedError,
    NumericsError,
    RequirementError,
)
from numerics.presets.schema import Numerics
from numerics.resolution import Provenance, Resolution, Shadow
from numerics.resolve import resolve

__all__ = [
    "ConfigurationError",
    "InputError",
    "MissingExtraError",
    "NotFusedError",
    "Numerics",
    "NumericsError",
    "Provenance",
    "RequirementError",
    "Resolution",
    "Shadow",
    "configure",
    "resolve",
    "use",
]
