from importlib.resources import files

import pytest
import torch

from numerics.golden.arrays import PACKAGED, load, pack, unpack


def test_packing_keeps_every_name_dtype_shape_and_bit() -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(256, 256)
    arrays = {"all": patterns.view(torch.bfloat16), "turned": patterns.float().t(), "indices": torch.arange(5)}
    found = unpack(pack(arrays))
    assert list(found) == list(arrays)
    assert torch.equal(found["all"].view(torch.int16), patterns)
    assert found["all"].dtype == torch.bfloat16
    assert torch.equal(found["turned"], arrays["turned"])
    assert torch.equal(found["indices"], arrays["indices"])


def test_the_arrays_are_read_once_and_cannot_be_replaced() -> None:
    assert load() is load()
    with pytest.raises(TypeError):
        load()["x_128"] = torch.empty(0)  # type: ignore[index]


def test_the_data_leaves_room_for_the_code_in_a_wheel_of_3_mb() -> None:
    folder = files("numerics.golden")
    sizes = [len(folder.joinpath(name).read_bytes()) for name in (PACKAGED, "rsqrt_approx_sm90_delta.xz")]
    assert sum(sizes) < 2_600_000
    assert sizes[1] < 400_000
