"""The number format that a model computes in, while its weights are kept in float32."""

import copy
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.model import cpu
from fidgpt.ranges import require_positive, require_size
from fidgpt.train.device import VARIABLE, peak_flops, remembered
from fidgpt.train.gradients import by_mesh

__all__ = ["BFloat16", "Float16", "Float32", "Precision", "native_precision"]

Model = TypeVar("Model", bound=nn.Module)
_MIN_GAIN = 0.8  # far from measured gains: 2.2 and 4.7 on AMD Zen 4 and 5, 0.5 on some Intel Xeons
_LOWEST_SCALE = 1e-4  # below it, gradients did not overflow, but the run diverged


class LossScaling:
    """A factor that grows until gradients overflow, and shrinks when they do (torch's GradScaler).

    A step whose gradients overflow is skipped and the factor halved; after `growth_interval` steps
    in a row without overflow it is doubled.

    Args:
      init_scale: the initial factor.
      growth_interval: steps.

    Attributes:
      scale: the factor of the next step.

    Raises:
      ValueError: `init_scale` is not above 0, or `growth_interval` is below 1.
    """

    def __init__(self, *, init_scale: float = 65536.0, growth_interval: int = 2000) -> None:
        require_positive(init_scale=init_scale)
        require_size(growth_interval=growth_interval)
        self.scale = init_scale
        self.growth_interval = growth_interval
        self._steps = 0  # since the factor last changed

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients, which are in float32, by the factor; overflowed ones stay infinite."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        for (some,) in by_mesh(gradients):
            torch._foreach_mul_(some, 1.0 / self.scale)  # pyright: ignore[reportPrivateImportUsage]

    def accepts(self, *, is_finite: bool) -> bool:
        """Update the factor by a step's gradients; return whether to go on with the step.

        A step that is not finite with the lowest factor has diverged, which is for the policies to
        judge: it is accepted here.
        """
        if is_finite:
            self._steps += 1
            if self._steps >= self.growth_interval:  # a resumed run may have a shorter one
                self.scale, self._steps = 2 * self.scale, 0
            return True
        if self.scale < _LOWEST_SCALE:
            return True
        self.scale, self._steps = self.scale / 2, 0
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.scale, self._steps = state["scale"], state["steps"]


@runtime_checkable
class Precision(Protocol):
    """The number format of the computation.

    Optimizer, checkpoints and clipping see the model, whose weights are always float32; its replica
    computes. A step is: backward through the replica and `pull_gradients` for each micro-batch, the
    optimizer, `push_weights`. If weights are sharded over processes, the model is its own replica
    whatever the format: it gathers its weights in that format.

    Attributes:
      dtype: format of activations and matrix products.
      scaling: lifts small gradients into the range of the format; None if it needs none.
    """

    dtype: torch.dtype
    scaling: LossScaling | None

    def replica(self, model: Model) -> Model:
        """Return the model, or a copy in the format with the same ties.

        A module whose attribute `keeps_float32` is true keeps the format of its own parameters and
        buffers, and shares its buffers with the model, so that what training counts there is kept.
        """
        if self.dtype == torch.float32:
            return model
        copies: dict[int, Tensor] = {}
        for module in model.modules():
            exact = getattr(module, "keeps_float32", False)
            for parameter in module.parameters(recurse=False):
                values = parameter.detach().clone() if exact else parameter.detach().to(self.dtype)
                copies[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
            for buffer in module.buffers(recurse=False):
                dtype = self.dtype if buffer.is_floating_point() else buffer.dtype
                copies[id(buffer)] = buffer if exact else buffer.to(dtype, copy=True)
        return copy.deepcopy(model, copies)

    @torch.no_grad()
    def pull_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        """Add the replica's gradients to the model's, in float32, and clear the replica's."""
        for pairs in _some(_pairs(model, replica)):
            new: list[tuple[Tensor, Tensor]] = []
            old: list[tuple[Tensor, Tensor]] = []
            for weight, own in pairs:
                gradient, own.grad = own.grad, None
                if gradient is not None and weight.grad is not None:
                    old.append((weight.grad, gradient))
                elif gradient is not None:
                    weight.grad = torch.empty_like(gradient, dtype=torch.float32)
                    new.append((weight.grad, gradient))
            _each(torch._foreach_copy_, new)  # pyright: ignore[reportPrivateImportUsage]
            _each(torch._foreach_add_, old)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def return_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        """Move accumulated gradients to the replica, so that the sum is all-reduced."""
        for weight, own in _pairs(model, replica):
            if weight.grad is not None:
                own.grad, weight.grad = weight.grad.to(own.dtype), None

    @torch.no_grad()
    def push_weights(self, model: nn.Module, replica: nn.Module) -> None:
        """Copy the model's weights to the replica, after anything that changed them."""
        for pairs in _some(_pairs(model, replica)):
            swapped = [(own, weight) for weight, own in pairs]
            _each(torch._foreach_copy_, swapped)  # pyright: ignore[reportPrivateImportUsage]


def _pairs(model: nn.Module, replica: nn.Module) -> Iterable[tuple[nn.Parameter, nn.Parameter]]:
    """Return the parameters of both; none if the model is its own replica."""
    return () if replica is model else zip(model.parameters(), replica.parameters(), strict=True)


_AT_ONCE = 32  # tensors of one launch; what they hold is in memory twice


def _some(
    pairs: Iterable[tuple[nn.Parameter, nn.Parameter]],
) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
    """Yield pairs that one operation takes together: on a CPU one, where launches cost nothing."""
    left = [*pairs]
    alone = cpu.ENABLED and bool(left) and left[0][0].device.type == "cpu"
    size = 1 if alone else _AT_ONCE
    for begin in range(0, len(left), size):
        yield left[begin : begin + size]


def _each(operation: Callable[..., Any], pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Change the first tensor of each pair by the second, in place."""
    if pairs:
        operation([first for first, _ in pairs], [other for _, other in pairs])


class Float32(Precision):
    """Computes in float32: the model is its own replica.

    Args:
      products: for `torch.set_float32_matmul_precision`, of the whole process: "medium" takes other
        kernels, which on some CPUs are faster and as exact, and on others, as on GPUs, are not;
        None leaves it as it is.
    """

    dtype = torch.float32
    scaling: LossScaling | None = None

    def __init__(self, *, products: str | None = None) -> None:
        self.products = products

    def replica(self, model: Model) -> Model:
        """Return the model."""
        if self.products is not None:
            torch.set_float32_matmul_precision(self.products)
        return model


class BFloat16(Precision):
    """Computes on a bfloat16 copy of the weights, cast once a step.

    Autocast would cast each weight at each use and keep the rest in float32; here activations,
    norms and gradients are half as large too. Eight bits of mantissa cannot hold the small
    updates of training, so the weights that the optimizer updates stay float32 (Micikevicius et
    al., 2018, https://arxiv.org/abs/1710.03740, section 3.1). The replica is a function of the
    weights alone, so a resumed run computes the same numbers.
    """

    dtype = torch.bfloat16
    scaling: LossScaling | None = None

    def __init__(self) -> None:
        pass  # the constructor that a class inherits from a Protocol takes any arguments


class Float16(Precision):
    """Computes on a float16 copy of the weights, with the loss scaled: for GPUs without bfloat16.

    The range of float16 is 6e-8 to 65,504, and gradients may be smaller; the loss is multiplied
    before the backward pass and the gradients divided after it, in float32 (Micikevicius et al.,
    2018, sections 3.1 and 3.2).

    Args:
      init_scale: initial multiplier of the loss.
      growth_interval: steps without an overflow after which it is doubled.

    Raises:
      ValueError: as in `LossScaling`.
    """

    dtype = torch.float16

    def __init__(self, *, init_scale: float = 65536.0, growth_interval: int = 2000) -> None:
        self.scaling: LossScaling | None = LossScaling(
            init_scale=init_scale, growth_interval=growth_interval
        )


def native_precision() -> Precision:
    """Return the faster of bfloat16 and float32 for this machine's matrix products.

    On Nvidia GPUs that is bfloat16 since Ampere; on a CPU it is measured and remembered, as some
    that have instructions for bfloat16 multiply faster in float32. Never float16, whose range needs
    loss scaling and which CPUs emulate. The command `train.py` measures longer runs more closely,
    and records a format in place of this function (`train.estimates.tuning`).
    """
    return BFloat16() if _gains_by_bfloat16() else Float32()


def _gains_by_bfloat16() -> bool:
    named = os.environ.get(VARIABLE, "")  # a machine in place of this one, such as `h100x8`
    if named and not named.startswith("cpu"):
        return True  # as of all GPUs whose speed is known
    if torch.cuda.is_available() and not named:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.accelerator.is_available():
        return False  # no other kind was measured
    # Torch has no public function for this; a CPU without these emulates bfloat16.
    checks = (
        getattr(torch.cpu, name, lambda: False)
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    if not any(check() for check in checks):
        return False
    return _remembered_gain(torch.get_num_threads()) > _MIN_GAIN


@functools.cache
def _remembered_gain(num_threads: int) -> float:
    """Return what `gain_by_bfloat16` measured with so many threads, in this or another process."""
    return remembered("products", lambda: gain_by_bfloat16(), read=lambda gain: gain)


def gain_by_bfloat16() -> float:
    """Return how many times as fast as in float32 this CPU multiplies in bfloat16."""
    cpu_device = torch.device("cpu")
    return peak_flops(cpu_device, torch.bfloat16) / peak_flops(cpu_device, torch.float32)
