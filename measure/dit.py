"""A stack of DiT blocks with MiniMax-H3's modulation and random weights: what a rounding goes through."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from numerics.errors import ConfigurationError

# MiniMax-H3's public configuration: width 5376, 56 heads of 128, of which 96 are rotated in halves, eps 1e-5. The step
# without image or text towers is the same; its MLP is narrower here, so that 50 layers fit on one GPU.
WIDTH: Final = 5376
HEAD_DIM, ROTARY_DIM = 128, 96
WIDTH_A_HEAD: Final = WIDTH // 56
EPS: Final = 1e-5
GROUPS: Final = 12  # rows of the modulation tables
VECTORS: Final = 6  # shift, scale and gate of two norms: slices of one table
MLP_RATIO: Final = 0.5
CHANNELS, PATCH = 16, 2  # of the latent: a token is a patch of 2 x 2
FEATURES: Final = CHANNELS * PATCH * PATCH
TIME_FEATURES: Final = 64
MAX_PERIOD: Final = 10_000.0

MODULATION: Final = 0.2  # standard deviation of scale, shift and gate
OUTLIERS: Final = 128  # one channel in so many is one
OUTLIER: Final = 16.0  # and so much larger
WEIGHT_SHARE: Final = 0.6  # of the memory that is free
CPU_WEIGHTS: Final = 4 << 30

Calls = Mapping[str, Callable[..., Any]]  # the ops of a block by their public names, with all that an arm decides


@dataclass(frozen=True)
class Geometry:
    """Sizes of a stack. Raises ConfigurationError for a width without a whole head."""

    layers: int
    tokens: int
    width: int = WIDTH

    def __post_init__(self) -> None:
        if self.width < WIDTH_A_HEAD:
            raise ConfigurationError(f"width: got {self.width}; legal: at least {WIDTH_A_HEAD}, which one head has")

    @property
    def heads(self) -> int:
        """As many for a width as the model has for its own."""
        return self.width // WIDTH_A_HEAD

    @property
    def hidden(self) -> int:
        """Of the MLP."""
        return int(self.width * MLP_RATIO)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens: as square as the number of tokens allows."""
        rows = next(n for n in range(math.isqrt(self.tokens), 0, -1) if self.tokens % n == 0)
        return rows, self.tokens // rows

    def image(self, latent: Tensor) -> Tensor:
        """[tokens, FEATURES] as [CHANNELS, height, width]."""
        rows, columns = self.grid
        patches = latent.view(rows, columns, PATCH, PATCH, CHANNELS)
        return patches.permute(4, 0, 2, 1, 3).reshape(CHANNELS, rows * PATCH, columns * PATCH)


@dataclass(frozen=True)
class Weights:
    """Of one layer."""

    norm1: Tensor  # [width]
    norm2: Tensor  # [width]
    q_norm: Tensor  # [HEAD_DIM]
    k_norm: Tensor  # [HEAD_DIM]
    qkv: Tensor  # [3 * heads * HEAD_DIM, width]
    out: Tensor  # [width, heads * HEAD_DIM]
    up: Tensor  # [2 * hidden, width]
    down: Tensor  # [width, hidden]
    time: Tensor  # [VECTORS * width, TIME_FEATURES]


class Dit:
    """The stack: its weights, its start latent and where its tokens are. The same for a seed, on one kind of device."""

    def __init__(self, geometry: Geometry, device: torch.device, seed: int) -> None:
        self.geometry = geometry
        self.device = device
        self._random = torch.Generator(device).manual_seed(seed)
        width = geometry.width
        outliers = torch.randperm(width, generator=self._random, device=device)[: max(1, width // OUTLIERS)]
        self.start = self._normal(geometry.tokens, FEATURES)
        self._embed = self._normal(width, FEATURES, std=FEATURES**-0.5)
        self._embed[outliers] *= OUTLIER
        self.weights = [self._layer(outliers) for _ in range(_weight_sets(geometry, device))]
        self._tables = [self._normal(GROUPS, VECTORS * width, std=MODULATION) for _ in range(geometry.layers)]
        self._norm_out = self._norm_weight(width)
        self._head = self._normal(FEATURES, width, std=width**-0.5)
        self._indices = torch.arange(geometry.tokens, device=device) * GROUPS // geometry.tokens
        self.cos, self.sin = self._rotations()
        # Flash attention adds in one order in its forward; a CPU has the steps that it is made of.
        self.attention = SDPBackend.FLASH_ATTENTION if device.type == "cuda" else SDPBackend.MATH

    def velocity(self, latent: Tensor, sigma: float, calls: Calls) -> Tensor:
        """[tokens, FEATURES] at a noise level, to the velocity there: one pass through all layers."""
        time = self._time(sigma)
        x = functional.linear(latent, self._embed)
        with sdpa_kernel(self.attention):
            for layer in range(self.geometry.layers):
                x = self._block(x, layer, time, calls)
        normed = calls["rms_norm"](x=x, weight=self._norm_out, eps=EPS)
        return functional.linear(normed, self._head)

    def _block(self, x: Tensor, layer: int, time: Tensor, calls: Calls) -> Tensor:
        weights = self.weights[layer % len(self.weights)]
        table = self._tables[layer] + functional.linear(time, weights.time)
        shift1, scale1, gate1, shift2, scale2, gate2 = table.chunk(VECTORS, dim=1)
        place = {"indices": self._indices}
        normed = calls["rms_norm_indexed_scale_shift"](
            x=x, weight=weights.norm1, shift=shift1, scale=scale1, **place, eps=EPS
        )
        x, normed = calls["indexed_gate_rms_norm_scale_shift"](
            residual=x,
            gate=gate1,
            branch=self._attend(normed, weights, calls),
            weight=weights.norm2,
            shift=shift2,
            scale=scale2,
            **place,
            eps=EPS,
        )
        gate, up = functional.linear(normed, weights.up).chunk(2, dim=1)
        branch = functional.linear(functional.silu(gate) * up, weights.down)
        gated: Tensor = calls["indexed_gate"](x=x, gate=gate2, other=branch, **place)
        return gated

    def _attend(self, x: Tensor, weights: Weights, calls: Calls) -> Tensor:
        heads = functional.linear(x, weights.qkv).unflatten(1, (3, self.geometry.heads, HEAD_DIM))
        q, k, v = heads.unbind(1)
        q, k = calls["fused_qk_norm_rope"](q=q, k=k, q_weight=weights.q_norm, k_weight=weights.k_norm, eps=EPS)
        attended = functional.scaled_dot_product_attention(*(each.transpose(0, 1)[None] for each in (q, k, v)))
        return functional.linear(attended[0].transpose(0, 1).flatten(1), weights.out)

    def _time(self, sigma: float) -> Tensor:
        """[1, TIME_FEATURES], sinusoidal, of a time between 0 and 1000 (Vaswani et al., 2017)."""
        angles = 1000 * sigma * _frequencies(TIME_FEATURES // 2, self.device)
        return torch.cat((angles.cos(), angles.sin())).to(torch.bfloat16)[None]

    # --- Made from the seed -------------------------------------------------------------------------------------------

    def _normal(self, *shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=self._random, device=self.device, dtype=torch.bfloat16).mul_(std)

    def _norm_weight(self, width: int) -> Tensor:
        return 1 + self._normal(width, std=0.1)

    def _layer(self, outliers: Tensor) -> Weights:
        width, hidden, inner = self.geometry.width, self.geometry.hidden, self.geometry.heads * HEAD_DIM
        down = self._normal(width, hidden, std=hidden**-0.5)
        down[outliers] *= OUTLIER  # what the channels of the residual stream grow by
        return Weights(
            norm1=self._norm_weight(width),
            norm2=self._norm_weight(width),
            q_norm=self._norm_weight(HEAD_DIM),
            k_norm=self._norm_weight(HEAD_DIM),
            qkv=self._normal(3 * inner, width, std=width**-0.5),
            out=self._normal(width, inner, std=inner**-0.5),
            up=self._normal(2 * hidden, width, std=width**-0.5),
            down=down,
            time=self._normal(VECTORS * width, TIME_FEATURES, std=MODULATION * TIME_FEATURES**-0.5),
        )

    def _rotations(self) -> tuple[Tensor, Tensor]:
        """Cos and sin [tokens, ROTARY_DIM / 2] in float32: half of the pairs turn with the row of a token."""
        rows, columns = self.geometry.grid
        token = torch.arange(rows * columns, device=self.device)
        places = torch.stack((token // columns, token % columns), dim=1).float()
        angles = (places[:, :, None] * _frequencies(ROTARY_DIM // 4, self.device)).flatten(1)
        return angles.cos(), angles.sin()


def _frequencies(count: int, device: torch.device) -> Tensor:
    """[count] radians a position, from 1 down to about 1 / MAX_PERIOD."""
    return MAX_PERIOD ** (-torch.arange(count, device=device) / count)


def _weight_sets(geometry: Geometry, device: torch.device) -> int:
    """One set a layer, or as many as there is memory for, which layers then use in turns."""
    inner = geometry.heads * HEAD_DIM
    a_row = 4 * inner + 3 * geometry.hidden + VECTORS * TIME_FEATURES
    available = WEIGHT_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else CPU_WEIGHTS
    return max(1, min(geometry.layers, int(available // (2 * a_row * geometry.width))))
