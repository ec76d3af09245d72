"""A declared reduction becomes an order for a width and a number of rows, or says why it does not hold there."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.presets.file import load
from numerics.presets.schema import Reduction

REDUCTIONS = load().reductions


def reduction(**fields: Any) -> Reduction:
    declared: dict[str, Any] = {"vector": 4, "threads": 32, "lanes": "halves", "mean": "divide"}
    return Reduction(**declared | fields)


# threads of vLLM's rms_norm launch: 16-byte vectors, at most 1024 threads, 256 from 256 rows on
@pytest.mark.parametrize(
    ("width", "threads_below_256_rows", "threads_from_256_rows"),
    [
        (64, 8, 8),
        (96, 12, 12),
        (128, 16, 16),
        (256, 32, 32),
        (3072, 384, 256),
        (3840, 480, 256),
        (5120, 640, 256),
        (5376, 672, 256),
        (6144, 768, 256),
        (16384, 1024, 256),
    ],
)
def test_vllm_takes_fewer_threads_from_256_rows(
    width: int, threads_below_256_rows: int, threads_from_256_rows: int
) -> None:
    order = REDUCTIONS["vllm_cuda"].order
    assert {order(width, rows).vector for rows in (1, 255, 256, 10**6)} == {8}
    assert [order(width, rows).threads for rows in (1, 255)] == [threads_below_256_rows] * 2
    assert [order(width, rows).threads for rows in (256, 10**6)] == [threads_from_256_rows] * 2
    assert REDUCTIONS["vllm_cuda_batch_invariant"].order(width, 10**6).threads == threads_below_256_rows


# ATen: block_width of setReduceConfig, from floor_pow2 of the row's vectors and of the rows
@pytest.mark.parametrize(
    ("width", "vector", "threads"),
    [
        (64, 1, {1: 64, 15: 64, 16: 32}),
        (96, 1, {1: 64, 8: 64, 16: 32}),
        (127, 1, {1: 64, 16: 32}),
        (128, 4, {1: 32, 8: 32, 16: 32}),
        (256, 4, {1: 64, 8: 64, 15: 64, 16: 32}),
        (3072, 4, {1: 512, 2: 256, 3: 256, 4: 128, 7: 128, 8: 64, 15: 64, 16: 32, 10**6: 32}),
        (5376, 4, {1: 512, 2: 256, 4: 128, 8: 64, 16: 32}),
    ],
)
def test_aten_takes_a_power_of_two_of_threads_by_rows(width: int, vector: int, threads: dict[int, int]) -> None:
    orders = {rows: REDUCTIONS["aten_mean"].order(width, rows) for rows in threads}
    assert {order.vector for order in orders.values()} == {vector}
    assert {rows: order.threads for rows, order in orders.items()} == threads


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("flashinfer", {64: 8, 96: 16, 128: 16, 3072: 32, 5376: 64, 6144: 64, 16384: 128}),
        ("flashinfer_qk_sm_100", {64: 4, 128: 4, 256: 8}),
        ("flashinfer_cuda", {64: 8, 128: 16, 8192: 1024, 16384: 1024}),
        ("sglang_qk_norm", {64: 32, 128: 32, 256: 32}),
        ("sglang_rms_norm", {512: 64, 8192: 1024}),
        ("aten_rms_norm", {64: 128, 5376: 128}),
        ("vllm_cuda_0_11", {64: 64, 1536: 1024}),
    ],
)
def test_threads_by_width(name: str, threads: dict[int, int]) -> None:
    assert {width: REDUCTIONS[name].order(width, 1).threads for width in threads} == threads


@pytest.mark.parametrize(("width", "vector"), [(12, 4), (128, 8), (129, 1), (1026, 2)])
def test_gcd8_is_the_greatest_common_divisor(width: int, vector: int) -> None:
    assert reduction(vector="gcd8").order(width, 1).vector == vector


@pytest.mark.parametrize(
    ("fields", "width", "rows", "message"),
    [
        ({"width": 128}, 127, 1, "it is declared for rows of 128 elements, not 127"),
        ({"width": [64, 128]}, 129, 1, "it is declared for rows of 64 to 128 elements, not 129"),
        ({"width": [64, 128]}, 63, 1, "it is declared for rows of 64 to 128 elements, not 63"),
        ({"rows": [16, 99]}, 128, 15, "it is declared for 16 to 99 rows, not 15"),
        ({"rows": [16, 99]}, 128, 100, "it is declared for 16 to 99 rows, not 100"),
        ({"mean": "power_of_two"}, 96, 1, "its mean is exact for a power of two only, not for 96 elements"),
        ({}, 130, 1, "it adds whole vectors of 4 elements, which do not divide a row of 130"),
        ({"vector": "row/32"}, 130, 1, "vector = 'row/32' needs a row that is a multiple of 32, not 130"),
        (
            {"vector": 3, "inner": "pairs"},
            96,
            1,
            "inner = 'pairs' needs an even vector, not 3 (at width 96)",
        ),
        (
            {"vector": [[64, 2], [128, 4]]},
            132,
            1,
            "its vector is declared for rows of up to 128 elements, not 132",
        ),
        (
            {"threads": [[64, 2], [128, 4]]},
            132,
            1,
            "its threads is declared for rows of up to 128 elements, not 132",
        ),
    ],
)
def test_a_condition_that_does_not_hold_is_named(fields: dict[str, Any], width: int, rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        reduction(**fields).order(width, rows)


@pytest.mark.parametrize(
    ("fields", "width", "rows"),
    [
        ({"width": [64, 128]}, 64, 1),
        ({"width": [64, 128]}, 128, 1),
        ({"rows": [16, 99]}, 128, 16),
        ({"rows": [16, 99]}, 128, 99),
        ({"mean": "power_of_two"}, 128, 1),
        ({"vector": [[64, 2], [128, 4]]}, 128, 1),
    ],
)
def test_bounds_are_included(fields: dict[str, Any], width: int, rows: int) -> None:
    assert reduction(**fields).order(width, rows).width == width


# ATen multiplies by float32(rows) / float32(rows * width); the first rows at which that is another number (numpy, all
# rows to 20,000 and every 997th to 3,000,000)
@pytest.mark.parametrize("width", [64, 96, 128, 256, 1536, 2560, 3072, 4096, 5120, 6144])
def test_the_reciprocal_holds_for_any_rows_at_these_widths(width: int) -> None:
    aten = REDUCTIONS["aten_mean"]
    assert {aten.order(width, rows).mean for rows in [1, *range(16, 3_000_000, 997)]} == {"multiply"}


@pytest.mark.parametrize(
    ("width", "first"), [(5376, 800_000), (3840, 1_120_000), (1152, 1_860_000), (2304, 1_860_000), (3584, 2_400_000)]
)
def test_rows_at_which_aten_s_factor_is_another_number_are_refused(width: int, first: int) -> None:
    aten = REDUCTIONS["aten_mean"]

    def refused(rows: int) -> bool:
        try:
            aten.order(width, rows)
        except ValueError:
            return True
        return False

    assert not any(map(refused, range(20_000)))
    found = next(rows for rows in range(0, 3_000_000, 997) if refused(rows))
    assert abs(found - first) < 10_000
    message = f"at {found} rows of {width}, float32(rows) / float32(rows * width) is not float32(1 / width)"
    with pytest.raises(ValueError, match=re.escape(message)):
        aten.order(width, found)


def test_a_divided_mean_holds_for_any_rows() -> None:
    assert REDUCTIONS["vllm_cuda"].order(5376, 800_000).mean == "divide"
    assert all(REDUCTIONS["aten_rms_norm"].order(5376, rows) for rows in range(0, 3_000_000, 997))


def test_row_regimes_are_where_another_cap_begins() -> None:
    assert REDUCTIONS["vllm_cuda"].row_regimes == (1, 256)
    assert REDUCTIONS["aten_mean"].row_regimes == (1, 2, 4, 8, 16)
    assert REDUCTIONS["aten_rms_norm"].row_regimes == (1,)
    assert REDUCTIONS["vllm_cuda_batch_invariant"].row_regimes == (1,)


def test_no_rows_count_as_one() -> None:
    assert REDUCTIONS["aten_mean"].order(5376, 0) == REDUCTIONS["aten_mean"].order(5376, 1)


def test_the_bits_of_a_declaration_leave_out_its_words() -> None:
    declared = REDUCTIONS["vllm_cuda_128"]
    bits = declared.bits
    assert type(bits) is Reduction
    assert bits == Reduction(width=128, vector=8, threads=16, lanes="adjacent", mean="divide")
    assert hash(bits) == hash(Reduction(width=128, vector=8, threads=16, lanes="adjacent", mean="divide"))
    assert bits.order(128, 1) == declared.order(128, 1)


@given(
    width=st.integers(1, 512),
    rows=st.integers(0, 10**6),
    vector=st.sampled_from(["gcd8", 1, 2, 4]),
    threads=st.sampled_from(["row/vector", 1, 3, 32, 100]),
    power_of_two=st.booleans(),
    cap=st.sampled_from([None, 7, [[1, 64], [10, 8]]]),
)
def test_threads_never_exceed_their_caps(
    width: int, rows: int, vector: Any, threads: Any, power_of_two: bool, cap: Any
) -> None:
    declared = reduction(vector=vector, threads=threads, threads_pow2=power_of_two, max_threads=cap)
    if isinstance(vector, int) and width % vector:
        return
    order = declared.order(width, rows)
    assert 1 <= order.threads <= (1024 if cap is None else cap if isinstance(cap, int) else 8 if rows >= 10 else 64)
    assert sorted(column for t in range(order.threads) for each in order.columns(t) for column in each) == list(
        range(width)
    )
    assert max(len(order.columns(t)) for t in range(order.threads)) == order.passes
