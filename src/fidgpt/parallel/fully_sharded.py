"""Fully sharded data parallelism: a process holds a part of each weight, and borrows the rest."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from fidgpt.parallel.data_parallel import Computation, DataParallel, ParallelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# What shards is imported where it is used: it takes longer than all else that a command starts.
Model = TypeVar("Model", bound=nn.Module)


class FullyShardedDataParallel(DataParallel):
    """Weights, gradients and the optimizer's memory are dealt over the processes (ZeRO, stage 3).

    Torch's `fully_shard`: a block is gathered when it is about to compute and let go afterwards,
    in the forward pass and again in the backward pass; the rest of the model (tables, the last
    norm) stays gathered from its forward to its backward pass. What is gathered is in the number
    format of the precision, what is kept, summed and stepped in float32. (Rajbhandari et al.,
    2020, arXiv:1910.02054; Zhao et al., 2023, arXiv:2304.11277.)

    One process computes as `DataParallel` does.

    Args:
      num_shards: processes that hold the model between them, neighbours by rank, such as those of
        one node; the others hold copies of it (hybrid sharding). All processes unless said.
      device: where the shards live; this process's accelerator, or the CPU, unless said.

    Raises:
      ValueError: `num_shards` is below 1.
      ParallelError: once the processes are known: `num_shards` does not divide their number.
    """

    def __init__(
        self, *, num_shards: int | None = None, device: torch.device | None = None
    ) -> None:
        if num_shards is not None and num_shards < 1:
            raise ValueError(f"{num_shards=} must be 1 or more, or None for all processes.")
        super().__init__(device=device)
        self.num_shards = num_shards

    def shards_of(self, world_size: int) -> int:
        """How many of so many processes share one copy of the model."""
        return min(self.num_shards or world_size, world_size)

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Makes every parameter of a model one of which this process holds a part.

        Blocks become one after the other what is gathered at once; a block that holds what
        another part holds too is left to the model as a whole, so that what is tied is gathered
        together.
        """
        if self.world_size == 1:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh, dtype = self._mesh(), precision.dtype
        kept = {name: vars(parameter) for name, parameter in model.named_parameters()}
        narrow = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        wide = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        for module in _kept_in_float32(model) if dtype != torch.float32 else []:
            fully_shard(module, mesh=mesh, mp_policy=wide, reshard_after_forward=False)
        for block in _blocks(model):
            fully_shard(block, mesh=mesh, mp_policy=narrow)
        fully_shard(model, mesh=mesh, mp_policy=narrow)
        for name, parameter in model.named_parameters():
            vars(parameter).update(kept[name])  # above all how it starts
        _gather_around_features(model)

    def replica(self, model: Model, precision: Computation) -> Model:
        """The model itself, which computes with what it gathers."""
        return super().replica(model, precision) if self.world_size == 1 else model

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Inside, a whole tensor that is copied into a parameter leaves each process its part."""
        if self.world_size == 1:
            yield
            return
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication():
            yield

    def place(self, module: nn.Module) -> nn.Module:
        """The module itself: the model inside averages its gradients."""
        return super().place(module) if self.world_size == 1 else module

    @contextlib.contextmanager
    def accumulating(self, module: nn.Module) -> Iterator[None]:
        """Inside, gradients stay on this process, whole: for every micro-batch but the last."""
        if self.world_size == 1:
            with super().accumulating(module):
                yield
            return
        from torch.distributed.fsdp import FSDPModule

        model = next(part for part in module.modules() if isinstance(part, FSDPModule))
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def _mesh(self) -> "DeviceMesh":
        from torch.distributed.device_mesh import init_device_mesh

        shards = self.shards_of(self.world_size)
        copies, left = divmod(self.world_size, shards)
        if left:
            raise ParallelError(
                f"num_shards={self.num_shards} does not divide {self.world_size} processes: start "
                "a whole multiple of it with torchrun, or set another num_shards."
            )
        if copies == 1:
            return init_device_mesh(self.device.type, (shards,), mesh_dim_names=("shard",))
        names = ("replicate", "shard")
        return init_device_mesh(self.device.type, (copies, shards), mesh_dim_names=names)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The parts of the model's lists that share no parameter with anything else, each once."""
    lists = [child for child in model.children() if isinstance(child, nn.ModuleList)]
    blocks = list(dict.fromkeys(block for one in lists for block in one))
    parts = [*blocks, *(child for child in model.children() if child not in lists)]
    holders = Counter(id(parameter) for part in parts for parameter in part.parameters())
    holders.update(id(parameter) for parameter in model.parameters(recurse=False))
    return [
        block
        for block in blocks
        if all(holders[id(parameter)] == 1 for parameter in block.parameters())
    ]


def _kept_in_float32(model: nn.Module) -> list[nn.Module]:
    """What computes with float32 weights whatever the rest does, such as the routers of experts."""
    return [
        module
        for module in model.modules()
        if getattr(module, "keeps_float32", False) and next(module.parameters(), None) is not None
    ]


def _gather_around_features(model: nn.Module) -> None:
    """Lets `features` gather too, as `forward` does, and `train` and `eval` let go.

    After `features` the unembedding is used as well, so that what is not in blocks stays gathered
    until a backward pass ends. Where none follows, `train` and `eval` are what is said between two
    passes; and whoever reads or changes weights there is to find shards.
    """
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    assert isinstance(model, FSDPModule)
    if hasattr(model, "features"):
        register_fsdp_forward_method(model, "features")
    switch = model.train

    def train(mode: bool = True) -> nn.Module:
        model.reshard()
        return switch(mode)

    setattr(model, "train", train)  # noqa: B010


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is spread over a mesh of devices, whose class takes a second to import."""
    return hasattr(tensor, "device_mesh")
