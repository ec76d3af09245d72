"""Tables that are written are read back as they were."""

from __future__ import annotations

from typing import Any

import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.presets.toml import table, text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=4), TEXT)
def test_a_table_is_read_back(fields: dict[str, Any], name: str) -> None:
    assert tomli.loads(table(f"part.{text(name)}", fields)) == {"part": {name: fields}}
