"""Work on whole matrices, divided among the processes of a run.

Processes that hold copies of a matrix, or parts of it, would otherwise all repeat what needs the
whole, such as the orthogonalization of Muon. Here each matrix has one owner: the others send it
their parts, and it returns to each its part of the result, as in the distributed Muon of Liu et al.
(2025, arXiv:2502.16982, section 2.3) and in Dion (Ahn et al., 2025, arXiv:2504.05295).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fidgpt.placement import block_of, whole_shape
from fidgpt.processes import Processes

_MOST = 2**25  # elements of the matrices that a process owns in a round, if they are several


class Job(NamedTuple):
    """A function of a whole matrix, or of each matrix in a stack; processes may hold parts of it.

    Attributes:
      part: what this process holds of the matrix, divided as the parameter is.
      parameter: with the place of its shard.
      function: returns a matrix of the same shape and dtype.
    """

    part: Any
    parameter: Any
    function: Callable[[Any], Any]


class Held(NamedTuple):
    """What a process holds of a matrix: its place in the stack there, and rows and columns."""

    place: int
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
        return held if held.dim() == 2 else held[self.held[rank].place]


class Round(NamedTuple):
    """The matrices that are computed at a time.

    Attributes:
      matrices: the matrices that this process owns, or of which it holds a part.
      is_collected: whether any process sends a part to another, which owns the matrix.
      is_returned: whether any owner sends a part of a result to another process.
    """

    matrices: list[Matrix]
    is_collected: bool
    is_returned: bool


class MatrixScheduler:
    """Divides jobs over all processes of a run, by the work of each matrix.

    A matrix that some processes hold whole is computed by one of them; of others, any process may
    be the owner. While processes compute, the parts of their next matrices are sent.

    Args:
      processes: all of the run.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._plans: dict[tuple[int, ...], list[Round]] = {}

    def map(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return this process's part of each result; all processes call this with the same jobs."""
        key = tuple(id(job.parameter) for job in jobs)
        if key not in self._plans:
            self._plans[key] = self._planned(jobs)
        rounds = self._plans[key]
        parts = [job.part for job in jobs]
        results = [torch.zeros_like(part) for part in parts]
        collected = [self._collect(now, parts) for now in rounds[:1]]
        returned: list[Callable[[], object]] = []
        for number, now in enumerate(rounds):
            wholes = collected.pop()()
            if number + 1 < len(rounds):
                collected.append(self._collect(rounds[number + 1], parts))
            computed = {m: jobs[m.job].function(whole) for m, whole in wholes.items()}
            returned.append(self._return(now, computed, results))
            if number:
                returned.pop(0)()
        for finish in returned:
            finish()
        return results

    def _collect(self, now: Round, parts: Sequence[Tensor]) -> Callable[[], dict[Matrix, Tensor]]:
        """Begin to send parts to owners; return what waits for the matrices of this process."""
        rank = self._processes.rank
        own = [matrix for matrix in now.matrices if matrix.owner == rank]
        wholes = {matrix: parts[matrix.job].new_empty(matrix.shape) for matrix in own}
        finish = self._processes.exchange(
            [(m.owner, m.of(parts[m.job], rank)) for m in now.matrices if rank in m.sources],
            [(source, m.cut(wholes[m], source)) for m in own for source in m.sources],
            like=parts[0],
            is_local=not now.is_collected,
        )

        def wait() -> dict[Matrix, Tensor]:
            finish()
            return wholes

        return wait

    def _return(
        self, now: Round, computed: Mapping[Matrix, Tensor], results: Sequence[Tensor]
    ) -> Callable[[], None]:
        """Begin to send results to all that hold parts of them; return what waits for those."""
        rank = self._processes.rank
        return self._processes.exchange(
            [(holder, m.cut(whole, holder)) for m, whole in computed.items() for holder in m.held],
            [(m.owner, m.of(results[m.job], rank)) for m in now.matrices if rank in m.held],
            like=results[0],
            is_local=not now.is_returned,
        )

    def _planned(self, jobs: Sequence[Job]) -> list[Round]:
        """Return the rounds in order; owners are the same on all processes."""
        blocks = [block_of(job.parameter) for job in jobs]
        everyone = self._processes.gather(
            [block and [*zip(block.begin, block.tensor.shape, strict=True)] for block in blocks]
        )
        matrices = [
            matrix
            for number, job in enumerate(jobs)
            for matrix in _matrices(
                number, whole_shape(job.parameter), [h[number] for h in everyone]
            )
        ]
        rank = self._processes.rank
        return [
            Round(
                [matrix for matrix in now if rank in matrix.held or matrix.owner == rank],
                any({*matrix.sources} != {matrix.owner} for matrix in now),
                any({*matrix.held} != {matrix.owner} for matrix in now),
            )
            for now in _rounds(_with_owners(matrices, len(everyone)))
        ]


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
    for matrix in sorted(matrices, key=lambda matrix: (len(choices[matrix]), -matrix.work)):
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
