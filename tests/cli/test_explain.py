"""`numerics explain`: a preset and its reduction, the additions, and what follows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numerics.presets.file import load
from numerics.presets.vocabulary import OPEN_REDUCTION, ROUNDING_POINTS
from tests.cli.conftest import Command

Write = Callable[..., Path]
CATALOG = load()


def words(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", sorted({*CATALOG.presets, *CATALOG.reductions, OPEN_REDUCTION}))
def test_everything_declared_is_explained(numerics: Command, name: str) -> None:
    assert numerics("explain", name).code == 0
    found = numerics("explain", name, "--json").json
    assert (found["preset"] is not None) == (name in CATALOG.presets)
    names = [each["name"] for each in found["reductions"]]
    if name in CATALOG.presets:
        assert names[0] == CATALOG.presets[name].knobs["rms_norm_reduction"]
    assert name in names or name not in CATALOG.reductions


def test_the_order_of_vllm_can_be_followed(numerics: Command) -> None:
    shown = numerics("explain", "vllm_cuda_128").out
    for line in (
        "Order of additions, a row of 128 elements, any number of rows",
        "    t0 = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7",
        "    t15 = s120 + s121 + s122 + s123 + s124 + s125 + s126 + s127",
        "    t15 ─┴─┴─┴─┴",
        "    mean = sum / 128",
    ):
        assert line in shown.splitlines()
    text = words(shown)
    assert "Vectors: 16 vectors of 8 contiguous elements; thread t owns vector t" in text
    assert "Threads: 16 threads, each owns 1 vector of 8 and adds in address order, left to right, from 0.0" in text
    assert (
        "Lanes: 16 lanes combine, neighbours first (distance 1, 2, 4, 8, 16); the other 16 lanes count as zeros" in text
    )
    assert "sum = t0 + t1 + (t2 + t3) + (t4 + t5 + (t6 + t7)) + (t8 + t9" in text


def test_what_follows_from_the_order_is_said(numerics: Command) -> None:
    text = words(numerics("explain", "vllm_cuda_128").out)
    assert "batch invariant at width 128" in text
    assert "sharding a row of 128 may be cut into 2, 4, 8, 16 equal pieces" in text
    assert "same mean at width 128: vllm_cuda (not of float32 inputs)" in text
    assert "bytes verified by vllm_cuda_128" in text


def test_wide_rows_say_where_they_change_and_that_they_cannot_be_cut(numerics: Command) -> None:
    text = words(numerics("explain", "vllm_cuda", "--width", "5376").out)
    assert "a row of 5376 elements, 256 rows or more" in text
    assert "batch not invariant: changes at 256 rows at widths 3072, 3840, 5120, 5376, 6144" in text
    assert "a row of 5376 cannot be cut without another order" in text


@pytest.mark.parametrize(
    ("rows", "regime", "threads"),
    [(1, "1 to 255 rows", 672), (255, "1 to 255 rows", 672), (256, "256 rows or more", 256)],
)
def test_rows_choose_the_regime(numerics: Command, rows: int, regime: str, threads: int) -> None:
    (found,) = numerics("explain", "vllm_cuda", "--width", "5376", "--rows", rows, "--json").json["reductions"]
    assert (found["rows"], found["order"]["threads"]) == (regime, threads)
    assert f"5376   {threads} x 8" in numerics("explain", "vllm_cuda", "--width", "5376", "--rows", rows).out


def test_json_holds_the_whole_program_and_the_properties(numerics: Command) -> None:
    (found,) = numerics("explain", "aten_mean", "--width", "96", "--rows", "1", "--json").json["reductions"]
    assert found["program"][-1] == "mean = sum * float32(1 / 96)"
    assert len(found["program"]) > found["order"]["threads"]
    assert found["properties"]["row_changes"]["96"] == [16]
    assert found["properties"]["row_changes"]["128"] == []
    assert found["source"]["provider"] == "torch"
    assert found["declaration"]["mean"] == "multiply"


def test_every_rounding_point_says_whether_it_is_in_force(numerics: Command) -> None:
    shown = numerics("explain", "vllm_cuda_128").out
    in_force = {
        line.split()[0]: line.split()[1]
        for line in shown.splitlines()
        if line.strip() and line.split()[0] in ROUNDING_POINTS
    }
    assert in_force == {point: "rounded" if point == "qk_norm" else "-" for point in ROUNDING_POINTS}


def test_an_open_order_is_said_to_be_open(numerics: Command) -> None:
    text = words(numerics("explain", "fast").out)
    assert "left open: order of additions (reduction triton) and contraction of products and sums" in text
    assert "order left open" in text
    (found,) = numerics("explain", "triton", "--json").json["reductions"]
    assert found["order"] is None
    assert "fast" in found["used_by"]


def test_a_preset_that_was_never_compared_says_so(numerics: Command) -> None:
    assert "bytes declared, not verified" in words(numerics("explain", "apex").out)
    assert numerics("explain", "apex", "--json").json["preset"]["verified"] is False


def test_a_preset_and_a_reduction_of_one_name_are_both_explained(numerics: Command, write: Write) -> None:
    path = write(
        '[reductions.mine]\nsummary = "a"\nvector = 4\nthreads = "row/vector"\nlanes = "halves"\nmean = "divide"\n'
        '[presets.mine]\nsummary = "b"\nextends = "vllm_cuda"\n'
    )
    found = numerics("explain", "mine", "--config", path, "--json").json
    assert found["preset"]["extends"] == "vllm_cuda"
    assert [each["name"] for each in found["reductions"]] == ["vllm_cuda", "mine"]


def test_a_declaration_for_one_width_is_explained_there(numerics: Command, write: Write) -> None:
    path = write(
        '[reductions.mine]\nsummary = "a"\nwidth = 40\nvector = 4\nthreads = 5\nlanes = "halves"\nmean = "divide"\n'
    )
    assert "a row of 40 elements" in numerics("explain", "mine", "--config", path).out


def test_rows_of_a_declaration_bound_its_regime(numerics: Command) -> None:
    (found,) = numerics("explain", "aten_mean_wide", "--width", "8192", "--json").json["reductions"]
    assert found["rows"] == "16 to 2147483647 rows"


def test_pieces_are_those_that_hold_for_any_number_of_rows(numerics: Command, write: Write) -> None:
    path = write(
        '[reductions.mine]\nsummary = "one thread a vector below 8 rows"\nvector = 4\nthreads = "row/vector"\n'
        'max_threads = [[1, 1024], [8, 4]]\nlanes = "adjacent"\nmean = "divide"\n'
    )
    found = numerics("explain", "mine", "--width", "64", "--rows", "1", "--config", path)
    assert "a row of 64 may be cut into 2, 4, 8, 16 equal pieces" in words(found.out)
    (mine,) = numerics("explain", "mine", "--width", "64", "--config", path, "--json").json["reductions"]
    assert mine["properties"]["pieces"]["64"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vlm_cuda",), "'vlm_cuda': no such preset or reduction; nearest: vllm_cuda"),
        (("flux2",), "a model, and neither a preset nor a reduction; `numerics show --model flux2` prints"),
        (("MiniMaxH3DiTModel",), "`numerics show --model MiniMaxH3DiTModel` prints"),
        (
            ("vllm_cuda_128", "--width", "64"),
            "reduction 'vllm_cuda_128' at width 64: it is declared for rows of 128 elements, not 64",
        ),
        (("aten_mean_wide", "--width", "8192", "--rows", "3"), "rows, not 3"),
    ],
)
def test_what_cannot_be_explained_exits_2(numerics: Command, arguments: tuple[str, ...], message: str) -> None:
    found = numerics("explain", *arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_a_declaration_that_holds_at_no_usual_width_asks_for_one(numerics: Command, write: Write) -> None:
    path = write(
        '[reductions.mine]\nsummary = "a"\nwidth = [7, 8]\nvector = 3\nthreads = 2\nlanes = "halves"\nmean = "divide"\n'
    )
    found = numerics("explain", "mine", "--config", path)
    assert (found.code, "declared for rows of 7 to 8 elements; give one with --width" in found.err) == (2, True)
    found = numerics("explain", "mine", "--config", path, "--width", "8")
    assert (found.code, "at width 8: it adds whole vectors of 3 elements" in found.err) == (2, True)
