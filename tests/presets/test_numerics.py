"""Numerics: the object that flows, its canonical text and its fingerprint."""

import json
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from numerics.presets.file import json_schema, load
from numerics.presets.schema import Knobs, Numerics, Reduction, Setting

CATALOG = load()
ALL = {name: preset.numerics(CATALOG.reductions) for name, preset in CATALOG.presets.items()}
BASE = ALL["vllm_cuda"]


@pytest.mark.parametrize("name", ALL)
def test_the_canonical_text_reads_back(name: str) -> None:
    numerics = ALL[name]
    parsed = Numerics.parse(numerics.text)
    assert parsed == numerics
    assert hash(parsed) == hash(numerics)
    assert parsed.text == numerics.text
    assert parsed.fingerprint == numerics.fingerprint


def test_the_canonical_text_is_json_without_blanks_in_the_order_of_keys() -> None:
    text = BASE.text
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_numerics_pickle() -> None:
    assert pickle.loads(pickle.dumps(BASE)) == BASE


@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_reduction": "triton"},
        {"rms_norm_reduction": CATALOG.reductions["vllm_cuda_128"].bits},
        {"enable_fp_fusion": True},
        {"rounding_points": ("qk_norm",)},
        {"rounding_points": ()},
        {"rope_rotation": "complex"},
    ],
)
def test_each_knob_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert BASE.fingerprint  # computed before the copy is made
    changed = BASE.model_copy(update=change)
    assert changed.fingerprint != BASE.fingerprint
    assert changed != BASE


def test_names_and_conditions_do_not_change_the_fingerprint() -> None:
    assert ALL["vllm_cuda"].fingerprint == ALL["vllm_cuda_float32_table"].fingerprint
    assert ALL["vllm_cuda"].fingerprint.startswith("sha256:")


@pytest.mark.parametrize(
    "field", [name for name in Reduction.model_fields if name not in ("vector", "width", "threads")]
)
def test_each_field_of_an_order_changes_the_fingerprint(field: str) -> None:
    declared: dict[str, Any] = {"vector": 4, "threads": 32, "lanes": "halves", "mean": "divide"}
    other: dict[str, Any] = {
        "threads_pow2": True,
        "max_threads": 7,
        "slots": 2,
        "inner": "pairs",
        "lanes": "adjacent",
        "warps": "halves",
        "first": "warps",
        "mean": "multiply",
        "square": "fma",
        "rows": 3,
    }
    a, b = (
        Numerics(rms_norm_reduction=Reduction(**each), enable_fp_fusion=False, rounding_points=())
        for each in (declared, declared | {field: other[field]})
    )
    assert a.fingerprint != b.fingerprint


def test_points_stand_in_the_order_of_the_arithmetic() -> None:
    mixed = Numerics(rms_norm_reduction="triton", enable_fp_fusion=False, rounding_points=("qk_norm", "residual"))
    assert mixed.rounding_points == ("residual", "qk_norm")


def test_a_point_given_twice_is_an_error() -> None:
    with pytest.raises(ValidationError, match="rounding point 'norm' stands twice"):
        Numerics(rms_norm_reduction="triton", enable_fp_fusion=False, rounding_points=("norm", "norm"))


@pytest.mark.parametrize(
    ("name", "exact"), [("fast", False), ("bf16_affine", False), ("vllm_cuda", True), ("diffusers_complex", True)]
)
def test_only_a_declared_order_without_contraction_is_exact(name: str, exact: bool) -> None:
    assert ALL[name].is_exact is exact


def test_contraction_leaves_a_declared_order_open() -> None:
    assert not BASE.model_copy(update={"enable_fp_fusion": True}).is_exact


def test_knobs_not_given_are_left_out() -> None:
    assert Knobs().knobs == {}
    assert Setting(enable_fp_fusion=False, rounding_points=(), min_tokens=0).knobs == {
        "enable_fp_fusion": False,
        "rounding_points": (),
    }


def test_the_json_schema_allows_a_setting_as_a_name_and_forbids_unknown_keys() -> None:
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["additionalProperties"] is False
    name, table = schema["$defs"]["Setting"]["anyOf"]
    assert name["type"] == "string"
    assert table["additionalProperties"] is False
    assert set(table["properties"]) == set(Setting.model_fields)
    assert schema["$defs"]["DeclaredReduction"]["properties"]["vector"]["description"].startswith(
        "a number of elements"
    )
