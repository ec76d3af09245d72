"""Rebinding in vLLM-Omni's real models: their code calls ours, and its results are those of vLLM-Omni's own functions.

Runs where vllm-omni 0.30 and its vLLM are importable, a GPU or not; elsewhere a package of the same form is tested.
"""

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import numerics
from numerics.integrations import vllm_omni, vllm_omni_ops
from numerics.ops.telemetry import dispatch_counts

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm_omni") is None or importlib.util.find_spec("vllm") is None,
        reason="vllm-omni and vLLM are not installed",
    ),
    pytest.mark.filterwarnings("ignore"),  # theirs
]
MODULES = {model.name: model.module for model in vllm_omni.MODELS}


# On a CPU its function rotates op by op in bfloat16, which its kernel does not.
OVERRIDE = """
[models.minimax_h3]
fused_qk_norm_rope = "vllm_cuda_bf16_rope"
"""


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The real modules, rebound, with every tensor taken as one on CUDA."""
    path = tmp_path / "mine.toml"
    path.write_text(OVERRIDE)
    numerics.configure(path)
    monkeypatch.setattr(vllm_omni_ops, "is_ours", lambda x: isinstance(x, Tensor))
    monkeypatch.setenv("VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS", "0")
    installed = vllm_omni.install()
    found = {name: importlib.import_module(module) for name, module in MODULES.items()}
    for module in found.values():
        if hasattr(module, "_fused_cuda_supported"):
            monkeypatch.setattr(module, "_fused_cuda_supported", lambda *_, **__: True)
    yield found
    assert installed.restore() == ()


@contextmanager
def stock(name: str, module: Any) -> Iterator[None]:
    """The functions of vLLM-Omni itself, which run eagerly on a CPU."""
    (model,) = [each for each in vllm_omni.MODELS if each.name == name]
    with pytest.MonkeyPatch.context() as patch:
        for function in model.functions:
            layer = importlib.import_module(vllm_omni.LAYERS[function])
            patch.setattr(module, function, getattr(layer, function))
        yield


def exact(*shape: int) -> Tensor:
    """Values whose squares add up exactly in float32, in whatever order: on a CPU vLLM-Omni uses another one."""
    return torch.tensor([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])[torch.randint(6, shape)].bfloat16()


def table(tokens: int, rotary_dim: int, dtype: torch.dtype) -> Tensor:
    angles = torch.rand(tokens, rotary_dim // 2) * 6
    return torch.cat([angles.cos(), angles.sin()], dim=-1).bfloat16().to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16))


def norm(width: int, eps: float) -> Any:
    return SimpleNamespace(weight=torch.rand(width).bfloat16(), variance_epsilon=eps)


def test_no_other_module_imports_the_functions() -> None:
    spec = importlib.util.find_spec("vllm_omni")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        if not any(layer.rpartition(".")[2] in path.read_text() for layer in vllm_omni.LAYERS.values()):
            continue
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in vllm_omni.LAYERS.values():
                found.setdefault(module, set()).update(alias.name for alias in node.names)
    expected = {model.module: set(model.functions) for model in vllm_omni.MODELS}
    for model in ("qwen_image", "boogu_image"):
        expected[MODULES[model]].add("_fused_cuda_supported")
    expected["vllm_omni.diffusion.cache.teacache.extractors"] = {"indexed_scale_shift_"}
    expected["vllm_omni.diffusion.models.longcat_image.longcat_image_transformer"] = {vllm_omni.MIN_TOKENS}
    assert found == expected


def test_every_function_of_every_model_is_replaced(models: dict[str, Any]) -> None:
    installed = vllm_omni.active()
    assert installed is not None
    for model in vllm_omni.MODELS:
        for name in model.functions:
            if name != vllm_omni.MIN_TOKENS:
                assert f"{model.module}.{name}" in installed.replaced
                assert getattr(models[model.name], name).__module__ == model.module


def test_attention_of_minimax_h3(models: dict[str, Any]) -> None:
    module = models["minimax_h3"]
    torch.manual_seed(0)
    heads, tokens = 3, 11
    qkv = exact(tokens, 3 * heads * 128)
    attention = SimpleNamespace(
        qkv_proj=lambda _: (qkv, None),
        out_proj=lambda out: (out, None),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=128,
        q_norm=norm(128, 1e-5),
        k_norm=norm(128, 1e-5),
        to_gate_compress=None,
        _run_packed_attention=lambda q, k, _, **__: q - 2 * k,
    )
    rope = table(tokens, 96, torch.bfloat16)

    def forward() -> Tensor:
        out: Tensor = module.MiniMaxH3Attention.forward(
            attention, torch.empty(tokens, 1), rope_table=rope, cu_seqlens=torch.empty(0), max_seqlen=tokens
        )
        return out

    ours = forward()
    assert sum(dispatch_counts().values()) == 1
    with stock("minimax_h3", module):
        theirs = forward()
    assert sum(dispatch_counts().values()) == 1
    assert same(ours, theirs)


def test_block_and_final_layer_of_minimax_h3(models: dict[str, Any]) -> None:
    module = models["minimax_h3"]
    torch.manual_seed(0)
    rows, width, groups = 9, 64, 6
    x, branch, mlp = exact(rows, width), exact(rows, width), exact(rows, width)
    tables = (exact(groups, 6 * width) / 4).chunk(6, dim=-1)  # views, as the projection makes them
    indices = torch.randint(groups, (rows,))
    block = SimpleNamespace(
        adaln_proj=lambda _: tables,
        norm1=norm(width, 1e-5),
        norm2=norm(width, 1e-5),
        attn=lambda *_, **__: branch,
        mlp=lambda h: h + mlp,
    )
    empty = torch.empty(0)
    final = SimpleNamespace(
        adaln_proj=lambda _: tables[:2],
        norm=torch.clone,
        video_out=lambda h: (h.bfloat16(), None),
        audio_out=lambda h: (h.bfloat16(), None),
    )

    def forward() -> tuple[Tensor, Tensor]:
        out = module.MiniMaxH3DiTBlock.forward(
            block,
            x,
            t_emb=empty,
            combined_indices=indices,
            rope_table=empty,
            cu_seqlens=empty,
            max_seqlen=rows,
            packed_total=rows,
        )
        return out, module.MiniMaxH3FinalLayer.forward(final, x, t_emb=empty, inverse_indices=indices)[0]

    ours = forward()
    assert {each.op for each in dispatch_counts()} == {
        "rms_norm_indexed_scale_shift",
        "indexed_gate_rms_norm_scale_shift",
        "indexed_gate",
        "indexed_scale_shift_",
    }
    with stock("minimax_h3", module):
        theirs = forward()
    assert sum(dispatch_counts().values()) == 4
    assert all(map(same, ours, theirs))


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_qwen_image(models: dict[str, Any], batch: int) -> None:
    module = models["qwen_image"]
    torch.manual_seed(0)
    tokens = 7
    q, k = exact(batch, tokens, 3, 128), exact(batch, tokens, 3, 128)
    freqs = torch.polar(torch.ones(tokens, 64), torch.rand(tokens, 64) * 6)
    norms = [torch.nn.RMSNorm(128, eps=1e-6, dtype=torch.bfloat16) for _ in range(2)]
    found = module._qwen_image_qk_norm_rope(q, k, *norms, freqs, None, 1e-6)
    assert sum(dispatch_counts().values()) == 1
    layer = importlib.import_module(vllm_omni.LAYERS["fused_qk_norm_rope"])
    rounded = torch.cat([freqs.real, freqs.imag], dim=-1).bfloat16().repeat(batch, 1)
    weights = [each.weight for each in norms]
    theirs = layer.fused_qk_norm_rope(q.flatten(0, 1), k.flatten(0, 1), *weights, rounded, 1e-6, interleaved=True)
    assert all(same(a, b.view(a.shape)) for a, b in zip(found, theirs, strict=True))


def test_attention_of_qwen_image_is_compiled_without_a_graph_break(models: dict[str, Any]) -> None:
    call = models["qwen_image"]._qwen_image_qk_norm_rope
    args = (*(exact(1, 7, 3, 128) for _ in range(2)), *(torch.nn.RMSNorm(128, dtype=torch.bfloat16) for _ in range(2)))
    freqs = torch.polar(torch.ones(7, 64), torch.rand(7, 64))
    compiled: Any = torch.compile(call, backend="eager", fullgraph=True, dynamic=True)
    assert all(map(same, compiled(*args, freqs, None, 1e-6), call(*args, freqs, None, 1e-6)))


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_boogu_image(models: dict[str, Any], batch: int) -> None:
    module = models["boogu_image"]
    torch.manual_seed(0)
    tokens = 7
    q, k = exact(batch, tokens, 6, 120), exact(batch, tokens, 2, 120)
    cos, sin = (each.repeat_interleave(2, dim=-1) for each in table(batch * tokens, 120, torch.float32).chunk(2, -1))
    rotary = module._with_packed_rope_table((cos.view(batch, tokens, 120), sin.view(batch, tokens, 120)))
    norms = norm(120, 1e-5), norm(120, 1e-5)
    found = module._qk_norm_rope(q, k, *norms, rotary, torch.bfloat16)
    assert sum(dispatch_counts().values()) == 1
    layer = importlib.import_module(vllm_omni.LAYERS["fused_qk_norm_rope"])
    weights = [each.weight for each in norms]
    theirs = layer.fused_qk_norm_rope(q.flatten(0, 1), k.flatten(0, 1), *weights, rotary[2], 1e-5, interleaved=True)
    assert all(same(a, b.view(a.shape)) for a, b in zip(found, theirs, strict=True))
