"""Steps on a GPU that is not there: torch computes shapes and devices on it, and no numbers.

An operation on tensors of two devices raises, and so does one that has no kernel for a GPU. Each
operation that makes Python wait for the device is counted.
"""

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fiddle as fdl
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.attention.flex_attention import AuxOutput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fidgpt import graph
from fidgpt.data import Batch
from fidgpt.model import kernels, materialization
from fidgpt.optim.groups import train_only
from fidgpt.train import Trainer, micro_batches, train_step
from fidgpt.train.step_metrics import StepStatus

GPU = torch.device("cuda", 0)
# Operations that only ask for memory, or for a device.
_FREE = {"aten::detach", "aten::empty", "aten::empty_like", "aten::new_empty", "aten::_unsafe_view"}
_FREE |= {"prim::device"}


@dataclass
class Taken:
    """What a step did.

    Attributes:
      waits: waits for the device, by operation and place.
      launches: operations that compute on the device, by name.
    """

    waits: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)


class Event:
    """A moment of the device, which computes nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        """Wait for the device."""
        _synchronize()


class Stream(Event):
    """A queue of work of the device."""

    def wait_stream(self, other: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: object = None) -> Event:
        """Return a moment."""
        return Event()


class Counting(TorchDispatchMode):
    """Counts operations, and answers those that read a number with 1."""

    current: "Counting | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.taken = Taken()

    def __enter__(self) -> Any:
        Counting.current = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Counting.current = None
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        devices = _devices((args, kwargs))
        if name in ("aten::_local_scalar_dense", "aten::equal"):
            self._wait(name, devices)
            return _one(args[0])
        out = func(*args, **kwargs)
        devices |= _devices(out)
        if "cuda" in devices and not (func.is_view or name in _FREE):
            self.taken.launches[name] += 1
        is_async = kwargs.get("non_blocking") or (name == "aten::copy_" and args[2:3] == (True,))
        if name in ("aten::_to_copy", "aten::copy_") and not is_async and len(devices) > 1:
            self._wait(name, devices)
        return out

    def _wait(self, name: str, devices: set[str]) -> None:
        if "cuda" in devices:
            self.taken.waits[f"{name} in {_place()}"] += 1


def _devices(tree: object) -> set[str]:
    return {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


def _one(tensor: Tensor) -> Any:
    kind = bool if tensor.dtype == torch.bool else float if tensor.is_floating_point() else int
    return kind(1)


def _place() -> str:
    """Return the innermost file and function of fidgpt."""
    frames = traceback.extract_stack()
    own = [(frame.filename.partition("src/fidgpt/")[2], frame.name) for frame in frames]
    return ":".join([place for place in own if place[0]][-1])


def _synchronize(*_: object) -> None:
    if Counting.current is not None:
        Counting.current.taken.waits[f"synchronize in {_place()}"] += 1


def _micro_batches(batch: Batch, model: Any, **options: Any) -> list[micro_batches.MicroBatch]:
    """Return micro-batches whose tokens were counted on the CPU, on the device."""
    with unset_fake_temporarily(), mock.patch.object(model, "division", None):
        parts = _split(batch, model, **{**options, "device": torch.device("cpu")})
    return [
        part._replace(batch=part.batch.map(lambda rows: torch.empty_like(rows, device=GPU)))
        for part in parts
    ]


_split = micro_batches.split_batch


def _flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    enable_gqa: bool,
    return_aux: object,
) -> tuple[Tensor, AuxOutput]:
    """Compute what FlexAttention fuses, which torch cannot trace on such a device."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).mT * scale
    sizes = [torch.arange(size, device=GPU) for size in scores.shape]
    places = [x.view(*[-1 if i == dim else 1 for i in range(4)]) for dim, x in enumerate(sizes)]
    scores = scores if score_mod is None else score_mod(scores, *places)
    scores = scores.masked_fill(~block_mask.mask_mod(*places), -1e30)
    mixed = scores.softmax(-1).to(value.dtype) @ value.repeat_interleave(groups, 1)
    return mixed, AuxOutput(lse=scores.float().logsumexp(-1))


@contextlib.contextmanager
def _patched() -> Iterator[None]:
    """Context in which torch and fidgpt take the device for one."""
    nothing, stream = contextlib.nullcontext, Stream()
    with contextlib.ExitStack() as stack:

        def patch(owner: Any, **values: Any) -> None:
            for name, value in values.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))

        patch(torch, Event=Event)
        patch(torch.random, fork_rng=lambda *_, **__: nothing())
        patch(torch.cuda, Stream=Stream, Event=Event, stream=lambda _: nothing())
        patch(torch.cuda, current_stream=lambda *_: stream, current_device=lambda: 0)
        patch(torch.accelerator, current_stream=lambda *_: stream)
        patch(torch.cuda, device_count=lambda: 1, set_device=lambda _: None)
        patch(torch.cuda, is_initialized=lambda: True, synchronize=_synchronize)
        patch(Tensor, record_stream=lambda *_: None)
        patch(materialization, initialize=lambda *_, **__: None, _fill=lambda *_, **__: None)
        patch(train_step, split_batch=_micro_batches)
        patch(kernels, _compiled=lambda _: _flex)
        yield


def take(cfg: fdl.Config[Trainer]) -> Taken:
    """Take two steps of a config, and count what the second does.

    The first one makes the optimizer's state.

    Raises:
      Exception: whatever an operation raises that mixes devices, or has no kernel.
    """
    with torch.device("meta"):
        trainer: Any = graph.build(cfg)
    counting = Counting()
    trainer.parallel._device = GPU
    rows = torch.arange(trainer.seq_len + 1).remainder(200).repeat(trainer.batch_size, 1)
    counted = torch.ones_like(rows, dtype=torch.bool)
    counted[0, 1 : trainer.seq_len // 2] = False

    def batch(step: int, *, rank: int, world_size: int) -> Batch:
        with unset_fake_temporarily():
            return Batch(rows.clone(), counted.clone())

    trainer.stream = SimpleNamespace(batch=batch, full_batches=float)
    with _patched(), trainer.parallel:
        trainer.parallel.shard(trainer.model, trainer.precision.dtype)
        with FakeTensorMode(allow_non_fake_inputs=True):
            _take(trainer, counting)
    return counting.taken


def _take(trainer: Any, counting: Counting) -> None:
    trainer.model.to = lambda device: None  # all of it is there already
    materialization.materialize(trainer.model, device=GPU, seed=0)
    train_only(trainer.model, trainer.trainable)
    state = trainer.init_state()
    for mode in (Counting(), counting):
        with mode:
            step, index = trainer.step, state.step
            batch = state.next_batch or step.load(trainer, state, index)
            status = lambda: StepStatus(seconds=(1.0,))  # noqa: E731
            step.launch(trainer, state, index, batch, status=status, loads_next=True)
    devices = {p.device for p in state.model.parameters()}
    assert devices == {GPU}, f"parameters are on {devices}"
