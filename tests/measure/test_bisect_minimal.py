"""ddmin and the order of pairs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.measure.bisect_minimal import minimal, pairs


@settings(max_examples=40)
@given(st.sets(st.integers(0, 20), min_size=1), st.sets(st.integers(0, 20)))
def test_of_effects_that_more_differences_do_not_undo_the_cause_is_found(cause: set[int], others: set[int]) -> None:
    assert set(minimal(sorted(cause | others), cause.issubset)) == cause


@settings(max_examples=40)
@given(st.integers(2, 9), st.integers(0), st.data())
def test_without_any_one_of_what_is_left_the_effect_is_lost(count: int, seed: int, data: st.DataObject) -> None:
    known = {frozenset(range(count)): True}

    def has_effect(items: frozenset[int]) -> bool:
        if items not in known:
            known[items] = data.draw(st.booleans())
        return known[items]

    left = minimal(range(count), has_effect)
    assert has_effect(frozenset(left))
    assert len(left) == 1 or not any(has_effect(frozenset(left) - {item}) for item in left)


def test_every_pair_is_there_once_and_those_of_the_movers_come_first() -> None:
    found = pairs([0, 1, 2, 3], frozenset({1, 3}))
    assert len(set(found)) == len(found) == 6
    assert found[0] == {1, 3}
    assert found[-1] == {0, 2}
