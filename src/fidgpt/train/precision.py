"""In which number format a model computes, while its weights are kept in float32."""

import copy
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.train.step import LossScaling

Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class Precision(Protocol):
    """The number format of the computation.

    Optimizer, checkpoints and clipping see the model, whose weights are float32 always. What
    computes is its replica. A step goes: backward through the replica and `pull_gradients`, as
    often as there are micro-batches; the optimizer; `push_weights`. Where weights are dealt over
    processes, the model is its own replica whatever the format: what it gathers of the weights is
    in it.

    Attributes:
      dtype: the format of activations and matrix products.
      scaling: lifts small gradients into the range of the format; None where it needs none.
    """

    dtype: torch.dtype
    scaling: LossScaling | None

    def replica(self, model: Model) -> Model:
        """The module that computes: the model itself, or a copy with the same ties."""
        ...

    def pull_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        """Adds the replica's gradients to the model's, in float32, and clears the replica's."""
        ...

    def lend_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        """Gives the replica back what was pulled: it adds to it, and processes add that up."""
        ...

    def push_weights(self, model: nn.Module, replica: nn.Module) -> None:
        """Gives the replica the model's weights, after anything that changed them."""
        ...


class Float32:
    """Everything in float32: the model is its own replica."""

    dtype = torch.float32
    scaling: LossScaling | None = None

    def replica(self, model: Model) -> Model:
        return model

    def pull_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        pass

    def lend_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        pass

    def push_weights(self, model: nn.Module, replica: nn.Module) -> None:
        pass


class _Narrow:
    """Computes on a copy of the weights in a narrow format."""

    dtype: torch.dtype

    def replica(self, model: Model) -> Model:
        """A copy of `model` in the format; a parameter held twice is held twice in the copy too.

        A module whose attribute `keeps_float32` is true keeps its own parameters and buffers as
        they are, and its buffers are those of the model: what training counts there is not lost.
        """
        twins: dict[int, Tensor] = {}
        for module in model.modules():
            exact = getattr(module, "keeps_float32", False)
            for parameter in module.parameters(recurse=False):
                values = parameter.detach().clone() if exact else parameter.detach().to(self.dtype)
                twins[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
            for buffer in module.buffers(recurse=False):
                twins[id(buffer)] = buffer if exact else _narrowed(buffer, self.dtype)
        return copy.deepcopy(model, twins)

    @torch.no_grad()
    def pull_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        if replica is model:
            return
        for weight, twin in zip(model.parameters(), replica.parameters(), strict=True):
            if twin.grad is None:
                continue
            if weight.grad is None:
                weight.grad = twin.grad.float()
            else:
                weight.grad += twin.grad
            twin.grad = None

    @torch.no_grad()
    def lend_gradients(self, model: nn.Module, replica: nn.Module) -> None:
        if replica is model:
            return
        for weight, twin in zip(model.parameters(), replica.parameters(), strict=True):
            if weight.grad is not None:
                twin.grad, weight.grad = weight.grad.to(twin.dtype), None

    @torch.no_grad()
    def push_weights(self, model: nn.Module, replica: nn.Module) -> None:
        if replica is model:
            return
        for weight, twin in zip(model.parameters(), replica.parameters(), strict=True):
            twin.copy_(weight)


class BFloat16(_Narrow):
    """Computes on a bfloat16 copy of the weights, cast once a step.

    Autocast would cast each weight at each use and keep the rest in float32; here activations,
    norms and gradients are half as large too. Eight bits of mantissa cannot hold the small
    updates of training, which is why the weights that the optimizer moves stay float32
    (Micikevicius et al., 2018, https://arxiv.org/abs/1710.03740, section 3.1). The replica is a
    function of the weights alone, so a run that resumes computes what it would have computed.
    """

    dtype = torch.bfloat16
    scaling: LossScaling | None = None


class Float16(_Narrow):
    """Computes on a float16 copy of the weights, with the loss scaled: for GPUs without bfloat16.

    A float16 ends at 65,504 and at 6e-8, which gradients fall below; the loss is multiplied before
    the backward pass and the gradients divided after it, in float32. (Micikevicius et al., 2018,
    sections 3.1 and 3.2.)

    Args:
      init_scale: what the loss is multiplied with at first.
      growth_interval: steps without an overflow after which it is doubled.

    Raises:
      ValueError: as in `LossScaling`.
    """

    dtype = torch.float16

    def __init__(self, *, init_scale: float = 65536.0, growth_interval: int = 2000) -> None:
        self.check_arguments(init_scale=init_scale, growth_interval=growth_interval)
        self.scaling: LossScaling | None = LossScaling(
            init_scale=init_scale, growth_interval=growth_interval
        )

    @staticmethod
    def check_arguments(*, init_scale: float, growth_interval: int) -> None:
        """Raises ValueError as `LossScaling` does."""
        LossScaling.check_arguments(init_scale=init_scale, growth_interval=growth_interval)


def _narrowed(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    return buffer.to(dtype, copy=True) if buffer.is_floating_point() else buffer.clone()


def native_precision() -> Precision:
    """What this machine computes fastest without harm: bfloat16 where it has it, else float32.

    A CPU has it with the instructions AVX512-BF16 or AMX, a GPU from Nvidia's Ampere on. Never
    float16, whose range needs loss scaling and which CPUs emulate.
    """
    return BFloat16() if _has_bfloat16() else Float32()


def _has_bfloat16() -> bool:
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.accelerator.is_available():
        return False  # measured on no other kind
    # torch calls these private, but says nothing public; without an answer, float32 is safe.
    asked = (
        getattr(torch.cpu, name, lambda: False)
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return any(has() for has in asked)
