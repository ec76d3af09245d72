"""The kernel of the ops on whole rows against their references, in Triton's interpreter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics import ops
from numerics.ops import launch, row_launch
from numerics.ops.telemetry import dispatch_counts
from numerics.presets.file import load
from numerics.presets.schema import Numerics, Reduction

Fused = Callable[..., tuple[Tensor, ...]]
Preset = Callable[[str], Numerics]
Builder = Callable[..., Numerics]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NORMS = ("rms_norm", "fused_add_rms_norm", "rms_norm_indexed_scale_shift", "indexed_gate_rms_norm_scale_shift")
EVERY_OP = (*NORMS, "indexed_gate", "indexed_scale_shift_")
EVERY = pytest.mark.parametrize("op", EVERY_OP)
WIDTHS = (64, 96, 768, 1000, 1023, 5376)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows_of(
    op: str, rows: int = 3, width: int = 96, dtype: torch.dtype = BF16, table_dtype: torch.dtype | None = None,
    index_dtype: torch.dtype = torch.int64,
) -> dict[str, Any]:  # fmt: skip
    """Arguments of an op on rows; the tables are columns of a wider one."""
    x, branch = random(rows, width, dtype=dtype), random(rows, width, seed=1, dtype=dtype)
    shift, scale, gate = random(4, 3 * width, seed=2, dtype=table_dtype or dtype).chunk(3, 1)
    indices = torch.tensor([2, 0, 3, 1, 1, 3, 0] * rows)[:rows].to(index_dtype)
    every: dict[str, Any] = {
        "x": x, "residual": branch if op == "fused_add_rms_norm" else x, "branch": branch, "other": branch,
        "weight": random(width, seed=3, dtype=dtype), "shift": shift, "scale": scale, "gate": gate,
        "indices": indices, "eps": 1e-6,
    }  # fmt: skip
    schema = getattr(torch.ops.numerics, op).default._schema
    return {argument.name: every[argument.name] for argument in schema.arguments[:-2]}


def exact_presets() -> list[tuple[str, Numerics]]:
    """Of each distinct exact preset, the first."""
    catalog = load()
    found = {name: preset.numerics(catalog.reductions) for name, preset in catalog.presets.items()}
    first = {given.fingerprint: name for name, given in reversed(found.items()) if given.is_exact}
    return [(name, found[name]) for name in reversed(first.values())]


# --- Every declared order, at every class of width --------------------------------------------------------------------


def cases() -> list[Any]:
    made, turn = [], 0
    for name, given in exact_presets():
        for width in (*WIDTHS, 4, 1):
            try:
                given.rms_norm_reduction.order(width, 3)  # type: ignore[union-attr]  # exact
            except ValueError:
                continue
            op = ("rms_norm", *NORMS)[turn % 5]
            turn += 1
            made.append(pytest.param(op, given, width, id=f"{name}-{width}-{op}"))
    return made


@pytest.mark.parametrize(("op", "given", "width"), cases())
def test_every_declared_order_at_every_class_of_width(op: str, given: Numerics, width: int, fused: Fused) -> None:
    fused(op, given, **rows_of(op, 2, width))


def test_orders_and_widths_are_many() -> None:
    assert len(cases()) > 60
    assert {case.values[0] for case in cases()} == set(NORMS)


@EVERY
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("name", ["vllm_cuda", "omni_native", "vllm_cuda_0_19"])
def test_every_op_in_every_dtype(op: str, dtype: torch.dtype, name: str, fused: Fused, preset: Preset) -> None:
    fused(op, preset(name), **rows_of(op, 3, 96, dtype))


@EVERY
def test_points_are_read_where_they_belong_and_nowhere_else(op: str, fused: Fused, build: Builder) -> None:
    call = rows_of(op, 2, 64)
    for points in ((), ("normalized",), ("residual",), ("norm",), ("one_plus_scale",), ("scaled",), ("gate_product",)):
        fused(op, build(*points), **call)


@pytest.mark.parametrize(("op", "dtype"), [("fused_add_rms_norm", BF16), ("rms_norm", F32)])
def test_squares_are_rounded_where_that_is_declared(op: str, dtype: torch.dtype, fused: Fused, build: Builder) -> None:
    """Of rows for which that tells: squares of 16-bit numbers are exact, those of sums that are not rounded are not."""
    declared = {"vector": 8, "threads": 12, "lanes": "adjacent", "mean": "divide"}
    product, fma = (build(reduction=Reduction(**declared, square=square)) for square in ("product", "fma"))  # type: ignore[arg-type]
    call = rows_of(op, 30_000, 96, dtype) | {"weight": None}
    reference = getattr(ops, f"{op}_reference")
    found = [
        out if isinstance(out, Tensor) else out[0] for out in (reference(**call, numerics=n) for n in (product, fma))
    ]
    telling = (found[0] != found[1]).any(-1).nonzero()[:3, 0]
    assert len(telling) > 0
    few = {name: arg[telling] if isinstance(arg, Tensor) else arg for name, arg in call.items()}
    for given in (product, fma):
        fused(op, given, **few)


@pytest.mark.parametrize("op", NORMS)
def test_without_a_weight(op: str, fused: Fused, preset: Preset) -> None:
    fused(op, preset("vllm_cuda"), **rows_of(op) | {"weight": None})


def test_the_rows_of_the_call_choose_the_order(fused: Fused, build: Builder) -> None:
    """As vLLM's orders do at 256 rows; here at five, with a width of which both make another sum."""
    reduction = Reduction(
        vector=8, threads="row/vector", max_threads=((1, 1024), (5, 4)), lanes="adjacent", mean="divide"
    )
    given = build("normalized", reduction=reduction)
    x = random(5, 768, dtype=F32)
    few, many = (fused("rms_norm", given, x=x[:rows], weight=None, eps=1e-6)[0] for rows in (4, 5))
    assert not torch.equal(few, many[:4])
    fused("rms_norm", given, x=x.view(5, 1, 768), weight=None, eps=1e-6)


def test_two_hundred_and_fifty_six_rows_are_vllms_other_regime(fused: Fused, preset: Preset) -> None:
    x = random(256, 2056)
    given = preset("vllm_cuda")
    order = given.rms_norm_reduction.order  # type: ignore[union-attr]  # exact
    assert order(2056, 255) != order(2056, 256)
    fused("rms_norm", given, x=x, weight=None, eps=1e-6)


# --- Where tensors lie ------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("table_dtype", [BF16, F32])
def test_indices_and_tables_of_every_dtype(
    op: str, index_dtype: torch.dtype, table_dtype: torch.dtype, fused: Fused, build: Builder
) -> None:
    call = rows_of(op, 5, 64, table_dtype=table_dtype, index_dtype=index_dtype)
    fused(op, build("residual", "norm"), **call)


def apart(x: Tensor, room: int = 40) -> Tensor:
    """The same rows within wider ones, of NaN."""
    wide = torch.full((len(x), x.shape[1] + room), torch.nan, dtype=x.dtype)
    return wide[:, 7 : 7 + x.shape[1]].copy_(x)


@EVERY
@pytest.mark.parametrize("rows", [1, 4])
def test_rows_within_wider_ones_are_read_in_place(op: str, rows: int, fused: Fused, preset: Preset) -> None:
    call = rows_of(op, rows)
    call = {name: apart(arg) if isinstance(arg, Tensor) and arg.ndim == 2 else arg for name, arg in call.items()}
    fused(op, preset("vllm_cuda"), **call)


@pytest.mark.parametrize("name", ["weight", "indices"])
def test_a_weight_or_indices_that_are_a_column_are_the_same(name: str, fused: Fused, preset: Preset) -> None:
    call = rows_of("rms_norm_indexed_scale_shift")
    column = call[name][:, None].expand(-1, 3).contiguous()
    column[:, [0, 2]] = 1
    fused("rms_norm_indexed_scale_shift", preset("vllm_cuda"), **call | {name: column[:, 1]})


@pytest.mark.parametrize(
    "shape",
    [(96,), (1, 96), (2, 3, 96), (2, 1, 1, 3, 96), (3, 0, 96), (0, 96)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_leading_dimensions_of_a_norm(shape: tuple[int, ...], fused: Fused, preset: Preset) -> None:
    x, residual, weight = random(*shape), random(*shape, seed=1), random(96, seed=2)
    fused("rms_norm", preset("vllm_cuda"), x=x, weight=weight, eps=1e-6)
    fused("fused_add_rms_norm", preset("vllm_cuda"), x=x, residual=residual, weight=weight, eps=1e-6)


def test_leading_dimensions_that_are_evenly_apart_are_read_in_place(fused: Fused, preset: Preset) -> None:
    wide = random(4, 6, 2, 130)
    views = (
        wide[..., 1, :96],
        wide.flatten(0, 2)[::3, 8:104],
        wide[:1, :, :, :96].expand(1, 6, 2, 96),
        wide[0, :, :1, :96],
    )
    for x in (*views, random(1, 96).expand(5, 96)):
        fused("rms_norm", preset("vllm_cuda"), x=x, weight=None, eps=1e-6)


def test_the_op_in_place_writes_its_columns_alone(preset: Preset) -> None:
    call = rows_of("indexed_scale_shift_", 5)
    wide = random(5, 300, seed=8)
    before = wide.clone()
    view = wide[:, 100:196].copy_(call["x"])
    expected = ops.indexed_scale_shift_reference(**call, numerics=preset("vllm_cuda"))
    assert ops.indexed_scale_shift_(**call | {"x": view}, numerics=preset("vllm_cuda")) is view
    assert torch.equal(view, expected)
    assert torch.equal(wide[:, :100], before[:, :100])
    assert torch.equal(wide[:, 196:], before[:, 196:])


STRIDE = 2**30 + 2**20  # fits 32 bits; twice as much does not


def far(path: Path, x: Tensor) -> Tensor:
    """The same rows, STRIDE apart in a file without content, which takes no room but where it is written."""
    size = (len(x) - 1) * STRIDE + x.shape[1]
    memory = torch.from_file(str(path), shared=True, size=size, dtype=x.dtype)
    return memory.as_strided(x.shape, (STRIDE, 1)).copy_(x)


@pytest.mark.parametrize("rows_per_program", [1, 4])
@pytest.mark.parametrize("name", ["residual", "branch", "gate", "shift", "scale"])
def test_rows_beyond_32_bits_are_read_in_place(
    name: str, rows_per_program: int, tmp_path: Path, fused: Fused, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_launch, "_geometry", lambda *_, **__: (rows_per_program, 1))
    op = "indexed_gate_rms_norm_scale_shift"
    call = rows_of(op, 3, index_dtype=torch.int32)
    call[name] = far(tmp_path / "sparse", call[name][:3])
    call["indices"] = torch.tensor([0, 2, 1], dtype=torch.int32)
    fused(op, preset("vllm_cuda"), **call)


def test_rows_beyond_32_bits_are_written_in_place(tmp_path: Path, preset: Preset) -> None:
    call = rows_of("indexed_scale_shift_", 3)
    expected = ops.indexed_scale_shift_reference(**call, numerics=preset("vllm_cuda"))
    call["x"] = far(tmp_path / "sparse", call["x"])
    assert torch.equal(ops.indexed_scale_shift_(**call, numerics=preset("vllm_cuda")), expected)


SPECIAL = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-38, -1e-40, 3e38, -2.5, 1.0]


@EVERY
def test_special_values(op: str, fused: Fused, preset: Preset) -> None:
    call = rows_of(op, len(SPECIAL), 64)
    for name in ("x", "residual", "branch", "other", "weight", "shift", "scale", "gate"):
        if name in call:
            x = call[name] = call[name].clone()
            for place, value in enumerate(SPECIAL):
                x.view(-1, x.shape[-1])[place % max(1, x.numel() // 64), 5 * place] = value
    for name in ("x", "residual"):
        if name in call:
            call[name][1], call[name][2, ::2] = 0.0, -0.0
    fused(op, preset("vllm_cuda"), **call)


@pytest.mark.parametrize(("eps", "fused"), [(0.0, False), (1e-40, False), (1e-24, True), (1e-12, True)])
def test_an_eps_beside_which_subnormal_sums_count_is_not_fused(eps: float, fused: bool, preset: Preset) -> None:
    x = (random(3, 128).double() * 1e-21).to(BF16)
    found = ops.rms_norm(x, None, eps, numerics=preset("vllm_native"))
    (way,) = dispatch_counts()
    assert way.fused == fused
    assert fused or way.reason == f"eps is below {2.0**-80}"
    assert torch.equal(found, ops.rms_norm_reference(x, None, eps, numerics=preset("vllm_native")))
    assert found.isfinite().all()


# --- Every tile and every count of warps ------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize(("rows", "warps"), [(1, 1), (1, 8), (2, 4), (4, 2), (8, 1), (16, 4)])
def test_no_tile_changes_a_byte(
    op: str, rows: int, warps: int, fused: Fused, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_launch, "_geometry", lambda *_, **__: (rows, warps))
    fused(op, preset("vllm_cuda"), **rows_of(op, 5, 96))


@pytest.mark.parametrize(("threads", "vector"), [(256, 8), (32, 1), (64, 4), (128, 2)])
def test_no_layout_changes_a_byte_where_there_is_no_order(
    threads: int, vector: int, fused: Fused, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_launch, "_open_layout", lambda _: (threads, vector))
    for op in ("indexed_gate", "indexed_scale_shift_"):
        fused(op, preset("vllm_cuda"), **rows_of(op, 3, 100))


# --- Devices that take fewer rows a launch ----------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize(("limit", "rows_per_program"), [(1, 1), (5, 1), (13, 1), (5, 4), (6, 4), (8, 4)])
def test_launches_of_few_rows_are_one_launch(
    op: str, limit: int, rows_per_program: int, fused: Fused, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "grid_limit", lambda _: limit)
    monkeypatch.setattr(row_launch, "_geometry", lambda *_, **__: (rows_per_program, 1))
    fused(op, preset("vllm_cuda"), **rows_of(op, 13, 64))
