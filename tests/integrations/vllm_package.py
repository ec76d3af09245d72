"""A package `vllm` of the form of 0.29 as far as providers of IR ops see it."""

from pathlib import Path
from typing import Final

OP: Final = """
import inspect

import torch


class IrOp:
    def __init__(self, native):
        self.name = native.__name__
        self.impls = {"native": IrOpImpl(self, "native", native, True, None)}
        self._priority_impls = []

    def register_impl(self, provider, *, supported=True, supports_args=None, inplace=False):
        def register(function):
            theirs, ours = (inspect.signature(f) for f in (self.impls["native"].impl_fn, function))
            if str(theirs) != str(ours):
                raise ValueError(f"Implementation for provider {provider} has schema '{ours}' which does not match")
            self.impls[provider] = IrOpImpl(self, provider, function, supported, supports_args)
            return self.impls[provider]

        return register

    def set_default(self, priority):
        self._priority_impls = [self.impls[name] for name in priority if self.impls[name].supported]

    def get_priority(self):
        return [each.provider for each in self._priority_impls]

    def __call__(self, *args):
        for impl in self._priority_impls:
            if impl.supports_args(*args):
                return impl.impl_fn(*args)
        return self.impls["native"].impl_fn(*args)


class IrOpImpl:
    def __init__(self, op, provider, impl_fn, supported, supports_args):
        self.op, self.provider, self.impl_fn, self.supported = op, provider, impl_fn, supported
        self._supports_args = supports_args

    def supports_args(self, *args):
        return self._supports_args is None or self._supports_args(*args)

    def uuid(self):
        return "source"
"""
OPS: Final = """
from torch import Tensor

from vllm.ir.op import IrOp


@IrOp
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    return x.clone()


@IrOp
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    return x.clone(), x_residual.clone()
"""
FILES: Final = {
    "__init__.py": "",
    "platforms.py": "class current_platform:\n    is_cuda = staticmethod(lambda: False)\n",
    "ir/__init__.py": "from vllm.ir import ops\n",
    "ir/op.py": OP,
    "ir/ops.py": OPS,
}


def write(folder: Path) -> None:
    """Write the package and its metadata, as pip would install them."""
    for name, text in FILES.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = folder / "vllm-0.29.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.29.0\n")
