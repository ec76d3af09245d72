"""The tiny models, built once; each test leaves them as it found them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from numerics.integrations import vllm_omni, vllm_omni_ops
from numerics.integrations.diffusers_processor import Processor
from numerics.measure.model_cases import TINY, ModelCase
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import reset_dispatch_counts
from tests.integrations.tiny import inputs_of, shared
from tests.integrations.vllm_omni_package import Engine, forget
from tests.integrations.vllm_omni_package import write as write_vllm_omni


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


# --- Engines of vLLM --------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Makes the package importable, instead of the real one. Afterwards nothing of it is left."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm_omni"}
    finders = list(sys.meta_path)

    def make(version: str = "0.30.0", **changes: tuple[str, str]) -> Path:
        write_vllm_omni(tmp_path, version)
        for name, (old, new) in changes.items():
            (path,) = tmp_path.rglob(f"{name}.py")
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        monkeypatch.syspath_prepend(tmp_path)
        forget()
        return tmp_path

    yield make
    if (installed := vllm_omni.active()) is not None:
        installed.restore()
    assert sys.meta_path == finders
    forget()
    sys.modules.update(before)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tensors of the tests were on CUDA."""
    monkeypatch.setattr(vllm_omni_ops, "is_ours", lambda x: isinstance(x, Tensor))
