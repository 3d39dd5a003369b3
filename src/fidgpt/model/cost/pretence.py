"""Tensors without memory that pretend to be on a device, so that parts compute as they do there."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fidgpt.model.kernels import Scoring, fastest, flex, sdpa
from fidgpt.model.kernels.fastest import fastest_on

_DEVICE = torch.Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]


class PretendedDevice(TorchFunctionMode):
    """Inside, tensors on the meta device say that they are on another one.

    Parts then choose their way of computing as they would there. Where torch itself has a fused
    operation on real devices and a chain of small ones on the meta device, which keeps far more
    for the backward pass, a stand-in keeps what the fused one does.

    Args:
      device: the device that is pretended.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == _DEVICE:
            return self._device
        if func is F.scaled_dot_product_attention and self._has_fused(*args, **kwargs):
            return _attended(*args, **kwargs)
        if func is F.rms_norm and self._device.type != "cpu":
            return _normalised(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return func(*(_META if isinstance(x, torch.device) else x for x in args), **kwargs)

    def _has_fused(
        self, query: Tensor, key: Tensor, value: Tensor, *_: object, **options: object
    ) -> bool:
        """Whether torch fuses it there; a CPU's kernel drops nothing, and wants sizes alike."""
        alike = query.shape[-1] == value.shape[-1] and not options.get("dropout_p")
        return self._device.type != "cpu" or alike


_META = torch.device("meta")


def pretend_kernels(model: nn.Module, device: torch.device) -> None:
    """Puts a stand-in where an attention would call FlexAttention, which is compiled for a GPU."""
    for module in model.modules():
        kernel = getattr(module, "kernel", None)
        if kernel is fastest or kernel is flex:
            setattr(module, "kernel", partial(_on, device, kernel is fastest))  # noqa: B010


def _on(
    device: torch.device,
    is_free: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scoring: Scoring,
) -> Tensor:
    """What the kernel computes on a device, where it is free to choose the fastest form or not."""
    form = fastest_on(device.type, query.dtype, scoring) if is_free else flex
    if form is not flex:
        return form(query, key, value, scoring)
    if device.type == "cpu" or scoring.dropout:
        return sdpa(query, key, value, scoring)
    return _Attended.apply(query, key, value)


def _attended(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: object
) -> Tensor:
    if attn_mask is None:
        return _Attended.apply(query, key, value)
    return _Attended.apply(query, key, value, attn_mask.to(query.dtype))


def _normalised(x: Tensor, shape: object, weight: Tensor | None = None, **_: object) -> Tensor:
    return _Normalised.apply(x) if weight is None else _Normalised.apply(x, weight)


class _Attended(torch.autograd.Function):
    """Keeps the inputs, the output, and one number for each query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *masks: Tensor) -> Tensor:
        batch, heads, queries, _ = query.shape
        # The heads of a token side by side, as fused kernels leave them: joining them is no copy.
        out = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums, *masks)
        return out


class _Normalised(torch.autograd.Function):
    """Keeps the input, and one number for each row of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.new_empty(x.shape[:-1], dtype=torch.float32), *weights)
        return torch.empty_like(x)
