"""Calls that the models themselves do not make, and norms that changed since: the stock processor answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from numerics.errors import ConfigurationError
from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import TINY
from numerics.measure.model_cases import outputs as forward
from numerics.measure.model_inputs import Inputs
from tests.integrations.gpu_chain import stock_as_on_a_gpu
from tests.integrations.test_bytes import same_bytes
from tests.integrations.test_kept import changed, kept
from tests.integrations.tiny import inputs_of, made, shared

HEADS, SIZE = 2, 32  # of the tiny models


# --- Rotations --------------------------------------------------------------------------------------------------------


def factors(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.polar(torch.ones(*shape, SIZE // 2), torch.rand(*shape, SIZE // 2) * 6)


def pairs(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    angles = (torch.rand(*shape, SIZE // 2) * 6).repeat_interleave(2, -1)
    return angles.cos(), angles.sin()


TOKENS = HEADS  # so that a rotation of the wrong axis broadcasts
ROTATIONS: dict[str, tuple[str, str, int, Any]] = {
    "qwen_image, by sample": ("qwen_image", "transformer_blocks.0.attn", 2, (factors(1, TOKENS), factors(1, TOKENS))),
    "qwen_image, one for all": ("qwen_image", "transformer_blocks.0.attn", 2, (factors(1), factors(TOKENS))),
    "qwen_image, one tensor": ("qwen_image", "transformer_blocks.0.attn", 2, factors(2, TOKENS)),
    "qwen_image, other lengths": ("qwen_image", "transformer_blocks.0.attn", 2, (factors(1), factors(3))),
    "z_image, without samples": ("z_image", "layers.0.attention", 1, factors(TOKENS)),
    "z_image, one for all samples": ("z_image", "layers.0.attention", 1, factors(1, TOKENS)),
    "z_image, one for all tokens": ("z_image", "layers.0.attention", 1, factors(2, 1)),
    "flux2, one for all": ("flux2", "single_transformer_blocks.0.attn", 1, pairs(1)),
    "flux2, too many": ("flux2", "single_transformer_blocks.0.attn", 1, pairs(TOKENS + 1)),
    "flux2, by sample": ("flux2", "single_transformer_blocks.0.attn", 1, pairs(1, TOKENS)),
}


@pytest.mark.parametrize("case", ROTATIONS.values(), ids=ROTATIONS)
def test_a_rotation_of_another_form_is_the_stock_processors(case: tuple[str, str, int, Any]) -> None:
    name, path, streams, rotation = case
    model = shared(TINY[name])
    attention = model.get_submodule(path)
    torch.manual_seed(0)
    states = torch.randn(streams, 2, TOKENS, HEADS * SIZE).to(torch.bfloat16)
    keyword = "freqs_cis" if name == "z_image" else "image_rotary_emb"

    def out() -> list[Tensor] | str:
        try:
            with torch.no_grad():
                found = attention(*states, **{keyword: rotation})
        except (RuntimeError, ValueError) as error:
            return f"{type(error)}: {error}"
        return list(found) if isinstance(found, tuple) else [found]

    stock = out()
    with apply(model):
        ours = out()
    assert len(kept()) == 1
    assert ours == stock if isinstance(stock, str) or isinstance(ours, str) else same_bytes(ours, stock)


# --- Norms ------------------------------------------------------------------------------------------------------------


def test_an_eps_that_changed_since_counts(flux2: Any, flux2_inputs: Inputs) -> None:
    with changed(flux2.transformer_blocks[0].attn.norm_added_k, eps=1e-6):
        with apply(flux2) as applied:
            flux2.transformer_blocks[0].attn.norm_added_k.eps = 0.5
            ours = forward(flux2, flux2_inputs)
        with stock_as_on_a_gpu(flux2, "diffusers_aten", [path for path in applied.replaced if "single" in path]):
            assert same_bytes(ours, forward(flux2, flux2_inputs))
    assert kept() == {"its norms differ in eps": 1}


def test_a_bias_that_was_added_since_is_added() -> None:
    model, inputs = made(TINY["qwen_image"]), inputs_of(TINY["qwen_image"])
    with apply(model):
        for block in model.transformer_blocks:
            block.attn.norm_k.bias = nn.Parameter(torch.ones(SIZE, dtype=torch.bfloat16))
        ours = forward(model, inputs)
    assert kept() == {"its norm_k has a bias": 2}
    assert same_bytes(forward(model, inputs), ours)


def test_a_hook_of_the_gradient_of_a_norm_is_called(flux2_inputs: Inputs) -> None:
    model, seen = made(TINY["flux2"]).train(), []
    with apply(model):
        model.transformer_blocks[0].attn.norm_q.register_full_backward_hook(lambda *_: seen.append(1))
        model(**flux2_inputs, return_dict=False)[0].sum().backward()
    assert seen == [1]
    assert kept() == {"norm_q is wrapped or hooked": 1}


@pytest.mark.parametrize("name", ["flux2", "minimax_h3"])
def test_a_hook_of_all_modules_sees_every_norm(name: str) -> None:
    model, inputs = shared(TINY[name]), inputs_of(TINY[name])

    def norms_seen() -> list[nn.Module]:
        seen: list[nn.Module] = []
        handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
        forward(model, inputs)
        handle.remove()
        return [module for module in seen if isinstance(module, nn.RMSNorm)]

    stock = norms_seen()
    with apply(model):
        assert norms_seen() == stock
    assert set(kept()) == {"hooks are registered for all modules"}


def test_a_norm_whose_class_something_else_changed_is_kept(flux2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.RMSNorm, "forward", lambda _, x: x)
    with pytest.raises(ConfigurationError, match=r"something else replaced RMSNorm\.forward"):
        apply(flux2)
