"""The fused modulation of MiniMax-H3's blocks: whatever wraps a forward, in either order, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.hooks.hooks import HookRegistry, ModelHook
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3TransformerBlock
from torch import Tensor, nn

import numerics
from numerics.errors import NotFusedError
from numerics.integrations import diffusers_sources
from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import MODULATION, TINY
from numerics.measure.model_cases import outputs as forward
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts
from tests.integrations.gpu_chain import stock_as_on_a_gpu
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of, made

PRESET = "diffusers_bf16_rope"
FIRST = "transformer_blocks.0"
INDICES = torch.tensor([0, 5, 1, 2, 3, 4])


@pytest.fixture
def model() -> Any:
    return made(TINY["minimax_h3"])


@pytest.fixture
def inputs() -> Inputs:
    return inputs_of(TINY["minimax_h3"], 2)


def modulated() -> list[int]:
    """How often each op of modulation was called, whichever way it went on a CPU."""
    return [
        sum(n for way, n in dispatch_counts().items() if way.op == op and "'cpu'" in way.reason) for op in MODULATION
    ]


def kept() -> set[str]:
    return {way.reason for way in dispatch_counts() if "'cpu'" not in way.reason}


# --- What wraps a forward ---------------------------------------------------------------------------------------------


class EverySecond(ModelHook):  # type: ignore[misc]  # diffusers is not typed here
    """As TeaCache does: computes a block in every second step, and adds what it added before in the others."""

    def initialize_hook(self, module: nn.Module) -> nn.Module:
        self.steps, self.added = 0, torch.zeros(())
        return module

    def new_forward(self, module: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002
        self.steps += 1
        if self.steps % 2:
            out: Tensor = self.fn_ref.original_forward(hidden_states, *args, **kwargs)
            self.added = out - hidden_states
            return out
        return hidden_states + self.added


class Halved(ModelHook):  # type: ignore[misc]  # the same
    """As context parallelism does: changes what comes in, and calls the forward that was there."""

    def pre_forward(self, module: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return (hidden_states / 2, *args), kwargs


def hooked(hook: Callable[[], Any]) -> Callable[[Any], None]:
    def install(model: Any) -> None:
        for block in model.transformer_blocks:
            HookRegistry.check_if_exists_or_initialize(block).register_hook(hook(), "mine")

    return install


def offloaded(model: Any) -> None:
    """As accelerate wraps a forward."""
    for block in model.transformer_blocks:
        block._old_forward = block.forward
        block.forward = lambda x, *args, block=block: block._old_forward(x / 2, *args)


WRAPPERS = {"cache": hooked(EverySecond), "split": hooked(Halved), "offload": offloaded}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("wrapped_first", [True, False])
def test_what_wraps_a_block_wraps_ours_in_either_order(
    wrapper: str, wrapped_first: bool, model: Any, inputs: Inputs
) -> None:
    expected_model = made(TINY["minimax_h3"])
    with stock_as_on_a_gpu(expected_model, PRESET):
        WRAPPERS[wrapper](expected_model)
        expected = [forward(expected_model, inputs) for _ in range(3)]
    stock = [forward(expected_model, inputs) for _ in range(2)][-1:]
    applied = None
    for install in (WRAPPERS[wrapper], apply) if wrapped_first else (apply, WRAPPERS[wrapper]):
        applied = install(model) or applied
    assert applied is not None
    assert FIRST in applied.replaced
    assert all(same_bytes(forward(model, inputs), each) for each in expected)
    assert modulated() == [2 * (2 if wrapper == "cache" else 3)] * 3
    # Taken out from under what wraps it, which stays.
    assert applied.restore() == ()
    reset_dispatch_counts()
    restored = [forward(model, inputs) for _ in range(2)][-1:]
    assert not dispatch_counts()
    if wrapper != "cache":
        assert same_bytes(restored[0], stock[0])


@pytest.mark.parametrize("restored_first", [True, False])
def test_a_hook_that_is_taken_off_leaves_the_block_as_it_was(restored_first: bool, model: Any, inputs: Inputs) -> None:
    expected = forward(model, inputs)
    applied = apply(model)
    hooked(Halved)(model)
    off = [
        applied.restore,
        lambda: [block._diffusers_hook.remove_hook("mine") for block in model.transformer_blocks],
    ]
    for step in off if restored_first else reversed(off):
        step()
    assert same_bytes(forward(model, inputs), expected)
    assert not dispatch_counts()
    assert apply(model).restore() == ()


def test_a_forward_that_something_else_replaced_is_kept_and_named(model: Any) -> None:
    block = model.transformer_blocks[0]
    mine = block.forward = lambda x, *_: x
    with apply(model) as applied:
        assert "replaced by something else" in applied.kept[FIRST]
        assert block.forward is mine
        assert "transformer_blocks.1" in applied.replaced


def test_restore_leaves_a_forward_that_was_set_since(model: Any) -> None:
    applied, block = apply(model), model.transformer_blocks[0]
    mine = block.forward = lambda x, *_: x
    assert applied.restore() == (FIRST,)
    assert block.forward is mine


def test_applying_twice_replaces_nothing(model: Any) -> None:
    with (
        apply(model),
        pytest.raises(numerics.errors.ConfigurationError, match=f"{FIRST}: its forward is fused already"),
    ):
        apply(model)


def test_another_source_of_the_block_keeps_its_forward(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: Any, hidden_states: Tensor, *args: Any) -> Tensor:
        return hidden_states

    monkeypatch.setattr(MiniMaxH3TransformerBlock, "forward", other)
    with apply(model) as applied:
        assert "MiniMaxH3TransformerBlock or what it calls is written otherwise" in applied.kept[FIRST]
        assert f"{FIRST}.attn" in applied.replaced


def test_a_source_that_cannot_be_read_is_another_source() -> None:
    space: dict[str, Any] = {}
    exec("def f(self, hidden_states, *args): return hidden_states", space)
    known = {digest for digests in diffusers_sources.KNOWN.values() for digest in digests}
    assert diffusers_sources.digest((space["f"],)) not in known


def test_a_subclass_of_the_block_is_kept(model: Any) -> None:
    class Block(MiniMaxH3TransformerBlock):  # type: ignore[misc]  # the same
        pass

    model.transformer_blocks[0].__class__ = Block
    with apply(model) as applied:
        assert "a Block, which has no fused form" in applied.kept[FIRST]


# --- Calls left to the block's own forward ----------------------------------------------------------------------------


def test_norms_that_are_hooked_are_called(model: Any, inputs: Inputs) -> None:
    norm, seen = model.transformer_blocks[0].norm2, []
    with apply(model):
        norm.register_forward_hook(lambda *_: seen.append(1))
        forward(model, inputs)
    assert seen == [1]
    assert kept() == {"norm2 is wrapped or hooked"}
    assert modulated() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # so says the stock chain
def test_tables_in_another_dtype_keep_the_stock_chain(model: Any) -> None:
    class Attention(nn.Module):  # takes any dtype, which the fused one does not
        def forward(self, x: Tensor, *_: Any) -> Tensor:
            return x * 2

    block = model.transformer_blocks[0]
    block.attn = Attention()
    block.adaln_proj.float()
    block.ff.float()
    stock = out_of(block)
    with apply(model):
        assert same_bytes(out_of(block), stock)
    assert "scale, shift and gate are not in the dtype of the activations" in kept()


def test_min_tokens_of_either_family_counts_alone(model: Any, inputs: Inputs, tmp_path: Path) -> None:
    tokens = 2 * len(inputs["token_tags"])
    for min_tokens, expected in ((tokens, 2), (tokens + 1, 0)):
        file = tmp_path / f"{min_tokens}.toml"
        file.write_text(f'[models."diffusers:minimax_h3"]\nfused_modulation = {{ min_tokens = {min_tokens} }}\n')
        numerics.configure(file)
        reset_dispatch_counts()
        with apply(model) as applied:
            assert applied.modulations[""].min_tokens == min_tokens
            forward(model, inputs)
        assert modulated() == [expected] * 3
    assert kept() == {f"below min_tokens {tokens + 1}"}


def test_strict_refuses_a_block_left_to_its_own_forward(
    model: Any, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERICS_STRICT", "1")
    with apply(model), torch.autocast("cpu", torch.bfloat16), pytest.raises(NotFusedError, match="autocast"):
        forward(model, inputs)


def test_a_mask_reaches_attention(model: Any) -> None:
    block = model.transformer_blocks[0]
    torch.manual_seed(0)
    mask = torch.rand(1, 1, 6, 6) > 0.4
    mask[..., 0] = True
    with apply(model):
        ours = out_of(block, mask)
        assert not same_bytes(ours, out_of(block))
    with stock_as_on_a_gpu(model, PRESET):
        assert same_bytes(ours, out_of(block, mask))


def test_one_index_for_all_tokens_is_the_blocks_own(model: Any) -> None:
    block, one = model.transformer_blocks[0], torch.tensor([3])
    stock = out_of(block, indices=one)
    with apply(model):
        assert same_bytes(out_of(block, indices=one), stock)
    assert "the activations are not [batch, tokens, N], or the indices not [tokens]" in kept()


def out_of(block: Any, *mask: Tensor, indices: Tensor = INDICES) -> list[Tensor]:
    """Of one block alone."""
    torch.manual_seed(0)
    x, temb, angles = torch.randn(1, 6, 96).to(torch.bfloat16), torch.randn(2, 16), torch.randn(6, 12).repeat(1, 2)
    with torch.no_grad():
        return [block(x, temb, indices, (angles.cos(), angles.sin()), *mask)]


def test_gradient_checkpointing_changes_no_byte_of_output_or_gradient(inputs: Inputs) -> None:
    def trained(checkpointing: bool) -> Iterator[Tensor]:
        model = made(TINY["minimax_h3"]).train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        with apply(model):
            out = model(**inputs, return_dict=False)[0]
            out.float().pow(2).sum().backward()
        block = model.transformer_blocks[0]
        yield out.detach()
        yield from (block.norm1.weight.grad, block.norm2.weight.grad, block.adaln_proj.linear.weight.grad)

    plain = list(trained(False))
    assert all(bool((x != 0).any()) for x in plain)
    assert same_bytes(list(trained(True)), plain)
