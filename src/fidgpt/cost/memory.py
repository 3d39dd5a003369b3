"""Memory."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fidgpt.cost.flops import sum_over_layers
from fidgpt.cost.measured import AsWithoutMemory, PretendedDevice, pretend_kernels
from fidgpt.model.transformer import LanguageModel


class ActivationBytes(NamedTuple):
    """Memory of a training pass beside weights and gradients.

    Attributes:
      kept: what lasts until the backward pass, for autograd or for blocks that compute again.
      passing: the most that exists besides for a moment of the forward pass, such as logits.
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
    """Memory of one forward pass in training.

    It is measured, and no formula: the pass runs on tensors without memory, and those that exist
    are summed. What a backward pass needs for a moment is not in it.

    Args:
      model: what is trained; on the meta device or full of zeros. Its attentions get stand-ins
        for what runs on GPUs alone, so pass what nobody else uses.
      objective: holds the model, and gives a loss from tokens [num_sequences, seq_len + 1].
      num_sequences: sequences that are computed at once.
      seq_len: tokens of each.
      device: where the model will compute, which decides how some parts do.
    """
    pretend_kernels(model, device)
    at = next(model.parameters()).device
    batch = torch.zeros(num_sequences, seq_len + 1, dtype=torch.int64, device=at)
    passing = 0

    def kept() -> int:
        nonlocal passing
        measured = _forward(objective, batch, device)
        passing = max(passing, measured.passing)
        return measured.kept

    return ActivationBytes(kept=sum_over_layers(model, kept), passing=passing)


def _forward(objective: nn.Module, batch: Tensor, device: torch.device) -> ActivationBytes:
    own = {x.untyped_storage() for x in [*objective.parameters(), *objective.buffers()]}
    pretence = PretendedDevice(device) if batch.is_meta else AsWithoutMemory()
    with _kept() as kept, _Living() as living, pretence:
        loss = objective.train()(batch)
    # What a block keeps that computes the rest again, autograd does not see: it only lives.
    lasting = {one.tensor.untyped_storage() for one in kept} | living.storages
    size = sum(storage.nbytes() for storage in lasting - own - {loss.untyped_storage()})
    passing = living.most - living.now
    del loss  # which held all of it
    return ActivationBytes(size, passing)


class _Saved:
    """What autograd holds in the place of a tensor, for as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def _kept() -> Iterator["weakref.WeakSet[_Saved]"]:
    """What is saved inside and still held; passes within the pass save and let go."""
    kept: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        kept.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        yield kept


class _Living(TorchFunctionMode):
    """Counts the bytes of tensors that were made inside and still exist.

    Attributes:
      now: how many there are.
      most: how many there were at most.
      storages: their memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.most = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @property
    def storages(self) -> set[torch.UntypedStorage]:
        return {*self._known}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if type(made) is Tensor:
                self._count(made.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._known:
            self._known.add(storage)
            self._change(storage.nbytes())
            weakref.finalize(storage, self._change, -storage.nbytes())

    def _change(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)


class MemoryNeeded(RuntimeError):
    """A call failed on tensors without memory, and passes where they have some."""


class TellsMemoryNeeded(TorchFunctionMode):
    """Inside, a call that fails is tried again with zeros in place of tensors without memory.

    Torch itself has no class for such failures, of which there are many: another device's tensor
    beside one that has none, a question for a number, a shape that depends on numbers.

    Raises:
      MemoryNeeded: the second try passes.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        try:
            return func(*args, **keywords)
        except Exception as error:
            try:
                func(*_with_memory(args), **_with_memory(keywords))
            except Exception:  # whatever is wrong with the call itself
                raise error from None
            raise MemoryNeeded(str(error)) from error


def _with_memory(value: Any) -> Any:
    """Arguments with zeros for the tensors among them that have no memory."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value, device="cpu") if value.is_meta else value
    if isinstance(value, dict):
        return {key: _with_memory(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_memory, value))
    return value
