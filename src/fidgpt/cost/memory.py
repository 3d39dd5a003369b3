"""The memory of a training pass, measured by running a model that may hold no memory."""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fidgpt.cost.flops import sum_over_layers
from fidgpt.model.kernels import Scoring, fastest, fastest_on, flex, sdpa
from fidgpt.model.transformer import LanguageModel

__all__ = ["ActivationBytes", "activation_bytes", "with_zeros", "without_memory"]

Model = TypeVar("Model", bound=nn.Module)
# Limits of what runs on real zeros: torch takes a second to load what the meta device needs.
_SMALL_RUN, _SMALL_MODEL = 5e10, 5e7  # operations; parameters


def without_memory(model: Model) -> Model:
    """Return a copy of a model on the meta device, with the same ties."""
    return _copied(model, partial(torch.empty_like, device="meta"))


def with_zeros(model: Model, *, num_tokens: int, device: torch.device) -> Model | None:
    """Return a copy full of zeros, with the same ties; None if that, or a pass, would take long.

    Args:
      model: may be on the meta device.
      num_tokens: of the forward pass that is to be tried.
      device: where the model would compute; only a CPU computes as it would there.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    if device.type != "cpu" or size > _SMALL_MODEL or 2 * size * num_tokens > _SMALL_RUN:
        return None
    return _copied(model, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))


def _copied(model: Model, make: Callable[[Tensor], Tensor]) -> Model:
    copies: dict[int, Tensor] = {
        id(one): nn.Parameter(make(one), one.requires_grad) for one in model.parameters()
    }
    copies |= {id(buffer): make(buffer) for buffer in model.buffers()}
    return copy.deepcopy(model, copies)


class ActivationBytes(NamedTuple):
    """Memory of a training pass besides weights and gradients.

    Attributes:
      kept: what lasts until the backward pass, for autograd or for blocks that recompute.
      passing: the peak of what else exists during the forward pass, such as logits.
    """

    kept: int
    passing: int


def activation_bytes(
    model: LanguageModel,
    objective: nn.Module,
    *,
    num_sequences: int,
    seq_len: int,
    device: torch.device,
) -> ActivationBytes:
    """Measure the memory of one forward pass in training; temporaries of backward are left out.

    Args:
      model: what is trained; on the meta device or full of zeros. Its attentions get stand-ins for
        GPU kernels, so nothing else may use it.
      objective: holds the model, and gives a loss from tokens [num_sequences, seq_len + 1].
      num_sequences: sequences that are computed at once.
      seq_len: tokens of each.
      device: where the model will compute, which decides about kernels.
    """
    batch_device = next(model.parameters()).device
    if batch_device.type == "meta":
        _replace_kernels(model, device)
    batch = torch.zeros(num_sequences, seq_len + 1, dtype=torch.int64, device=batch_device)
    passing = 0

    def kept() -> int:
        nonlocal passing
        measured = _forward(objective, batch, device)
        passing = max(passing, measured.passing)
        return measured.kept

    return ActivationBytes(kept=sum_over_layers(model, kept), passing=passing)


def _forward(objective: nn.Module, batch: Tensor, device: torch.device) -> ActivationBytes:
    own = {x.untyped_storage() for x in [*objective.parameters(), *objective.buffers()]}
    with (
        _saved_tensors() as saved,
        _LiveMemory() as live,
        _PretendedDevice(device) if batch.is_meta else nullcontext(),
    ):
        loss = objective.train()(batch)
    # What a recomputing block keeps is not saved by autograd: it is only alive.
    lasting = {one.tensor.untyped_storage() for one in saved} | {*live.storages}
    size = sum(storage.nbytes() for storage in lasting - own - {loss.untyped_storage()})
    passing = live.peak - live.now
    del loss  # which held all of it
    return ActivationBytes(size, passing)


class _Saved:
    """Stands for a tensor as long as autograd holds it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def _saved_tensors() -> Iterator["weakref.WeakSet[_Saved]"]:
    """Collect what autograd saves and still holds; passes within the pass save and release."""
    saved: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        one = _Saved(tensor)
        saved.add(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        yield saved


class _LiveMemory(TorchFunctionMode):
    """Counts the bytes of tensors that were made inside and still exist.

    Attributes:
      now: bytes.
      peak: the most so far.
      storages: their memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if type(made) is Tensor and (storage := made.untyped_storage()) not in self.storages:
                self.storages.add(storage)
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return out

    def _add(self, count: int) -> None:
        self.now += count
        self.peak = max(self.peak, self.now)


_DEVICE = torch.Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]
_META = torch.device("meta")


class _PretendedDevice(TorchFunctionMode):
    """Makes tensors on the meta device report another one, so that modules choose its kernels.

    Where torch has a fused operation on real devices and a chain of small ones on the meta device,
    which keeps far more for the backward pass, a stand-in keeps what the fused one does.
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
        is_cpu = self._device.type == "cpu"
        if func is F.scaled_dot_product_attention:
            query, key, value, *_ = args
            mask, dropout = kwargs.get("attn_mask"), kwargs.get("dropout_p")
            # A CPU's kernel drops nothing, and needs equal widths.
            if not is_cpu or (query.shape[-1] == value.shape[-1] and not dropout):
                masks = [] if mask is None else [mask.to(query.dtype)]
                return _FusedAttention.apply(query, key, value, *masks)
        if func is F.rms_norm and not is_cpu:
            x, _, *weights = args
            return _FusedNorm.apply(x, *(one for one in weights[:1] if one is not None))
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return func(*(_META if isinstance(x, torch.device) else x for x in args), **kwargs)


def _replace_kernels(model: nn.Module, device: torch.device) -> None:
    """Put a stand-in wherever an attention would call FlexAttention, which needs a GPU."""
    for module in model.modules():
        kernel = getattr(module, "kernel", None)
        if kernel is fastest or kernel is flex:
            setattr(module, "kernel", partial(_stand_in, device, kernel is fastest))  # noqa: B010


def _stand_in(
    device: torch.device,
    may_choose: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scoring: Scoring,
) -> Tensor:
    kernel = fastest_on(device.type, query.dtype, scoring) if may_choose else flex
    if kernel is flex and device.type != "cpu" and not scoring.dropout:
        return _FusedAttention.apply(query, key, value)
    return (sdpa if kernel is flex else kernel)(query, key, value, scoring)


class _FusedAttention(torch.autograd.Function):
    """Keeps the inputs, the output, and one number for each query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *masks: Tensor) -> Tensor:
        batch, heads, queries, _ = query.shape
        # Fused kernels place the heads of a token side by side: joining them is no copy.
        out = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums, *masks)
        return out


class _FusedNorm(torch.autograd.Function):
    """Keeps the input, and one number for each row of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.new_empty(x.shape[:-1], dtype=torch.float32), *weights)
        return torch.empty_like(x)
