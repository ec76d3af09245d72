"""`numerics show`: the settings in force for families and models, who set each value, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from numerics import environment
from numerics.capability import current
from numerics.cli import words
from numerics.cli.render import grid, heading, lines, table, terminal_width
from numerics.context import configuration
from numerics.errors import ConfigurationError, NumericsError, RequirementError
from numerics.integrations.supported import SUPPORTED
from numerics.layers import family_of
from numerics.presets import properties
from numerics.presets.file import Catalog
from numerics.presets.schema import Reduction
from numerics.presets.vocabulary import FAMILIES, KNOBS, Family
from numerics.resolution import Provenance, Resolution
from numerics.resolve import resolve

if TYPE_CHECKING:
    from rich.console import RenderableType

LEGEND = (
    ("verified", "its bytes were compared with the provider's own"),
    ("declared", "it claims a provider's bytes, and was never compared"),
    ("no claim", "it is exact, and reproduces nobody"),
    (words.LEFT_OPEN, "Triton or the compiler chooses the order of additions or what to contract"),
    ("batch-invariant", "whether a row's bytes are the same however many rows there are"),
    ("everything", "numerics show --op OP --model MODEL"),
)
SHORT_NAME = 18
SHORT_FINGERPRINT = 23
WIDE = 100
MOST_IN_FULL = 3  # settings of which everything is shown unasked; more become one line each


def selected(op: str | None, model: str | None) -> list[tuple[Family, str | None]]:
    """The families and models that are shown: one family and model, all families of a model, or every entry."""
    families: list[Family] = list(FAMILIES) if op is None else [family_of(op)]
    if model is not None:
        return [(family, model) for family in families]
    catalog = configuration().catalog
    return [(family, entry) for family in families for entry in (None, *_models_with(catalog, family))]


def resolved(
    entries: list[tuple[Family, str | None]], capability: str | None, preset: str | None = None
) -> tuple[list[Resolution], list[NumericsError]]:
    """The settings in force, and why others are refused on this machine. Without a capability the driver is asked."""
    where = current() if capability is None else capability
    found: list[Resolution] = []
    refused: list[NumericsError] = []
    for read in (environment.strict, environment.checks_indices):
        try:
            read()
        except ConfigurationError as error:
            refused.append(error)
    for family, model in entries:
        try:
            found.append(resolve(family, model, capability=where, preset=preset))
        except (ConfigurationError, RequirementError) as error:
            refused.append(error)
    return found, refused


def refuse_first(found: list[Resolution], refused: list[NumericsError]) -> None:
    """Raise before anything is printed where something is wrong, which is to be mended first, or nothing was found.

    What this machine refuses leaves the rest as it is.
    """
    if not found or any(isinstance(each, ConfigurationError) for each in refused):
        refuse(refused)


def refuse(refused: list[NumericsError]) -> None:
    """Raise what was refused, each reason once."""
    if refused:
        raise ConfigurationError("\n".join(dict.fromkeys(map(str, refused))))


def _models_with(catalog: Catalog, family: Family) -> list[str]:
    files = [file for file in (catalog.packaged, catalog.user) if file is not None]
    return [model for model in catalog.model_names() if any(family in file.settings_of(model) for file in files)]


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: list[Resolution], in_full: bool, asked: str | None = None) -> Iterator[RenderableType]:
    """A block for each of a few settings, or a line for each of many. asked: for which model, perhaps by its class."""
    yield from called(asked, found[0].model)
    if in_full or len(found) <= MOST_IN_FULL:
        for index, resolution in enumerate(found):
            if index:
                yield ""
            yield from block(resolution)
        return
    for family in dict.fromkeys(resolution.op for resolution in found):
        yield from _lines(family, [resolution for resolution in found if resolution.op == family])
        yield ""
    yield grid(LEGEND)


def called(asked: str | None, model: str | None) -> Iterator[RenderableType]:
    """Which model was meant, where its class was named."""
    if asked is not None and asked != model:
        supported = SUPPORTED.get(asked)
        others = supported.models[1:] if supported else ()
        yield f"{asked} is model {model}" + "".join(f"; without guidance embeddings {other}" for other in others)
        yield ""


def _lines(family: Family, found: list[Resolution]) -> Iterator[RenderableType]:
    yield heading(family, f", {_where(found[0])}")
    settings = [(_name(each.model), each) for each in found]
    rows = [(name, each) for top in settings for name, each in (top, *((f"  on {p}", row) for p, row in top[1].when))]
    columns = ["model", "preset", "set by", "bytes", "batch-\ninvariant"]
    yield table(columns, [_line(name, each) for name, each in rows], whole=["model", "set by", "bytes"])


def _name(model: str | None) -> str:
    if model is None:
        return "any other"
    # An engine's models are long; in a narrow terminal the name breaks where it can still be read.
    return model if len(model) <= SHORT_NAME or terminal_width() >= WIDE else model.replace(":", ":\n  ")


def _line(name: str, resolution: Resolution) -> tuple[str, ...]:
    exact, reference = resolution.numerics.is_exact, resolution.reference
    claim = "no claim" if reference is None else "verified" if reference.verified_on else "declared"
    return (
        name,
        resolution.label + (f"\n  from {resolution.min_tokens} tokens" if resolution.min_tokens else ""),
        resolution.sources["preset"].source,
        claim if exact else words.LEFT_OPEN,
        _batch(resolution.numerics.rms_norm_reduction),
    )


def _batch(reduction: Reduction | str) -> str:
    if isinstance(reduction, str):
        return "-"
    return "yes" if properties.is_batch_invariant(reduction) else "no"


def _where(resolution: Resolution) -> str:
    if resolution.capability is not None:
        return f"on {resolution.capability}"
    return "capability unknown"


def block(resolution: Resolution) -> Iterator[RenderableType]:
    """Everything about one setting."""
    model = f"model {resolution.model}" if resolution.model else "any model without an entry"
    yield heading(resolution.op, f", {model}, {_where(resolution)}")
    yield grid(_values(resolution))
    for pattern, row in resolution.when:
        yield heading(f"  on {pattern}")
        yield grid(_values(row))


def _values(resolution: Resolution) -> Iterator[tuple[str, RenderableType]]:
    numerics, reduction = resolution.numerics, resolution.numerics.rms_norm_reduction
    yield "preset", _sourced([resolution.label], resolution.sources["preset"])
    shown = {
        "rms_norm_reduction": [resolution.reduction],
        "enable_fp_fusion": [words.value(numerics.enable_fp_fusion)],
        "rounding_points": words.points(numerics.rounding_points, resolution.op),
        "rope_rotation": [numerics.rope_rotation, *([] if _rotates(resolution.op) else ["not applicable here"])],
    }
    for knob in KNOBS:
        yield knob, _sourced(shown[knob], resolution.sources.get(knob))
    yield "min_tokens", _sourced([str(resolution.min_tokens)], resolution.sources["min_tokens"])
    yield "requires", "\n".join(words.conditions(resolution.requires)) or "nothing"
    yield "reference", "no claim: the preset is modified" if resolution.modified else words.claim(resolution.reference)
    yield "bytes", words.evidence(resolution.reference)
    yield "exactness", words.exactness(numerics)
    yield "batch", words.batch(reduction)
    yield "sharding", words.sharding(reduction)
    yield "fingerprint", f"{resolution.fingerprint[:SHORT_FINGERPRINT]}... (whole with --json)"


def _rotates(family: Family) -> bool:
    return "rope_product" in FAMILIES[family]


def _sourced(shown: list[str], found: Provenance | None) -> RenderableType:
    if found is None:
        return lines(*shown)
    instead = [f"instead of {words.value(each.value)} ({each.source}, {each.location})" for each in found.shadows]
    return lines(*shown, f"set by {found.source}, {found.location}", *instead)
