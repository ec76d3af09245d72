"""The plugin that vLLM loads in each of its processes: installs the ops in the engines that NUMERICS_INSTALL names."""

import logging
from typing import Final

from numerics import environment

LOG: Final = logging.getLogger("vllm.plugins.numerics")


def install_from_environment() -> None:
    """Do what NUMERICS_INSTALL says; nothing where it is unset. May be called more than once.

    Raises:
        ConfigurationError: it names an unknown engine or one that is not installed, or settings are not legal. vLLM
            then does not start.
    """
    engines = environment.installs()
    for name, known in environment.near_misses():
        if known == environment.INSTALL:
            LOG.warning("numerics: %s is set, which nothing reads; nearest: %s", name, known)
    if "vllm_omni" in engines:
        from numerics.integrations import vllm_omni

        vllm_omni.install()
    if "vllm" in engines:
        from numerics.integrations import vllm_ir

        vllm_ir.install()
