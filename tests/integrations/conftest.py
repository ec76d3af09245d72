"""The tiny models, built once; each test leaves them as it found them."""

from collections.abc import Iterator
from typing import Any

import pytest

from numerics.integrations.diffusers_processor import Processor
from numerics.measure.model_cases import TINY, ModelCase
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import reset_dispatch_counts
from tests.integrations.tiny import inputs_of, shared


@pytest.fixture(params=TINY.values(), ids=str)
def tiny(request: pytest.FixtureRequest) -> ModelCase:
    found: ModelCase = request.param
    return found


@pytest.fixture
def model(tiny: ModelCase) -> Iterator[Any]:
    yield from _left_as_found(shared(tiny))


@pytest.fixture
def flux2() -> Iterator[Any]:
    yield from _left_as_found(shared(TINY["flux2"]))


@pytest.fixture
def flux2_inputs() -> Inputs:
    return inputs_of(TINY["flux2"])


@pytest.fixture(autouse=True)
def _counts_from_zero() -> None:
    reset_dispatch_counts()


def _left_as_found(model: Any) -> Iterator[Any]:
    yield model
    assert not [
        each
        for each in model.modules()
        if isinstance(getattr(each, "processor", None), Processor) or "forward" in vars(each)
    ]
