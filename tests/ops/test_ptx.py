"""What the compiler makes of the kernels for sm_90, seen without a GPU: the launches are those that a GPU would get."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics.ops import joint_qkv_norm_rope, modulation, norm, norm_modulation, qk_geometry, qk_norm_rope, row_launch
from numerics.ops.launch import Launch
from numerics.ops.registry import Op
from numerics.presets.file import load
from numerics.presets.schema import Numerics

triton = pytest.importorskip("triton")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TYPES = {BF16: "*bf16", F16: "*fp16", F32: "*fp32", torch.int64: "*i64", torch.int32: "*i32"}


def empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@cache
def numerics_of(name: str) -> Numerics:
    catalog = load()
    return catalog.presets[name].numerics(catalog.reductions)


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_prepared_for_any_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        for module in (qk_geometry, row_launch):
            patch.setattr(module, "no_kernel_for", lambda *_: None)
        yield


def assembled(op: Op, *args: Any, given: Numerics) -> dict[str, str]:
    """Every stage of the compiler, for the launch of such a call."""
    launch = op._prepare(*args, numerics=given)
    assert isinstance(launch, Launch), launch
    like: Tensor = args[0]
    pointers = [None if place is None else args[place] for place in launch.inputs]
    pointers += [None if output is None else like for output in launch.outputs]
    values = dict(zip(launch.kernel.arg_names, [*pointers, *launch.scalars, *launch.constants.values()], strict=True))
    assert list(launch.constants) == launch.kernel.arg_names[-len(launch.constants) :]
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = []
    for place, (name, value) in enumerate(values.items()):
        if isinstance(value, Tensor):
            signature[name] = TYPES[value.dtype]
        elif name == "eps":
            signature[name] = "fp32"
        elif name not in launch.constants and isinstance(value, int) and value != 1:
            signature[name] = "i32"
        else:
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            divisible.append(place)
    source = triton.compiler.ASTSource(
        launch.kernel, signature, constants, {(place,): [["tt.divisibility", 16]] for place in divisible}
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": launch.enable_fp_fusion}
    asm: dict[str, str] = triton.compile(source, target=target, options=options).asm
    return asm


def qk(
    name: str, width: int = 128, rotary: int = 128, heads: tuple[int, int] = (48, 48), dtype: torch.dtype = BF16,
    table: torch.dtype | None = None, *, interleaved: bool = True, tokens: int = 4608,
) -> dict[str, str]:  # fmt: skip
    q, k, _ = empty(tokens, (heads[0] + 2 * heads[1]) * width, dtype=dtype).split(
        [heads[0] * width, heads[1] * width, heads[1] * width], -1
    )
    weight, rope = empty(width, dtype=dtype), empty(tokens, rotary, dtype=table or dtype)
    args = (q.unflatten(-1, (-1, width)), k.unflatten(-1, (-1, width)), weight, weight, rope, 1e-6, interleaved)
    return assembled(qk_norm_rope.OP, *args, given=numerics_of(name))


def joint(name: str, text: int = 512, image: int = 4096, heads: int = 48) -> dict[str, str]:
    streams = [empty(1, tokens, heads, 128) for tokens in (text, image) for _ in "qkv"]
    args = (*streams, *[empty(128)] * 4, empty(text + image, 128), 1e-6, True, False)
    return assembled(joint_qkv_norm_rope.OP, *args, given=numerics_of(name))


def rows(name: str, op: Op, width: int = 5376, dtype: torch.dtype = BF16, many: int = 16384) -> dict[str, str]:
    x, weight, indices = empty(many, width, dtype=dtype), empty(width, dtype=dtype), empty(many, dtype=torch.int64)
    shift, scale, gate = empty(12, 3 * width, dtype=dtype).chunk(3, 1)
    calls: dict[str, tuple[Any, ...]] = {
        "rms_norm": (x, weight, 1e-6),
        "fused_add_rms_norm": (x, x, weight, 1e-6),
        "rms_norm_indexed_scale_shift": (x, weight, shift, scale, indices, 1e-6),
        "indexed_gate_rms_norm_scale_shift": (x, gate, x, weight, shift, scale, indices, 1e-6),
        "indexed_scale_shift_": (x, shift, scale, indices),
        "indexed_gate": (x, gate, x, indices),
    }
    return assembled(op, *calls[op.name], given=numerics_of(name))


NORM, ADD_NORM, GATE = norm.NORM, norm.ADD_NORM, modulation.GATE
NORM_SCALE_SHIFT, GATE_NORM_SCALE_SHIFT = norm_modulation.NORM_SCALE_SHIFT, norm_modulation.GATE_NORM_SCALE_SHIFT
KERNELS: dict[str, Callable[[], dict[str, str]]] = {
    "flux": lambda: qk("vllm_cuda_128"),
    "minimax": lambda: qk("vllm_cuda_128", 128, 96, (56, 56), interleaved=False),
    "few heads": lambda: qk("diffusers_aten", 128, 128, (14, 14), table=F32),
    "boogu": lambda: qk("vllm_cuda_float32_table", 120, 120, (24, 8), table=F32),
    "complex": lambda: qk("diffusers_complex", table=F32),
    "complex halves": lambda: qk("diffusers_complex", 64, 64, interleaved=False, table=F32),
    "rounded products": lambda: qk("diffusers_bf16_rope", 128, 96, interleaved=False),
    "float16": lambda: qk("vllm_native", 96, 96, dtype=F16),
    "float32": lambda: qk("sglang_qk_norm", dtype=F32),
    "float32 products": lambda: qk("vllm_cuda_128", dtype=F32),
    "joint": lambda: joint("vllm_cuda_128"),
    # Triton puts a 1 into the code, where it is no tensor.
    "one token": lambda: qk("vllm_cuda_128", heads=(3, 1), tokens=1),
    "joint of one token each": lambda: joint("vllm_cuda_128", 1, 1),
    "joint of one head": lambda: joint("vllm_cuda_128", 1, 1, 1),
    "norm": lambda: rows("vllm_cuda", NORM),
    "add": lambda: rows("vllm_cuda_add", ADD_NORM, 4096),
    "norm and modulation": lambda: rows("omni_native", NORM_SCALE_SHIFT, 1536),
    "gate, norm and modulation": lambda: rows("vllm_cuda", GATE_NORM_SCALE_SHIFT),
    "gate, norm and modulation in float32": lambda: rows("vllm_native", GATE_NORM_SCALE_SHIFT, 768, F32),
    "short rows": lambda: rows("diffusers_aten", NORM, 128, many=100_000),
    "odd rows": lambda: rows("vllm_cuda_0_11", NORM, 1023),
    "one row": lambda: rows("vllm_cuda", GATE_NORM_SCALE_SHIFT, many=1),
    "modulation": lambda: rows("vllm_cuda", modulation.SCALE_SHIFT),
    "gate": lambda: rows("vllm_cuda", GATE),
}
compiled = cache(lambda name: KERNELS[name]())
EVERY = pytest.mark.parametrize("name", KERNELS)


def calls_of_fma(llir: str) -> int:
    """How many numbers the kernel asks to be fused, in vectors or alone."""
    found = re.findall(r"call (?:<(\d+) x float>|float) @llvm\.fma\.", llir)
    return sum(int(lanes or 1) for lanes in found)


def float_reductions(ttir: str) -> list[int]:
    """Over how many elements each `tl.sum` of floats goes."""
    pattern = r'"tt\.reduce"\([^)]*\) <\{axis = (\d+) : i32\}>.*?\}\) : \(tensor<([\dx]+)x(\w+)>\)'
    found = re.findall(pattern, ttir, re.DOTALL)
    return [int(shape.split("x")[int(axis)]) for axis, shape, dtype in found if dtype == "f32"]


@EVERY
def test_only_what_the_kernel_fuses_is_fused(name: str) -> None:
    asm = compiled(name)
    assert len(re.findall(r"\bfma\.rn\.f32\b", asm["ptx"])) == calls_of_fma(asm["llir"])
    assert ("llvm.fma" in asm["llir"]) == ("math.fma" in asm["ttir"])
    assert re.search(r"\bf(add|mul|sub) (fast|contract|reassoc|nnan|ninf|nsz|arcp|afn)", asm["llir"]) is None
    # Without .rn, the assembler would be free to fuse.
    assert re.search(r"\b(add|mul|sub|fma)\.f32|\bfma\.(?!rn\.f32\b)", asm["ptx"]) is None
    assert "mul.rn." in asm["ptx"]


@pytest.mark.parametrize("name", ["float32 products", "gate, norm and modulation in float32", "modulation", "gate"])
def test_nothing_is_fused_where_products_are_rounded(name: str) -> None:
    assert "fma." not in compiled(name)["ptx"]


def test_a_preset_that_allows_it_is_fused() -> None:
    assert rows("fast", NORM, 768, F32)["ptx"].count("fma.rn.f32") > 0


@EVERY
def test_division_is_rounded_correctly_and_no_subnormal_is_flushed(name: str) -> None:
    ptx = compiled(name)["ptx"]
    assert re.search(r"\bdiv\.(full|approx)|\brcp\.", ptx) is None
    # The reciprocal square root flushes: its argument is at least eps, which the launch wants to be far above.
    assert ".ftz" not in ptx.replace("rsqrt.approx.ftz.f32", "")


@pytest.mark.parametrize(
    ("name", "divisions"), [("flux", False), ("boogu", True), ("norm", True), ("norm and modulation", False)]
)
def test_a_mean_divides_where_that_is_declared_unless_by_a_power_of_two(name: str, divisions: bool) -> None:
    assert ("div.rn.f32" in compiled(name)["ptx"]) == divisions


@EVERY
def test_a_norm_takes_the_gpus_own_reciprocal_square_root(name: str) -> None:
    ptx = compiled(name)["ptx"]
    assert (re.search(r"rsqrt\.approx\.(ftz\.)?f32", ptx) is not None) == (name not in {"modulation", "gate"})
    assert re.search(r"\bsqrt\.", ptx) is None


@EVERY
def test_no_sum_of_floats_is_left_to_the_compiler(name: str) -> None:
    ttir = compiled(name)["ttir"]
    assert set(float_reductions(ttir)) <= {2}
    assert "inline_asm" not in ttir
    assert float_reductions(ttir) or name in {"modulation", "gate"}


def test_the_sum_of_fast_is_the_compilers() -> None:
    assert max(float_reductions(rows("fast", NORM, 768)["ttir"])) > 2


@EVERY
def test_every_offset_that_depends_on_a_program_is_of_64_bits(name: str) -> None:
    ttir = compiled(name)["ttir"]
    made: dict[str, str] = {}  # by the value, up to the line at hand: regions side by side give a name twice
    narrow = 0

    def depends(value: str, seen: set[str]) -> bool:
        """Whether a value comes from more than constants and positions in a tile."""
        if value in seen:
            return False
        seen.add(value)
        line = made.get(value)
        if line is None or "get_program_id" in line or "tt.load" in line or "scf.if" in line:
            return True
        return any(depends(operand, seen) for operand in re.findall(r"%[\w.-]+", line.split(" loc(")[0]))

    for value, line in re.findall(r"^\s*(%[\w.-]+) = (.*)$", ttir, re.MULTILINE):
        found = re.match(r"tt\.addptr (%[\w.-]+), (%[\w.-]+) : \S+, (\S+)", line)
        if found is not None and found[3].endswith(("i32", "i32>")):
            narrow += 1
            assert not depends(found[2], set()), line
        made[value] = line
    assert narrow, "columns are of 32 bits"


@pytest.mark.parametrize(
    "name", ["flux", "minimax", "joint", "norm", "gate, norm and modulation", "modulation", "gate"]
)
def test_bfloat16_is_read_and_written_16_bytes_at_once(name: str) -> None:
    ptx = compiled(name)["ptx"]
    assert re.search(r"ld\.global[\w.:]*\.v4\.b32", ptx) is not None
    assert re.search(r"st\.global[\w.:]*\.v4\.b32", ptx) is not None
    assert re.search(r"ld\.global[\w.:]*\.[bu]16", ptx) is None or name in {"flux", "minimax", "joint"}
