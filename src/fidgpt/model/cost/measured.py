"""What parts compute that say nothing of it, as torch counts it."""

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.model.cost.layers import first_of_each
from fidgpt.model.language_model import LanguageModel

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
