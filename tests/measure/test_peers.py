"""Peers: where they are found, what they compute, and why they are absent."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.measure import peers
from numerics.measure.arms import AbsentError, differing, specification
from numerics.measure.cases import PEERS, Case, Heads
from numerics.measure.inputs import make
from numerics.measure.peers import Locations, Peer, found
from numerics.ops import fused_add_rms_norm, rms_norm
from numerics.resolve import resolve

CPU = torch.device("cpu")

ROTARY = """
import torch

def apply_rotary(x, cos, sin, interleaved=False):
    assert x.ndim == 4 and x.dtype == cos.dtype
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)
"""

QK_NORM_ROPE = """
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON, tl, triton
from vllm.utils.torch_utils import direct_register_custom_op
from vllm_omni.diffusion import envs
from vllm_omni.platforms import current_omni_platform

def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2

library = torch.library.Library("numerics_test_peer", "FRAGMENT")
if not hasattr(torch.ops.numerics_test_peer, "doubled"):
    direct_register_custom_op(
        op_name="doubled", op_func=doubled, fake_impl=torch.empty_like, mutates_args=[], target_lib=library
    )

def fused_qk_norm_rope(q, k, q_weight, k_weight, rope_table, eps, *, interleaved=False):
    return q * 2, k * 2
"""

MODULATION = """
from vllm.triton_utils import tl, triton

def indexed_scale_shift_(x, shift, scale, indices):
    return x.copy_(x + 1)
"""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "rotary.py").write_text(ROTARY)
    (tmp_path / "ops.so").write_bytes(b"")
    (tmp_path / "omni_qk_norm_rope.py").write_text(QK_NORM_ROPE)
    (tmp_path / "indexed_modulation.py").write_text(MODULATION)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("numerics_peer_"):
            del sys.modules[name]


def peer(name: str, locations: Locations | None = None) -> Peer:
    there = found(locations or Locations(), [name])[name]
    assert isinstance(there, Peer), there
    return there


# --- Absent -----------------------------------------------------------------------------------------------------------


def test_what_is_not_installed_says_how_to_name_it() -> None:
    there = found(Locations())
    assert set(there) == set(PEERS)
    assert there["vllm"] == "vLLM is not installed; --vllm-library FILE names its compiled ops"
    assert there["vllm_omni"] == "vllm-omni is not installed; --vllm-omni DIR names the folder of its kernels"


def test_a_library_that_does_not_import_is_absent(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (write / "vllm").mkdir()
    (write / "vllm" / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(write)
    assert found(Locations(), ["vllm"]) == {
        "vllm": "vllm._custom_ops cannot be imported: RuntimeError: built for another torch"
    }


@pytest.mark.parametrize(
    ("locations", "message"),
    [
        ({"vllm_library": "none.so"}, "--vllm-library .*none.so: no such file"),
        ({"vllm_library": "ops.so"}, "--vllm-library .*ops.so: cannot be loaded"),
        ({"vllm_omni": "empty"}, "--vllm-omni .*empty: has none of fused_qk_norm_rope.py, "),
        ({"vllm_omni": "broken"}, "--vllm-omni .*indexed_modulation.py: does not import: ZeroDivisionError"),
    ],
)
def test_a_location_that_is_none_is_an_error(write: Path, locations: dict[str, str], message: str) -> None:
    (write / "empty").mkdir()
    (write / "broken").mkdir()
    (write / "broken" / "indexed_modulation.py").write_text("1 / 0")
    with pytest.raises(ConfigurationError, match=message):
        found(Locations(**{name: write / path for name, path in locations.items()}))


# --- vLLM -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of vLLM's compiled ops: ours, which have its signatures' effect."""

    def norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        out.copy_(rms_norm(x, weight, eps, numerics="vllm_cuda"))

    def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        normed, total = fused_add_rms_norm(x, residual, weight, eps, numerics="vllm_cuda_add")
        x.copy_(normed)
        residual.copy_(total)

    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(rms_norm=norm, fused_add_rms_norm=add_norm))
    monkeypatch.setattr(torch.ops, "load_library", lambda _: None)


@pytest.mark.usefixtures("compiled")
def test_vllms_chain_is_what_every_op_of_ours_computes(write: Path, tiny: dict[str, Case]) -> None:
    vllm = peer("vllm", Locations(vllm_library=write / "ops.so", vllm_rotary=write / "rotary.py"))
    assert (vllm.version, [path.name for path in vllm.files]) == (None, ["ops.so", "rotary.py"])
    for case in tiny.values():
        inputs = make(case, CPU, 0)
        expected = specification(inputs, resolve(case.op, preset=case.exact)).results()
        arm = vllm.arm(inputs)
        assert differing(arm.results(), expected) == 0
        assert differing(arm.results(), expected) == 0  # also where the kernel works in place
        assert inputs.hash == make(case, CPU, 0).hash


@pytest.mark.usefixtures("compiled")
def test_vllm_is_not_asked_to_add_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses the launch of its kernel: an empty grid."""
    asked: list[int] = []
    monkeypatch.setattr(torch.ops._C, "fused_add_rms_norm", lambda x, *_: asked.append(len(x)))
    for rows in (0, 2):
        x, residual = torch.ones(rows, 8), torch.zeros(rows, 8)
        assert [part.shape for part in peers.vllm_add_norm(x, residual, torch.ones(8), 1e-6)] == [(rows, 8)] * 2
    assert asked == [2]


@pytest.mark.usefixtures("compiled")
def test_without_a_rotary_kernel_vllm_has_norms_alone(write: Path, tiny: dict[str, Case]) -> None:
    vllm = peer("vllm", Locations(vllm_library=write / "ops.so"))
    with pytest.raises(AbsentError, match="--vllm-rotary FILE names it"):
        vllm.arm(make(tiny["fused_qk_norm_rope"], CPU, 0))
    vllm.arm(make(tiny["rms_norm"], CPU, 0))


def test_a_library_without_the_op_is_absent(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "load_library", lambda _: None)
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace())
    there = found(Locations(vllm_library=write / "ops.so"), ["vllm"])
    assert there == {"vllm": "its compiled ops have no rms_norm"}


# --- vllm-omni --------------------------------------------------------------------------------------------------------


def test_vllm_omnis_files_import_without_vllm(write: Path, tiny: dict[str, Case]) -> None:
    omni = peer("vllm_omni", Locations(vllm_omni=write))
    inputs = make(tiny["fused_qk_norm_rope"], CPU, 0)
    q, _ = omni.arm(inputs).results()
    assert torch.equal(q, inputs.tensors["q"] * 2)
    assert {path.name for path in omni.files} == {"omni_qk_norm_rope.py", "indexed_modulation.py"}


def test_stand_ins_are_gone_after_the_import(write: Path) -> None:
    peer("vllm_omni", Locations(vllm_omni=write))
    assert not {name for name in sys.modules if name.split(".")[0] in {"vllm", "vllm_omni"}}


def test_an_installed_vllm_is_not_stood_in_for(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (write / "vllm").mkdir()
    (write / "vllm" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(write)
    with pytest.raises(ConfigurationError, match=r"No module named 'vllm\.platforms'"):
        found(Locations(vllm_omni=write))
    del sys.modules["vllm"]


def test_vllm_omni_in_place_starts_from_the_same_values_each_time(write: Path, tiny: dict[str, Case]) -> None:
    inputs = make(tiny["indexed_scale_shift_"], CPU, 0)
    arm = peer("vllm_omni", Locations(vllm_omni=write)).arm(inputs)
    arm.call()
    (x,) = arm.results()
    assert torch.equal(x, inputs.tensors["x"] + 1)
    assert inputs.hash == make(inputs.case, CPU, 0).hash


def test_vllm_omni_is_absent_where_it_has_no_kernel(write: Path, tiny: dict[str, Case]) -> None:
    omni = peer("vllm_omni", Locations(vllm_omni=write))
    half = Heads(tokens=5, q_heads=2, k_heads=2, rotary_dim=64, interleaved=False)
    cases = {
        "it has no rms_norm": tiny["rms_norm"],
        "it has no fused_joint_qkv_norm_rope": tiny["fused_joint_qkv_norm_rope"],
        "it has no half-split kernel for head_dim 128, rotary_dim 64": Case(
            op="fused_qk_norm_rope", geometry=half, presets=("fast",), exact="vllm_cuda"
        ),
    }
    for message, case in cases.items():
        with pytest.raises(AbsentError, match=message):
            omni.arm(make(case, CPU, 0))


def test_one_of_vllm_omnis_files_is_enough(write: Path, tiny: dict[str, Case]) -> None:
    (write / "omni_qk_norm_rope.py").unlink()
    omni = peer("vllm_omni", Locations(vllm_omni=write))
    omni.arm(make(tiny["indexed_scale_shift_"], CPU, 0))
    with pytest.raises(AbsentError, match="the file that has fused_qk_norm_rope was not found"):
        omni.arm(make(tiny["fused_qk_norm_rope"], CPU, 0))


# --- Inductor ---------------------------------------------------------------------------------------------------------


def test_the_whole_chain_is_one_graph(tiny: dict[str, Case], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    compile_ = torch.compile

    def compile_here(function: object, **how: object) -> object:
        asked.update(how)
        return compile_(function, backend="eager", fullgraph=True)  # type: ignore[call-overload]  # any callable

    monkeypatch.setattr(torch, "compile", compile_here)
    for case in tiny.values():
        inputs = make(case, CPU, 0)
        compiled = peers.found(Locations(), ["inductor_autotuned"])["inductor_autotuned"]
        assert isinstance(compiled, Peer)
        assert differing(compiled.arm(inputs).results(), peer("torch").arm(inputs).results()) == 0
    assert asked == {"fullgraph": True, "dynamic": False, "mode": "max-autotune-no-cudagraphs"}


# --- Norms of other libraries -----------------------------------------------------------------------------------------

QUACK = """
from numerics.ops import fused_add_rms_norm, rms_norm

def rmsnorm(x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6, prenorm=False):
    if residual is None:
        return rms_norm(x, weight, eps, numerics="vllm_cuda")
    assert prenorm
    return fused_add_rms_norm(x, residual, weight, eps, numerics="vllm_cuda_add")
"""

FLASHINFER = """
from numerics.ops import fused_add_rms_norm, rms_norm

def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    return rms_norm(input, weight, eps, numerics="vllm_cuda")

def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    out, total = fused_add_rms_norm(input, residual, weight, eps, numerics="vllm_cuda_add")
    input.copy_(out)
    residual.copy_(total)
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Packages with the functions and the signatures of quack and FlashInfer."""
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "__init__.py").write_text(QUACK)
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("")
    (tmp_path / "flashinfer" / "norm.py").write_text(FLASHINFER)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("quack", "flashinfer", "flashinfer.norm"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["quack", "flashinfer"])
def test_norms_of_other_libraries_start_from_the_same_values_each_time(name: str, tiny: dict[str, Case]) -> None:
    for op in ("rms_norm", "fused_add_rms_norm"):
        inputs = make(tiny[op], CPU, 0)
        expected = specification(inputs, resolve(op, preset=tiny[op].exact)).results()
        arm = peer(name).arm(inputs)
        assert differing(arm.results(), expected) == 0
        assert differing(arm.results(), expected) == 0
        assert inputs.hash == make(tiny[op], CPU, 0).hash
    with pytest.raises(AbsentError, match="its norms are measured alone"):
        peer(name).arm(make(tiny["fused_qk_norm_rope"], CPU, 0))


def test_a_library_of_norms_that_is_not_there_says_why(libraries: Path) -> None:
    (libraries / "quack" / "__init__.py").write_text("import cutlass_that_is_not_there")
    (libraries / "flashinfer" / "norm.py").write_text("")
    assert found(Locations(), ["quack", "flashinfer"]) == {
        "quack": "quack needs cutlass_that_is_not_there, which is not installed",
        "flashinfer": "flashinfer.norm has no rmsnorm",
    }


@pytest.mark.skipif(find_spec("quack") is not None, reason="it is installed")
def test_quack_is_not_installed() -> None:
    assert found(Locations(), ["quack"]) == {"quack": "quack is not installed (pip install quack-kernels)"}
