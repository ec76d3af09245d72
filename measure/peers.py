"""What else computes a case: PyTorch, Inductor, vLLM, vllm-omni, quack and FlashInfer, where they can be had."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from numerics.errors import ConfigurationError
from numerics.measure.arms import AbsentError, Arm
from numerics.measure.cases import NORM_PEERS, PEERS, Heads, Rows
from numerics.measure.chains import TORCH, Chain, arguments_of
from numerics.measure.inputs import Inputs
from numerics.measure.norm_libraries import norms_of
from numerics.measure.stand_ins import import_file, vllm_stand_ins
from numerics.presets.vocabulary import OPS

VLLM_ROTARY: Final = "vllm.vllm_flash_attn.ops.triton.rotary"
OMNI_LAYERS: Final = "vllm_omni.diffusion.layers"
OMNI_FILES: Final = {  # in the package, and as somebody may have copied it
    "qk": ("fused_qk_norm_rope", "omni_qk_norm_rope"),
    "modulation": ("indexed_modulation", "omni_indexed_modulation"),
}
OMNI_HALF_SPLIT: Final = (128, 96)  # head_dim and rotary_dim; with others vllm-omni runs its eager chain
INDUCTOR_MODES: Final = {"inductor": None, "inductor_autotuned": "max-autotune-no-cudagraphs"}


@dataclass(frozen=True)
class Locations:
    """Where peers lie that are not installed."""

    vllm_library: Path | None = None
    vllm_rotary: Path | None = None
    vllm_omni: Path | None = None


@dataclass(frozen=True)
class Peer:
    """One peer. `arm` raises AbsentError for a case that it does not compute."""

    arm: Callable[[Inputs], Arm]
    version: str | None = None  # of the library, where it is known
    files: tuple[Path, ...] = ()  # whose hashes say what was measured


def found(locations: Locations, names: Sequence[str] = PEERS) -> dict[str, Peer | str]:
    """Each peer, or why it is absent. Raises ConfigurationError where a location that was given is no such thing."""
    return {name: _found(name, locations) for name in names}


def _found(name: str, locations: Locations) -> Peer | str:
    try:
        if name == "vllm":
            return _vllm(locations)
        if name == "vllm_omni":
            return _vllm_omni(locations.vllm_omni)
        if name in NORM_PEERS:
            return _norms(name)
        return _torch() if name == "torch" else _inductor(INDUCTOR_MODES[name])
    except AbsentError as error:
        return str(error)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _torch() -> Peer:
    return Peer(partial(_chain_arm, TORCH), torch.__version__)


def _chain_arm(chain: Chain, inputs: Inputs) -> Arm:
    return Arm(partial(chain.of(inputs.case.op), **arguments_of(inputs, chain)))


def _add_norm_arm(chain: Chain, inputs: Inputs) -> Arm:
    """Of an add_norm that writes into its inputs: into copies, which can be made new."""
    given = inputs.arguments()
    sources = given["x"], given["residual"]
    given["x"], given["residual"] = own = tuple(x.clone() for x in sources)
    return Arm(
        partial(chain.fused_add_rms_norm, **given),
        renew=lambda: [x.copy_(source) for x, source in zip(own, sources, strict=True)],
    )


def _inductor(mode: str | None) -> Peer:
    def arm(inputs: Inputs) -> Arm:
        torch.compiler.reset()  # what was compiled for another case is of no use here, and counts against a limit
        compiled = torch.compile(TORCH.of(inputs.case.op), fullgraph=True, dynamic=False, mode=mode)
        return Arm(partial(compiled, **arguments_of(inputs, TORCH)))

    return Peer(arm, torch.__version__)


# --- Norms of other libraries -----------------------------------------------------------------------------------------


def _norms(library: str) -> Peer:
    norms = norms_of(library)
    chain = Chain(norms.norm, norms.add_norm)

    def arm(inputs: Inputs) -> Arm:
        if OPS[inputs.case.op] != "fused_rms_norm":
            raise AbsentError("its norms are measured alone")
        if norms.in_place and inputs.case.op == "fused_add_rms_norm":
            return _add_norm_arm(chain, inputs)
        return _chain_arm(chain, inputs)

    return Peer(arm, norms.version)


# --- vLLM -------------------------------------------------------------------------------------------------------------


def vllm_chain(locations: Locations) -> Chain:
    """The unfused chain on vLLM's compiled norms and, where it is there, on the rotary kernel that it ships.

    Raises AbsentError where there is no vLLM, ConfigurationError where a location that was given is no such thing.
    """
    library, rotary = locations.vllm_library, locations.vllm_rotary
    if library is None:
        if find_spec("vllm") is None:
            raise AbsentError("vLLM is not installed; --vllm-library FILE names its compiled ops")
        _import("vllm._custom_ops")
    else:
        _load_library(library)
    if not hasattr(torch.ops._C, "rms_norm"):
        raise AbsentError("its compiled ops have no rms_norm")
    if rotary is not None:
        apply_rotary = import_file(rotary, "--vllm-rotary").apply_rotary
    elif library is None:
        apply_rotary = _import(VLLM_ROTARY).apply_rotary
    else:
        apply_rotary = None

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        turned: Tensor = apply_rotary(x, cos, sin, interleaved=interleaved)
        return turned

    return Chain(vllm_norm, vllm_add_norm, rotate if apply_rotary else None)


def vllm_version(locations: Locations) -> str | None:
    """Of the installed one; a library that was named does not say."""
    return _version("vllm") if locations.vllm_library is None else None


def _vllm(locations: Locations) -> Peer:
    chain = vllm_chain(locations)

    def arm(inputs: Inputs) -> Arm:
        if inputs.case.op != "fused_add_rms_norm":
            if chain.rotate is None and "cos" in inputs.tensors:
                raise AbsentError("no rotary kernel; --vllm-rotary FILE names it")
            return _chain_arm(chain, inputs)
        return _add_norm_arm(chain, inputs)

    files = tuple(path for path in (locations.vllm_library, locations.vllm_rotary) if path is not None)
    return Peer(arm, vllm_version(locations), files)


def vllm_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """VLLM's kernel."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.ops._C.rms_norm(out, x, weight, eps)
    return out


def vllm_add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """In place, as the kernel has it. No rows are no launch: CUDA refuses vLLM's, of an empty grid."""
    if x.numel():
        torch.ops._C.fused_add_rms_norm(x, residual, weight, eps)
    return x, residual


def _load_library(path: Path) -> None:
    if not path.is_file():
        raise ConfigurationError(f"--vllm-library {path}: no such file")
    try:
        torch.ops.load_library(str(path.resolve()))
    except OSError as error:
        raise ConfigurationError(f"--vllm-library {path}: cannot be loaded: {error}") from error


# --- vllm-omni --------------------------------------------------------------------------------------------------------


def _vllm_omni(folder: Path | None) -> Peer:
    """Its public fused ops."""
    modules, files = _omni_installed() if folder is None else _omni_files(folder)

    def arm(inputs: Inputs) -> Arm:
        case = inputs.case
        module = modules.get("modulation" if isinstance(case.geometry, Rows) else "qk")
        op = getattr(module, case.op, None)
        if op is None:
            raise AbsentError(f"it has no {case.op}" if module else f"the file that has {case.op} was not found")
        if isinstance(case.geometry, Heads):
            widths = case.geometry.head_dim, case.geometry.rotary_dim
            if not case.geometry.interleaved and widths != OMNI_HALF_SPLIT:
                raise AbsentError(f"it has no half-split kernel for head_dim {widths[0]}, rotary_dim {widths[1]}")
        given = inputs.arguments()
        if not case.op.endswith("_"):
            return Arm(partial(op, **given))
        x = given.pop("x")
        own = x.clone()
        return Arm(partial(op, own, **given), renew=lambda: own.copy_(x))

    return Peer(arm, _version("vllm-omni") if folder is None else None, files)


def _omni_installed() -> tuple[Mapping[str, ModuleType], tuple[Path, ...]]:
    if find_spec("vllm_omni") is None:
        raise AbsentError("vllm-omni is not installed; --vllm-omni DIR names the folder of its kernels")
    return {kind: _import(f"{OMNI_LAYERS}.{names[0]}") for kind, names in OMNI_FILES.items()}, ()


def _omni_files(folder: Path) -> tuple[Mapping[str, ModuleType], tuple[Path, ...]]:
    """The modules in a folder; one of the two may be missing."""
    known = {kind: [folder / f"{name}.py" for name in names] for kind, names in OMNI_FILES.items()}
    there = {kind: path for kind, paths in known.items() for path in paths if path.is_file()}
    if not there:
        legal = ", ".join(path.name for paths in known.values() for path in paths)
        raise ConfigurationError(f"--vllm-omni {folder}: has none of {legal}")
    with vllm_stand_ins():
        modules = {kind: import_file(path, "--vllm-omni") for kind, path in there.items()}
    return modules, tuple(there.values())


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a library compiled for another torch fails in ways of its own
        raise AbsentError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
