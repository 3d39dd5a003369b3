"""Muon: the momentum of each matrix, made orthogonal.

Processes that hold copies of a matrix, or parts of it, would otherwise all repeat what needs the
whole, such as the orthogonalization of Muon. Here each matrix has one owner: the others send it
their parts, and it returns to each its part of the result, as in the distributed Muon of Liu et al.
(2025, arXiv:2502.16982, section 2.3) and in Dion (Ahn et al., 2025, arXiv:2504.05295).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.optim.optimizers import Closure, Group, adamw, loss_of, require_settings
from fidgpt.placement import block_of, held, keep, placed_like, whole_of, whole_shape
from fidgpt.processes import Processes
from fidgpt.ranges import require_probability

__all__ = ["Muon"]

_MOST_ELEMENTS = 2**25  # of the matrices that a process owns in a round, if they are several


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
        return [rank for rank, place in self.held.items() if place[1:] == whole]

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """Return the part of a whole matrix that a process holds, as a view."""
        return whole[self.held[rank].rows, self.held[rank].columns]

    def of(self, stack: Tensor, rank: int) -> Tensor:
        """Return that part from what the process holds of the stack, as a view."""
        return stack if stack.dim() == 2 else stack[self.held[rank].place]


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
    places: dict[int, dict[int, Held]] = {index: {} for index in range([1, *shape][-3])}
    for rank, block in enumerate(blocks):
        if block is not None:
            (first, number), *sides = [(0, 1), *block][-3:]
            rows, columns = (slice(begin, begin + size) for begin, size in sides)
            for index in range(number):
                places[first + index][rank] = Held(index, rows, columns)
    for parts in places.values():
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
        for rank, place in matrix.held.items():
            copies.setdefault(str(place[1:]), []).append(rank)
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
        if elements and elements + size > _MOST_ELEMENTS:
            number, elements = number + 1, 0
        last[matrix.owner] = (number, elements + size)
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(matrix)
    return rounds


_MOST_ITERATIONS = 100  # the limit of torch.optim.Muon


class Muon(Optimizer):
    """Muon for groups with `orthogonal` set, AdamW for the others.

    Muon orthogonalizes the momentum of each matrix (Jordan et al., 2024; Liu et al., 2025,
    arXiv:2502.16982, whose scaling lets it share AdamW's learning rate and weight decay). A
    three-dimensional parameter is a stack of matrices, such as the weights of experts. The updates
    equal those of `torch.optim.Muon` and `torch.optim.AdamW`.

    Args:
      groups: parameter groups, such as `split_hidden_matrices` returns.
      lr: learning rate of both.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.
      momentum: Muon's momentum.
      nesterov: whether Muon uses Nesterov momentum.
      ns_steps: Newton-Schulz iterations.
      adjust_lr_fn: how updates scale with the shape of a matrix: "match_rms_adamw" matches the RMS
        of AdamW's updates; "original" is Jordan's scaling, for learning rates of about 0.02.
      betas: AdamW's decay rates.
      eps: added to AdamW's denominator.

    Attributes:
      workers: orthogonalize whole matrices; of a run of several processes, each has some of them.

    Raises:
      ValueError: no group is `orthogonal`, such a group holds a parameter that is not a matrix or a
        stack of matrices, or a value is out of range.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        *,
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        require_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        require_probability(momentum=momentum)
        if not 1 <= ns_steps < _MOST_ITERATIONS:
            raise ValueError(f"{ns_steps=} must be from 1 to {_MOST_ITERATIONS - 1}, such as 5.")
        super().__init__(
            [dict(group) for group in groups],
            {"lr": lr, "weight_decay": weight_decay, "orthogonal": False},
        )
        self._require_matrices()
        self.workers: MatrixScheduler | _Alone = _Alone()
        settings = torch.optim.Muon(
            [torch.zeros(1, 1)],
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        ).defaults
        for group in self.groups_of(orthogonal=True):
            _set_missing(group, settings)
        self._adamw = None
        if others := self.groups_of(orthogonal=False):
            self._adamw = adamw(others, lr=lr, betas=betas, eps=eps)
            for group, complete in zip(others, self._adamw.param_groups, strict=True):
                _set_missing(group, complete)

    def share_work(self, processes: Processes) -> None:
        """Let each process orthogonalize some matrices; see `SharesWork`."""
        self.workers = MatrixScheduler(processes)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Step once, and return the value of the closure."""
        loss = loss_of(closure)
        self._step_matrices()
        if self._adamw is not None:
            self._adamw.param_groups = self.groups_of(orthogonal=False)
            self._adamw.state = self.state
            self._adamw.step()
        return loss

    def _step_matrices(self) -> None:
        trained = [
            (group, parameter)
            for group in self.groups_of(orthogonal=True)
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        updates = self.workers.map(
            [
                Job(self._momentum(group, parameter), parameter, self._orthogonalizer(group))
                for group, parameter in trained
            ]
        )
        for (group, parameter), update in zip(trained, updates, strict=True):
            self._move(group, parameter, update)

    def _move(self, group: Group, parameter: Tensor, update: Tensor) -> None:
        """Decay weights, and move them by an orthogonal update."""
        weights, rate = held(parameter), group["lr"]
        weights.mul_(1 - rate * group["weight_decay"])
        weights.add_(update, alpha=-rate * scale_of(group, whole_shape(parameter)))

    def _orthogonalizer(self, group: Group) -> Any:
        names = {"steps": "ns_steps", "coefficients": "ns_coefficients", "eps": "eps"}
        return partial(orthogonalized, **{name: group[key] for name, key in names.items()})

    def _format(self, momentum: Tensor) -> torch.dtype:
        """Return the format in which matrices are sent to the processes that compute them."""
        return torch.bfloat16

    def _momentum(self, group: Group, parameter: Tensor) -> Tensor:
        """Update the momentum; return the matrix to orthogonalize, in the dtype for doing so."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"]
        own, momentum = held(gradient), held(buffer)
        momentum.lerp_(own, 1 - group["momentum"])
        ahead = own.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        return ahead.to(self._format(ahead))

    def groups_of(self, *, orthogonal: bool) -> list[Group]:
        """Return the groups of matrices, or the others."""
        return [group for group in self.param_groups if group["orthogonal"] == orthogonal]

    def _require_matrices(self) -> None:
        groups = self.groups_of(orthogonal=True)
        if not groups:
            raise ValueError(
                "no parameter group is orthogonal, so Muon would be plain AdamW; use "
                "split_hidden_matrices."
            )
        named = ((group.get("name"), list(p.shape)) for group in groups for p in group["params"])
        for name, shape in named:
            if len(shape) not in (2, 3):
                raise ValueError(
                    f"Muon cannot optimize a parameter of shape {shape} in the group {name!r}, "
                    "which is not a matrix or a stack of matrices; move it to a group that is not "
                    "orthogonal, by the `match` of the rule of that name in `groups`."
                )


class _Alone:
    """Does all jobs in this process; matrices that are divided are gathered one at a time."""

    def map(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return this process's part of each result."""
        return [on_whole(job.part, job.parameter, partial(_each, job.function)) for job in jobs]


def _each(function: Any, whole: Tensor) -> Tensor:
    """Return a function of a matrix, or of each in a stack."""
    return torch.stack([*map(function, whole)]) if whole.dim() == 3 else function(whole)


def on_whole(part: Tensor, parameter: Any, function: Any) -> Tensor:
    """Return this process's part of a function of a whole, which is gathered for it.

    Args:
      part: of the whole, divided as the parameter is.
      parameter: with the place of its shard.
      function: returns a tensor of the shape of the whole.
    """
    like = placed_like(torch.zeros_like(parameter, dtype=part.dtype), parameter)
    held(like).copy_(part)
    keep(like, function(whole_of(like, parameter)))
    return held(like)


def orthogonalized(
    matrix: Float[Tensor, "rows columns"],
    *,
    steps: int,
    coefficients: tuple[float, float, float],
    eps: float,
) -> Float[Tensor, "rows columns"]:
    """Return about UV^T of a matrix USV^T in bfloat16, by Newton-Schulz iterations.

    Each iteration maps X to aX + b(XX^T)X + c(XX^T)^2 X, of singular values at most 1 (Jordan et
    al., 2024). A CPU without products in bfloat16 iterates in float32.

    Args:
      matrix: of any scale.
      steps: iterations.
      coefficients: a, b and c.
      eps: least norm of the matrix.
    """
    first, cubic, quintic = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]  # products of the smaller side are cheaper
    x = matrix.bfloat16().to(products_format(matrix.device))
    x = x.mT if is_tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        both = torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic)
        x = torch.addmm(x, both, x, beta=first)
    return (x.mT if is_tall else x).bfloat16()


def products_format(device: torch.device) -> torch.dtype:
    """Return bfloat16, or float32 on a CPU where oneDNN has no products in bfloat16.

    There torch emulates them: a product of 512 x 512 and 512 x 2,048 elements took 65 times as long
    on a Zen 3, which has AVX2 alone, as many laptops do.
    """
    is_emulated = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if is_emulated else torch.bfloat16


def scale_of(group: Group, shape: Sequence[int]) -> float:
    """Return the factor of the updates of matrices [..., rows, columns]."""
    rows, columns = shape[-2:]
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _set_missing(group: Group, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        group.setdefault(name, value)
