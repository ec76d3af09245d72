"""What others put into a model beside us: image adapters, KV caches, LoRA, context parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.models import attention_dispatch
from diffusers.models.transformers import transformer_flux, transformer_flux2
from torch import Tensor

from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import JOINT, SINGLE, TINY, ModelCase
from numerics.measure.model_cases import outputs as forward
from numerics.ops.telemetry import dispatch_counts
from tests.integrations.gpu_chain import stock_as_on_a_gpu
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of, made

PRESET = "diffusers_aten"


@pytest.mark.parametrize("adapter_first", [True, False])
def test_an_image_adapter_keeps_its_processors_and_the_others_stay_fused(adapter_first: bool) -> None:
    tiny = TINY["flux"]
    model = made(tiny)
    inputs = inputs_of(tiny)
    torch.manual_seed(3)
    inputs["joint_attention_kwargs"] = {"ip_hidden_states": [torch.randn(1, 4, 24).to(torch.bfloat16)]}

    def adapt() -> None:
        torch.manual_seed(2)
        for block in model.transformer_blocks:
            block.attn.set_processor(transformer_flux.FluxIPAdapterAttnProcessor(64, 24, dtype=torch.bfloat16))

    stock = model.transformer_blocks[0].attn.processor
    if adapter_first:
        adapt()
    applied = apply(model)
    if not adapter_first:
        adapt()
    ours = forward(model, inputs)
    assert sum(n for way, n in dispatch_counts().items() if way.op == SINGLE) == 2
    assert not [way for way in dispatch_counts() if way.op == JOINT]
    if adapter_first:
        assert "FluxIPAdapterAttnProcessor" in applied.kept["transformer_blocks.0.attn"]
    assert applied.restore() == (() if adapter_first else ("transformer_blocks.0.attn",))
    singles = [path for path in applied.replaced if path.startswith("single")]
    with stock_as_on_a_gpu(model, PRESET, singles):
        assert same_bytes(forward(model, inputs), ours)
    model.transformer_blocks[0].attn.set_processor(stock)
    assert not same_bytes(forward(model, inputs), ours)


def test_a_kv_cache_keeps_its_processors() -> None:
    model = made(TINY["flux2_klein"])
    kinds = transformer_flux2.Flux2KVAttnProcessor, transformer_flux2.Flux2KVParallelSelfAttnProcessor
    for block in model.transformer_blocks:
        block.attn.set_processor(kinds[0]())
    model.single_transformer_blocks[0].attn.set_processor(kinds[1]())
    inputs = inputs_of(TINY["flux2_klein"])
    with apply(model) as applied:
        ours = forward(model, inputs)
    assert [kind.__name__ in reason for kind, reason in zip(kinds, applied.kept.values(), strict=True)] == [True, True]
    with stock_as_on_a_gpu(model, PRESET, applied.replaced):
        assert same_bytes(forward(model, inputs), ours)


@pytest.mark.parametrize("adapted_first", [True, False])
def test_lora_keeps_every_byte_in_either_order(adapted_first: bool) -> None:
    peft = pytest.importorskip("peft")
    tiny = TINY["flux2"]
    inputs = {**inputs_of(tiny), "joint_attention_kwargs": {"scale": 0.5}}

    def adapt(model: Any) -> None:
        torch.manual_seed(4)
        targets = ["to_q", "add_k_proj", "to_qkv_mlp_proj", "to_out.0"]
        model.add_adapter(peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
        model.to(torch.bfloat16)

    model = made(tiny)
    plain = forward(model, inputs)
    for step in (adapt, apply) if adapted_first else (apply, adapt):
        step(model)
    ours = forward(model, inputs)
    assert not same_bytes(ours, plain)
    other = made(tiny)
    adapt(other)
    with stock_as_on_a_gpu(other, PRESET):
        assert same_bytes(forward(other, inputs), ours)


def test_context_parallelism_and_backend_reach_attention_of_every_model(
    tiny: ModelCase, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, seen, config = attention_dispatch.dispatch_attention_fn, [], object()

    def spy(*args: Any, backend: Any = None, parallel_config: Any = None, **options: Any) -> Tensor:
        seen.append((backend, parallel_config))
        out: Tensor = true(*args, **options)
        return out

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", spy)
    calls = tiny.calls(model.config)
    with apply(model) as applied:
        replaced = map(model.get_submodule, applied.replaced)
        processors = [each.processor for each in replaced if hasattr(each, "set_processor")]
        for processor in processors:
            processor._parallel_config, processor._attention_backend = config, "native"
            assert processor.stock._parallel_config is config
        forward(model, inputs_of(tiny))
        for processor in processors:
            processor._parallel_config = processor._attention_backend = None
    assert seen == [("native", config)] * (calls.get(JOINT, 0) + calls.get(SINGLE, 0))
