"""Imports a peer's source files where its package is not installed, with small modules in place of what they import."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from numerics.errors import ConfigurationError
from numerics.ops.language import HAS_TRITON, tl, triton


def import_file(path: Path, option: str) -> ModuleType:
    """The module in a file that an option names. Raises ConfigurationError where it is none, or does not import."""
    if not path.is_file():
        raise ConfigurationError(f"{option} {path}: no such file")
    name = f"numerics_peer_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{option} {path}: not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(f"{option} {path}: does not import: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def vllm_stand_ins() -> Iterator[None]:
    """While it lasts, what vllm-omni's kernels import of vllm and vllm_omni can be imported, installed or not."""
    added = {
        name: module
        for name, module in _modules().items()
        if find_spec(name.split(".", maxsplit=1)[0]) is None  # of one package all come from the same place
    }
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


def _modules() -> dict[str, ModuleType]:
    platform = SimpleNamespace(is_cuda=lambda: torch.version.hip is None, is_npu=lambda: False)
    # What the environment would set is not read: public ops are called, which do not ask for a number of tokens.
    envs = SimpleNamespace(VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS=None)
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"HAS_TRITON": HAS_TRITON, "tl": tl, "triton": triton},
        "vllm.utils": {},
        "vllm.utils.torch_utils": {"direct_register_custom_op": _register},
        "vllm_omni": {},
        "vllm_omni.diffusion": {"envs": envs},
        "vllm_omni.platforms": {"current_omni_platform": platform},
    }
    modules = {}
    for name, attributes in contents.items():
        modules[name] = module = ModuleType(name)
        vars(module).update(attributes)
    return modules


def _register(
    op_name: str,
    op_func: Callable[..., Any],
    mutates_args: list[str],
    fake_impl: Callable[..., Any],
    target_lib: torch.library.Library,
) -> None:
    schema = torch.library.infer_schema(op_func, mutates_args=mutates_args)
    target_lib.define(op_name + schema)
    target_lib.impl(op_name, op_func, "CUDA")
    target_lib._register_fake(op_name, fake_impl)
