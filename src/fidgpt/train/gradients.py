"""The gradients of an optimizer step: their norms, clipping and transforms."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.parallel.gradients import norms_of_wholes, own_squares
from fidgpt.parallel.places import Places
from fidgpt.placement import is_sharded
from fidgpt.processes.fused import FusedAllReduce
from fidgpt.ranges import require_positive

__all__ = ["ClipByValue", "GradientTransform"]


@runtime_checkable
class GradientTransform(Protocol):
    """Changes gradients in place, before their norm is measured and clipped."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> None: ...


class ClipByValue:
    """Clips every element of a gradient to [-max_grad_value, max_grad_value].

    Args:
      max_grad_value: above 0.

    Raises:
      ValueError: it is not.
    """

    def __init__(self, max_grad_value: float) -> None:
        require_positive(max_grad_value=max_grad_value)
        self.max_grad_value = max_grad_value

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = [p for p in parameters if p.grad is not None]
        for (group,) in by_mesh(chosen):
            nn.utils.clip_grad_value_(group, self.max_grad_value)


class GradientNorms:
    """Euclidean norms of gradients over all processes, of each parameter and of all together.

    Args:
      parameters: parameters of the model; parameters without a gradient are ignored.
      fused: sums the squares of processes that hold parts of parameters, and is started before a
        norm is read; None if each process holds whole parameters or communicates by itself.
      places: places of this process on the mesh, needed with `fused`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        fused: FusedAllReduce | None = None,
        places: Places | None = None,
    ) -> None:
        self._parameters = [p for p in parameters if p.grad is not None]
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if fused is None or places is None or not gradients:
            norms = norms_of(gradients, self._parameters)
            self._read = lambda: norms
        else:
            squares = fused.sum_everywhere(own_squares(gradients, self._parameters, places))
            self._read = lambda: squares().sqrt().float()

    @functools.cached_property
    def _norms(self) -> Float[Tensor, " parameters"]:
        return self._read()

    @functools.cached_property
    def total(self) -> Float[Tensor, ""]:
        """The norm of all gradients as one vector; a tensor, so that nothing waits for it."""
        return torch.linalg.vector_norm(self._norms)

    def clip(self, max_norm: float | None) -> None:
        """Scale the gradients down, so that their total norm is at most `max_norm`."""
        if max_norm is None:
            return
        # A factor of 1 would be one more pass over memory; only a CPU need not be waited for.
        if self.total.device.type == "cpu" and max_norm / (self.total + 1e-6) >= 1:
            return
        for (group,) in by_mesh(self._parameters):
            nn.utils.clip_grads_with_norm_(group, max_norm, self.total)

    def norm_of(self, parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
        """Return the norm over some of the parameters, as it was before clipping."""
        chosen = {id(parameter) for parameter in parameters}
        norms = zip(self._parameters, self._norms.unbind(), strict=True)
        selected = [norm for parameter, norm in norms if id(parameter) in chosen]
        if not selected:
            return self._norms.new_zeros(())
        return torch.linalg.vector_norm(torch.stack(selected))

    def not_finite(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients hold NaN or inf, in the model's order."""
        bad = (~self._norms.isfinite()).tolist()
        return [p for p, is_bad in zip(self._parameters, bad, strict=True) if is_bad]


@torch.no_grad()
def norms_of(
    tensors: Sequence[Tensor], parameters: Sequence[nn.Parameter] | None = None
) -> Float[Tensor, " tensors"]:
    """Return the Euclidean norm of each whole tensor, whose part this process may hold.

    Args:
      tensors: gradients, or parameters themselves.
      parameters: the parameter of each tensor; defaults to the tensors.
    """
    if not tensors:
        return torch.zeros(0)
    norms: list[Any] = [None] * len(tensors)
    for group, indices in by_mesh(tensors, range(len(tensors))):
        # One launch for all of them, as in torch's own clipping.
        each: Any = torch._foreach_norm(group)  # pyright: ignore[reportPrivateImportUsage]
        if is_sharded(each[0]):  # stacked first, for one all-reduce
            joined: Any = torch.stack(each)
            each = joined.full_tensor().unbind()
        for index, norm in zip(indices, each, strict=True):
            norms[index] = norm
    return norms_of_wholes(torch.stack(norms), tensors if parameters is None else parameters)


def by_mesh(tensors: Sequence[Tensor], *others: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """Yield groups of tensors that the same processes hold, for one operation on each group.

    Args:
      tensors: tensors on any processes.
      *others: lists of the same length, whose corresponding items are yielded as well.
    """
    # By attribute: torch takes more than a second to import the class of sharded tensors.
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    for mesh in dict.fromkeys(meshes):
        is_here = [other == mesh for other in meshes]
        yield [[*itertools.compress(items, is_here)] for items in (tensors, *others)]
