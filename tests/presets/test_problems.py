"""Each mistake in a reduction or a preset is one line: file, line, key, what came, what is legal, the nearest name."""

from collections.abc import Callable
from typing import get_args

import pytest

from numerics.presets.vocabulary import ROUNDING_POINTS, RoundingPoint

Problems = Callable[[str], list[str]]

ORDER = 'summary = "x"\nvector = 4\nthreads = 32\nlanes = "halves"\nmean = "divide"\n'
PRESET = 'summary = "x"\nextends = "fast"\n'
SPANS = "a number, or [from, to]"
POINTS = ", ".join(map(repr, ROUNDING_POINTS))
CHOICES = ", ".join(map(repr, get_args(RoundingPoint)[:-1])) + f" or {get_args(RoundingPoint)[-1]!r}"


def reduction(**fields: str) -> str:
    """A file with one reduction, these fields on the lines from 6 on."""
    given = ORDER.splitlines()
    kept = [each for each in given if each.split(" = ")[0] not in fields]
    added = [f"{name} = {value}" for name, value in fields.items() if value]
    return "\n".join(["# mine"] * (len(given) - len(kept)) + ["[reductions.mine]", *kept, *added])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "vector",
            '"gcd9"',
            (
                "got 'gcd9'; legal: a number of elements, 'gcd8', 'row/32', or steps [[max_width, value], ...]; "
                "nearest: 'gcd8'"
            ),
        ),
        (
            "vector",
            "0",
            "got 0; legal: a number of elements, 'gcd8', 'row/32', or steps [[max_width, value], ...]",
        ),
        (
            "vector",
            "[[64, 1], [128, 0]]",
            (
                "got [[64, 1], [128, 0]]; legal: a number of elements, 'gcd8', 'row/32', or steps "
                "[[max_width, value], ...]"
            ),
        ),
        ("vector", "[[128, 1], [64, 4]]", "the first numbers of the steps must ascend, not [128, 64]"),
        ("vector", "[]", "got []; legal: a number of elements, 'gcd8', 'row/32', or steps [[max_width, value], ...]"),
        (
            "threads",
            "true",
            "got true; legal: a number of threads, 'row/vector', or steps [[max_width, value], ...]",
        ),
        (
            "threads",
            '"row/vectors"',
            (
                "got 'row/vectors'; legal: a number of threads, 'row/vector', or steps [[max_width, value], ...]; "
                "nearest: 'row/vector'"
            ),
        ),
        ("threads_pow2", "1", "got 1; legal: true or false"),
        ("threads_pow2", '"true"', "got 'true'; legal: true or false"),
        ("max_threads", '"256"', "got '256'; legal: a number of threads, or steps [[from_rows, cap], ...]"),
        ("max_threads", "[[2, 256]]", "the first cap must hold from 1 row, not from 2"),
        ("slots", "3", "got 3; legal: 1, 2 or 4"),
        ("slots", "true", "got true; legal: 1, 2 or 4"),
        ("slots", "1.0", "got 1.0; legal: 1, 2 or 4"),
        ("inner", '"pair"', "got 'pair'; legal: 'fold' or 'pairs'; nearest: 'pairs'"),
        ("lanes", '"fold"', "got 'fold'; legal: 'adjacent' or 'halves'"),
        ("warps", '"halfs"', "got 'halfs'; legal: 'fold', 'adjacent' or 'halves'; nearest: 'halves'"),
        ("first", '"lane"', "got 'lane'; legal: 'lanes' or 'warps'; nearest: 'lanes'"),
        ("mean", '"div"', "got 'div'; legal: 'divide', 'multiply' or 'power_of_two'; nearest: 'divide'"),
        ("square", "2", "got 2; legal: 'fma' or 'product'"),
        ("width", '"128"', f"got '128'; legal: elements of a row: {SPANS}"),
        ("width", "[1, 2, 3]", f"got [1, 2, 3]; legal: elements of a row: {SPANS}"),
        ("width", "[3, 1]", "[3, 1] is empty; write [from, to]"),
        ("rows", "0", f"got 0; legal: rows of a call: {SPANS}"),
        ("rows", "[16, 1]", "[16, 1] is empty; write [from, to]"),
        ("summary", "1979-05-27", 'got "1979-05-27"; legal: text in quotes'),
        ("source", '"vllm"', "got 'vllm'; legal: a table of provider, versions, location"),
        (
            "widht",
            "1",
            (
                "no such key; nearest: width. Known: first, inner, lanes, max_threads, mean, rows, slots, source, "
                "square, summary, threads, threads_pow2, vector, warps, width"
            ),
        ),
    ],
)
def test_a_field_of_a_reduction_says_what_is_legal(problems: Problems, field: str, value: str, message: str) -> None:
    assert problems(reduction(**{field: value})) == [f"my.toml:7: reductions.mine.{field}: {message}"]


@pytest.mark.parametrize(
    ("field", "legal"),
    [
        ("vector", "a number of elements, 'gcd8', 'row/32', or steps [[max_width, value], ...]"),
        ("lanes", "'adjacent' or 'halves'"),
        ("mean", "'divide', 'multiply' or 'power_of_two'"),
        ("summary", "text in quotes"),
    ],
)
def test_a_missing_field_stands_at_its_table(problems: Problems, field: str, legal: str) -> None:
    assert problems(reduction(**{field: ""})) == [f"my.toml:2: reductions.mine.{field}: not given; legal: {legal}"]


def test_pairs_have_one_accumulator(problems: Problems) -> None:
    text = "[reductions.mine]\n" + ORDER + 'inner = "pairs"\nslots = 2\n'
    message = "inner = 'pairs' has one accumulator; slots must be 1"
    assert problems(text) == [f"my.toml:1: reductions.mine: {message}"]


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ('">=0.20"', "'>=0.20' is open; give a lower and an upper bound, such as '>=0.20,<0.34'"),
        ('">=0.20,<0.20"', "no version is in '>=0.20,<0.20'"),
        (
            '"0.20"',
            "'0.20' is no version range; write comparisons joined by commas, such as '>=0.20,<0.34'",
        ),
        (
            "0.20",
            "got 0.2; legal: a lower and an upper bound, as comparisons joined by commas, such as '>=0.20,<0.34'",
        ),
    ],
)
def test_versions_are_a_closed_range(problems: Problems, versions: str, message: str) -> None:
    text = "[reductions.mine]\n" + ORDER + f'\nsource = {{ provider = "x",\tversions = {versions} }}'
    assert problems(text) == [f"my.toml:8: reductions.mine.source.versions: {message}"]


@pytest.mark.parametrize(
    ("field", "value", "key", "message"),
    [
        ("enable_fp_fusion", "0", "", "got 0; legal: true or false"),
        ("rope_rotation", '"seperate"', "", "got 'seperate'; legal: 'separate' or 'complex'; nearest: 'separate'"),
        ("rms_norm_reduction", "1", "", "got 1; legal: a reduction, or 'triton'"),
        ("rms_norm_reduction", '"a b"', "", "got 'a b'; legal: a reduction, or 'triton'"),
        ("rounding_points", '"qk_norm"', "", f"got 'qk_norm'; legal: a list of {POINTS}"),
        (
            "rounding_points",
            '["qk_norm", "norms"]',
            "[1]",
            f"got 'norms'; legal: {CHOICES}; nearest: 'norm'",
        ),
        ("rounding_points", '["norm", "norm"]', "", "rounding point 'norm' stands twice"),
        ("extends", "true", "", "got true; legal: a preset"),
        ("reference", "{}", ".provider", "not given; legal: text in quotes"),
        (
            "reference",
            '{ provider = "x", versions = ">=1,<2", verified_on = "H200" }',
            ".verified_on",
            "got 'H200'; legal: a list of texts: GPU and versions",
        ),
        (
            "requires",
            "[]",
            "",
            "got []; legal: a table of dtype, rope_table_dtype, width, rows, capability, backend, torch, triton, env",
        ),
        (
            "requires",
            '{ dtype = "float16" }',
            ".dtype",
            "got 'float16'; legal: a list of 'bfloat16', 'float16', 'float32'",
        ),
        ("requires", "{ dtype = [] }", ".dtype", "got []; legal: a list of 'bfloat16', 'float16', 'float32'"),
        (
            "requires",
            '{ dtype = ["float16", "bf16"] }',
            ".dtype[1]",
            "got 'bf16'; legal: 'bfloat16', 'float16' or 'float32'; nearest: 'bfloat16'",
        ),
        (
            "requires",
            '{ capability = "cuda:sm90" }',
            ".capability",
            "got 'cuda:sm90'; legal: 'cuda', 'cuda:9', 'cuda:9.0', 'hip:gfx942', 'npu:...'",
        ),
        (
            "requires",
            '{ capability = "hip", backend = "cuda" }',
            "",
            "capability 'hip' is not of backend 'cuda'; it can never hold",
        ),
        ("requires", "{ torch = 2 }", ".torch", "got 2; legal: comparisons joined by commas, such as '>=0.20,<0.34'"),
        ("requires", '{ triton = ">3,<3" }', ".triton", "no version is in '>3,<3'"),
        ("requires", "{ env = { X = 0 } }", ".env.X", "got 0; legal: text in quotes"),
        ("requires", "{ env.X.Y = 'z' }", ".env.X", 'got {"Y": "z"}; legal: text in quotes'),
        (
            "requires",
            "{ dtypes = [] }",
            ".dtypes",
            (
                "no such key; nearest: dtype. Known: backend, capability, dtype, env, rope_table_dtype, rows, torch, "
                "triton, width"
            ),
        ),
    ],
)
def test_a_field_of_a_preset_says_what_is_legal(
    problems: Problems, field: str, value: str, key: str, message: str
) -> None:
    found = problems(f"\n[presets.mine]\nsummary = 'x'\n{field} = {value}\n")
    assert f"my.toml:4: presets.mine.{field}{key}: {message}" in found


def test_a_misspelt_key_is_not_reported_as_missing_too(problems: Problems) -> None:
    text = "[presets.a]\nsumary = 'x'\nextends = 'fast'\n[presets.b]\nextends = 'fast'\n"
    assert [each.split(": ")[1:3] for each in problems(text)] == [
        ["presets.a.sumary", "no such key; nearest"],
        ["presets.b.summary", "not given; legal"],
    ]


def test_all_problems_are_said_in_the_order_of_the_file(problems: Problems) -> None:
    text = "[presets.b]\nsummary = 1\nextend = 'fast'\n[presets.a]\nsummary = 2\nextends = 3\n"
    assert [each.split(": ")[:2] for each in problems(text)] == [
        ["my.toml:2", "presets.b.summary"],
        ["my.toml:3", "presets.b.extend"],
        ["my.toml:5", "presets.a.summary"],
        ["my.toml:6", "presets.a.extends"],
    ]
