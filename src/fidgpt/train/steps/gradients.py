"""Gradients before a step: how large they are, and what may change them."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.parallel.sharding import is_sharded

_TORCHS_EPS = 1e-6  # what its clipping adds to a norm


@runtime_checkable
class GradientTransform(Protocol):
    """Changes gradients in place, before their norm is measured and clipped."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> None: ...


def require_bound(max_grad_norm: float | None) -> None:
    """Raises ValueError where gradients of no such norm would be left, or ones turned round."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(
            f"{max_grad_norm=} would leave no gradient: use one above 0, or None for no bound."
        )


class ClipByValue:
    """No number of a gradient is further from zero than `max_grad_value`.

    Args:
      max_grad_value: above 0.

    Raises:
      ValueError: it is not.
    """

    def __init__(self, max_grad_value: float) -> None:
        self.check_arguments(max_grad_value=max_grad_value)
        self.max_grad_value = max_grad_value

    @staticmethod
    def check_arguments(*, max_grad_value: float) -> None:
        """Raises ValueError unless the bound is above 0."""
        if not max_grad_value > 0:
            raise ValueError(f"{max_grad_value=} would leave no gradient: use one above 0.")

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = [p for p in parameters if p.grad is not None]
        for places in together(chosen):
            nn.utils.clip_grad_value_([chosen[place] for place in places], self.max_grad_value)


class GradientNorms:
    """Euclidean norms of gradients over all processes, of each parameter and of all together.

    Args:
      parameters: those without a gradient count nothing.

    Attributes:
      total: the norm of all of them as one vector, a tensor, so that nobody waits for it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.grad is not None]
        self._norms = norms_of([p.grad for p in self._parameters if p.grad is not None])
        self.total = torch.linalg.vector_norm(self._norms)

    def clip(self, max_norm: float | None) -> None:
        """Scales the gradients down, so that their total norm is `max_norm` at most."""
        if max_norm is None or self._is_within(max_norm):
            return
        for places in together(self._parameters):
            chosen = [self._parameters[place] for place in places]
            nn.utils.clip_grads_with_norm_(chosen, max_norm, self.total)

    def _is_within(self, max_norm: float) -> bool:
        """Whether torch would multiply with 1, which passes over memory for nothing.

        Not asked on a GPU, which would have to be waited for.
        """
        return self.total.device.type == "cpu" and bool(self.total + _TORCHS_EPS < max_norm)

    def over(self, parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
        """The norm over some of the parameters, as it was before clipping."""
        chosen = {id(parameter) for parameter in parameters}
        places = [i for i, p in enumerate(self._parameters) if id(p) in chosen]
        return torch.linalg.vector_norm(self._norms[places])

    def not_finite(self) -> list[nn.Parameter]:
        """The parameters whose gradients hold an infinity or no number, in the model's order."""
        wrong = (~self._norms.isfinite()).tolist()
        return [p for p, is_wrong in zip(self._parameters, wrong, strict=True) if is_wrong]


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor]) -> Float[Tensor, " tensors"]:
    """The Euclidean norm of each tensor; of one that is dealt over processes, that of all parts."""
    if not tensors:
        return torch.zeros(0)
    norms: list[Any] = [None] * len(tensors)
    for places in together(tensors):
        # One launch for all of them; torch's own clipping calls it too.
        each: Any = torch._foreach_norm(  # pyright: ignore[reportPrivateImportUsage]
            [tensors[place] for place in places]
        )
        if is_sharded(each[0]):  # stacked first, so that processes speak once
            joined: Any = torch.stack(each)
            each = joined.full_tensor().unbind()
        for place, norm in zip(places, each, strict=True):
            norms[place] = norm
    return torch.stack(norms)


def together(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places of tensors that one operation may take together, which lie on the same processes."""
    # Asked by name: torch takes more than a second to import the class of what is dealt out.
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    return [[p for p, own in enumerate(meshes) if own == mesh] for mesh in dict.fromkeys(meshes)]
