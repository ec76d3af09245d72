"""Names and values that do not exist: what came, who set it, and what is legal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import numerics
from numerics.errors import ConfigurationError
from numerics.presets.vocabulary import KNOBS
from numerics.resolve import resolve

if TYPE_CHECKING:
    from tests.numerics.conftest import Sources


def test_an_unknown_model_is_an_error_and_not_the_default(sources: Sources) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^model 'flux22': no such model; nearest: flux2\. Known: flux2, known$"
    ):
        sources.resolve(model="flux22")


def test_an_unknown_op_is_an_error() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^op 'fused_qk_norm': no such op; nearest: fused_qk_norm_rope\. Known"
    ):
        resolve("fused_qk_norm")


def test_an_op_has_the_settings_of_its_family() -> None:
    assert resolve("rms_norm") is resolve("fused_rms_norm")
    assert resolve("indexed_gate").op == "fused_modulation"


@pytest.mark.parametrize("layer", ["environment", "context", "call"])
def test_an_unknown_preset_names_the_nearest_and_who_set_it(sources: Sources, layer: str) -> None:
    sources.said = {layer: {"preset": "exakt"}}
    with pytest.raises(ConfigurationError) as raised:
        sources.resolve()
    message = str(raised.value)
    assert message.startswith(f"preset 'exakt' ({layer}, ")
    assert message.endswith("): no such preset; nearest: exact. Known: exact, fast, other")


def test_a_wrong_name_is_an_error_even_where_a_stronger_source_wins(sources: Sources) -> None:
    sources.said = {"environment": {"preset": "exakt"}, "call": {"preset": "exact"}}
    with pytest.raises(ConfigurationError, match=r"'exakt' \(environment"):
        sources.resolve()


@pytest.mark.parametrize("layer", ["environment", "context", "call"])
@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("rms_norm_reduction", "alpa", "no such reduction; nearest: alpha. Known: alpha, alpha_again, beta, triton"),
        ("rope_rotation", "complx", "no such rotation; nearest: complex. Known: complex, separate"),
        ("rounding_points", ("qknorm",), "no such rounding point; nearest: qk_norm. Known: "),
        ("rounding_points", ("norm", "norm"), "stands twice"),
    ],
)
def test_an_unknown_value_of_a_knob_is_an_error(
    sources: Sources, layer: str, knob: str, value: Any, words: str
) -> None:
    sources.said = {layer: {knob: value}}
    with pytest.raises(ConfigurationError) as raised:
        sources.resolve()
    assert words in str(raised.value)
    assert f"({layer}, " in str(raised.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"enable_fp_fusion": 1},
        {"enable_fp_fusion": "true"},
        {"rounding_points": "norm"},
        {"rounding_points": {"norm"}},
        {"rounding_points": [["norm"]]},
        {"rms_norm_reduction": 3},
        {"rope_rotation": True},
        {"min_tokens": True},
        {"min_tokens": 1.0},
        {"min_tokens": -1},
        {"min_tokens": "1"},
        {"preset": 3},
        {"preset": ["exact"]},
        {"enable_fp_fuson": True},
    ],
)
def test_an_argument_of_the_wrong_kind_is_an_error_in_call_and_context(
    sources: Sources, arguments: dict[str, Any]
) -> None:
    with sources.applied():
        resolve("fused_qk_norm_rope", enable_fp_fusion=True, min_tokens=1)  # equal, for Python, to some of the above
        with pytest.raises(ConfigurationError, match=next(iter(arguments))):
            resolve("fused_qk_norm_rope", **arguments)
        with pytest.raises(ConfigurationError, match=next(iter(arguments))), numerics.use(**arguments):
            pass


def test_none_is_not_given(sources: Sources) -> None:
    sources.said = {"environment": {"enable_fp_fusion": False, "rounding_points": (), "min_tokens": 0}}
    plain = sources.resolve()
    nothing = dict.fromkeys(["preset", "min_tokens", *KNOBS], None)
    assert sources.resolve(**nothing).to_dict() == plain.to_dict()
    sources.said["context"] = nothing | {"min_tokens": 4}
    assert sources.resolve().min_tokens == 4
    assert not sources.resolve().numerics.enable_fp_fusion


@pytest.mark.parametrize("wrong", [3, ["flux2"], b"flux2"])
def test_names_are_text(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="op "):
        resolve(wrong)
    with pytest.raises(ConfigurationError, match="model "):
        resolve("rms_norm", wrong)
    with pytest.raises(ConfigurationError, match="capability "):
        resolve("rms_norm", capability=wrong)


def test_a_model_may_be_given_as_its_class_and_the_settings_say_its_name() -> None:
    found = resolve("fused_qk_norm_rope", "Flux2Transformer2DModel")
    assert found.model == "diffusers:flux2"
    assert found.key == resolve("fused_qk_norm_rope", "diffusers:flux2").key


@pytest.mark.parametrize("preset", ["vllm_flash", "cuda", "flash_attn", "turbo"])
def test_a_name_that_is_no_slip_of_the_pen_gets_no_suggestion(preset: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^preset '{preset}' .*: no such preset\. Known: "):
        resolve("rms_norm", preset=preset)


@pytest.mark.parametrize(("preset", "near"), [("fats", "fast"), ("vllm-cuda-128", "vllm_cuda_128"), ("Quack", "quack")])
def test_a_slip_of_the_pen_gets_one(preset: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"no such preset; nearest: {near}\. Known: "):
        resolve("rms_norm", preset=preset)
