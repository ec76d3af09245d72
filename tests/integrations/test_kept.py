"""What stays as it is with fused processors: everything around norm and rotation, and every call they do not cover."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig
from torch import Tensor, nn

import numerics
from numerics.errors import NotFusedError, RequirementError
from numerics.integrations.diffusers import apply
from numerics.integrations.diffusers_processor import Processor
from numerics.measure.model_cases import JOINT, MODULATION, SINGLE, TINY, ModelCase
from numerics.measure.model_cases import outputs as forward
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import dispatch_counts
from tests.integrations.gpu_chain import stock_as_on_a_gpu
from tests.integrations.test_bytes import attention_inputs, same_bytes
from tests.integrations.tiny import inputs_of, made

PRESET = "diffusers_aten"


def kept() -> dict[str, int]:
    """How many calls were left to stock processors, by reason."""
    found: Counter[str] = Counter()
    for way, count in dispatch_counts().items():
        found[way.reason] += count if "no kernel for device" not in way.reason else 0
    return dict(+found)


@contextmanager
def changed(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    yield
    for name, value in before.items():
        setattr(owner, name, value)


# --- Calls left to the stock processor --------------------------------------------------------------------------------


def test_a_norm_that_is_wrapped_is_called(flux2: Any, flux2_inputs: Inputs) -> None:
    norm, seen = flux2.transformer_blocks[0].attn.norm_q, []
    with apply(flux2):
        handle = norm.register_forward_pre_hook(lambda *_: seen.append(1))
        forward(flux2, flux2_inputs)
        handle.remove()
    assert seen == [1]
    assert kept() == {"norm_q is wrapped or hooked": 1}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # so says the stock chain
def test_a_norm_in_another_dtype_keeps_the_stock_chain(flux2: Any, flux2_inputs: Inputs) -> None:
    mixed = copy.deepcopy(flux2)
    mixed.transformer_blocks[0].attn.norm_added_k.float()
    expected = forward(mixed, flux2_inputs)
    with apply(mixed):
        forward(mixed, flux2_inputs)
    assert list(kept().values()) == [1]
    assert next(iter(kept())).startswith("norm_added_k is in torch.float32")
    assert same_bytes(forward(mixed, flux2_inputs), expected)


def test_autocast_keeps_the_stock_chain(flux2: Any, flux2_inputs: Inputs) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        stock = forward(flux2, flux2_inputs)
        with apply(flux2):
            assert same_bytes(forward(flux2, flux2_inputs), stock)
    assert kept() == {"autocast chooses the dtypes": 3}


def test_below_min_tokens_the_model_keeps_its_own_chain(tiny: ModelCase, model: Any, tmp_path: Path) -> None:
    inputs = inputs_of(tiny)
    stock = forward(model, inputs)
    file = tmp_path / "mine.toml"
    families = "fused_qk_norm_rope", "fused_modulation"
    file.write_text(f'[models."{tiny.model}"]\n' + "".join(f"{op} = {{ min_tokens = 100000 }}\n" for op in families))
    numerics.configure(file)
    with apply(model):
        assert same_bytes(forward(model, inputs), stock)
    # A block says it once, for the first of its ops.
    calls = [tiny.calls(model.config).get(op, 0) for op in (JOINT, SINGLE, MODULATION[0])]
    assert kept() == {"below min_tokens 100000": sum(calls)}


def test_tokens_of_both_streams_count_for_min_tokens(flux2: Any, flux2_inputs: Inputs, tmp_path: Path) -> None:
    tokens = sum(flux2_inputs[name].shape[1] for name in ("hidden_states", "encoder_hidden_states"))
    for min_tokens, expected in ((tokens, 0), (tokens + 1, 3)):
        file = tmp_path / f"{min_tokens}.toml"
        file.write_text(f'[models."diffusers:flux2"]\nfused_qk_norm_rope = {{ min_tokens = {min_tokens} }}\n')
        numerics.configure(file)
        with apply(flux2):
            forward(flux2, flux2_inputs)
        assert sum(kept().values()) == expected


def test_strict_refuses_a_call_that_is_left_to_the_stock_processor(
    flux2: Any, flux2_inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERICS_STRICT", "1")
    with apply(flux2), torch.autocast("cpu", torch.bfloat16), pytest.raises(NotFusedError, match="autocast"):
        forward(flux2, flux2_inputs)


def test_a_dtype_that_the_preset_refuses_is_an_error(flux2_inputs: Inputs) -> None:
    model = TINY["flux2"].build().float()
    inputs = {name: value.float() for name, value in flux2_inputs.items()}
    with apply(model), pytest.raises(RequirementError, match="requires dtype bfloat16 or float16, got float32"):
        forward(model, inputs)


def test_a_processor_made_without_apply_is_a_stock_one(flux2_inputs: Inputs) -> None:
    # Loading an IP adapter makes those of single-stream blocks so.
    tiny = TINY["flux"]
    model = made(tiny)
    inputs = inputs_of(tiny)
    stock = forward(model, inputs)
    applied = apply(model)
    for block in model.single_transformer_blocks:
        block.attn.set_processor(type(block.attn.processor)())
    for block in model.transformer_blocks:
        block.attn.set_processor(block.attn.processor.stock)
    assert same_bytes(forward(model, inputs), stock)
    assert kept() == {"this processor was not made by apply()": 2}
    assert len(applied.restore()) == 2


# --- What is set on the model -----------------------------------------------------------------------------------------


def test_the_attention_backend_is_set_on_either_side(flux2: Any, flux2_inputs: Inputs) -> None:
    with apply(flux2):
        flux2.set_attention_backend("_native_math")
        with pytest.MonkeyPatch.context() as patch, attention_inputs(patch) as seen:
            forward(flux2, flux2_inputs)
        assert all(dict(options)["backend"] == "_native_math" for *_, options in seen)
    assert flux2.transformer_blocks[0].attn.processor._attention_backend == "_native_math"
    with apply(flux2):
        assert flux2.transformer_blocks[0].attn.processor._attention_backend == "_native_math"
        flux2.reset_attention_backend()
    assert flux2.transformer_blocks[0].attn.processor._attention_backend is None


@pytest.mark.parametrize("name", ["flux", "flux2", "ovis_image"])
def test_fused_projections_are_used(name: str) -> None:
    tiny = TINY[name]
    model = made(tiny)
    inputs = inputs_of(tiny, 2)
    with apply(model):
        for attention in [each for each in model.modules() if hasattr(each, "fuse_projections")]:
            attention.fuse_projections()
        ours = forward(model, inputs)
    with stock_as_on_a_gpu(model, PRESET):
        assert same_bytes(ours, forward(model, inputs))


def test_what_stands_in_for_a_projection_is_called(flux2: Any, flux2_inputs: Inputs) -> None:
    class Adapted(nn.Module):  # as PEFT wraps a linear layer
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) * 2  # type: ignore[no-any-return]  # modules are not typed

    attention = flux2.transformer_blocks[0].attn
    with changed(attention, to_q=Adapted(attention.to_q), to_add_out=Adapted(attention.to_add_out)):
        with apply(flux2):
            ours = forward(flux2, flux2_inputs)
        with stock_as_on_a_gpu(flux2, PRESET):
            assert same_bytes(ours, forward(flux2, flux2_inputs))


def test_the_callers_kwargs_are_never_written_to(tiny: ModelCase, model: Any) -> None:
    inputs = inputs_of(tiny)
    name = "joint_attention_kwargs" if "flux" in tiny.name or tiny.name == "z_image" else "attention_kwargs"
    if tiny.name == "ovis_image":  # takes none
        kwargs: dict[str, Any] = {}
    else:
        kwargs = inputs[name] = {"scale": 1.0}
    before = copy.deepcopy(kwargs), set(inputs)
    with apply(model):
        forward(model, inputs)
    assert (kwargs, set(inputs)) == before


# --- Training, caches ------------------------------------------------------------------------------------------


def test_gradient_checkpointing_changes_no_byte_of_output_or_gradient(flux2_inputs: Inputs) -> None:
    def trained(checkpointing: bool) -> list[Tensor]:
        model = made(TINY["flux2"]).train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        with apply(model):
            out = model(**flux2_inputs, return_dict=False)[0]
            out.float().pow(2).sum().backward()
        norms = [model.transformer_blocks[0].attn.norm_q, model.single_transformer_blocks[0].attn.norm_k]
        return [out.detach(), *(norm.weight.grad for norm in norms)]

    plain = trained(False)
    assert all(bool((x != 0).any()) for x in plain)
    assert same_bytes(trained(True), plain)


@pytest.mark.parametrize("cache_first", [True, False])
def test_a_block_cache_works_in_either_order_of_installation(cache_first: bool) -> None:
    tiny = TINY["flux"]
    inputs = inputs_of(tiny)

    def loop(install: Callable[[Any], None]) -> list[Tensor]:
        model = made(tiny)
        install(model)
        outs = []
        with model.cache_context("cond"):
            for _ in range(3):
                outs += forward(model, inputs)
        return outs

    def cached(model: Any) -> None:
        model.enable_cache(FirstBlockCacheConfig(threshold=0.05))

    def both(model: Any) -> None:
        for install in (cached, apply) if cache_first else (apply, cached):
            install(model)
        assert isinstance(model.transformer_blocks[0].attn.processor, Processor)

    expected_model = made(tiny)
    with stock_as_on_a_gpu(expected_model, PRESET):
        cached(expected_model)
        with expected_model.cache_context("cond"):
            expected = [x for _ in range(3) for x in forward(expected_model, inputs)]
    assert same_bytes(loop(both), expected)


def test_a_model_on_the_meta_device_gives_shapes(flux2_inputs: Inputs) -> None:
    model = made(TINY["flux2"]).to("meta")
    inputs = {name: value.to("meta") for name, value in flux2_inputs.items()}
    with apply(model):
        (out,) = forward(model, inputs)
    assert out.shape == flux2_inputs["hidden_states"].shape
