from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics.ops import fused_joint_qkv_norm_rope, fused_qk_norm_rope, pack_qk_norm_rope_table, rms_norm
from numerics.presets.schema import Numerics, Reduction

Builder = Callable[..., Numerics]
SameBits = Callable[[Tensor, Tensor], bool]

BF16 = torch.bfloat16
LAYOUTS = pytest.mark.parametrize("interleaved", [True, False])
# Another order for each number of rows: the sums of a row tell how many rows the norm was given.
BY_ROWS = Reduction(
    vector=4,
    threads="row/vector",
    max_threads=tuple((rows, 1 + rows % 13) for rows in range(1, 200)),
    lanes="adjacent",
    mean="divide",
)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def table(tokens: int, rotary: int, seed: int = 5, dtype: torch.dtype = BF16) -> Tensor:
    angle = random(tokens, rotary // 2, seed=seed, dtype=torch.float32)
    packed = pack_qk_norm_rope_table(angle.cos(), angle.sin(), dtype=dtype)
    assert packed is not None
    return packed


def joint_inputs(batch: int, text: int, image: int, kv_heads: int = 2) -> dict[str, Any]:
    inputs: dict[str, Any] = {"eps": 1e-6}
    for stream, tokens in (("text", text), ("image", image)):
        for name, heads in (("q", 3), ("k", kv_heads), ("v", kv_heads)):
            inputs[f"{stream}_{name}"] = random(batch, tokens, heads, 32, seed=len(inputs))
        for name in "qk":
            inputs[f"{stream}_{name}_weight"] = random(32, seed=len(inputs))
    return inputs


@LAYOUTS
def test_it_is_a_norm_and_a_rotation_rounded_between(interleaved: bool, build: Builder, same_bits: SameBits) -> None:
    q, k, wq, wk, rope = random(6, 4, 32), random(6, 2, 32, seed=1), random(32), random(32, seed=2), table(6, 32)
    out = fused_qk_norm_rope(q, k, wq, wk, rope, 1e-6, interleaved=interleaved, numerics=build("qk_norm"))
    c, s = (half.float()[:, None] for half in rope.chunk(2, -1))
    for x, weight, found in ((q, wq, out[0]), (k, wk, out[1])):
        n = rms_norm(x, weight, 1e-6, numerics=build()).float()
        a, b = (n[..., 0::2], n[..., 1::2]) if interleaved else n.chunk(2, -1)
        turned = (a * c - b * s, a * s + b * c)
        expected = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
        assert same_bits(found, expected.bfloat16())


@LAYOUTS
@pytest.mark.parametrize("rope_dtype", [BF16, torch.float32])
def test_every_form_of_the_same_input_gives_the_same_bytes(
    interleaved: bool, rope_dtype: torch.dtype, build: Builder, same_bits: SameBits
) -> None:
    batch, tokens, width = 2, 5, 32
    q, k = random(batch, tokens, 3, width), random(batch, tokens, 1, width, seed=1)
    wq, wk = random(width, seed=2), random(width, seed=3)
    shared = table(tokens, 24, dtype=rope_dtype)
    per_token = shared.repeat(batch, 1)
    call: dict[str, Any] = {"interleaved": interleaved, "numerics": build("qk_norm")}
    expected = fused_qk_norm_rope(q, k, wq, wk, shared, 1e-6, **call)

    def flat(x: Tensor) -> Tensor:
        return x.flatten(0, 1)

    qkv = torch.cat((q, k, k), 2).flatten(2)
    views = [x.unflatten(-1, (-1, width)) for x in qkv.split([3 * width, width, width], -1)]
    for qs, ks, rope in [
        (q, k, per_token),
        (q, k, per_token.view(batch, tokens, 24)),
        (q, k, shared.expand(batch, tokens, 24)),
        (flat(q), flat(k), per_token),
        (flat(q), flat(k), per_token.view(batch, tokens, 24)),
        (flat(q).flatten(1), flat(k).flatten(1), per_token),
        (*views[:2], shared),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, shared.t().contiguous().t()),
    ]:
        out = fused_qk_norm_rope(qs, ks, wq, wk, rope, 1e-6, head_dim=width, rotary_dim=24, **call)
        for found, given, wanted in zip(out, (qs, ks), expected, strict=True):
            assert found.shape == given.shape
            assert found.is_contiguous()
            assert same_bits(found.view(wanted.shape), wanted)


@pytest.mark.parametrize("flat", [True, False])
def test_each_sample_of_a_batch_is_rotated_by_its_own_rows(flat: bool, build: Builder, same_bits: SameBits) -> None:
    q, rope = random(2, 5, 3, 32), torch.stack([table(5, 32, seed=seed) for seed in (1, 2)])
    call: dict[str, Any] = {"interleaved": True, "numerics": build("qk_norm")}
    together = fused_qk_norm_rope(q, q, None, None, rope.flatten(0, 1) if flat else rope, 1e-6, **call)[0]
    apart = [fused_qk_norm_rope(q[i], q[i], None, None, rope[i], 1e-6, **call)[0] for i in range(2)]
    assert same_bits(together, torch.stack(apart))


@LAYOUTS
def test_elements_beyond_the_rotation_are_the_normalized_ones(
    interleaved: bool, build: Builder, same_bits: SameBits
) -> None:
    q, weight = random(6, 4, 32), random(32, seed=1)
    out, _ = fused_qk_norm_rope(
        q, q, weight, None, table(6, 20), 1e-6, interleaved=interleaved, numerics=build("qk_norm")
    )
    normed = rms_norm(q, weight, 1e-6, numerics=build())
    assert same_bits(out[..., 20:], normed[..., 20:])
    assert not same_bits(out[..., :20], normed[..., :20])


def test_identity_rows_are_the_norm_alone(build: Builder, same_bits: SameBits) -> None:
    q = random(5, 2, 32)
    q[3, 0, 0], q[4, 1, :4] = torch.inf, torch.tensor([0.0, -0.0, torch.nan, 1.0])
    rope = pack_qk_norm_rope_table(torch.zeros(2, 16), torch.ones(2, 16), dtype=BF16, identity_rows=3)
    assert rope is not None
    out, _ = fused_qk_norm_rope(q, q, None, None, rope, 1e-6, interleaved=True, numerics=build("qk_norm"))
    normed = rms_norm(q, None, 1e-6, numerics=build())
    assert same_bits(out[2:].nan_to_num(nan=9.0), normed[2:].nan_to_num(nan=9.0))
    assert not same_bits(out[:2], normed[:2])


def test_q_and_k_are_norms_of_their_own_rows(build: Builder, same_bits: SameBits) -> None:
    q, k, rope = random(7, 5, 32), random(7, 2, 32, seed=1), table(7, 32)
    numerics = build("qk_norm", reduction=BY_ROWS)
    out = fused_qk_norm_rope(q, k, None, None, rope, 1e-6, numerics=numerics)
    for x, found in ((q, out[0]), (k, out[1])):
        alone, _ = fused_qk_norm_rope(x, x, None, None, rope, 1e-6, numerics=numerics)
        assert same_bits(found, alone)


@LAYOUTS
@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize(("text", "image"), [(3, 7), (0, 7), (3, 0)])
def test_two_streams_are_normalized_apart_and_rotated_as_one(
    interleaved: bool, image_first: bool, text: int, image: int, build: Builder, same_bits: SameBits
) -> None:
    batch = 2
    inputs = joint_inputs(batch, text, image)
    rope = table(text + image, 24)
    numerics = build("qk_norm", reduction=BY_ROWS)
    call: dict[str, Any] = {"interleaved": interleaved, "numerics": numerics}
    found = fused_joint_qkv_norm_rope(**inputs, rope_table=rope, image_first=image_first, **call)
    text_rows, image_rows = rope.split([text, image])
    if image_first:
        image_rows, text_rows = rope.split([image, text])

    def alone(stream: str, rows: Tensor) -> tuple[Tensor, ...]:
        q, k, v, q_weight, k_weight = (inputs[f"{stream}_{x}"] for x in ("q", "k", "v", "q_weight", "k_weight"))
        return (*fused_qk_norm_rope(q, k, q_weight, k_weight, rows, 1e-6, **call), v)

    pairs = zip(alone("text", text_rows), alone("image", image_rows), strict=True)
    for out, (of_text, of_image) in zip(found, pairs, strict=True):
        assert same_bits(out, torch.cat((of_image, of_text) if image_first else (of_text, of_image), 1))


@pytest.mark.parametrize("form", ["shared", "flat", "batched"])
def test_every_form_of_the_joint_table_is_the_same(form: str, build: Builder, same_bits: SameBits) -> None:
    inputs = joint_inputs(2, 3, 4)
    shared = table(7, 32)
    forms = {"shared": shared, "flat": shared.repeat(2, 1), "batched": shared.repeat(2, 1).view(2, 7, 32)}
    call: dict[str, Any] = {"interleaved": True, "numerics": build("qk_norm")}
    expected = fused_joint_qkv_norm_rope(**inputs, rope_table=shared, **call)
    found = fused_joint_qkv_norm_rope(**inputs, rope_table=forms[form], **call)
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


def test_v_is_copied_bit_for_bit(build: Builder, same_bits: SameBits) -> None:
    inputs = joint_inputs(1, 2, 2, kv_heads=16)
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16)[: 2 * 16 * 32].view(1, 2, 16, 32)
    text_v, image_v = patterns.view(BF16), (patterns + 0x7F80).view(BF16)  # quiet and signalling NaNs among them
    inputs |= {"text_v": text_v, "image_v": image_v}
    _, _, v = fused_joint_qkv_norm_rope(**inputs, rope_table=table(4, 32), interleaved=True, numerics=build())
    assert same_bits(v[:, :2], text_v)
    assert same_bits(v[:, 2:], image_v)


def test_no_tokens_give_no_tokens(build: Builder) -> None:
    q = random(0, 3, 32)
    assert [x.shape for x in fused_qk_norm_rope(q, q, None, None, table(0, 32), 1e-6, numerics=build())] == [
        q.shape
    ] * 2
    q = random(0, 5, 3, 32)
    assert fused_qk_norm_rope(q, q, None, None, table(5, 32), 1e-6, numerics=build())[0].shape == q.shape
    inputs = joint_inputs(2, 0, 0)
    out = fused_joint_qkv_norm_rope(**inputs, rope_table=table(0, 32), interleaved=True, numerics=build())
    assert [x.shape for x in out] == [(2, 0, 3, 32), (2, 0, 2, 32), (2, 0, 2, 32)]


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_outputs_keep_the_activations_dtype_under_autocast(
    dtype: torch.dtype, build: Builder, same_bits: SameBits
) -> None:
    q, rope = random(6, 2, 32, dtype=dtype), table(6, 32, dtype=torch.float32)
    call: dict[str, Any] = {"interleaved": True, "numerics": build("qk_norm", rope_rotation="complex")}
    expected = fused_qk_norm_rope(q, q, None, None, rope, 1e-6, **call)[0]
    with torch.autocast("cpu", dtype=BF16):
        assert same_bits(fused_qk_norm_rope(q, q, None, None, rope, 1e-6, **call)[0], expected)


@LAYOUTS
@pytest.mark.parametrize("rotation", ["separate", "complex"])
def test_float64_passes_a_gradient_check(interleaved: bool, rotation: str, build: Builder) -> None:
    q, k = (random(3, heads, 6, seed=heads, dtype=torch.float64).requires_grad_() for heads in (2, 1))
    weight, rope = random(6, dtype=torch.float64).requires_grad_(), table(3, 4, dtype=torch.float64).requires_grad_()
    numerics = build("qk_norm", "rope_product", rope_rotation=rotation)
    assert torch.autograd.gradcheck(
        lambda q, k, w, t: fused_qk_norm_rope(q, k, w, w, t, 1e-5, interleaved=interleaved, numerics=numerics),
        (q, k, weight, rope),
    )


def test_joint_gradients_reach_every_stream_and_weight(build: Builder) -> None:
    inputs = joint_inputs(1, 2, 3)
    tensors = [x.requires_grad_() for x in inputs.values() if isinstance(x, Tensor)]
    out = fused_joint_qkv_norm_rope(**inputs, rope_table=table(5, 32), interleaved=True, numerics=build("qk_norm"))
    torch.cat([x.flatten() for x in out]).float().square().sum().backward()
    assert all(x.grad is not None and x.grad.any() for x in tensors)
