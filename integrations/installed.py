"""What was installed in an engine: by which settings, in whose place, what not and why, and the way back."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from numerics.errors import RequirementError
from numerics.presets.vocabulary import Family
from numerics.resolution import Resolution

Settings = Mapping[tuple[str, Family], Resolution | RequirementError]  # by model and family
Undo = Callable[[], bool]  # False where something else is there by now


@dataclass
class Installed:
    """Settings are resolved once, when this is made; what they are installed in may be imported later.

    Two processes that log the same `fingerprint` compute the same bytes.
    """

    engine: str  # with its version: `vllm-omni 0.30.0`
    settings: Settings  # the error where a condition of the preset does not hold: calls of that model raise it
    waiting: set[str] = field(default_factory=set)  # modules that were not imported yet
    _undo: dict[str, Undo] = field(default_factory=dict, repr=False)
    _kept: dict[str, str] = field(default_factory=dict, repr=False)
    _ends: list[Callable[[], object]] = field(default_factory=list, repr=False)

    @property
    def replaced(self) -> tuple[str, ...]:
        """The functions whose place ours have taken, by their full name."""
        return tuple(self._undo)

    @property
    def kept(self) -> Mapping[str, str]:
        """What was left as it was, and why."""
        return MappingProxyType(self._kept)

    @property
    def fingerprint(self) -> str:
        """Of all settings, or of why they are refused. min_tokens and names are no part of it: they change no bytes."""
        text = "\n".join(f"{model} {family} {_bits(found)}" for (model, family), found in sorted_settings(self))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def replace(self, name: str, undo: Undo) -> None:
        """Note that ours stands where `name` says, and how to take it away. After a reload it does so again."""
        self._undo[name] = undo
        self._kept.pop(name, None)

    def keep(self, name: str, reason: str) -> None:
        """Note that nothing was done there."""
        self._kept[name] = reason
        self._undo.pop(name, None)

    def at_end(self, end: Callable[[], object]) -> None:
        """Call this when everything is restored."""
        self._ends.append(end)

    def restore(self) -> tuple[str, ...]:
        """Put back what was replaced; what is imported from now on stays as it is.

        Returns the names that were left alone, because something else stands there since.
        """
        for end in self._ends:
            end()
        self._ends.clear()
        self.waiting.clear()
        left = tuple(name for name, undo in self._undo.items() if not undo())
        self._undo.clear()
        return left

    def lines(self) -> Iterator[str]:
        """The settings for a log, one a line, each with who set it and its fingerprint."""
        for (model, family), found in sorted_settings(self):
            if isinstance(found, RequirementError):
                yield f"{model}: {family}: refused, its calls raise: {found}"
                continue
            preset = found.sources["preset"]
            yield f"{model}: {family} by {found.label} ({preset.source}: {preset.location}), {found.fingerprint}"
            for pattern, row in found.when:
                yield f"{model}: {family} on {pattern} by {row.label}, {row.fingerprint}"

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.engine}: {self.fingerprint}",
                *self.lines(),
                *(f"replaced: {name}" for name in self.replaced),
                *(f"kept: {name}: {reason}" for name, reason in self.kept.items()),
                *(f"not imported yet: {name}" for name in sorted(self.waiting)),
            ]
        )


def sorted_settings(installed: Installed) -> list[tuple[tuple[str, Family], Resolution | RequirementError]]:
    """By model, then family."""
    return sorted(installed.settings.items(), key=lambda item: item[0])


def _bits(found: Resolution | RequirementError) -> str:
    if isinstance(found, RequirementError):
        return f"refused: {found}"
    return " ".join([found.fingerprint, *(f"{pattern} {row.fingerprint}" for pattern, row in found.when)])
