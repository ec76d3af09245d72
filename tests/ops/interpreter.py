"""Triton's CPU interpreter with the two results corrected in which it differs from the GPU. Import before a kernel.

It cuts float32 to bfloat16 where the GPU rounds to nearest even, and its rsqrt is numpy's.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before numerics.ops is imported

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from numerics.ops.arithmetic import rsqrt

_cast = interpreter.InterpreterBuilder.cast_impl


def _round_to_nearest_even(self: object, src: interpreter.TensorHandle, dst_type: tl.dtype) -> interpreter.TensorHandle:
    if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
        x = torch.from_numpy(np.ascontiguousarray(src.data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return interpreter.TensorHandle(x.reshape(src.data.shape), tl.bfloat16)
    return _cast(self, src, dst_type)


def _sm90_rsqrt(_self: object, arg: interpreter.TensorHandle) -> interpreter.TensorHandle:
    x = torch.from_numpy(np.array(arg.data, dtype=np.float32, ndmin=1))
    return interpreter.TensorHandle(rsqrt(x).numpy().reshape(np.shape(arg.data)), arg.dtype.scalar)


def correct() -> None:
    """Replace the two operations in the interpreter of this process."""
    builder = interpreter.InterpreterBuilder
    builder.cast_impl = _round_to_nearest_even
    for name in ("create_si_to_fp", "create_fp_ext", "create_fp_trunc"):
        setattr(builder, name, lambda self, src, dst_type: self.cast_impl(src, dst_type))
    builder.create_rsqrt = _sm90_rsqrt
