"""Version ranges: what they admit, and which can hold at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.presets.versions import admits, can_hold, clauses, release

numbers = st.lists(st.integers(0, 3), min_size=1, max_size=3)
versions = numbers.map(lambda parts: ".".join(map(str, parts)))
ranges = st.lists(st.tuples(st.sampled_from([">=", "<=", ">", "<"]), versions), min_size=1, max_size=3).map(
    lambda parts: ",".join(name + version for name, version in parts)
)


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        (">=0.20,<0.34", "0.20.0", True),
        (">=0.20,<0.34", "0.19.1", False),
        (">=0.20,<0.34", "0.33.9", True),
        (">=0.20,<0.34", "0.34", False),
        (">=0.20,<0.34", "0.34.0", False),
        ("<=0.11.0", "0.11", True),
        ("<=0.11.0", "0.11.0.1", False),
        (">2.9", "2.9.0", False),
        (">2.9", "2.9.1", True),
        (">=2.10", "2.9.1", False),  # numbers, not text
        (">=2.10", "2.11.0+cu130", True),
        (">=2.10", "2.10.0rc1", True),
        (">=1, <2", "1.5", True),
    ],
)
def test_a_range_admits_versions(text: str, version: str, expected: bool) -> None:
    assert admits(text, version) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (">=1,<2", True),
        (">=1,<=1", True),
        (">=1,<=1.0", True),
        (">1,<=1", False),
        (">=1,<1", False),
        (">2,<1", False),
        (">1,<1.0.1", True),
        (">=1,>2,<=2", False),
        ("<0.1", True),
        (">=9", True),
    ],
)
def test_a_range_can_hold(text: str, expected: bool) -> None:
    assert can_hold(text) is expected


@given(ranges, versions)
def test_a_range_that_admits_a_version_can_hold(text: str, version: str) -> None:
    assert can_hold(text) or not admits(text, version)


@given(versions)
def test_trailing_zeros_say_nothing(version: str) -> None:
    assert release(version + ".0") == release(version)


@pytest.mark.parametrize("text", ["", "1.0", "==1.0", "~=1.0", ">=1,", ">=1 <2", ">=x", ">=1.*", "!=1"])
def test_other_texts_are_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="is no version range; write comparisons joined by commas"):
        clauses(text)


def test_a_version_is_a_number() -> None:
    with pytest.raises(ValueError, match="'unknown' is no version number"):
        release("unknown")
