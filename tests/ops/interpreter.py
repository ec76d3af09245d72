"""Triton's CPU interpreter with the results corrected in which it differs from the GPU. Import before a kernel.

It cuts float32 to bfloat16 where the GPU rounds to nearest even, makes other numbers of subnormal bfloat16, its rsqrt
is numpy's, and before Triton 3.9 its fused multiply-add rounds twice.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before numerics.ops is imported

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from numerics.ops.arithmetic import exact_fma, rsqrt

_cast = interpreter.InterpreterBuilder.cast_impl


def _convert(self: object, src: interpreter.TensorHandle, dst_type: tl.dtype) -> interpreter.TensorHandle:
    if src.dtype.scalar == tl.bfloat16 and dst_type.scalar == tl.float32:
        return interpreter.TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
    if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
        x = torch.from_numpy(np.ascontiguousarray(src.data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return interpreter.TensorHandle(x.reshape(src.data.shape), tl.bfloat16)
    return _cast(self, src, dst_type)


def _sm90_rsqrt(_self: object, arg: interpreter.TensorHandle) -> interpreter.TensorHandle:
    x = torch.from_numpy(np.array(arg.data, dtype=np.float32, ndmin=1))
    return interpreter.TensorHandle(rsqrt(x).numpy().reshape(np.shape(arg.data)), arg.dtype.scalar)


def _fma(
    _self: object, x: interpreter.TensorHandle, y: interpreter.TensorHandle, z: interpreter.TensorHandle
) -> interpreter.TensorHandle:
    a, b, c = (torch.from_numpy(np.array(arg.data, dtype=np.float32, ndmin=1)) for arg in (x, y, z))
    return interpreter.TensorHandle(exact_fma(a, b, c).numpy().reshape(np.shape(x.data)), x.dtype.scalar)


def _call_device_function(self: interpreter.InterpretedFunction[object], *args: object, **kwargs: object) -> object:
    # As it does, but the language is not patched again, which the launch did and takes most of the time.
    return self.rewrite()(*args, **kwargs)


def correct() -> None:
    """Replace these operations in the interpreter of this process, and spare it needless work."""
    interpreter.InterpretedFunction.__call__ = _call_device_function
    builder = interpreter.InterpreterBuilder
    builder.cast_impl = _convert
    for name in ("create_si_to_fp", "create_fp_ext", "create_fp_trunc"):
        setattr(builder, name, lambda self, src, dst_type: self.cast_impl(src, dst_type))
    builder.create_rsqrt = _sm90_rsqrt
    builder.create_fma = _fma
