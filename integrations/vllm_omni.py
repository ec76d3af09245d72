"""The fused ops in vLLM-Omni's own models: rebound in each module that imports them, with that model's settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from numerics.errors import ConfigurationError, RequirementError
from numerics.integrations.after_import import AfterImport
from numerics.integrations.installed import Installed
from numerics.integrations.supported import VLLM_OMNI
from numerics.layers import family_of
from numerics.presets.versions import admits
from numerics.resolve import resolve

if TYPE_CHECKING:
    from numerics.integrations.vllm_omni_ops import Function
    from numerics.presets.vocabulary import Family
    from numerics.resolution import Resolution

LOG: Final = logging.getLogger("vllm.plugins.numerics")  # below vLLM's logger, whose handlers write the engine's log
VERSIONS: Final = ">=0.30,<0.31"  # whose models were read: which chain a function stands for, and what it is handed

_QK: Final = "vllm_omni.diffusion.layers.fused_qk_norm_rope"
_MODULATION: Final = "vllm_omni.diffusion.layers.indexed_modulation"
MIN_TOKENS: Final = "fused_qk_norm_rope_min_tokens"
LAYERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fused_qk_norm_rope": _QK,
        MIN_TOKENS: _QK,
        "rms_norm_indexed_scale_shift": _MODULATION,
        "indexed_gate_rms_norm_scale_shift": _MODULATION,
        "indexed_gate": _MODULATION,
        "indexed_scale_shift_": _MODULATION,
    }
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model module of vLLM-Omni that imports functions of LAYERS."""

    name: str  # of its settings
    module: str
    functions: tuple[str, ...]
    rounds_table: bool = False  # its chain rounds the rotation table, but it hands a float32 one to the function


MODELS: Final = (
    Model(
        "minimax_h3",
        "vllm_omni.diffusion.models.minimax_h3.minimax_h3_transformer",
        VLLM_OMNI["minimax_h3"],
    ),
    Model(
        "qwen_image",
        "vllm_omni.diffusion.models.qwen_image.qwen_image_transformer",
        (*VLLM_OMNI["qwen_image"], MIN_TOKENS),
        rounds_table=True,
    ),
    Model(
        "boogu_image",
        "vllm_omni.diffusion.models.boogu_image.boogu_image_transformer",
        (*VLLM_OMNI["boogu_image"], MIN_TOKENS),
    ),
)

# What calls these functions and is no model: it imports them each time that it runs.
KEPT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "vllm_omni.diffusion.cache.teacache.extractors.extract_minimax_h3_context": "calls indexed_scale_shift_ for "
        "the distance between two steps, which decides what is skipped and is no part of the output",
    }
)

_active: list[Installed] = []  # at most one
_lock: Final = Lock()  # of two threads that install, one does


def install() -> Installed:
    """Rebind the functions in the models that are imported and, once they are, in those that will be.

    Settings are resolved here, once: files and environment as they are now. Where they stand already, this changes
    nothing and returns the record that there is. Tensors that are not on CUDA go to vLLM-Omni's own functions.

    Raises:
        ConfigurationError: vLLM-Omni is not installed, or a file or variable is not legal.
    """
    with _lock:  # not any longer: whoever imports a model meanwhile may have to wait for this, and this for the import
        if _active:
            return _active[0]
        try:
            found = version("vllm-omni")
        except PackageNotFoundError:
            raise ConfigurationError(
                "vllm_omni: nothing to install in: the package vllm-omni is not installed"
            ) from None
        settings = {
            (model.name, family): _resolved(family, model.name) for model in MODELS for family in _families(model)
        }
        installed = Installed(f"vllm-omni {found}", settings, waiting={model.module for model in MODELS})
        installed.at_end(_active.clear)
        _active.append(installed)
    if not admits(VERSIONS, found):
        reason = f"legal: vllm-omni {VERSIONS}, whose models these functions were fitted to"
        installed.waiting.clear()
        for model in MODELS:
            for name in model.functions:
                installed.keep(f"{model.module}.{name}", reason)
        LOG.warning("numerics: nothing is replaced in vllm-omni %s: %s", found, reason)
        return installed
    for name, reason in KEPT.items():
        installed.keep(name, reason)
    LOG.info("numerics: installed in %s, settings %s", installed.engine, installed.fingerprint)
    for line in installed.lines():
        LOG.info("numerics: %s", line)
    watch = AfterImport({model.module: partial(_rebind, installed, model) for model in MODELS})
    installed.at_end(watch.stop)
    watch.start()
    return installed


def active() -> Installed | None:
    """The record of what is installed in this process."""
    return _active[0] if _active else None


def _families(model: Model) -> list[Family]:
    return list(dict.fromkeys(family_of(name) for name in model.functions if name != MIN_TOKENS))


def _resolved(family: Family, model: str) -> Resolution | RequirementError:
    try:
        return resolve(family, model)
    except RequirementError as error:  # of this model; another one may be served
        return error


def _rebind(installed: Installed, model: Model, module: ModuleType) -> None:
    from numerics.integrations.vllm_omni_ops import why_unknown

    installed.waiting.discard(model.module)
    replaced = []
    for name in model.functions:
        path, original = f"{model.module}.{name}", getattr(module, name, None)
        if reason := why_unknown(name, original, LAYERS[name]):
            LOG.warning("numerics: %s is left as it is: %s", path, reason)
            installed.keep(path, reason)
            continue
        ours = _stand_in(installed, model, name, original)
        if isinstance(ours, str):
            installed.keep(path, ours)
            continue
        setattr(module, name, ours)
        installed.replace(path, partial(_undo, module, name, ours, original))
        replaced.append(name)
    LOG.info("numerics: %s: replaced %s", model.module, ", ".join(replaced) or "nothing")


def _stand_in(installed: Installed, model: Model, name: str, original: Any) -> Function | str:
    """What takes the place of a function, or why nothing does."""
    from numerics.integrations.vllm_omni_ops import stand_in, threshold

    if name != MIN_TOKENS:
        found = installed.settings[model.name, family_of(name)]
        return stand_in(name, original, found, model.module, rounds_table=model.rounds_table)
    found = installed.settings[model.name, "fused_qk_norm_rope"]
    if isinstance(found, RequirementError):
        return "the settings of the model are refused"
    # Packaged thresholds are zero, and vLLM-Omni reads the variable itself. Where capabilities differ the op decides.
    rows = (found, *(row for _, row in found.when))
    if all(row.sources["min_tokens"].source in ("package", "environment") for row in rows):
        return "no file sets min_tokens, so the model's own threshold holds"
    return threshold(original, min(row.min_tokens for row in rows), model.module)


def _undo(module: ModuleType, name: str, ours: Function, original: Any) -> bool:
    if vars(module).get(name) is not ours:
        return False
    setattr(module, name, original)
    return True


__all__ = ["LAYERS", "MODELS", "VERSIONS", "Model", "active", "install"]
