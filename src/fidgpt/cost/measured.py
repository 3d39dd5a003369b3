"""Costs measured by running a model that holds no memory."""

import copy
from collections import Counter
from collections.abc import Callable, Container
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.cost.flops import first_of_each
from fidgpt.model.kernels import Scoring, fastest, fastest_on, flex, sdpa
from fidgpt.model.transformer import LanguageModel

_NO_PRODUCTS = {
    *("__get__", "__getitem__", "_set_grad_enabled", "add", "arange", "clamp_min", "embedding"),
    *("gelu", "layer_norm", "mul", "promote_types", "rms_norm", "silu", "to", "unsqueeze", "zeros"),
}


def says_all_flops(model: LanguageModel, *, seq_len: int) -> bool:
    """Whether it is plain, without torch's counting, that nothing is left for `unsaid_flops`.

    Outside of the parts that say what they compute, only functions are called without products.

    Args:
      model: with memory, and used by nobody else.
      seq_len: tokens of the sequence that passes.
    """
    watch = _Watch()
    for module in model.modules():
        if _says(module):
            module.register_forward_pre_hook(lambda *_: watch.enter_said(1))
            module.register_forward_hook(lambda *_: watch.enter_said(-1))
    device = next(model.parameters()).device
    with first_of_each(model), torch.no_grad(), watch:
        model(torch.zeros(1, seq_len, dtype=torch.int64, device=device))
    return watch.called <= _NO_PRODUCTS


class _Watch(TorchFunctionMode):
    """Remembers which functions are called outside of modules that say what they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()
        self._depth = 0

    def enter_said(self, levels: int) -> None:
        self._depth += levels

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not self._depth:
            self.called.add(getattr(func, "__name__", repr(func)))
        return func(*args, **(kwargs or {}))


def unsaid_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int]:
    """Floating-point operations a token of the forward pass that no part says, by module.

    Torch counts the products of a pass over one sequence. What it counts in a Linear, or in a part
    with `own_flops_per_token` and all within it, is said; the rest is here, such as the products of
    an attention of one's own. Operations that torch has no formula for are nowhere.

    Args:
      model: on the meta device, and used by nobody else.
      seq_len: tokens of the sequence.
    """
    with first_of_each(model) as kinds:
        unsaid = _unsaid(model, seq_len=seq_len)
    layers = {f"blocks.{number}": kind for number, kind in enumerate(kinds)}
    return {
        f"{place}{path.removeprefix(layer)}": flops
        for path, flops in unsaid.items()
        for layer in [".".join(path.split(".")[:2])]
        for place in (
            [f"blocks.{index}" for index in layers[layer]] if layer in layers else [layer]
        )
    }


def _unsaid(model: LanguageModel, *, seq_len: int) -> dict[str, int]:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, seq_len, dtype=torch.int64, device="meta"))
    counted = {
        name.partition(".")[2]: sum(operations.values())
        for name, operations in counter.get_flop_counts().items()
        if name != "Global"
    }
    inside: Counter[str] = Counter()
    for path, flops in counted.items():
        if path:
            inside[_around(path, counted)] += flops
    unsaid = {path: flops - inside[path] for path, flops in counted.items() if _mute(model, path)}
    return {path: flops // seq_len for path, flops in unsaid.items() if flops > 0}


def _around(path: str, counted: Container[str]) -> str:
    """The innermost module around one that was called too."""
    while path:
        path = path.rpartition(".")[0]
        if path in counted:
            break
    return path


def _mute(model: nn.Module, path: str) -> bool:
    """Whether neither a module nor one around it says what it computes, and it is no Linear.

    The model itself is around all of them, and speaks for none.
    """
    names = path.split(".")
    around = [".".join(names[: depth + 1]) for depth in range(len(names))]
    said = any(hasattr(model.get_submodule(name), "own_flops_per_token") for name in around)
    return not said and not isinstance(model.get_submodule(path), nn.Linear)


def _says(module: nn.Module) -> bool:
    return hasattr(module, "own_flops_per_token") or isinstance(module, nn.Linear)


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


Model = TypeVar("Model", bound=nn.Module)


def without_memory(model: Model) -> Model:
    """A copy on the meta device, with the same ties; the model itself may have memory or none."""
    return twin_of(model, lambda tensor: torch.empty_like(tensor, device="meta"))


def twin_of(model: Model, make: Callable[[Tensor], Tensor]) -> Model:
    """A copy with the same ties, and with what `make` gives in place of each tensor."""
    twins: dict[int, Tensor] = {}
    for parameter in model.parameters():
        twins[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
    for buffer in model.buffers():
        twins[id(buffer)] = make(buffer)
    return copy.deepcopy(model, twins)


_SOON = 5e10  # operations that a CPU ends sooner than torch has loaded all that
_SMALL = 5e7  # numbers; of a larger model zeros, gradients and moments take gigabytes, and seconds
_IS_META = Tensor.is_meta.__get__  # pyright: ignore[reportAttributeAccessIssue]
# What a tensor without memory cannot tell.
_NUMBERS = {
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.nonzero, Tensor.unique),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(torch.nonzero, torch.unique, torch.equal, torch.allclose, torch.masked_select),
}


def with_zeros(model: Model, *, num_tokens: int, device: torch.device) -> Model | None:
    """A copy with the same ties; None where it, or a pass of `num_tokens`, would take a CPU long.

    Args:
      model: with memory or without; it is left as it is.
      num_tokens: of the forward pass that is to be tried.
      device: where the model would compute; on any but the CPU parts may compute in other ways.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    if device.type != "cpu" or size > _SMALL or 2 * size * num_tokens > _SOON:
        return None
    return twin_of(model, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))


class AsWithoutMemory(TorchFunctionMode):
    """Inside, tensors say that they are without memory, and nobody can ask for their numbers.

    So a trial with zeros fails where one on the meta device would, and parts that look for meta
    tensors compute as they do there. A tensor that is made without a device comes without memory,
    as it would be on a wrong one.
    """

    def __enter__(self) -> "AsWithoutMemory":
        self._made = torch.device("meta")
        self._made.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._made.__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _IS_META:
            return True
        if func in _NUMBERS:
            raise RuntimeError("a part of the model asks for the numbers of a tensor.")
        return func(*args, **(kwargs or {}))
