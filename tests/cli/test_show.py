"""`numerics show`: the settings in force, where each comes from, and what follows."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import numerics.cli.show
from numerics.presets.file import load
from numerics.presets.vocabulary import FAMILIES
from tests.cli.conftest import Command, spawn

QK: Final = "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS"
ONE: Final = ("show", "--op", "fused_qk_norm_rope", "--model", "flux2")
Write = Callable[..., Path]


def test_the_example_of_the_design_is_printed(numerics: Command) -> None:
    found = numerics(*ONE, "--json", "--capability", "cuda:9.0", **{QK: "vllm_cuda_128"})
    (setting,) = found.json
    fingerprint = setting.pop("fingerprint")
    assert fingerprint.startswith("sha256:")
    assert len(fingerprint) == len("sha256:") + 64
    assert setting == {
        "op": "fused_qk_norm_rope",
        "model": "flux2",
        "capability": "cuda:9.0",
        "preset": "vllm_cuda_128",
        "modified": [],
        "numerics": {
            "rms_norm_reduction": "vllm_cuda_128",
            "enable_fp_fusion": False,
            "rounding_points": ["qk_norm"],
            "rope_rotation": "separate",
        },
        "min_tokens": 0,
        "reference": {"provider": "vllm_c", "versions": ">=0.20,<0.34"},
        "sources": {
            "preset": {
                "source": "environment",
                "location": QK,
                "value": "vllm_cuda_128",
                "shadows": [
                    {"source": "package model", "location": "presets.toml: models.flux2", "value": "vllm_cuda_128"},
                    {"source": "package", "location": "presets.toml: ops.fused_qk_norm_rope", "value": "fast"},
                ],
            },
            "min_tokens": {
                "source": "package",
                "location": "presets.toml: ops.fused_qk_norm_rope",
                "value": 0,
                "shadows": [],
            },
        },
    }


def test_a_file_of_ones_own_stands_between_package_and_environment(numerics: Command, write: Write) -> None:
    path = write('[models.flux2]\nfused_qk_norm_rope = "fast"\n')
    found = numerics(*ONE, "--json", "--config", path, **{QK: "vllm_cuda_128"})
    shadows = found.json[0]["sources"]["preset"]["shadows"]
    assert [(each["source"], each["value"]) for each in shadows] == [
        ("user model", "fast"),
        ("package model", "vllm_cuda_128"),
        ("package", "fast"),
    ]


def test_every_family_and_every_models_entry_is_listed(numerics: Command) -> None:
    packaged = load().packaged
    expected: set[tuple[str, str | None]] = {(family, None) for family in FAMILIES}
    expected |= {(family, model) for model in packaged.models for family in packaged.settings_of(model)}
    found = [(each["op"], each["model"]) for each in numerics("show", "--json").json]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_a_users_model_is_listed(numerics: Command, write: Write) -> None:
    path = write('[models.mine]\nfused_rms_norm = "vllm_native"\n')
    found = numerics("show", "--json", "--config", path).json
    assert [each["preset"] for each in found if each["model"] == "mine"] == ["vllm_native"]


def test_a_model_is_shown_in_every_family(numerics: Command) -> None:
    found = numerics("show", "--model", "flux2", "--json").json
    assert [each["op"] for each in found] == list(FAMILIES)


def test_an_op_is_shown_as_its_family(numerics: Command) -> None:
    found = numerics("show", "--op", "fused_joint_qkv_norm_rope", "--model", "flux2", "--json").json
    assert [each["op"] for each in found] == ["fused_qk_norm_rope"]


def test_a_preset_is_shown_as_if_a_call_asked_for_it(numerics: Command) -> None:
    (setting,) = numerics(*ONE, "--preset", "diffusers_aten", "--json").json
    assert (setting["preset"], setting["sources"]["preset"]["source"]) == ("diffusers_aten", "call")


# --- Capability -------------------------------------------------------------------------------------------------------

WHEN: Final = """
[models.flux2.fused_qk_norm_rope]
preset = "vllm_cuda_128"
when = [{ capability = "cuda:9", preset = "diffusers_aten" }, { capability = "cuda:10.0", min_tokens = 64 }]
"""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    def find(capability: str | None) -> None:
        monkeypatch.setattr(numerics.cli.show, "current", lambda: capability)

    return find


def test_without_a_driver_every_row_is_listed_and_the_capability_is_null(
    numerics: Command, write: Write, driver: Callable[[str | None], None]
) -> None:
    driver(None)
    (setting,) = numerics(*ONE, "--json", "--config", write(WHEN)).json
    assert (setting["capability"], setting["preset"]) == (None, "vllm_cuda_128")
    rows = [(row["capability"], row["preset"], row["min_tokens"]) for row in setting["when"]]
    assert sorted(rows) == [("cuda:10.0", "vllm_cuda_128", 64), ("cuda:9", "diffusers_aten", 0)]


def test_rows_are_named_on_the_page(numerics: Command, write: Write, driver: Callable[[str | None], None]) -> None:
    driver(None)
    path = write(WHEN)
    assert "\n  on cuda:9\n" in numerics(*ONE, "--config", path).out
    shown = numerics("show", "--config", path).out.splitlines()
    row = next(index for index, line in enumerate(shown) if "on cuda:10.0" in line)
    assert shown[row].split()[2] == "vllm_cuda_128"
    assert shown[row + 1].split() == ["from", "64", "tokens"]


def test_the_driver_is_asked(numerics: Command, write: Write, driver: Callable[[str | None], None]) -> None:
    driver("cuda:9.0")
    (setting,) = numerics(*ONE, "--json", "--config", write(WHEN)).json
    assert (setting["capability"], setting["preset"]) == ("cuda:9.0", "diffusers_aten")
    assert "when" not in setting


def test_a_given_capability_beats_the_driver(
    numerics: Command, write: Write, driver: Callable[[str | None], None]
) -> None:
    driver("cuda:9.0")
    (setting,) = numerics(*ONE, "--json", "--config", write(WHEN), "--capability", "cuda:10.0").json
    assert (setting["capability"], setting["preset"], setting["min_tokens"]) == ("cuda:10.0", "vllm_cuda_128", 64)
    assert "model flux2, on cuda:10.0\n" in numerics(*ONE, "--capability", "cuda:10.0").out


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_a_part_of_what_was_asked_for_is_not_shown(numerics: Command) -> None:
    found = numerics("show", VLLM_OMNI_FUSED_MODULATION_NUMERICS="vlm_cuda")  # legal in the two other families
    assert (found.code, found.out) == (2, "")
    assert "nearest: vllm_cuda" in found.err


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("--op", "fused_qk_norm"), {}, "nearest: fused_qk_norm_rope"),
        (("--model", "flux22"), {}, "nearest: flux2"),
        (("--preset", "vlm_cuda"), {}, "nearest: vllm_cuda"),
        (("--capability", "sm_90"), {}, "write cuda:MAJOR.MINOR"),
        ((), {QK: "vlm_cuda_128"}, "nearest: vllm_cuda_128"),
        ((), {QK: "vllm_cuda_128,fusion=true"}, "knob 'fusion'"),
        ((), {"VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS": "\uff11\uff12\uff18"}, "digits 0 to 9"),
        (
            (),
            {"NUMERICS_CONFIG": "/no/such.toml"},
            "the file that NUMERICS_CONFIG names: '/no/such.toml' cannot be read",
        ),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_is_not_legal_exits_2_and_says_what_is(
    numerics: Command, arguments: tuple[str, ...], environment: dict[str, str], message: str, as_json: tuple[str, ...]
) -> None:
    op = () if "--op" in arguments else ("--op", "fused_qk_norm_rope")
    found = numerics("show", *op, *arguments, *as_json, **environment)
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert found.err.count(message) == 1


def test_a_misspelt_variable_exits_2_and_names_the_nearest() -> None:
    found = spawn(*ONE, VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERIC="fast")
    assert (found.code, found.out) == (2, "")
    assert f"nearest: {QK}" in found.err


def test_settings_that_this_machine_refuses_are_named_and_the_others_shown(numerics: Command) -> None:
    found = numerics("show", "--json", "--capability", "cuda:9.0", VLLM_BATCH_INVARIANT="1")
    assert found.code == 2
    assert "requires the variable VLLM_BATCH_INVARIANT unset or '0', found '1'" in found.err
    assert {each["preset"] for each in found.json} >= {"fast", "diffusers_aten"}
    assert "vllm_cuda_128" not in {each["preset"] for each in found.json}


# --- Pages ------------------------------------------------------------------------------------------------------------


def words(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def test_everything_about_one_setting_is_on_its_page(numerics: Command, write: Write) -> None:
    path = write('[models.flux2]\nfused_qk_norm_rope = "fast"\n')
    shown = words(numerics(*ONE, "--config", path, **{QK: "vllm_cuda_128"}).out)
    for said in (
        f"preset vllm_cuda_128 set by environment, {QK}",
        "instead of fast (user model, my.toml: models.flux2)",
        "instead of vllm_cuda_128 (package model, presets.toml: models.flux2)",
        "enable_fp_fusion false",
        "rounding_points qk_norm kept in float32: normalized, rope_product",
        "min_tokens 0 set by package, presets.toml: ops.fused_qk_norm_rope",
        "backend cuda",
        "VLLM_BATCH_INVARIANT unset or 0",
        "reference vllm_c >=0.20,<0.34",
        "bytes verified on NVIDIA H200",
        "exactness exact: kernel and references return the same bytes",
        "batch invariant at width 128",
        "sharding invariant: 2, 4, 8, 16 pieces at width 128",
    ):
        assert said in shown


def test_points_and_rotation_of_other_families_are_not_applicable(numerics: Command) -> None:
    shown = words(numerics("show", "--op", "rms_norm", "--model", "flux2").out)
    assert "rounding_points residual kept in float32: normalized" in shown
    assert "not applicable here: gate_product, norm, one_plus_scale, scaled, qk_norm" in shown
    assert "rope_rotation separate not applicable here" in shown


def test_a_modified_preset_has_no_claim(numerics: Command) -> None:
    found = numerics(*ONE, **{QK: "vllm_cuda_128,enable_fp_fusion=true"})
    shown = words(found.out)
    assert "preset vllm_cuda_128 (modified: enable_fp_fusion)" in shown
    assert f"enable_fp_fusion true set by environment, {QK}" in shown
    assert "reference no claim: the preset is modified" in shown
    assert "left open: contraction of products and sums (enable_fp_fusion)" in shown


def test_what_is_left_open_is_said(numerics: Command) -> None:
    shown = words(numerics("show", "--op", "fused_modulation", "--model", "flux2").out)
    assert "left open: order of additions (reduction triton) and contraction" in shown
    assert "batch left open" in shown


def test_rows_that_change_the_bytes_are_named(numerics: Command) -> None:
    shown = words(numerics("show", "--op", "rms_norm", "--model", "flux2").out)
    assert "batch not invariant: changes at 256 rows at widths 3072, 3840, 5120, 5376, 6144" in shown


def lines(out: str) -> dict[str, list[str]]:
    """The cells of each line of a table, by its first cell."""
    return {line.split("  ")[0]: line.split()[1:] for line in out.splitlines() if line}


def test_many_settings_are_a_line_each(numerics: Command) -> None:
    found = lines(numerics("show", "--op", "fused_qk_norm_rope", COLUMNS="120").out)
    assert found["flux2"] == ["vllm_cuda_128", "package", "model", "verified", "yes"]
    assert found["any other"][1:] == ["fast", "package", "left", "open", "-"]
    assert found["diffusers:hunyuan_video_15"][-1] == "no"


def test_declared_and_unclaimed_presets_are_told_apart(numerics: Command, write: Write) -> None:
    path = write(
        '[presets.mine]\nsummary = "mine"\nextends = "vllm_cuda"\nrounding_points = []\n'
        '[models.a]\nfused_rms_norm = "vllm_cuda_0_19"\n[models.b]\nfused_rms_norm = "mine"\n'
    )
    found = lines(numerics("show", "--op", "rms_norm", "--config", path).out)
    assert found["a"][3] == "declared"
    assert found["b"][3:5] == ["no", "claim"]


def test_min_tokens_stands_below_the_preset_where_one_is_set(numerics: Command) -> None:
    assert "tokens" not in numerics("show", "--op", "fused_qk_norm_rope").out
    found = numerics("show", "--op", "fused_qk_norm_rope", VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS="2048")
    assert found.out.count("from 2048 tokens") == len(numerics("show", "--op", "fused_qk_norm_rope", "--json").json)


def test_everything_about_many_is_shown_in_full_on_demand(numerics: Command) -> None:
    found = numerics("show", "--full")
    count = len(numerics("show", "--json").json)
    assert found.out.count("fingerprint") == count


def test_long_models_break_at_the_engine_in_a_narrow_terminal(numerics: Command) -> None:
    assert "diffusers:\n" not in numerics("show", COLUMNS="120").out
    narrow = [line.split()[0] for line in numerics("show", COLUMNS="80").out.splitlines() if line]
    assert ("diffusers:", "hunyuan_video_15") in itertools.pairwise(narrow)


@pytest.mark.parametrize("name", ["NUMERICS_STRICT", "NUMERICS_CHECK_INDICES"])
def test_an_illegal_value_of_any_variable_is_said(numerics: Command, name: str) -> None:
    found = numerics(*ONE, "--json", **{name: "yes"})
    assert found.code == 2
    assert f"{name}='yes': write 1, or 0 or nothing" in found.err
