"""What the fused attention processors of all diffusers models share: when the stock one is kept, and the fused call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from numerics.integrations.diffusers_table import Tables
from numerics.ops import fused_joint_qkv_norm_rope, fused_qk_norm_rope
from numerics.ops.dispatch import settings_for
from numerics.ops.registry import few_tokens
from numerics.ops.telemetry import Dispatch, record
from numerics.resolution import Resolution

Stream = tuple[Tensor, Tensor, Tensor]  # q, k and v, [batch, tokens, heads, head_dim] each
NORMS = ("norm_q", "norm_k", "norm_added_q", "norm_added_k")
# The layers of each stream: all three that diffusers can fuse into one, and apart.
PROJECTIONS: Final = {
    "image": ("to_qkv", ("to_q", "to_k", "to_v")),
    "text": ("to_added_qkv", ("add_q_proj", "add_k_proj", "add_v_proj")),
}


class Processor:
    """An attention processor in the place of a stock one, which it keeps and calls for what it does not cover.

    What diffusers sets on a processor (attention backend, context parallelism) is the stock one's own.
    """

    stock_class: Callable[[], Any]
    norm_class: type[nn.Module] = nn.RMSNorm
    joint: bool  # whether a text stream comes apart from the image
    reads_fused = False  # whether the stock one reads the projection that `fuse_projections` makes
    interleaved = True  # whether (2i, 2i + 1) are turned, else (i, i + rotary_dim / 2)

    def __init__(self, stock: Any = None, resolution: Resolution | None = None, tables: Tables | None = None) -> None:
        # Loading an IP adapter makes processors of the class that it finds, without arguments.
        self.stock = type(self).stock_class() if stock is None else stock
        self.resolution = resolution
        self.tables = tables
        self._may_be_few = resolution is not None and asks_for_tokens(resolution)

    @property
    def _attention_backend(self) -> Any:
        return self.stock._attention_backend

    @_attention_backend.setter
    def _attention_backend(self, backend: Any) -> None:
        self.stock._attention_backend = backend

    @property
    def _parallel_config(self) -> Any:
        return self.stock._parallel_config

    @_parallel_config.setter
    def _parallel_config(self, config: Any) -> None:
        self.stock._parallel_config = config

    @classmethod
    def why_not(cls, attn: nn.Module) -> str | None:
        """Why attention of this form is not covered; None where it is."""
        reason = why_not_norms(attn, cls.norms(), cls.norm_class)
        if reason is None and len({getattr(attn, name).eps for name in cls.norms()}) > 1:
            return "its norms differ in eps"
        return reason

    @classmethod
    def norms(cls) -> Sequence[str]:
        """The names of the norms of q and k."""
        return NORMS if cls.joint else NORMS[:2]

    def why_stock(self, attn: Any, hidden_states: Tensor, rotary: Any, text: Any = None) -> str | None:
        """Why this call is left to the stock processor; None where it is fused."""
        if self.resolution is None:
            return "this processor was not made by apply()"
        if rotary is None:
            return "there is nothing to rotate by"
        reason = (
            why_not_plain(hidden_states) or self.why_not(attn) or why_not_read_norms(attn, self.norms(), hidden_states)
        )
        if reason is not None:
            return reason
        if self._may_be_few:
            return self._few(hidden_states, text)
        return None

    def _few(self, hidden_states: Tensor, text: Any) -> str | None:
        settings = settings_for("fused_qk_norm_rope", self.resolution, like=hidden_states)
        batch, tokens = hidden_states.shape[:2]
        if self.joint and isinstance(text, Tensor):
            tokens += text.shape[1]
        return few_tokens(batch * tokens, settings.min_tokens)

    def keep(self, reason: str, *args: Any, **kwargs: Any) -> Any:
        """The stock processor's answer, counted as a call that is not fused."""
        if not torch.compiler.is_compiling():
            record(Dispatch("fused_joint_qkv_norm_rope" if self.joint else "fused_qk_norm_rope", False, reason))
        return self.stock(*args, **kwargs)

    def pack(
        self,
        halves: Callable[..., tuple[Tensor, Tensor]],
        sources: tuple[Tensor, ...],
        like: Tensor,
        text_tokens: int = 0,
    ) -> Tensor:
        """The rotation table. text_tokens: at the end, normalized and not rotated."""
        assert self.resolution is not None
        assert self.tables is not None
        return self.tables.pack(halves, sources, like, self.resolution, text_tokens)

    @staticmethod
    def heads(attn: Any) -> tuple[int, int]:
        """Number and size of the heads, where the stock processor goes by their number: the other one is -1."""
        return attn.heads, -1

    def project(self, attn: Any, hidden_states: Tensor, stream: Literal["image", "text"] = "image") -> Stream:
        """q, k and v of one stream."""
        together, apart = PROJECTIONS[stream]
        if self.reads_fused and attn.fused_projections:
            return self.split(attn, getattr(attn, together)(hidden_states).chunk(3, dim=-1))
        return self.split(attn, [getattr(attn, name)(hidden_states) for name in apart])

    def split(self, attn: Any, parts: Sequence[Tensor]) -> Stream:
        """[batch, tokens, heads * head_dim] each, by heads."""
        q, k, v = (part.unflatten(-1, self.heads(attn)) for part in parts)  # type: ignore[no-untyped-call]  # of torch
        return q, k, v

    def fuse(self, attn: Any, q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize and rotate one stream."""
        return fused_qk_norm_rope(
            q,
            k,
            attn.norm_q.weight,
            attn.norm_k.weight,
            table,
            attn.norm_q.eps,
            interleaved=self.interleaved,
            numerics=self.resolution,
        )

    def fuse_joint(self, attn: Any, text: Stream, image: Stream, table: Tensor, *, image_first: bool = False) -> Stream:
        """Normalize two streams, join them and rotate."""
        return fused_joint_qkv_norm_rope(
            *text,
            *image,
            attn.norm_added_q.weight,
            attn.norm_added_k.weight,
            attn.norm_q.weight,
            attn.norm_k.weight,
            table,
            attn.norm_q.eps,
            interleaved=self.interleaved,
            image_first=image_first,
            numerics=self.resolution,
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Tensor:
        """Attention by the backend that is set, [batch, tokens, heads * head_dim] in the dtype of q."""
        from diffusers.models.attention_dispatch import dispatch_attention_fn

        out = dispatch_attention_fn(
            q,
            k,
            v,
            attn_mask=mask,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
            **options,
        )
        joined: Tensor = out.flatten(2, 3).to(q.dtype)
        return joined


# --- What holds for whatever is fused ---------------------------------------------------------------------------------


def asks_for_tokens(resolution: Resolution) -> bool:
    """Whether `min_tokens` is anything, on any device: then it is looked up at each call."""
    return bool(resolution.min_tokens or any(row.min_tokens for _, row in resolution.when))


def why_not_norms(module: nn.Module, names: Sequence[str], norm_class: type[nn.Module]) -> str | None:
    """Why these norms of a module are not of the kind that is fused."""
    for name in names:
        norm: Any = getattr(module, name, None)
        if norm is None:
            return f"has no {name}"
        if type(norm) is not norm_class:
            return f"its {name} is a {type(norm).__name__}, not a {norm_class.__name__}"
        if not isinstance(norm.eps, float):
            return f"its {name} has no eps of its own"
        if getattr(norm, "bias", None) is not None:
            return f"its {name} has a bias"
    return None


def why_not_plain(hidden_states: Any) -> str | None:
    """Why activations are not fused, whatever the module is."""
    if type(hidden_states) is not Tensor and type(hidden_states) is not nn.Parameter:
        return "the activations are no plain tensor"
    device = hidden_states.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # meta tensors know no autocast
        return "autocast chooses the dtypes"
    return None


def why_not_read_norms(module: Any, names: Sequence[str], hidden_states: Tensor) -> str | None:
    """Why weights of norms cannot be read in the modules' stead: what wraps or watches a forward must see it called."""
    if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]  # of torch
        return "hooks are registered for all modules"
    for name in names:
        norm = getattr(module, name)
        if (
            "forward" in norm.__dict__
            or norm._forward_hooks
            or norm._forward_pre_hooks
            or norm._backward_hooks
            or norm._backward_pre_hooks
        ):
            return f"{name} is wrapped or hooked"
        weight: Any = norm.weight
        if weight is not None and weight.dtype != hidden_states.dtype:
            return f"{name} is in {weight.dtype}, the activations in {hidden_states.dtype}"
        if weight is not None and weight.device != hidden_states.device:
            return f"{name} is not on the device of the activations"
    return None
