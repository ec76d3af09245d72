"""Provider bytes that the references must return, and the reciprocal square roots of the GPU they were captured on."""

from numerics.golden.arrays import load
from numerics.golden.captured import CASES
from numerics.golden.cases import Case
from numerics.golden.replay import Breakage, breakages, cases_of, compare, run, witness

__all__ = ["CASES", "Breakage", "Case", "breakages", "cases_of", "compare", "load", "run", "witness"]
