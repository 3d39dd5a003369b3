"""Processes that talk: all of a run, of an axis of its mesh, or all that save together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ParallelError", "Processes"]


class ParallelError(RuntimeError):
    """Another process of the run failed; the message has the reason."""


@dataclass(frozen=True, eq=False)
class Processes:
    """This process and those that it talks with; all of them call each method in the same order.

    Attributes:
      size: number of processes.
      rank: of this process among them.
      group: torch's group for collectives; None if this process is alone, or for all of the run.
      is_planned: whether there are no other processes: this one measures what it would hold, and
        collectives take its own tensors for the others' tensors.
      gate: waits until all processes are there, before they send objects; None if the collective
        itself is the wait.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    is_planned: bool = False
    gate: Callable[[], None] | None = None

    def __deepcopy__(self, memo: object) -> "Processes":
        return self  # groups cannot be copied

    @property
    def is_main(self) -> bool:
        """Whether this process does the work that is done once, such as writing files."""
        return self.rank == 0

    def record(self, kind: str, size: int) -> None:
        """Take note of a collective of so many bytes that a planned process would take part in."""

    def all_reduce(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors of one type, by one all-reduce."""
        if self.size == 1 or not values:
            return [*values]
        joined = torch.cat([value.flatten() for value in values])
        dist.all_reduce(joined, group=self.group)
        parts = joined.split([value.numel() for value in values])
        return [part.view_as(value) for part, value in zip(parts, values, strict=True)]

    def gather(self, value: Any) -> list[Any]:
        """Return the objects of all processes, by rank.

        Raises:
          RuntimeError: a process is gone, or does not come in time.
        """
        values = [value] * self.size
        if self.size > 1:
            if self.gate is not None:
                self.gate()
            dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the main process's object."""
        if self.size == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, group=self.group, group_src=0)
        return holder[0]

    def share(self, x: Tensor, *, source: int) -> Tensor:
        """Return a process's tensor, for which the others give one of its shape and type."""
        x = x.contiguous()
        if self.size > 1 and not self.is_planned:
            dist.broadcast(x, group=self.group, group_src=source)
        return x

    def begin_send(self, x: Tensor, rank: int) -> dist.Work:
        """Begin to send a contiguous tensor to a process, which calls `begin_receive`."""
        work = dist.isend(x, group=self.group, group_dst=rank)
        assert work is not None
        return work

    def begin_receive(self, buffer: Tensor, rank: int) -> dist.Work:
        """Begin to fill a contiguous tensor with what a process sends."""
        work = dist.irecv(buffer, group=self.group, group_src=rank)
        assert work is not None
        return work

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier(self.group)

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Run an action on every process; return all results, by rank.

        Raises:
          ParallelError: the action failed on another process; the failing one raises the error
            itself.
        """
        result, error = None, None
        try:
            result = action()
        except Exception as caught:
            error = caught
        outcomes = self.gather((result, None if error is None else str(error)))
        if error is not None:
            raise error
        failed = [rank for rank, (_, message) in enumerate(outcomes) if message is not None]
        if failed:
            raise ParallelError(f"process {failed[0]} failed: {outcomes[failed[0]][1]}")
        return [result for result, _ in outcomes]

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Run an action on the main process; return its result on all processes.

        Raises:
          ParallelError: on the other processes, if the action failed on the main one.
        """
        return self.together(lambda: action() if self.is_main else None)[0]

    def exchange(
        self,
        outgoing: Sequence[tuple[int, Tensor]],
        incoming: Sequence[tuple[int, Tensor]],
        *,
        like: Tensor,
        is_local: bool = False,
    ) -> Callable[[], None]:
        """Begin to send tensors by one all-to-all; return what waits until the others' are there.

        Args:
          outgoing: ranks, and what this process sends them.
          incoming: ranks, and where to put what they send; both sides list what two processes send
            each other in one order.
          like: a tensor of the type that is sent.
          is_local: whether every process sends to itself alone, so that no collective is needed.
        """
        sent, received = [0] * self.size, [0] * self.size
        for rank, tensor in outgoing:
            sent[rank] += tensor.numel()
        for rank, tensor in incoming:
            received[rank] += tensor.numel()
        ordered = [tensor.flatten() for _, tensor in sorted(outgoing, key=lambda pair: pair[0])]
        buffer, work = torch.cat([like.new_empty(0), *ordered]), None
        arriving = buffer
        if not is_local:
            arriving = like.new_empty(sum(received))
            work = dist.all_to_all_single(
                arriving, buffer, received, sent, group=self.group, async_op=True
            )

        def finish() -> None:
            if work is not None:
                work.wait()
            targets = [tensor for _, tensor in sorted(incoming, key=lambda pair: pair[0])]
            arrived = arriving.split([target.numel() for target in targets])
            for target, values in zip(targets, arrived, strict=True):
                target.copy_(values.view(target.shape))

        return finish

    def send(
        self, outgoing: Sequence[tuple[int, Tensor]], incoming: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send tensors to ranks, and fill others by what ranks send, without a copy of them all."""
        works = [self.begin_send(tensor, rank) for rank, tensor in outgoing]
        works += [self.begin_receive(tensor, rank) for rank, tensor in incoming]
        for work in works:
            work.wait()
