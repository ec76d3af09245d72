"""The golden cases: which providers compute each packaged array, from which inputs, and how many rows they saw."""

from typing import Any, Final

from numerics.golden.cases import ROTATION, Case

# Rows of x_N and add_x_N. They were searched: those are kept on which another order, mean or rounding changes bytes.
NORM_ROWS: Final = {64: 64, 96: 64, 128: 96, 256: 64, 3072: 16, 5376: 16}
ADD_ROWS: Final = {64: 32, 96: 32, 128: 32, 256: 32, 3072: 10, 5376: 10}
LARGE: Final = 320  # beyond every number of rows at which a provider changes its order

VLLM: Final = "0.29.0"
OMNI: Final = "0.30.0"
DIFFUSERS: Final = "0.42.1"

# The chains that share a norm, and the modulation after it.
CUDA_NORM: Final = {"vllm_c": VLLM, "vllm_c_bf16_rope": VLLM}
ATEN_NORM: Final = {"diffusers_aten": DIFFUSERS, "diffusers_bf16_rope": DIFFUSERS}
TWICE_ROUNDED_MEAN: Final = {"vllm_native": VLLM, "diffusers_native": DIFFUSERS, "diffusers_complex": DIFFUSERS}
ONCE_ROUNDED_MEAN: Final = {"omni_native": OMNI}


def _case(name: str, op: str, outputs: dict[str, str] | None = None, **fields: Any) -> Case:
    """A case named like its one output array, unless it has several."""
    return Case(name=name, op=op, outputs=outputs or {"out": name}, **fields)


def _norms(width: int) -> list[Case]:
    own = NORM_ROWS[width]
    calls: list[tuple[str, dict[str, str], int]] = [
        (f"vllm_small_{width}", CUDA_NORM, own),
        (f"vllm_large_{width}", CUDA_NORM, LARGE),
        (f"vllm_native_{width}", TWICE_ROUNDED_MEAN, LARGE),
        (f"omni_native_{width}", ONCE_ROUNDED_MEAN, LARGE),
        (f"omni_native_rows8_{width}", ONCE_ROUNDED_MEAN, 8),
        (f"omni_native_rows1_{width}", ONCE_ROUNDED_MEAN, 1),
        (f"aten_rms_{width}", ATEN_NORM, own),
    ]
    inputs = {"x": f"x_{width}", "weight": f"w_{width}"}
    return [
        _case(name, "rms_norm", providers=providers, inputs=inputs, width=width, rows=rows)
        for name, providers, rows in calls
    ]


def _add_norms(width: int) -> list[Case]:
    return [
        _case(
            f"add_{regime}_{width}",
            "fused_add_rms_norm",
            {"out": f"add_out_{regime}_{width}", "residual": f"add_residual_out_{width}"},
            providers={"vllm_c_add": VLLM},
            inputs={"x": f"add_x_{width}", "residual": f"add_residual_{width}", "weight": f"w_{width}"},
            width=width,
            rows=rows,
        )
        for regime, rows in (("small", ADD_ROWS[width]), ("large", LARGE))
    ]


def _chain(name: str, providers: dict[str, str], table: str, *, x: str | None = None, **fields: Any) -> Case:
    """Norm and rotation of q and k, [16, 6, 128], or of one array of heads in place of both."""
    suffix = {"bfloat16": "bf16", "float32": "f32"}[table]
    return _case(
        name,
        "fused_qk_norm_rope",
        {"q": name} if x else {"q": f"{name}_q", "k": f"{name}_k"},
        providers=providers,
        inputs={
            "q": x or "chain_q",
            "k": x or "chain_k",
            "q_weight": "chain_wq",
            "k_weight": "chain_wk",
            "cos": f"chain_cos_{suffix}",
            "sin": f"chain_sin_{suffix}",
        },
        width=128,
        rows=24 if x else 96,
        rope_table_dtype=table,
        **fields,
    )


def _chains() -> list[Case]:
    vllm: dict[str, Any] = {"providers": {"vllm_c": VLLM}}
    half_96: dict[str, Any] = {"rotary_dim": 96, "interleaved": False, "eps": 1e-5}
    return [
        *(
            _chain(f"chain_{pairs}_{rotary}", table="bfloat16", rotary_dim=rotary, interleaved=interleaved, **vllm)
            for pairs, interleaved in (("interleaved", True), ("half", False))
            for rotary in (128, 96, 64)
        ),
        _chain("vllm_f32table", table="float32", **vllm),
        _chain("opbyop_interleaved_128_vllm", {"vllm_c_bf16_rope": VLLM}, "bfloat16"),
        _chain("diffusers_aten", {"diffusers_aten": DIFFUSERS}, "float32"),
        _chain("diffusers_native", {"diffusers_native": DIFFUSERS}, "float32"),
        _chain("diffusers_complex", {"diffusers_complex": DIFFUSERS}, "float32"),
        _chain("opbyop_half_96_aten", {"diffusers_bf16_rope": DIFFUSERS}, "bfloat16", **half_96),
        _chain("special_rotated_vllm", table="bfloat16", x="special_x", table_row=0, **vllm),
    ]


def _special() -> list[Case]:
    calls: dict[str, dict[str, str]] = {
        "special_vllm": CUDA_NORM,
        "special_aten": ATEN_NORM,
        "special_native": TWICE_ROUNDED_MEAN,
    }
    inputs = {"x": "special_x", "weight": "chain_wq"}
    return [
        _case(name, "rms_norm", providers=providers, inputs=inputs, width=128, rows=24)
        for name, providers in calls.items()
    ]


def _rotations() -> list[Case]:
    calls = {
        "rotation_separate": {"diffusers_aten": DIFFUSERS, "diffusers_native": DIFFUSERS},
        "rotation_complex": {"diffusers_complex": DIFFUSERS},
    }
    inputs = {"x": "rotation_x", "cos": "rotation_cos_f32", "sin": "rotation_sin_f32"}
    return [
        _case(name, ROTATION, providers=providers, inputs=inputs, width=128, rows=32, rope_table_dtype="float32")
        for name, providers in calls.items()
    ]


def _modulations() -> list[Case]:
    """Without a norm the chains of all providers are the same."""
    everyone: dict[str, Any] = {"providers": CUDA_NORM | ATEN_NORM | ONCE_ROUNDED_MEAN, "width": 5376, "rows": 20}
    affine = {"shift": "mod_shift", "scale": "mod_scale", "indices": "mod_indices"}
    gated = {"gate": "mod_gate", "indices": "mod_indices"}
    cases = [
        _case("mod_scale_shift_out", "indexed_scale_shift_", inputs={"x": "mod_x", **affine}, **everyone),
        _case("mod_gate_out", "indexed_gate", inputs={"x": "mod_x", "other": "mod_branch", **gated}, **everyone),
    ]
    chains: dict[str, dict[str, str]] = {"vllm": CUDA_NORM, "aten": ATEN_NORM, "native": ONCE_ROUNDED_MEAN}
    for chain, providers in chains.items():
        for regime, rows in (("small", 20), ("large", LARGE)):
            call: dict[str, Any] = {"providers": providers, "width": 5376, "rows": rows}
            name = f"mod_{chain}_gate_norm_{regime}"
            cases += [
                _case(
                    f"mod_{chain}_norm_{regime}",
                    "rms_norm_indexed_scale_shift",
                    inputs={"x": "mod_x", "weight": "mod_w", **affine},
                    **call,
                ),
                _case(
                    name,
                    "indexed_gate_rms_norm_scale_shift",
                    {"residual": "mod_residual_out", "modulated": name},
                    inputs={"residual": "mod_x", "branch": "mod_branch", "weight": "mod_w", **gated, **affine},
                    **call,
                ),
            ]
    return cases


CASES: Final[tuple[Case, ...]] = (
    *(case for width in NORM_ROWS for case in _norms(width)),
    *(case for width in ADD_ROWS for case in _add_norms(width)),
    *_special(),
    *_chains(),
    *_rotations(),
    *_modulations(),
)
