"""`numerics models`: the models that are known, what each computes, who fuses it, and the settings in force for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from numerics.cli import words
from numerics.cli.options import Capability, Config, Json, completing, model_names, use_file
from numerics.cli.render import grid, heading, print_json, print_page
from numerics.integrations.supported import GEOMETRY, SUPPORTED, VLLM_OMNI
from numerics.presets.vocabulary import FAMILIES, OPS, Family

if TYPE_CHECKING:
    from rich.console import RenderableType

    from numerics.presets.file import Catalog
    from numerics.resolution import Resolution

Entry = dict[str, Any]

INTEGRATIONS: Final = {
    "diffusers": "Fused by numerics.integrations.diffusers",
    "vllm_omni": "Fused by numerics.integrations.vllm_omni",
    None: "Settings alone: pass numerics.resolve(OP, MODEL) to the ops",
}


def list_models(
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="One model, or its class.", autocompletion=completing(model_names)),
    ] = None,
    capability: Capability = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Supported models, their geometry and settings.

    Each by its name in a presets file, with its class, the ops that an integration calls for it, and the preset in
    force for each family with who set it. `numerics show --model MODEL` prints these settings in full.
    """
    from numerics.cli.show import called, refuse, refuse_first, resolved
    from numerics.context import configuration

    use_file(config)
    catalog = configuration().catalog
    entries = [
        entry(catalog, name) for name in ([catalog.model_named(model)] if model is not None else catalog.model_names())
    ]
    wanted = [(family, each["name"]) for each in entries for family in families(catalog, each)]
    settings, refused = resolved(wanted, capability)
    refuse_first(settings, refused)
    found = [(each, [setting for setting in settings if setting.model == each["name"]]) for each in entries]
    if as_json:
        print_json([{**each, "settings": [setting.to_dict() for setting in by]} for each, by in found])
    else:
        print_page(*called(model, entries[0]["name"]), *page(found))
    refuse(refused)


def entry(catalog: Catalog, name: str) -> Entry:
    """What is known about a model but its settings, as JSON values."""
    served = {each: by for each, by in SUPPORTED.items() if name in by.models}
    classes = dict.fromkeys([*served, *(each for each, models in catalog.classes().items() if name in models)])
    ops = [op for by in served.values() for op in by.ops] or list(VLLM_OMNI.get(name, ()))
    geometry = GEOMETRY.get(name.rpartition(":")[2]) if name in catalog.packaged.models else None
    return {
        "name": name,
        "classes": list(classes),
        "integration": "diffusers" if served else "vllm_omni" if ops else None,
        "geometry": None if geometry is None else asdict(geometry),
        "ops": ops,
    }


def families(catalog: Catalog, each: Entry) -> list[Family]:
    """The families whose ops an integration calls for the model, and those that a file has settings of it for."""
    files = [file for file in (catalog.packaged, catalog.user) if file is not None]
    used = {OPS[op] for op in each["ops"]}.union(*(file.settings_of(each["name"]) for file in files))
    return [family for family in FAMILIES if family in used]


# --- As a page --------------------------------------------------------------------------------------------------------


def page(found: list[tuple[Entry, list[Resolution]]]) -> Iterator[RenderableType]:
    """A block for each model, by integration."""
    between = False
    for integration, what in INTEGRATIONS.items():
        blocks = [(each, settings) for each, settings in found if each["integration"] == integration]
        if blocks:
            if between:
                yield ""
            between = True
            yield heading(what)
        for each, settings in blocks:
            yield ""
            yield heading(each["name"], "".join(f", class {name}" for name in each["classes"]))
            yield grid(_values(each, settings))


def _values(each: Entry, settings: list[Resolution]) -> Iterator[tuple[str, str]]:
    if each["geometry"] is not None:
        yield "geometry", geometry_words(each["geometry"])
    if each["ops"]:
        yield "ops", words.listed(each["ops"])
    for setting in settings:
        yield setting.op, "\n".join(_setting(setting))


def _setting(found: Resolution) -> Iterator[str]:
    who = found.sources["preset"]
    yield f"{found.label} ({who.source}, {who.location})"
    for pattern, row in found.when:
        who = row.sources["preset"]
        yield f"on {pattern}: {row.label} ({who.source}, {who.location})"
    if found.min_tokens:
        yield f"from {found.min_tokens} tokens"


def geometry_words(geometry: dict[str, Any]) -> str:
    """`48 heads of 128, rotated in neighbouring pairs; text and image joint, then single; width 6144; eps 1e-06`."""
    heads, width = (" or ".join(map(str, geometry[name])) for name in ("heads", "width"))
    kv = "" if geometry["kv_heads"] is None else f" ({geometry['kv_heads']} of k)"
    part = "all" if geometry["rotary_dim"] == geometry["head_dim"] else f"the first {geometry['rotary_dim']}"
    pairs = "interleaved" if geometry["interleaved"] else "half-split"
    parts = [
        f"{heads} heads{kv} of {geometry['head_dim']}, {part} rotated, {pairs}",
        f"{' and '.join(geometry['streams'])} streams",
        f"width {width}",
        f"eps {geometry['eps']:g}",
        *filter(None, [geometry["note"]]),
    ]
    return "; ".join(parts)
