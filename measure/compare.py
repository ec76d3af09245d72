"""Two results, case by case: what has become slower."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numerics.measure.result import Key, Record, key


@dataclass(frozen=True)
class Change:
    """One case and preset, in both results or in one of them."""

    key: Key
    earlier: float | None  # microseconds
    now: float | None

    @property
    def ratio(self) -> float | None:
        """Above 1 where it has become slower; None where one result lacks it."""
        return self.now / self.earlier if self.now is not None and self.earlier else None

    def is_slower(self, tolerance: float) -> bool:
        """Beyond the tolerance. A case that only one result has is not slower."""
        return self.ratio is not None and self.ratio > 1 + tolerance

    def to_dict(self, tolerance: float) -> dict[str, Any]:
        """As JSON values."""
        names = dict(zip(("op", "case", "preset"), self.key, strict=True))
        ratio = None if self.ratio is None else round(self.ratio, 4)
        times = {"earlier_us": self.earlier, "now_us": self.now, "ratio": ratio}
        return {**names, **times, "slower": self.is_slower(tolerance)}


def changes(earlier: Sequence[Record], now: Sequence[Record], *, all_of_earlier: bool = True) -> list[Change]:
    """Every case of both. all_of_earlier: also those that were measured then and not now."""
    before, after = ({key(each): each["time_us"] for each in side} for side in (earlier, now))
    keys = dict.fromkeys((*before, *after)) if all_of_earlier else after
    return [Change(each, before.get(each), after.get(each)) for each in keys]


def differences(earlier: Sequence[Record], now: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """What the results were measured on, where it is not the same: a ratio then says less."""
    found = {}
    for name in ("gpu", "driver", "torch", "triton"):
        both = tuple(", ".join(sorted({str(each.get(name)) for each in side})) for side in (earlier, now))
        if both[0] != both[1]:
            found[name] = (both[0], both[1])
    return found
