"""Fused Q/K norm and rotation in diffusers' own transformers, by the attention processors that they let one set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final

from torch import nn

from numerics.errors import ConfigurationError, MissingExtraError, nearest
from numerics.integrations.supported import SUPPORTED
from numerics.resolution import Resolution
from numerics.resolve import resolve

OLDEST: Final = (0, 42)


@dataclass(frozen=True)
class Applied(AbstractContextManager["Applied"]):
    """What `apply` did. As a context manager it undoes it at the end; `restore` does so at any time."""

    resolutions: Mapping[str, Resolution]  # by component, or "" for a model given alone
    replaced: tuple[str, ...]  # attention modules whose processor is fused, by their path
    kept: Mapping[str, str]  # those whose processor is the one that was there, and why
    _modules: Mapping[str, tuple[Any, Any, Any]] = field(repr=False)  # (attention, stock processor, ours)

    def restore(self) -> tuple[str, ...]:
        """Put the stock processors back.

        Returns the paths of the modules that were left alone, because something else set a processor there since.
        """
        left = []
        for path, (attention, stock, ours) in self._modules.items():
            if attention.processor is ours:
                attention.set_processor(stock)
            elif attention.processor is not stock:
                left.append(path)
        return tuple(left)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        lines = [
            f"{component or 'model'}: {resolution.model} by {resolution.label} "
            f"({resolution.sources['preset'].source}: {resolution.sources['preset'].location})"
            for component, resolution in self.resolutions.items()
        ]
        lines += [f"{len(self.replaced)} replaced: {', '.join(self.replaced)}"]
        return "\n".join([*lines, *(f"{path} kept: {reason}" for path, reason in self.kept.items())])


def apply(model_or_pipeline: Any, preset: str | None = None, *, model: str | None = None) -> Applied:
    """Install fused attention processors on a diffusers transformer, or on each supported one of a pipeline.

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
    resolutions = {
        component: resolve("fused_qk_norm_rope", model or _name_of(each), preset=preset)
        for component, each in found.items()
    }
    modules: dict[str, tuple[Any, Any, Any]] = {}
    kept: dict[str, str] = {}
    for component, transformer in found.items():
        classes = [getattr(diffusers_models, name) for name in SUPPORTED[_class_of(transformer)].processors]
        tables = Tables()
        for name, attention in transformer.named_modules():
            if not hasattr(attention, "set_processor"):
                continue
            path = ".".join(filter(None, (component, name)))
            stock = attention.processor
            chosen = _processor_for(attention, stock, classes)
            if isinstance(chosen, str):
                kept[path] = chosen
            else:
                modules[path] = attention, stock, chosen(stock, resolutions[component], tables)
    if not modules:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in kept.items()) or "it has no attention"
        raise ConfigurationError(f"{type(model_or_pipeline).__name__}: nothing was replaced: {reasons}")
    for attention, _, ours in modules.values():
        attention.set_processor(ours)
    return Applied(resolutions, tuple(modules), MappingProxyType(kept), modules)


def _processor_for(attention: Any, stock: Any, classes: list[Any]) -> Any:
    """The fused processor's class, or the reason why there is none."""
    from numerics.integrations.diffusers_processor import Processor
    from numerics.integrations.diffusers_sources import why_unknown

    if isinstance(stock, Processor):
        return "its processor is fused already"
    joint = getattr(attention, "added_kv_proj_dim", None) is not None
    for each in classes:
        if type(stock) is each.stock_class and each.joint == joint:
            return each.why_not(attention) or why_unknown(each) or each
    return f"its processor is a {type(stock).__name__}, which has no fused form here"


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
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise ConfigurationError(f"diffusers {found}: legal: {'.'.join(map(str, OLDEST))} or newer")
