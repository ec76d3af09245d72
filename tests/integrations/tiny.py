"""Tiny models of each supported class, the same in each test."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from numerics.measure.model_cases import ModelCase
from numerics.measure.model_inputs import Inputs


def made(tiny: ModelCase, **config: Any) -> Any:
    """The model in bfloat16, with its weights."""
    torch.manual_seed(0)
    return tiny.build(**config)


shared = cache(made)  # for tests that leave it as they found it


def inputs_of(tiny: ModelCase, batch: int = 1) -> Inputs:
    """Inputs for a batch of so many."""
    config, device = shared(tiny).config, torch.device("cpu")
    torch.manual_seed(batch)
    return tiny.inputs(config, batch, tiny.extent, device)
