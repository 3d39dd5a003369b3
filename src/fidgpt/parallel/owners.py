"""Work on whole matrices, of which each process of a run has some.

Processes that hold copies of a matrix, or parts of it, would otherwise all repeat what needs the
whole, such as the orthogonalization of Muon. Here each matrix has one owner: the others send it
their parts, and it returns to each its part of the result, as in the distributed Muon of Liu et al.
(2025, arXiv:2502.16982, section 2.3) and in Dion (Ahn et al., 2025, arXiv:2504.05295).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fidgpt.parallel.placement import block_of, whole_shape
from fidgpt.placement import Job

if TYPE_CHECKING:
    from fidgpt.parallel.data_parallel import DataParallel

__all__ = ["Owners"]

_MOST = 2**25  # elements of the matrices that a process owns in a round, if they are several


class Held(NamedTuple):
    """What a process holds of a matrix: its place in the stack there, and rows and columns."""

    index: int
    rows: slice
    columns: slice


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix, who has what of it, and who computes it.

    Attributes:
      job: its number.
      shape: of the whole.
      held: what each process holds, by rank.
      sources: processes whose parts make up the whole.
      owner: the process that computes it.
    """

    job: int
    shape: tuple[int, int]
    held: Mapping[int, Held]
    sources: Sequence[int] = ()
    owner: int = 0

    @property
    def work(self) -> int:
        """Multiplications of a product of the matrix with itself."""
        rows, columns = self.shape
        return rows * columns * min(rows, columns)

    @property
    def holders(self) -> list[int]:
        """The processes that hold the whole matrix."""
        whole = (slice(0, self.shape[0]), slice(0, self.shape[1]))
        return [rank for rank, held in self.held.items() if held[1:] == whole]

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """Return the part of a whole matrix that a process holds, as a view."""
        return whole[self.held[rank].rows, self.held[rank].columns]

    def of(self, held: Tensor, rank: int) -> Tensor:
        """Return that part from what the process holds of the stack, as a view."""
        return held if held.dim() == 2 else held[self.held[rank].index]


class Route(NamedTuple):
    """A part of a matrix that one process sends to another, or to itself.

    Attributes:
      sender: rank of the process.
      receiver: rank of the other.
      sent: returns the part, on the sender.
      received: returns where it belongs, on the receiver.
    """

    sender: int
    receiver: int
    sent: Callable[[], Tensor]
    received: Callable[[], Tensor]


class Owners:
    """Divides jobs over all processes of a run, by the work of each matrix.

    A matrix that some processes hold whole is computed by one of them; of others, any process may
    be the owner. While processes compute, the parts of their next matrices are sent.

    Args:
      parallel: the processes.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self._parallel = parallel
        self._plans: dict[tuple[int, ...], list[list[Matrix]]] = {}

    def map(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return this process's part of each result; all processes call this with the same jobs."""
        key = tuple(id(job.parameter) for job in jobs)
        if key not in self._plans:
            self._plans[key] = self._planned(jobs)
        rounds = self._plans[key]
        parts = [job.part for job in jobs]
        results = [torch.zeros_like(part) for part in parts]
        collected = [self._collect(matrices, parts) for matrices in rounds[:1]]
        returned: list[Callable[[], object]] = []
        for number, matrices in enumerate(rounds):
            wholes = collected.pop()()
            if number + 1 < len(rounds):
                collected.append(self._collect(rounds[number + 1], parts))
            made = {one: jobs[one.job].function(whole) for one, whole in wholes.items()}
            returned.append(self._return(matrices, made, results))
            if number:
                returned.pop(0)()
        for finish in returned:
            finish()
        return results

    def _collect(
        self, matrices: Sequence[Matrix], parts: Sequence[Tensor]
    ) -> Callable[[], dict[Matrix, Tensor]]:
        """Begin to send parts to owners; return what waits for the matrices of this process."""
        rank = self._parallel.rank
        wholes = {one: parts[one.job].new_empty(one.shape) for one in matrices if one.owner == rank}
        finish = self._exchange(
            [
                Route(
                    source,
                    one.owner,
                    partial(one.of, parts[one.job], source),
                    partial(lambda one, source: one.cut(wholes[one], source), one, source),
                )
                for one in matrices
                for source in one.sources
            ],
            like=parts[0],
        )
        return lambda: (finish(), wholes)[1]

    def _return(
        self,
        matrices: Sequence[Matrix],
        made: Mapping[Matrix, Tensor],
        results: Sequence[Tensor],
    ) -> Callable[[], None]:
        """Begin to send results to all that hold parts of them; return what waits for those."""
        return self._exchange(
            [
                Route(
                    one.owner,
                    holder,
                    partial(lambda one, holder: one.cut(made[one], holder), one, holder),
                    partial(one.of, results[one.job], holder),
                )
                for one in matrices
                for holder in one.held
            ],
            like=results[0],
        )

    def _exchange(self, routes: Sequence[Route], *, like: Tensor) -> Callable[[], None]:
        """Begin to send along routes, of which all processes know; return what waits for it."""
        rank, size = self._parallel.rank, self._parallel.world_size
        outgoing = sorted((one for one in routes if one.sender == rank), key=lambda one: one[1])
        incoming = sorted((one for one in routes if one.receiver == rank), key=lambda one: one[0])
        pieces = [one.sent().flatten() for one in outgoing]
        targets = [one.received() for one in incoming]
        sent, came = [0] * size, [0] * size
        for route, piece in zip(outgoing, pieces, strict=True):
            sent[route.receiver] += piece.numel()
        for route, target in zip(incoming, targets, strict=True):
            came[route.sender] += target.numel()
        buffer, work = torch.cat([like.new_empty(0), *pieces]), None
        arriving = buffer
        if any(one.sender != one.receiver for one in routes):
            arriving = like.new_empty(sum(came))
            work = dist.all_to_all_single(arriving, buffer, came, sent, async_op=True)

        def finish() -> None:
            if work is not None:
                work.wait()
            numbers = [target.numel() for target in targets]
            for target, piece in zip(targets, arriving.split(numbers), strict=True):
                target.copy_(piece.view(target.shape))

        return finish

    def _planned(self, jobs: Sequence[Job]) -> list[list[Matrix]]:
        """Return the matrices of each round, with their owners; the same on all processes."""
        blocks = [block_of(job.parameter) for job in jobs]
        everyone = self._parallel.gather(
            [block and [*zip(block.begin, block.tensor.shape, strict=True)] for block in blocks]
        )
        matrices = [
            matrix
            for number, job in enumerate(jobs)
            for matrix in _matrices(
                number, whole_shape(job.parameter), [h[number] for h in everyone]
            )
        ]
        return _rounds(_with_owners(matrices, len(everyone)))


def _matrices(
    job: int, shape: Sequence[int], blocks: Sequence[Sequence[tuple[int, int]] | None]
) -> Iterator[Matrix]:
    """Yield the matrices of a stack, from the begin and the size of each process's block of it."""
    held: dict[int, dict[int, Held]] = {index: {} for index in range([1, *shape][-3])}
    for rank, block in enumerate(blocks):
        if block is not None:
            (first, number), *sides = [(0, 1), *block][-3:]
            rows, columns = (slice(begin, begin + size) for begin, size in sides)
            for index in range(number):
                held[first + index][rank] = Held(index, rows, columns)
    for parts in held.values():
        yield Matrix(job, (shape[-2], shape[-1]), parts)


def _with_owners(matrices: Sequence[Matrix], size: int) -> list[Matrix]:
    """Give each matrix an owner, so that all processes have about the same work.

    Those with the least choice come first, and of these the largest.
    """
    work = [0] * size
    owned = []
    choices = {matrix: matrix.holders or range(size) for matrix in matrices}
    for matrix in sorted(matrices, key=lambda one: (len(choices[one]), -one.work)):
        owner = min(choices[matrix], key=lambda rank: (work[rank], rank))
        work[owner] += matrix.work
        copies: dict[str, list[int]] = {}
        for rank, held in matrix.held.items():
            copies.setdefault(str(held[1:]), []).append(rank)
        # Of processes with the same part, the nearest: numbers are close on one machine.
        sources = [min(ranks, key=lambda rank: rank ^ owner) for ranks in copies.values()]
        owned.append(replace(matrix, owner=owner, sources=sources))
    return owned


def _rounds(matrices: Sequence[Matrix]) -> list[list[Matrix]]:
    """Divide matrices into rounds, in which each process owns few elements or a single matrix."""
    rounds: list[list[Matrix]] = []
    last: dict[int, tuple[int, int]] = {}  # of each owner: its last round, and its elements there
    for matrix in matrices:
        size = matrix.shape[0] * matrix.shape[1]
        number, elements = last.get(matrix.owner, (0, 0))
        if elements and elements + size > _MOST:
            number, elements = number + 1, 0
        last[matrix.owner] = (number, elements + size)
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(matrix)
    return rounds
