"""Fused Q/K norm and rotation in diffusers' own transformers, by the attention processors that they let one set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Final

from torch import nn

from numerics.errors import ConfigurationError, MissingExtraError, nearest
from numerics.integrations.diffusers_swap import Swap, SwappedForward, SwappedProcessor, place_of_own
from numerics.integrations.supported import SUPPORTED
from numerics.presets.versions import admits
from numerics.presets.vocabulary import Family
from numerics.resolution import Resolution
from numerics.resolve import resolve

OLDEST: Final = "0.42"
FAMILIES: Final[tuple[Family, Family]] = ("fused_qk_norm_rope", "fused_modulation")


@dataclass(frozen=True)
class Applied(AbstractContextManager["Applied"]):
    """What `apply` did. As a context manager it undoes it at the end; `restore` does so at any time."""

    resolutions: Mapping[str, Resolution]  # of norm and rotation, by component, or "" for a model given alone
    modulations: Mapping[str, Resolution]  # of modulation, for those components whose blocks have a fused form
    replaced: tuple[str, ...]  # by path: attention whose processor is fused, and blocks whose modulation is
    kept: Mapping[str, str]  # those that are as they were, and why
    _swaps: Mapping[str, Swap] = field(repr=False)

    def restore(self) -> tuple[str, ...]:
        """Put the stock processors and forwards back.

        Returns the paths of the modules that were left alone, because something else was set there since.
        """
        return tuple(path for path, swap in self._swaps.items() if not swap.restore())

    def __enter__(self) -> Applied:
        if not any(swap.stands() for swap in self._swaps.values()):
            raise ConfigurationError("nothing that apply() put in is in its place any more; call apply() again")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        lines = [
            f"{component or 'model'}: {word}{resolution.model} by {resolution.label} "
            f"({resolution.sources['preset'].source}: {resolution.sources['preset'].location})"
            for word, resolutions in (("", self.resolutions), ("modulation of ", self.modulations))
            for component, resolution in resolutions.items()
        ]
        lines += [f"{len(self.replaced)} replaced: {', '.join(self.replaced)}"]
        return "\n".join([*lines, *(f"{path} kept: {reason}" for path, reason in self.kept.items())])


def apply(model_or_pipeline: Any, preset: str | None = None, *, model: str | None = None) -> Applied:
    """Install fused attention processors on a diffusers transformer, or on each supported one of a pipeline.

    The blocks of MiniMax-H3 also get a forward whose modulation is fused.

    Every output keeps its bytes with the default preset, the one of presets.toml that reproduces diffusers' own chain
    of this model. Settings are resolved here, once: files, environment and `numerics.use` as they are now. What the
    processors do not cover is left to the stock ones and counted (`numerics.ops.telemetry.dispatch_counts`).

    Args:
        model_or_pipeline: an instance of a class in `SUPPORTED`, compiled by torch.compile or not, or a pipeline.
        preset: the name of another preset.
        model: the name of the settings, such as `diffusers:flux2`, where the class is not to decide.

    Returns:
        What was replaced, what was not and why.

    Raises:
        MissingExtraError: diffusers is not installed.
        ConfigurationError: the class is not supported, nothing could be replaced, or there is no such preset or model.
        RequirementError: a condition of the preset does not hold for this process.
    """
    _check_version()
    from numerics.integrations import diffusers_models
    from numerics.integrations.diffusers_table import Tables

    found = dict(_transformers(model_or_pipeline))
    resolutions, modulations = (
        {
            component: resolve(op, _name_of(each) if model is None else model, preset=preset)
            for component, each in found.items()
            if op == "fused_qk_norm_rope" or SUPPORTED[_class_of(each)].block
        }
        for op in FAMILIES
    )
    swaps: dict[str, Swap] = {}
    kept: dict[str, str] = {}
    seen: set[nn.Module] = set()  # one may stand in two components, and below what torch.compile wrapped it in
    for component, transformer in found.items():
        served = SUPPORTED[_class_of(transformer)]
        classes = [getattr(diffusers_models, name) for name in served.processors]
        tables = Tables()
        for name, found_there in transformer.named_modules():
            module = _original(found_there)
            if module in seen:
                continue
            seen.add(module)
            path = ".".join(filter(None, (component, name)))
            chosen: Swap | str
            if hasattr(module, "set_processor"):
                chosen = f"attention of {served.unrotated} is not rotated"
                if served.unrotated is None or not name.startswith(f"{served.unrotated}."):
                    chosen = _swap_processor(module, classes, resolutions[component], tables)
            elif served.block in [base.__name__ for base in type(module).__mro__]:
                chosen = _swap_forward(module, modulations[component])
            else:
                continue
            if isinstance(chosen, str):
                kept[path] = chosen
            else:
                swaps[path] = chosen
    if not swaps:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in kept.items()) or "it has no attention"
        raise ConfigurationError(f"{type(model_or_pipeline).__name__}: nothing was replaced: {reasons}")
    applied = Applied(resolutions, modulations, tuple(swaps), MappingProxyType(kept), swaps)
    try:
        for swap in swaps.values():
            swap.install()
    except BaseException:
        applied.restore()
        raise
    return applied


def _swap_processor(attention: Any, classes: list[Any], resolution: Resolution, tables: Any) -> Swap | str:
    """The fused processor instead of the stock one, or the reason why there is none."""
    from numerics.integrations.diffusers_processor import Processor
    from numerics.integrations.diffusers_sources import why_unknown

    stock = attention.processor
    if isinstance(stock, Processor):
        return "its processor is fused already"
    joint = getattr(attention, "added_kv_proj_dim", None) is not None
    for each in classes:
        if type(stock) is each.stock_class and each.joint == joint:
            reason = each.why_not(attention) or why_unknown(each)
            return reason or SwappedProcessor(attention, stock, each(stock, resolution, tables))
    return f"its processor is a {type(stock).__name__}, which has no fused form here"


def _swap_forward(block: nn.Module, resolution: Resolution) -> Swap | str:
    """The forward with fused modulation instead of the stock one, or the reason why it stays."""
    from numerics.integrations.diffusers_minimax import modulated_forward, why_not_block
    from numerics.integrations.diffusers_sources import why_unknown_block

    if reason := why_not_block(block) or why_unknown_block(type(block)):
        return reason
    if place_of_own(block) is None:
        return "its forward is fused already, or replaced by something else"
    return SwappedForward(block, partial(modulated_forward, block, resolution))


# --- What was given ---------------------------------------------------------------------------------------------------


def _transformers(given: Any) -> Iterator[tuple[str, nn.Module]]:
    """The supported transformers, by component: "" for a model, and the names that a pipeline has for them."""
    if isinstance(given, nn.Module):
        model = _original(given)
        if _class_of(model) is None:
            raise ConfigurationError(
                f"{type(model).__name__}: no supported model{nearest(type(model).__name__, SUPPORTED)}"
            )
        yield "", model
        return
    components = getattr(given, "components", None)
    if not isinstance(components, dict):
        raise ConfigurationError(f"got {type(given).__name__}; legal: a diffusers model or pipeline")
    supported = {
        name: _original(part)
        for name, part in components.items()
        if isinstance(part, nn.Module) and _class_of(_original(part)) is not None
    }
    if not supported:
        classes = ", ".join(f"{name}: {type(part).__name__}" for name, part in components.items())
        raise ConfigurationError(
            f"{type(given).__name__}: no supported model among its components ({classes}). "
            f"Known: {', '.join(SUPPORTED)}"
        )
    yield from supported.items()


def _original(model: nn.Module) -> nn.Module:
    """The model that torch.compile wrapped."""
    original = getattr(model, "_orig_mod", model)
    assert isinstance(original, nn.Module)
    return original


def _class_of(model: nn.Module) -> Any:
    """The name of the supported diffusers class that the model is an instance of, or None."""
    return next(
        (
            each.__name__
            for each in type(model).__mro__
            if each.__name__ in SUPPORTED and each.__module__.startswith("diffusers.")
        ),
        None,
    )


def _name_of(model: Any) -> str:
    """The name of the model's settings. Flux.2 dev embeds the guidance scale, klein does not."""
    names = SUPPORTED[_class_of(model)].models
    return names[-1] if len(names) > 1 and not model.config.guidance_embeds else names[0]


def _check_version() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("diffusers")
    except PackageNotFoundError:
        raise MissingExtraError(
            "numerics.integrations.diffusers: diffusers is not installed; pip install 'omni-numerics[diffusers]'"
        ) from None
    if not admits(f">={OLDEST}", found):
        raise ConfigurationError(f"diffusers {found}: legal: {OLDEST} or newer")
