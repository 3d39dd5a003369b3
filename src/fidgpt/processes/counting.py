"""Counts of the collectives that a step of a model takes, by kind and by block."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# By what the names of torch's operators contain, with and without autograd or a function's form.
_OPERATORS = {
    "reducescatter": "reduce-scatter",
    "allgather": "all-gather",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "send": "send",
}
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast", "send")
OUTSIDE = "outside of blocks"

CollectiveCounts = dict[str, Counter[str]]  # by the path of a block, or OUTSIDE; then by kind


class CollectiveCounter(TorchDispatchMode):
    """Counts operators of torch.distributed under the block that is computing.

    Attributes:
      counts: the counts so far.
      sizes: bytes of whole tensors by kind; what this process sends of those that are exchanged.
      block: path of the block that computes.
      is_paused: whether nothing is counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: CollectiveCounts = {}
        self.sizes = Counter[str]()
        self.block = OUTSIDE
        self.is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if "c10d" in func.namespace and not self.is_paused:
            name = func.name().partition("::")[2].replace("_", "")
            kind = next((kind for part, kind in _OPERATORS.items() if part in name), None)
            if kind is not None:
                self.counts.setdefault(self.block, Counter())[kind] += 1
                lists = (one if isinstance(one, list) else [one] for one in args)
                sizes = [x.nbytes for one in lists for x in one if isinstance(x, Tensor)]
                # The functional form of an all-gather has no output among its arguments.
                parts = args[1] if kind == "all-gather" and isinstance(args[1], int) else 1
                self.sizes[kind] += sizes[-1] if kind == "all-to-all" else parts * max(sizes)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counting(model: nn.Module) -> Iterator[CollectiveCounter]:
    """Context that counts the collectives of this process.

    Attributes each collective to the block that runs when it starts: in the backward pass, from
    the gradient of the block's output to the gradient of its input. What FSDP gathers ahead for one
    block counts for the block before, in the order of the pass.

    Args:
      model: whose module lists hold the blocks.
    """
    mode = CollectiveCounter()
    handles = [
        handle
        for list_name, blocks in model.named_children()
        if isinstance(blocks, nn.ModuleList)
        for number, block in enumerate(blocks)
        for handle in _follow(block, f"{list_name}.{number}", mode)
    ]
    with mode:
        yield mode
    for handle in handles:
        handle.remove()


def _follow(block: nn.Module, name: str, mode: CollectiveCounter) -> Iterator[Any]:
    """Keep `mode.block` right while a block computes; yield the handles of the hooks."""
    outer: list[str] = []

    def leave_backward(gradient: Tensor) -> None:
        # The block before, whose output this is, may have begun already.
        mode.block = OUTSIDE if mode.block == name else mode.block

    def enter_backward(gradient: Tensor) -> None:
        mode.block = name

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        outer.append(mode.block)
        mode.block = name
        if args and isinstance(args[0], Tensor) and args[0].requires_grad:
            args[0].register_hook(leave_backward)

    def leave(module: nn.Module, args: object, out: Any) -> None:
        mode.block = outer.pop()
        if isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(enter_backward)

    yield block.register_forward_pre_hook(enter, prepend=True)
    yield block.register_forward_hook(leave)
