"""How the text of variables is read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from numerics import environment
from numerics.environment import KNOWN, VARIABLES
from numerics.errors import ConfigurationError
from numerics.layers import Layer, knob_text
from numerics.presets.vocabulary import FAMILIES
from numerics.resolve import resolve

NUMERICS = "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS"
MIN_TOKENS = "VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS"


def test_the_variables_are_those_of_the_design() -> None:
    assert set(KNOWN) == {
        "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS",
        "VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS",
        "VLLM_OMNI_FUSED_MODULATION_NUMERICS",
        "VLLM_OMNI_FUSED_MODULATION_MIN_TOKENS",
        "VLLM_OMNI_FUSED_RMS_NORM_NUMERICS",
        "VLLM_OMNI_FUSED_RMS_NORM_MIN_TOKENS",
        "NUMERICS_CONFIG",
        "NUMERICS_STRICT",
        "NUMERICS_CHECK_INDICES",
        "NUMERICS_RECORD",
        "NUMERICS_INSTALL",
    }


@pytest.mark.parametrize(
    ("text", "preset", "knobs"),
    [
        ("vllm_cuda_128", "vllm_cuda_128", {}),
        ("  fast\t", "fast", {}),
        ("vllm_cuda_128,enable_fp_fusion=true", "vllm_cuda_128", {"enable_fp_fusion": True}),
        ("fast , enable_fp_fusion = false", "fast", {"enable_fp_fusion": False}),
        ("enable_fp_fusion=false", None, {"enable_fp_fusion": False}),
        ("fast,rounding_points=scaled+norm", "fast", {"rounding_points": ("norm", "scaled")}),
        ("rounding_points=none", None, {"rounding_points": ()}),
        (
            "rope_rotation=complex,rms_norm_reduction=triton",
            None,
            {"rms_norm_reduction": "triton", "rope_rotation": "complex"},
        ),
    ],
)
def test_a_value_is_a_preset_and_knobs_and_either_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, text: str, preset: str | None, knobs: dict[str, Any]
) -> None:
    monkeypatch.setenv(NUMERICS, text)
    assert environment.read("fused_qk_norm_rope") == (Layer("environment", NUMERICS, preset, tuple(knobs.items())),)
    assert environment.read("fused_modulation") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "vlm_cuda_128",
            r"preset 'vlm_cuda_128' \(environment, " + NUMERICS + r"\): no such preset; nearest: vllm_cuda",
        ),
        ("FAST", "no such preset; nearest: fast"),
        ("fast,vllm_cuda_128", "'vllm_cuda_128' in .*write PRESET,knob=value"),
        ("enable_fp_fusion=true,fast", "'fast' in .*write PRESET,knob=value"),
        ("fast,", "'' in 'fast,'.*write PRESET,knob=value"),
        (",fast", "'' in ',fast'"),
        (",", "write PRESET"),
        ("=true", "'=true' in"),
        ("fast;enable_fp_fusion=true", "no such knob"),
        ("fast,enable_fp_fuson=true", "knob 'enable_fp_fuson' .*no such knob; nearest: enable_fp_fusion"),
        ("fast,ENABLE_FP_FUSION=true", "no such knob"),
        ("fast,min_tokens=3", "knob 'min_tokens' .*no such knob"),
        ("enable_fp_fusion=True", "enable_fp_fusion 'True' .*write true or false"),
        ("enable_fp_fusion=1", "enable_fp_fusion '1' .*write true or false"),
        ("enable_fp_fusion=yes", "write true or false"),
        ("enable_fp_fusion=", "enable_fp_fusion .*has no value"),
        ("enable_fp_fusion=true=false", "enable_fp_fusion 'true=false'"),
        ("enable_fp_fusion=true,enable_fp_fusion=true", "stands twice"),
        ("rounding_points=", "has no value; an empty list is none"),
        ("rounding_points=none+norm", "rounding_points 'none' .*no such rounding point"),
        ("rounding_points=norm+norm", "rounding_points 'norm' .*stands twice"),
        ("rounding_points=norm+", "no such rounding point"),
        ("rounding_points=[norm]", "no such rounding point; nearest: norm"),
        ("rope_rotation=Complex", "no such rotation; nearest: complex"),
        ("rms_norm_reduction=vllm_cuda128", "no such reduction; nearest: vllm_cuda_128"),
        ("rms_norm_reduction=none", "no such reduction"),
    ],
)
def test_any_other_value_is_an_error_that_says_what_came_and_what_is_legal(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setenv(NUMERICS, text)
    with pytest.raises(ConfigurationError, match=words) as raised:
        resolve("fused_qk_norm_rope")
    assert NUMERICS in str(raised.value)


@pytest.mark.parametrize("blank", ["", " ", "\t \n"])
@pytest.mark.parametrize("name", KNOWN)
def test_blank_is_unset(monkeypatch: pytest.MonkeyPatch, name: str, blank: str) -> None:
    before = [resolve(family) for family in FAMILIES]
    monkeypatch.setenv(name, blank)
    assert [resolve(family) for family in FAMILIES] == before
    assert not environment.strict()
    environment.check()


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("2048", 2048), (" 5 ", 5), ("007", 7), ("1000000000000", 10**12)]
)
def test_min_tokens_is_a_number_in_ascii_digits(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv(MIN_TOKENS, text)
    found = resolve("fused_qk_norm_rope")
    assert found.min_tokens == value
    assert found.sources["min_tokens"].source == "environment"
    assert found.sources["min_tokens"].location == MIN_TOKENS
    assert found.preset == "fast", "the threshold does not touch the preset"


@pytest.mark.parametrize("text", ["١٢", "+5", "1_000", "1e3", "-1", "5.0", "0x10", "5 5", "five", "²", "9" * 5000])
def test_any_other_min_tokens_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(MIN_TOKENS, text)
    with pytest.raises(ConfigurationError, match=MIN_TOKENS) as raised:
        resolve("fused_qk_norm_rope", "flux2", min_tokens=3)
    assert "write a number in the digits 0 to 9, at most 999999999999999999" in str(raised.value)


@pytest.mark.parametrize("wrong", [-1, 1.0, True, 2**63])
def test_min_tokens_of_code_is_a_number_that_an_op_can_carry(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"\(call, argument min_tokens\): write an integer, 0 to 9{18}$"):
        resolve("fused_qk_norm_rope", min_tokens=wrong)


FLAGS = {"NUMERICS_STRICT": environment.strict, "NUMERICS_CHECK_INDICES": environment.checks_indices}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(("text", "on"), [("1", True), ("0", False), (" 1 ", True)])
def test_a_flag_is_one_or_zero(monkeypatch: pytest.MonkeyPatch, name: str, text: str, on: bool) -> None:
    monkeypatch.setenv(name, text)
    assert [flag for flag, read in FLAGS.items() if read()] == ([name] if on else [])


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("text", ["true", "yes", "2", "on", "01"])
def test_any_other_flag_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError, match=rf"{name}=.*write 1, or 0 or nothing"):
        FLAGS[name]()
    with pytest.raises(ConfigurationError, match=name):
        environment.check()


@pytest.mark.parametrize(
    ("text", "engines"),
    [
        ("1", ("vllm_omni",)),
        ("0", ()),
        ("vllm", ("vllm",)),
        (" vllm , vllm_omni ", ("vllm_omni", "vllm")),
        ("vllm,vllm", ("vllm",)),
    ],
)
def test_engines_to_install_in_are_named(monkeypatch: pytest.MonkeyPatch, text: str, engines: tuple[str, ...]) -> None:
    monkeypatch.setenv("NUMERICS_INSTALL", text)
    assert environment.installs() == engines


def test_nothing_is_installed_unless_asked_for() -> None:
    assert environment.installs() == ()


@pytest.mark.parametrize("text", ["2", "true", "vllm,", "1,vllm", "VLLM", "vllm-omni", "vllm;vllm_omni"])
def test_any_other_engine_is_an_error_that_names_the_nearest(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("NUMERICS_INSTALL", text)
    with pytest.raises(ConfigurationError, match=r"NUMERICS_INSTALL=.*is no engine.*Known: vllm, vllm_omni; write 1"):
        environment.installs()
    with pytest.raises(ConfigurationError, match="NUMERICS_INSTALL"):
        environment.check()


def test_variables_are_read_on_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("fused_modulation").preset == "fast"
    for preset in ("bf16_affine", "vllm_cuda", "bf16_affine"):
        monkeypatch.setenv("VLLM_OMNI_FUSED_MODULATION_NUMERICS", preset)
        assert resolve("fused_modulation").preset == preset
    monkeypatch.delenv("VLLM_OMNI_FUSED_MODULATION_NUMERICS")
    assert resolve("fused_modulation").preset == "fast"


def test_a_wrong_variable_of_another_family_is_found_by_the_explicit_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OMNI_FUSED_MODULATION_MIN_TOKENS", "many")
    resolve("fused_qk_norm_rope")
    with pytest.raises(ConfigurationError, match="VLLM_OMNI_FUSED_MODULATION_MIN_TOKENS"):
        environment.check()


def test_text_of_a_knob_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = (
        ("rms_norm_reduction", "vllm_cuda"),
        ("enable_fp_fusion", False),
        ("rounding_points", ()),
        ("rope_rotation", "complex"),
    )
    monkeypatch.setenv(NUMERICS, ",".join(knob_text(knob, value) for knob, value in knobs))
    assert environment.read("fused_qk_norm_rope")[0].knobs == knobs


# --- Near misses ------------------------------------------------------------------------------------------------------


@pytest.fixture
def unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not resolved anything yet."""
    monkeypatch.setitem(resolve.__globals__, "_names_checked", False)


@pytest.mark.usefixtures("unlooked")
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERIC", NUMERICS),  # one too few
        ("VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICSS", NUMERICS),  # one too many
        ("VLLM_OMNI_FUSED_QK_NORM_ROEP_NUMERICS", NUMERICS),  # two swapped
        ("VLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKEN", MIN_TOKENS),  # two too few
        ("NUMERICS_CONFIC", "NUMERICS_CONFIG"),
        ("NUMERIC_STRICT", "NUMERICS_STRICT"),
        ("VLLM_OMNI_FUSED_MODULATIONS_NUMERIC", "VLLM_OMNI_FUSED_MODULATION_NUMERICS"),
    ],
)
def test_a_variable_within_two_edits_of_a_known_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, known: str
) -> None:
    monkeypatch.setenv(name, "fast")
    for _ in range(2):  # it is not forgotten after the first time
        with pytest.raises(ConfigurationError, match=f"^{name}: no such variable; nearest: {known}\n"):
            resolve("fused_rms_norm", "flux2", min_tokens=771)


@pytest.mark.usefixtures("unlooked")
@pytest.mark.parametrize(
    "name",
    [
        "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUM",
        "NUMERICS",
        "numerics_config",
        "NUMERICS_STR",
        "VLLM_OMNI_OTHER_NUMERICS",
        "CONFIG",
    ],
)
def test_no_other_variable_is_touched(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "nonsense,,,")
    monkeypatch.setenv("NUMERICS_STRIC", "  ")  # blank is unset
    resolve("fused_rms_norm", "flux2", min_tokens=772)
    environment.check()


@pytest.mark.usefixtures("unlooked")
def test_near_misses_are_looked_for_once_and_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("fused_rms_norm", min_tokens=773)
    monkeypatch.setenv("NUMERICS_STRICTT", "1")
    resolve("fused_rms_norm", min_tokens=774)
    with pytest.raises(ConfigurationError, match="NUMERICS_STRICTT: no such variable; nearest: NUMERICS_STRICT"):
        environment.check()


def test_every_family_has_its_variables() -> None:
    assert set(VARIABLES) == set(FAMILIES)
