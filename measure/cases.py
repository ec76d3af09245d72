"""What is measured: an op on one geometry, and the presets under which it runs there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from numerics.errors import ConfigurationError, nearest
from numerics.presets.vocabulary import FAMILIES, OPS

BYTES: Final = 2  # of an element: every case is in bfloat16
USUAL_PEERS: Final = ("vllm", "vllm_omni", "torch")
NORM_PEERS: Final = ("quack", "flashinfer")  # libraries whose norms are measured
COMPILED_PEERS: Final = ("inductor", "inductor_autotuned")  # which take seconds to compile, or minutes
PEERS: Final = (*USUAL_PEERS, *NORM_PEERS, *COMPILED_PEERS)
SMALL: Final = 20_000_000
"""Bytes below which a copy is no yardstick: its time is that of a launch."""

# How often an op on rows reads or writes an element of [rows, width]. Tables, indices and weights are not counted.
ROW_PASSES: Final = {
    "rms_norm": 2,
    "fused_add_rms_norm": 4,
    "rms_norm_indexed_scale_shift": 2,
    "indexed_gate_rms_norm_scale_shift": 4,
    "indexed_scale_shift_": 2,
    "indexed_gate": 3,
}


@dataclass(frozen=True, kw_only=True)
class Heads:
    """q and k as views of one [tokens, (q_heads + 2 * k_heads) * head_dim] projection."""

    tokens: int
    q_heads: int
    k_heads: int
    head_dim: int = 128
    rotary_dim: int = 128
    interleaved: bool = True

    def __str__(self) -> str:
        heads = str(self.q_heads) if self.q_heads == self.k_heads else f"{self.q_heads}q{self.k_heads}k"
        pairs = "interleaved" if self.interleaved else "half"
        usual = self.interleaved and self.rotary_dim == self.head_dim
        return f"{self.tokens}x{heads}x{self.head_dim}" + ("" if usual else f"-{pairs}{self.rotary_dim}")

    @property
    def elements(self) -> int:
        """Read and written once each."""
        return 2 * self.tokens * (self.q_heads + self.k_heads) * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Streams:
    """q, k and v of a text and an image stream, views of one projection each; interleaved, whole heads rotated."""

    batch: int
    text: int
    image: int
    heads: int
    head_dim: int = 128

    def __str__(self) -> str:
        return f"{self.batch}x{self.text}+{self.image}x{self.heads}x{self.head_dim}"

    @property
    def elements(self) -> int:
        """Read and written once each."""
        return 2 * 3 * self.batch * (self.text + self.image) * self.heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Rows:
    """[rows, width]; each row indexes one of `groups` rows of the modulation tables, slices of one projection."""

    op: str
    rows: int
    width: int
    groups: int = 0

    def __str__(self) -> str:
        return f"{self.rows}x{self.width}" + (f"-{self.groups}groups" if self.groups else "")

    @property
    def elements(self) -> int:
        """Read or written."""
        return ROW_PASSES[self.op] * self.rows * self.width


Geometry = Heads | Streams | Rows


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the results for each preset."""

    op: str
    geometry: Geometry
    presets: tuple[str, ...]  # none where the settings in force are what is measured
    exact: str  # the preset whose bytes the others are compared with
    clock: Literal["graph", "host"] = "graph"  # GPU time in a CUDA graph, or the time that a call takes the host
    headline: bool = False  # in a quick run, and compiled by Inductor

    @property
    def name(self) -> str:
        """Of the geometry and of what is peculiar: `4608x48x128`, `9440x56x128-half96`, `4x24x128-host-none`."""
        host = "-host" if self.presets else "-host-none"  # what is given for numerics: a resolution, or nothing
        return f"{self.geometry}{host if self.clock == 'host' else ''}"

    @property
    def path(self) -> str:
        """Op and name, which together are unique."""
        return f"{self.op}/{self.name}"

    @property
    def moved_bytes(self) -> int:
        """Activations read and written: what the copy moves that it is compared with."""
        return BYTES * self.geometry.elements

    @property
    def is_small(self) -> bool:
        """Whether an empty kernel is the yardstick, and not a copy."""
        return self.moved_bytes < SMALL

    @property
    def peers(self) -> tuple[str, ...]:
        """What it is measured against unless peers are named. What compiles for seconds has a case or two an op."""
        norms = NORM_PEERS if OPS[self.op] == "fused_rms_norm" else ()
        return (*USUAL_PEERS, *norms, *COMPILED_PEERS[:1]) if self.headline else USUAL_PEERS


# --- The cases --------------------------------------------------------------------------------------------------------

OPEN: Final = "fast"
EXACT: Final = {"fused_add_rms_norm": "vllm_cuda_add"}  # elsewhere vllm_cuda
CHAINS: Final = ("omni_native", "diffusers_aten")
WIDTHS: Final = (768, 2048, 3072, 4096, 5376, 7168, 8192, 16384)
FEW_ROWS: Final = (1, 8, 32, 255, 256)
FEW_TOKENS: Final = (1, 8, 32, 255, 256, 512, 1024)
WIDTH: Final = 5376  # of MiniMax-H3


def _case(op: str, geometry: Geometry, *more: str, headline: bool = False) -> Case:
    exact = EXACT.get(op, "vllm_cuda")
    return Case(op=op, geometry=geometry, presets=(OPEN, exact, *more), exact=exact, headline=headline)


def _qk_cases() -> Iterator[Case]:
    op = "fused_qk_norm_rope"
    exact = ("vllm_cuda_128", *CHAINS, "diffusers_native", "diffusers_complex", "diffusers_bf16_rope")
    yield _case(op, Heads(tokens=4608, q_heads=48, k_heads=48), *exact, headline=True)
    yield _case(op, Heads(tokens=9440, q_heads=56, k_heads=56, rotary_dim=96, interleaved=False), headline=True)
    yield _case(op, Heads(tokens=37760, q_heads=14, k_heads=14, rotary_dim=96, interleaved=False))
    yield _case(op, Heads(tokens=4608, q_heads=48, k_heads=48, head_dim=64, rotary_dim=64))
    yield _case(op, Heads(tokens=4608, q_heads=24, k_heads=24, head_dim=256, rotary_dim=256))
    yield _case(op, Heads(tokens=4608, q_heads=32, k_heads=8))
    for tokens in FEW_TOKENS:
        yield _case(op, Heads(tokens=tokens, q_heads=24, k_heads=24))
    host = replace(_case(op, Heads(tokens=4, q_heads=24, k_heads=24)), clock="host")
    yield host
    yield replace(host, presets=())


def _joint_cases() -> Iterator[Case]:
    for heads in (48, 24):
        for batch in (1, 2):
            geometry = Streams(batch=batch, text=512, image=4096, heads=heads)
            yield _case("fused_joint_qkv_norm_rope", geometry, headline=(batch, heads) == (1, 48))


def _modulation_cases() -> Iterator[Case]:
    for op in [name for name, family in OPS.items() if family == "fused_modulation"]:
        chains = CHAINS if "norm" in op else ()  # without a norm they are one chain
        geometry = Rows(op=op, rows=16384, width=WIDTH, groups=12)
        yield _case(op, geometry, "bf16_affine", *chains, headline=True)


def _norm_cases() -> Iterator[Case]:
    for op in [name for name, family in OPS.items() if family == "fused_rms_norm"]:
        for width in WIDTHS:
            chains = ("vllm_native", *CHAINS) if (op, width) == ("rms_norm", WIDTH) else ()
            yield _case(op, Rows(op=op, rows=16384, width=width), *chains, headline=width == WIDTH)
        for rows in FEW_ROWS:
            yield _case(op, Rows(op=op, rows=rows, width=WIDTH))


CASES: Final = (*_qk_cases(), *_joint_cases(), *_modulation_cases(), *_norm_cases())


def chosen(
    ops: Sequence[str] = (), patterns: Sequence[str] = (), presets: Sequence[str] = (), *, quick: bool = False
) -> list[Case]:
    """The cases of these ops or families whose name, or op/name, matches one of the patterns; without either, all.

    presets: in place of those of the cases. quick: the headline cases, unless patterns name others, and two presets.
    Raises ConfigurationError for an unknown op, for a pattern that matches no case, and where no case is left.
    """
    for op in ops:
        if op not in OPS and op not in FAMILIES:
            raise ConfigurationError(f"op {op!r}: no such op or family{nearest(op, {*OPS, *FAMILIES})}")
    found = [case for case in CASES if not ops or case.op in ops or OPS[case.op] in ops]
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in found):
            raise ConfigurationError(f"case {pattern!r}: matches none{nearest(pattern, {case.name for case in found})}")
    if patterns:
        found = [case for case in found if any(_matches(case, pattern) for pattern in patterns)]
    elif quick:
        found = [case for case in found if case.headline]
    if presets:  # where those in force are measured, none can take their place
        found = [replace(case, presets=tuple(presets)) for case in found if case.presets]
    elif quick:
        found = [replace(case, presets=case.presets[:2]) for case in found]
    if not found:
        raise ConfigurationError("no case is left to measure")
    return found


def _matches(case: Case, pattern: str) -> bool:
    return fnmatchcase(case.name, pattern) or fnmatchcase(case.path, pattern)
