"""Which source wins, and what each value says about the sources below it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import numerics
from numerics.errors import ConfigurationError
from numerics.layers import knob_text
from numerics.presets.file import load
from numerics.presets.vocabulary import KNOBS
from numerics.resolution import Resolution
from numerics.resolve import resolve

if TYPE_CHECKING:
    from tests.numerics.conftest import Sources

LAYERS = ("package", "package model", "user", "user model", "environment", "context", "call")
LOCATIONS = {
    "package": "presets.toml: ops.fused_qk_norm_rope",
    "package model": "presets.toml: models.flux2",
    "user": "my.toml: ops.fused_qk_norm_rope",
    "user model": "my.toml: models.flux2",
    "environment": "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS",
}
# A weaker and a stronger value of each setting. The stronger ones are those that `or` would take for not given.
VALUES: dict[str, tuple[Any, Any]] = {
    "preset": ("exact", "other"),
    "min_tokens": (7, 0),
    "rms_norm_reduction": ("beta", "triton"),
    "enable_fp_fusion": (True, False),
    "rounding_points": (("norm", "qk_norm"), ()),
    "rope_rotation": ("complex", "separate"),
}


@pytest.mark.parametrize("setting", list(VALUES))
@pytest.mark.parametrize(("weaker", "stronger"), list(itertools.pairwise(LAYERS)))
def test_each_layer_beats_the_one_below(sources: Sources, weaker: str, stronger: str, setting: str) -> None:
    low, high = VALUES[setting]
    sources.said = {weaker: {setting: low}, stronger: {setting: high}}
    found = sources.resolve()
    assert _in_force(found, setting) == high
    assert found.sources[setting].source == stronger
    shadow = found.sources[setting].shadows[0]
    assert (shadow.source, shadow.value) == (weaker, low)


@pytest.mark.parametrize("setting", list(VALUES))
def test_the_weaker_layer_holds_where_the_stronger_says_nothing(sources: Sources, setting: str) -> None:
    for layer in LAYERS:
        sources.said = {layer: {setting: VALUES[setting][0]}}
        found = sources.resolve()
        assert _in_force(found, setting) == VALUES[setting][0]
        assert found.sources[setting].source == layer


def test_each_layer_names_its_place(sources: Sources) -> None:
    sources.said = {layer: {"preset": "other", "min_tokens": 1} for layer in LAYERS}
    found = sources.resolve()
    chain = found.sources["preset"].chain
    assert [said.source for said in chain] == list(reversed(LAYERS))
    assert chain[0].location == "argument preset"
    assert chain[1].location.startswith("numerics.use at conftest.py:")
    assert {said.source: said.location for said in chain[2:]} == LOCATIONS
    assert found.sources["min_tokens"].location == "argument min_tokens"
    assert found.sources["min_tokens"].shadows[1].location == "VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS"


def test_settings_of_a_model_are_not_those_of_the_op_alone(sources: Sources) -> None:
    sources.said = {"package model": {"preset": "other"}, "user model": {"min_tokens": 3}}
    found = sources.resolve(model=None)
    assert (found.preset, found.min_tokens, found.model) == ("fast", 0, None)


def test_a_layer_that_names_a_preset_discards_the_knobs_below(sources: Sources) -> None:
    sources.said = {"user": {"enable_fp_fusion": True, "min_tokens": 5}, "environment": {"preset": "exact"}}
    found = sources.resolve()
    assert not found.numerics.enable_fp_fusion
    assert found.modified == ()
    assert found.min_tokens == 5, "min_tokens is no knob of the preset"
    assert "enable_fp_fusion" not in found.sources


def test_a_discarded_knob_is_shown_under_the_preset_that_discards_it(sources: Sources) -> None:
    sources.said = {
        "user": {"preset": "other", "enable_fp_fusion": True, "rounding_points": ()},
        "environment": {"preset": "exact"},
    }
    shadows = sources.resolve().sources["preset"].shadows
    assert [(shadow.source, shadow.value) for shadow in shadows] == [
        ("user", "other"),
        ("user", "enable_fp_fusion=true"),
        ("user", "rounding_points=none"),
        ("package", "fast"),
    ]


def test_a_layer_that_names_only_knobs_keeps_the_preset_below(sources: Sources) -> None:
    sources.said = {"user": {"preset": "exact"}, "environment": {"rounding_points": ("norm",)}}
    found = sources.resolve()
    assert found.preset == "exact"
    assert found.numerics.rounding_points == ("norm",), "a list replaces the one below"


def test_knobs_beside_a_preset_stand_on_top_of_it(sources: Sources) -> None:
    for layer in LAYERS:
        sources.said = {layer: {"preset": "exact", "enable_fp_fusion": True}}
        found = sources.resolve()
        assert found.label == "exact (modified: enable_fp_fusion)"
        assert {found.sources[name].source for name in ("preset", "enable_fp_fusion")} == {layer}


def test_the_inner_use_beats_the_outer(sources: Sources) -> None:
    with sources.applied(), numerics.use("exact"), numerics.use("other", rope_rotation="separate"):
        found = resolve("fused_qk_norm_rope", "flux2")
        with numerics.use(rope_rotation="complex"):
            inner = resolve("fused_qk_norm_rope", "flux2")
    assert (found.preset, found.numerics.rope_rotation) == ("other", "separate")
    assert [shadow.value for shadow in found.sources["preset"].shadows] == ["exact", "fast"]
    assert (inner.preset, inner.numerics.rope_rotation) == ("other", "complex")
    assert [shadow.value for shadow in inner.sources["rope_rotation"].shadows] == ["separate"]


# --- Engines ----------------------------------------------------------------------------------------------------------

ENGINES = """
[models.known.fused_qk_norm_rope]
preset = "exact"
min_tokens = 64
[models."diffusers:known"]
fused_qk_norm_rope = "other"
[models."diffusers:alone"]
fused_qk_norm_rope = "other"
"""


def test_the_entry_of_an_engine_beats_that_of_the_name_in_the_same_file(sources: Sources) -> None:
    sources.models = ENGINES
    found = sources.resolve(model="diffusers:known")
    assert found.preset == "other"
    assert found.min_tokens == 64, "the engine's entry says nothing about it"
    assert [(s.source, s.location) for s in found.sources["preset"].chain] == [
        ("package model", 'presets.toml: models."diffusers:known"'),
        ("package model", "presets.toml: models.known"),
        ("package", "presets.toml: ops.fused_qk_norm_rope"),
    ]


def test_the_name_alone_does_not_see_the_entry_of_an_engine(sources: Sources) -> None:
    sources.models = ENGINES
    assert sources.resolve(model="known").preset == "exact"


def test_the_users_entry_of_the_name_beats_the_packaged_entry_of_the_engine(sources: Sources) -> None:
    sources.models = ENGINES.replace("known", "flux2")
    sources.said = {"user model": {"preset": "fast"}}
    found = sources.resolve(model="diffusers:flux2")
    assert (found.preset, found.sources["preset"].source) == ("fast", "user model")


def test_an_engine_that_no_file_knows_does_not_get_the_chain_of_another(sources: Sources) -> None:
    sources.models = ENGINES
    with pytest.raises(ConfigurationError, match=r"model 'difusers:known': no such model; nearest: diffusers:known"):
        sources.resolve(model="difusers:known")


# --- Everything that is said is found once ----------------------------------------------------------------------------

CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(["fast", "exact", "other"]),
        "min_tokens": st.sampled_from([0, 1, 2048]),
        "rms_norm_reduction": st.sampled_from(["alpha", "beta", "triton"]),
        "enable_fp_fusion": st.booleans(),
        "rounding_points": st.sampled_from([(), ("qk_norm",), ("norm", "qk_norm")]),
        "rope_rotation": st.sampled_from(["separate", "complex"]),
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.dictionaries(st.sampled_from(LAYERS), CHOICE.filter(bool)))
@example(said={layer: {"preset": "exact", "enable_fp_fusion": True} for layer in LAYERS})
def test_resolution_agrees_with_the_rule_and_finds_everything_once(
    sources: Sources, said: dict[str, dict[str, Any]]
) -> None:
    sources.said = said
    found = sources.resolve()
    said = {**said, "package": {"preset": "fast", "min_tokens": 0} | said.get("package", {})}
    choices = [said[layer] for layer in LAYERS if layer in said]
    start = max(i for i, choice in enumerate(choices) if "preset" in choice)
    expected = {name: value for choice in choices[start:] for name, value in choice.items() if name in KNOBS}
    assert found.preset == choices[start]["preset"]
    assert found.min_tokens == [choice["min_tokens"] for choice in choices if "min_tokens" in choice][-1]
    assert {knob: found.sources[knob].value for knob in KNOBS if knob in found.sources} == expected
    everything = sorted(
        (layer, knob_text(name, value)) for layer, choice in said.items() for name, value in choice.items()
    )
    assert sorted(_everything_found(found)) == everything


def _everything_found(found: Resolution) -> list[tuple[str, str]]:
    texts = []
    for name, provenance in found.sources.items():
        for each in provenance.chain:
            value = str(each.value)
            # A knob that a preset discards is text which names it.
            discarded = name == "preset" and "=" in value
            texts.append((str(each.source), value if discarded else knob_text(name, each.value)))
    return texts


def _in_force(found: Resolution, setting: str) -> Any:
    if setting == "preset":
        return found.preset
    if setting == "min_tokens":
        return found.min_tokens
    if setting == "rms_norm_reduction":
        return found.reduction
    return getattr(found.numerics, setting)


def test_without_configuration_every_value_is_the_packages() -> None:
    """Nothing looks as if a user had chosen it, and every model that a file declares gets what the file says."""
    catalog = load()
    for model in [None, *catalog.model_names()]:
        for family in catalog.packaged.ops:
            found = resolve(family, model)
            assert {each.source for each in found.sources.values()} <= {"package", "package model"}
            declared = catalog.packaged.settings_of(model or "").get(family)
            if declared is not None and declared.preset is not None:
                assert found.sources["preset"].source == "package model"
                assert found.preset == declared.preset
            else:
                assert found.preset == catalog.packaged.ops[family].preset
