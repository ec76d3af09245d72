"""Presets: what `extends` copies, and what must hold between presets, reductions and settings."""

from collections.abc import Callable

import pytest

from numerics.presets.file import Catalog, load

Loaded = Callable[[str], Catalog]
Problems = Callable[[str], list[str]]

REFERENCE = "reference = { provider = 'p', versions = '>=1,<2' }\n"
WHOLE = "summary = 'x'\nrms_norm_reduction = 'aten_mean'\nenable_fp_fusion = false\nrounding_points = []\n"


# --- extends ----------------------------------------------------------------------------------------------------------


def test_extends_copies_knobs_and_conditions(loaded: Loaded) -> None:
    catalog = loaded("[presets.mine]\nsummary = 'x'\nextends = 'diffusers_complex'\n")
    mine, base = catalog.presets["mine"], catalog.presets["diffusers_complex"]
    assert mine.knobs == base.knobs
    assert mine.knobs["rope_rotation"] == "complex"
    assert mine.requires == base.requires
    assert (mine.summary, mine.extends, mine.origin) == ("x", "diffusers_complex", "user")


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("rms_norm_reduction", "aten_mean"),
        ("enable_fp_fusion", True),
        ("rounding_points", ("qk_norm",)),
        ("rope_rotation", "complex"),
    ],
)
def test_a_knob_given_replaces_the_copied_one_and_drops_the_reference(loaded: Loaded, knob: str, value: object) -> None:
    text = str(list(value) if isinstance(value, tuple) else value).replace("True", "true")
    written = f"'{text}'" if isinstance(value, str) else text
    catalog = loaded(f"[presets.mine]\nsummary = 'x'\nextends = 'vllm_cuda'\n{knob} = {written}\n")
    mine, base = catalog.presets["mine"], catalog.presets["vllm_cuda"]
    assert mine.knobs == {**base.knobs, knob: value}
    assert base.reference is not None
    assert mine.reference is None


def test_the_reference_is_inherited_while_no_knob_differs(loaded: Loaded) -> None:
    catalog = loaded("[presets.mine]\nsummary = 'x'\nextends = 'vllm_cuda'\nrms_norm_reduction = 'vllm_cuda'\n")
    assert catalog.presets["mine"].reference == catalog.presets["vllm_cuda"].reference


def test_a_preset_s_own_reference_stands(loaded: Loaded) -> None:
    catalog = loaded(f"[presets.mine]\nsummary = 'x'\nextends = 'vllm_cuda'\n{REFERENCE}")
    reference = catalog.presets["mine"].reference
    assert reference is not None
    assert (reference.provider, reference.versions, reference.verified_on) == ("p", ">=1,<2", ())


def test_a_condition_given_replaces_that_field_alone(loaded: Loaded) -> None:
    catalog = loaded(
        "[presets.mine]\nsummary = 'x'\nextends = 'vllm_cuda'\nrequires = { dtype = ['float16'], env = {}, rows = 7 }\n"
    )
    mine, base = catalog.presets["mine"].requires, catalog.presets["vllm_cuda"].requires
    assert mine.dtype == ("float16",)
    assert mine.env == {}
    assert mine.rows == 7
    assert (mine.backend, mine.rope_table_dtype) == (base.backend, base.rope_table_dtype)


def test_extends_may_come_before_what_it_names_and_go_on(loaded: Loaded) -> None:
    catalog = loaded(
        f"[presets.a]\nsummary = 'x'\nextends = 'b'\nrequires = {{ width = 64 }}\n"
        f"[presets.b]\nsummary = 'x'\nextends = 'c'\nrope_rotation = 'complex'\n"
        f"[presets.c]\n{WHOLE}requires = {{ backend = 'cuda' }}\n{REFERENCE}"
    )
    a = catalog.presets["a"]
    assert a.knobs["rope_rotation"] == "complex"
    assert (a.requires.width, a.requires.backend) == (64, "cuda")
    assert a.reference is None
    assert catalog.presets["c"].knobs["rope_rotation"] == "separate"


def test_a_preset_gives_its_numerics() -> None:
    catalog = load()
    numerics = catalog.presets["vllm_cuda_128"].numerics(catalog.reductions)
    assert numerics.text == (
        '{"enable_fp_fusion":false,"rms_norm_reduction":{"lanes":"adjacent","mean":"divide","threads":16,"vector":8,'
        '"width":128},"rope_rotation":"separate","rounding_points":["qk_norm"]}'
    )
    assert catalog.presets["fast"].numerics(catalog.reductions).rms_norm_reduction == "triton"


# --- Checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "extends = 'vlm_cuda'",
            "3: presets.mine.extends: got 'vlm_cuda'; no such preset; nearest: vllm_cuda. Known: ",
        ),
        ("extends = 'mine'", "3: presets.mine.extends: goes in a circle: 'mine' extends 'mine'"),
        (
            "rms_norm_reduction = 'aten_mean'",
            (
                "1: presets.mine: enable_fp_fusion, rounding_points not given; a preset that extends none gives every "
                "knob but rope_rotation"
            ),
        ),
        (
            "extends = 'fast'\nrms_norm_reduction = 'aten_men'",
            "4: presets.mine.rms_norm_reduction: got 'aten_men'; no such reduction; nearest: aten_mean. Known: ",
        ),
        (
            f"extends = 'fast'\nenable_fp_fusion = false\n{REFERENCE}",
            (
                "1: presets.mine.rms_norm_reduction: got 'triton'; a preset with a reference leaves nothing open; drop "
                "the reference, or name a declared order"
            ),
        ),
        (
            f"extends = 'vllm_cuda'\n{REFERENCE}enable_fp_fusion = true",
            (
                "5: presets.mine.enable_fp_fusion: got true; a preset with a reference leaves nothing open; drop "
                "the reference, or write false"
            ),
        ),
        (
            "extends = 'vllm_cuda_128'\nrequires.width = 256",
            "4: presets.mine.requires.width: got 256; reduction 'vllm_cuda_128' is declared for 128",
        ),
        (
            "extends = 'vllm_cuda_128'\nrequires.width = [64, 128]",
            "4: presets.mine.requires.width: got 64 to 128; reduction 'vllm_cuda_128' is declared for 128",
        ),
        (
            "extends = 'vllm_native'\nrms_norm_reduction = 'aten_mean_wide'\nrequires.rows = 1",
            "5: presets.mine.requires.rows: got 1; reduction 'aten_mean_wide' is declared for 16 to 2147483647",
        ),
        (
            "extends = 'vllm_native'\nrequires.width = 130",
            (
                "4: presets.mine.requires.width: got 130; reduction 'aten_mean': it adds whole vectors of 4 elements, "
                "which do not divide a row of 130"
            ),
        ),
        (
            "extends = 'flashinfer_cuda'\nrequires.width = 96",
            (
                "4: presets.mine.requires.width: got 96; reduction 'flashinfer_cuda': its mean is exact for a power of "
                "two only, not for 96 elements"
            ),
        ),
        (
            "extends = 'vllm_cuda'\nrequires.capability = 'hip:gfx942'",
            "4: presets.mine.requires: capability 'hip:gfx942' is not of backend 'cuda'; it can never hold",
        ),
    ],
)
def test_a_preset_that_cannot_be_is_named(problems: Problems, text: str, expected: str) -> None:
    (found,) = problems(f"[presets.mine]\nsummary = 'x'\n{text}\n")
    assert found.startswith(f"my.toml:{expected}")


def test_an_inherited_width_must_suit_the_new_reduction(problems: Problems) -> None:
    text = (
        "[presets.a]\nsummary = 'x'\nextends = 'vllm_cuda'\nrequires.width = 64\n"
        "[presets.b]\nsummary = 'x'\nextends = 'a'\nrms_norm_reduction = 'vllm_cuda_128'\n"
    )
    message = "got 64; reduction 'vllm_cuda_128' is declared for 128"
    assert problems(text) == [f"my.toml:5: presets.b.requires.width: {message}"]


def test_a_circle_is_said_once_for_each_preset_in_it(problems: Problems) -> None:
    text = "".join(f"[presets.{name}]\nsummary = 'x'\nextends = '{base}'\n" for name, base in ("ab", "bc", "ca", "da"))
    assert problems(text) == [
        "my.toml:3: presets.a.extends: goes in a circle: 'b' extends 'c' extends 'a' extends 'b'",
        "my.toml:6: presets.b.extends: goes in a circle: 'c' extends 'a' extends 'b' extends 'c'",
        "my.toml:9: presets.c.extends: goes in a circle: 'a' extends 'b' extends 'c' extends 'a'",
    ]


def test_a_preset_on_a_broken_one_is_not_blamed(problems: Problems) -> None:
    text = "[presets.a]\nsummary = 'x'\nextends = 'b'\n[presets.b]\nsummary = 'x'\n"
    assert [each.split(": ")[:2] for each in problems(text)] == [["my.toml:4", "presets.b"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[ops]\nfused_rms_norm = 'fastt'",
            "2: ops.fused_rms_norm: got 'fastt'; no such preset; nearest: fast. Known: ",
        ),
        (
            "[models.'e:m'.fused_rms_norm]\npreset = 'fastt'",
            "2: models.\"e:m\".fused_rms_norm.preset: got 'fastt'; no such preset; nearest: fast. Known: ",
        ),
        (
            "[ops]\nfused_rms_norm = { min_tokens = 3,\trms_norm_reduction = 'tritn' }",
            "2: ops.fused_rms_norm.rms_norm_reduction: got 'tritn'; no such reduction; nearest: triton. Known: ",
        ),
        (
            "[ops.fused_rms_norm]\nwhen = [\n{ capability = 'cuda', preset = 'x_y_z' }\n]",
            "3: ops.fused_rms_norm.when[0].preset: got 'x_y_z'; no such preset. Known: ",
        ),
        (
            "[ops.fused_rms_norm]\nwhen = [\n{ capability = 'cuda', rms_norm_reduction = 'quak' }\n]",
            "3: ops.fused_rms_norm.when[0].rms_norm_reduction: got 'quak'; no such reduction; nearest: quack. Known: ",
        ),
    ],
)
def test_a_setting_names_what_exists(problems: Problems, text: str, expected: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"my.toml:{expected}")


def test_the_known_presets_are_listed_once_each(problems: Problems) -> None:
    (found,) = problems("[presets.mine]\nsummary = 'x'\nextends = 'min'\n")
    known = found.partition("Known: ")[2].split(", ")
    assert known == sorted({"mine", *load().presets})
