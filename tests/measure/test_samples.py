"""Turns, medians and spreads."""

from numerics.measure.samples import Samples, interleave


def test_arms_take_turns_forwards_and_backwards() -> None:
    ran: list[str] = []

    def unit(name: str, taken: float) -> float:
        ran.append(name)
        return taken

    found = interleave({"a": lambda: unit("a", 1.0), "b": lambda: unit("b", 2.0), "c": lambda: unit("c", 3.0)}, 2)
    assert "".join(ran) == "abccba" * 2
    assert found == {"a": Samples((1.0,) * 4), "b": Samples((2.0,) * 4), "c": Samples((3.0,) * 4)}


def test_the_median_ignores_an_outlier() -> None:
    assert Samples((5.0, 4.0, 900.0, 6.0)).median == 5.5


def test_the_spread_leaves_a_tenth_out_on_either_side() -> None:
    assert Samples(tuple(float(i) for i in range(20, -1, -1))).spread == (2.0, 18.0)
    assert Samples((3.0,)).spread == (3.0, 3.0)


def test_samples_are_rounded_to_a_nanosecond_in_a_result() -> None:
    assert Samples((1.23456, 1.23456)).to_dict() == {"median": 1.235, "spread": [1.235, 1.235], "samples": 2}
