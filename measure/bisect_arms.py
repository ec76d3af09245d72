"""The settings of an arm of `bisect`: some differences turned from A's value to B's, as a presets file says them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numerics.measure.bisect_settings import CONDITIONS, POINT, ROUNDED, Atom, Chosen, Place, Setting
from numerics.presets.checks import ResolvedPreset
from numerics.presets.schema import DeclaredReduction
from numerics.presets.toml import table, text
from numerics.presets.vocabulary import ROUNDING_POINTS

Turned = frozenset[int]  # positions in the list of differences


@dataclass(frozen=True)
class Arms:
    """The settings from A to B. B's names are not those of other declarations in A: see `apart`."""

    a: Setting
    b: Setting
    atoms: Sequence[Atom]

    @property
    def places(self) -> list[Place]:
        """Those of either."""
        return list(dict.fromkeys((*self.a.places, *self.b.places)))

    @property
    def fingerprint(self) -> str:
        """sha256 of what A and B say, with the declarations behind the names."""
        ends = (self.file(frozenset()), self.file(frozenset(range(len(self.atoms)))))
        return "sha256:" + hashlib.sha256("\n".join(ends).encode()).hexdigest()

    def values(self, place: Place, turned: Turned) -> dict[str, str]:
        """What an arm sets at a place, as `Chosen.texts` names it.

        Where all that differs is turned, what B says, its preset included; and where only one of them says anything,
        that in every arm.
        """
        if place not in self.a.places or place not in self.b.places:
            return (self.a.places.get(place) or self.b.places[place]).texts()
        here = {index: atom for index, atom in enumerate(self.atoms) if atom.place == place}
        if here and turned.issuperset(here):
            return self.b.places[place].texts()
        return self.a.places[place].texts() | {atom.what: atom.b for index, atom in here.items() if index in turned}

    def file(self, turned: Turned) -> str:
        """A presets file that sets every value of every place."""
        settings = {place: self.values(place, turned) for place in self.places}
        models: dict[str | None, dict[str, Any]] = {}
        for (family, model), values in settings.items():
            models.setdefault(model, {})[family] = _written(values)
        parts = [
            *(_reduction(name, each) for name, each in {**self.a.reductions, **self.b.reductions}.items()),
            *(_preset(name, each) for name, each in {**self.a.presets, **self.b.presets}.items()),
            *(table(f"ops.{family}", setting) for family, setting in models.pop(None, {}).items()),
        ]
        for model in dict.fromkeys((*models, *self.a.classes, *self.b.classes)):
            classes = sorted({*self.a.classes.get(str(model), ()), *self.b.classes.get(str(model), ())})
            fields = {**({"classes": classes} if classes else {}), **models.get(model, {})}
            parts.append(table(f"models.{text(str(model))}", fields))
        return "\n\n".join(parts) + "\n"


def _written(values: Mapping[str, str]) -> dict[str, Any]:
    return {
        "preset": values[CONDITIONS],
        "rms_norm_reduction": values["rms_norm_reduction"],
        "enable_fp_fusion": values["enable_fp_fusion"] == "true",
        "rounding_points": [point for point in ROUNDING_POINTS if values[POINT + point] == ROUNDED],
        "rope_rotation": values["rope_rotation"],
        "min_tokens": int(values["min_tokens"]),
    }


def _reduction(name: str, declared: DeclaredReduction) -> str:
    return table(f"reductions.{name}", json.loads(declared.model_dump_json(exclude_defaults=True)))


def _preset(name: str, declared: ResolvedPreset) -> str:
    claim = {} if declared.reference is None else {"reference": _given(declared.reference)}
    requires = {"requires": given} if (given := _given(declared.requires)) else {}
    return table(f"presets.{name}", {"summary": declared.summary, **declared.knobs, **claim, **requires})


def _given(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(part.model_dump_json(exclude_defaults=True))
    return found


# --- Names ------------------------------------------------------------------------------------------------------------


def apart(a: Setting, b: Setting) -> Setting:
    """B, with names of its own for what A declares otherwise under the same name."""
    reductions = _names(a.reductions, b.reductions, lambda one: one.bits)
    presets = _names(a.presets, b.presets, lambda one: (dict(one.knobs), one.requires, one.reference))
    # A preset whose reduction has another declaration in A is another preset, although the names agree.
    presets |= _free(
        [name for name, one in b.presets.items() if one.knobs["rms_norm_reduction"] in reductions],
        (*a.presets, *b.presets),
    )

    def moved(preset: ResolvedPreset) -> ResolvedPreset:
        order = preset.knobs["rms_norm_reduction"]
        return replace(preset, knobs={**preset.knobs, "rms_norm_reduction": reductions.get(order, order)})

    def chosen(one: Chosen) -> Chosen:
        preset, order = presets.get(one.preset, one.preset), reductions.get(one.reduction, one.reduction)
        return replace(one, preset=preset, reduction=order)

    return replace(
        b,
        places={place: chosen(one) for place, one in b.places.items()},
        reductions={reductions.get(name, name): one for name, one in b.reductions.items()},
        presets={presets.get(name, name): moved(one) for name, one in b.presets.items()},
    )


def _names(a: Mapping[str, Any], b: Mapping[str, Any], content: Any) -> dict[str, str]:
    clashes = [name for name, one in b.items() if name in a and content(a[name]) != content(one)]
    return _free(clashes, (*a, *b))


def _free(names: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """For each name one that is not taken."""
    used, found = set(taken), {}
    for name in names:
        new = f"{name}_b"
        while new in used:
            new += "_b"
        used.add(new)
        found[name] = new
    return found
