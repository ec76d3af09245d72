"""Each mistake in a setting, a name or the TOML itself is one line, and is never read as something else."""

from collections.abc import Callable

import pytest

from numerics.presets.problems import dotted

Problems = Callable[[str], list[str]]

SETTING_KEYS = "enable_fp_fusion, min_tokens, preset, rms_norm_reduction, rope_rotation, rounding_points"
MODEL_FIELDS = "classes, fused_qk_norm_rope, fused_modulation, fused_rms_norm"
MODEL_KEYS = ", ".join(sorted(MODEL_FIELDS.split(", ")))
TABLES = {
    "presets": "summary = 'x'\nextends = 'fast'\n",
    "reductions": "summary = 'x'\nvector = 4\nthreads = 32\nlanes = 'halves'\nmean = 'divide'\n",
}


@pytest.mark.parametrize("table", TABLES)
def test_a_name_is_letters_digits_and_underscores(problems: Problems, table: str) -> None:
    text = f'\n[{table}."my preset"]\n{TABLES[table]}'
    legal = "letters, digits and _, not starting with a digit"
    assert problems(text) == [f'my.toml:2: {table}."my preset": not a legal name; legal: {legal}']


def test_a_model_may_name_an_engine(problems: Problems) -> None:
    legal = "letters, digits and _, not starting with a digit, or ENGINE:NAME"
    text = "[models]\n'a:b:c'.fused_rms_norm = 'fast'\n"
    assert problems(text) == [f'my.toml:2: models."a:b:c": not a legal name; legal: {legal}']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models = 3", "1: models: got 3; legal: a table"),
        (
            "[models]\nflux2 = 'fast'",
            f"2: models.flux2: got 'fast'; legal: a table of {MODEL_FIELDS}",
        ),
        (
            "[model.flux2]\nx = 1",
            "1: model: no such key; nearest: models. Known: models, ops, presets, reductions",
        ),
        (
            "[models.flux2]\npreset = 'fast'",
            f"2: models.flux2.preset: no such key. Known: {MODEL_KEYS}",
        ),
        (
            "[models.flux2]\nfused_qk_rope = 'fast'",
            (f"2: models.flux2.fused_qk_rope: no such key; nearest: fused_qk_norm_rope. Known: {MODEL_KEYS}"),
        ),
        (
            "[ops.fused_joint_qkv_norm_rope]\npreset = 'fast'",
            (
                "1: ops.fused_joint_qkv_norm_rope: no such family; nearest: fused_qk_norm_rope. Known: "
                "fused_modulation, fused_qk_norm_rope, fused_rms_norm"
            ),
        ),
        (
            "[ops]\nfused_rms_norm = 3",
            (
                "2: ops.fused_rms_norm: got 3; legal: the name of a preset, or a table of rms_norm_reduction, "
                "enable_fp_fusion, rounding_points, rope_rotation, preset, min_tokens, when"
            ),
        ),
        (
            "[ops]\nfused_rms_norm = 'vllm cuda'",
            "2: ops.fused_rms_norm: got 'vllm cuda'; legal: a preset",
        ),
        (
            "[ops.fused_rms_norm]\npresett = 'fast'",
            f"2: ops.fused_rms_norm.presett: no such key; nearest: preset. Known: {SETTING_KEYS}, when",
        ),
        (
            "[ops.fused_rms_norm]\nmin_tokens = '7'",
            "2: ops.fused_rms_norm.min_tokens: got '7'; legal: a number of tokens, 0 to 999999999999999999",
        ),
        (
            "[ops.fused_rms_norm]\nmin_tokens = -1",
            "2: ops.fused_rms_norm.min_tokens: got -1; legal: a number of tokens, 0 to 999999999999999999",
        ),
        (
            "[ops.fused_rms_norm]\nmin_tokens = 9223372036854775808",
            (
                "2: ops.fused_rms_norm.min_tokens: got 9223372036854775808; "
                "legal: a number of tokens, 0 to 999999999999999999"
            ),
        ),
        ("[ops]\nfused_rms_norm = {}", "2: ops.fused_rms_norm: an empty setting; name a preset, a knob or min_tokens"),
        (
            "[ops.fused_rms_norm]\nwhen = []",
            "1: ops.fused_rms_norm: an empty setting; name a preset, a knob or min_tokens",
        ),
        (
            "[ops.fused_rms_norm]\nwhen = { capability = 'cuda', preset = 'fast' }",
            '2: ops.fused_rms_norm.when: got {"capability": "cuda", "preset": "fast"}; legal: a list of tables',
        ),
        (
            "[ops.fused_rms_norm]\nwhen = [\n  { capability = 'cuda:9', preset = 'fast' },\n  { preset = 'fast' },\n]",
            (
                "4: ops.fused_rms_norm.when[1].capability: not given; legal: 'cuda', 'cuda:9', 'cuda:9.0', "
                "'hip:gfx942', 'npu:...'"
            ),
        ),
        (
            "[ops.fused_rms_norm]\nwhen = [\n  { capabilty = 'cuda:9', preset = 'fast' },\n]",
            (
                "3: ops.fused_rms_norm.when[0].capabilty: no such key; nearest: capability. Known: capability, "
                f"{SETTING_KEYS}"
            ),
        ),
        (
            (
                "[[ops.fused_rms_norm.when]]\ncapability = 'cuda'\npreset = 'fast'\n"
                "[[ops.fused_rms_norm.when]]\ncapability = 'cuda:9'\npreset = 'fast'\nwhen = []\n"
            ),
            f"7: ops.fused_rms_norm.when[1].when: no such key. Known: capability, {SETTING_KEYS}",
        ),
        (
            "[ops.fused_rms_norm]\nwhen = [{ capability = 'cuda:9' }]",
            "2: ops.fused_rms_norm.when[0]: nothing but a capability; name a preset, a knob or min_tokens",
        ),
        (
            (
                "[ops.fused_rms_norm]\nwhen = [\n{ capability = 'hip', preset = 'fast' },\n"
                "{ capability = 'hip', preset = 'fast' }]"
            ),
            "2: ops.fused_rms_norm.when: capability 'hip' stands twice",
        ),
    ],
)
def test_a_mistake_in_a_setting_is_named_and_never_read_as_something_else(
    problems: Problems, text: str, expected: str
) -> None:
    assert problems(text) == [f"my.toml:{expected}"]


def test_a_long_value_is_cut(problems: Problems) -> None:
    (found,) = problems(f"[models]\nflux2 = '{'x' * 500}'")
    assert found == f"my.toml:2: models.flux2: got '{'x' * 76}...; legal: a table of {MODEL_FIELDS}"


def test_a_key_is_shown_as_toml_writes_it() -> None:
    assert dotted(("models", "diffusers:flux2", "fused_qk_norm_rope", "when", 0, "preset")) == (
        'models."diffusers:flux2".fused_qk_norm_rope.when[0].preset'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\nb = [", "2: not valid TOML: Invalid value (at the end of the file)"),
        ("\na = 'x", '2: not valid TOML: Expected "\'" (at the end of the file)'),
        ("[a]\n[a]\n", "2: not valid TOML: Cannot declare ('a',) twice (column 3)"),
        ("a = 1\na = 2\n", "2: not valid TOML: Cannot overwrite a value (column 6)"),
        ("\n\nnonsense\n", "3: not valid TOML: Expected '=' after a key in a key/value pair (column 9)"),
        ("a = " + "9" * 5000, "1: not valid TOML: Exceeds the limit (4300 digits) for integer string conversion"),
    ],
)
def test_a_syntax_error_has_its_line(problems: Problems, text: str, expected: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"my.toml:{expected}")


def test_lists_nested_without_end_are_an_error_too(problems: Problems) -> None:
    (found,) = problems("\na = " + "[" * 10_000)
    assert found.startswith("my.toml:2: not valid TOML: ")
