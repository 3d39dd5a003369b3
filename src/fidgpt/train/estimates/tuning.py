"""Choosing number format, attention and compilation by what they gain on the machine at hand.

What a processor claims is no measure of what it gains: some with bfloat16 instructions multiply
twice as fast in float32. So the blocks and the loss of the very model are timed in each format,
forward and backward, and then its attention with each kernel.
"""

import contextlib
import copy
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fidgpt import cost
from fidgpt.declarations import ModuleWithKernel
from fidgpt.model.embedding import Unembedding
from fidgpt.model.kernels import Kernel, fastest
from fidgpt.model.wrappers import has_compiler
from fidgpt.train.device import remembered
from fidgpt.train.estimates.facts import Recipe
from fidgpt.train.loss import with_gradients
from fidgpt.train.precision import Precision, native_precision

_MIN_GAIN = 1.05  # times the speed of the most exact format, or of the kernel as it comes
_MIN_FLOPS = 2e12  # of a run that measuring may delay: about ten seconds
_LARGEST = 1e8  # parameters of a block that can be filled in passing
_PATIENCE = 2  # times as long, where other programs are in the way
_ROUNDS = 9  # at most, of each candidate, while none are; two at least
_PIECE_FLOPS = 4e9  # of one forward and backward pass: about 20 ms of a CPU
_MIN_TOKENS = 16
# Share of the time that threads may wait for a processor: the shortest times of a machine that is
# busy throughout agree with each other, and do not show what it does alone. It is 0.01 on an idle
# one, and 0.5 or more beside a program that uses all cores.
_WAITING = 0.1
_EXACT = 1e-5  # relative error of a product that still counts as float32; bfloat16 has 3e-3
_PROBE = 256  # rows and columns of that product
# Of a step's time outside of matrix products, compilation saved 28 to 37% at one to four million
# parameters, and less of large models (benchmarks/training). Compiling took 5 to 8 s, and more for
# each kind of block.
_SAVED, _COST, _COST_OF_KIND = 0.25, 8.0, 5.0
_MIN_SAVED = 0.05  # of a step


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Seconds of a training step without the optimizer's, as measured of candidates, by name.

    Attributes:
      seconds: of those that may be chosen; first the one that stays unless another gains enough.
      products: what matrix products take of that.
      is_steady: whether repeated measurements agreed.
    """

    seconds: Mapping[str, float]
    products: Mapping[str, float]
    is_steady: bool = True

    def compiled(self, name: str) -> float:
        """Return the estimated seconds of a compiled step with a candidate."""
        return self.seconds[name] - _SAVED * max(0.0, self.seconds[name] - self.products[name])

    def best(self, *, otherwise: str) -> str:
        """Return the fastest candidate, or the first one unless the fastest gains enough.

        Args:
          otherwise: the candidate to return if other programs disturbed the measurement.
        """
        first, best = next(iter(self.seconds)), min(self.seconds, key=self.seconds.__getitem__)
        if not self.is_steady:
            return otherwise if otherwise in self.seconds else first
        return first if self.seconds[first] < _MIN_GAIN * self.seconds[best] else best


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a run should compute with.

    Attributes:
      precision: the number format, one of those offered.
      reason: why, on one line.
      compiles: whether blocks are worth compiling.
      kernel: the name of attention's kernel; None to leave it as it comes.
      measured: the speeds that this is based on, by what was chosen by them.
    """

    precision: Precision
    reason: str
    compiles: bool = False
    kernel: str | None = None
    measured: Mapping[str, Speeds] = field(default_factory=dict)

    def noting(self, note: str, **changes: Any) -> "Choice":
        """Return a choice with some attributes changed, and the reason for that."""
        return replace(self, reason=f"{self.reason}; {note}", **changes)


@dataclass(frozen=True)
class Candidate:
    """One way to compute.

    Attributes:
      precision: the number format.
      kernel: of attention, where the model leaves it as it comes; None for that one.
    """

    precision: Precision
    kernel: Kernel | None = None

    def apply(self, module: nn.Module) -> None:
        """Change how a module computes, but for the format."""
        for attention in attentions_in(module) if self.kernel is not None else ():
            attention.kernel = self.kernel


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How closely candidates are timed.

    Attributes:
      seconds: for all of them together; up to twice as long while times disagree.
      steady: ratio of a candidate's two shortest times from which they disagree, since other
        programs are in the way.
    """

    seconds: float
    steady: float


# Formats differ by more than kernels of attention.
FORMATS, KERNELS = Effort(seconds=1.2, steady=1.3), Effort(seconds=0.4, steady=1.05)
_AS_IT_COMES = "as it comes"


def attentions_in(module: nn.Module) -> list[Any]:
    """Return the parts of a module whose attention kernel is as it comes."""
    parts = [part for part in module.modules() if isinstance(part, ModuleWithKernel)]
    return [part for part in parts if part.kernel is fastest]


def choose(
    run: Recipe,
    offered: Sequence[Precision],
    *,
    kernels: Mapping[str, Kernel],
    may_compile: bool,
    renew: bool = False,
) -> Choice | None:
    """Return what suits a run best; None if it is too short or too large to measure.

    The result is remembered in fidgpt's cache directory for the same processor, threads, libraries
    and shapes of the model; a measurement that other programs disturbed is not, and chooses no
    format but `native_precision` and no kernel. On accelerators nothing is measured: the last
    format is chosen there. Of several processes, which would disturb each other, nothing is
    measured either.

    Args:
      run: the run to measure.
      offered: number formats to choose from, the most exact one first.
      kernels: of attention to choose from, by their names, beside the one as it comes.
      may_compile: whether blocks may be compiled.
      renew: measure again, replacing the remembered result.
    """
    may_compile &= has_compiler()
    operations = 6 * cost.count_parameters(run.model).active
    if operations * run.num_steps * run.batch_size * run.seq_len < _MIN_FLOPS:
        return None
    if run.parallel.device.type != "cpu":
        reason = f"{name_of(offered[-1])}, as on every {run.parallel.device.type}"
        return Choice(precision=offered[-1], compiles=may_compile, reason=reason)
    pieces = pieces_of(run)
    if max(piece.num_parameters for piece in pieces) > _LARGEST or "RANK" in os.environ:
        return None
    formats = {name_of(precision): Candidate(precision) for precision in offered}
    speeds = _remembered(run, pieces, formats, FORMATS, renew=renew)
    best = speeds.best(otherwise=name_of(native_precision()))
    precision = formats[best].precision
    choice = Choice(
        precision=precision, reason=_gains(speeds, best), measured={"number format": speeds}
    )
    if may_compile:
        saved = speeds.seconds[best] - speeds.compiled(best)
        whole, takes = saved * run.num_steps, _COST + _COST_OF_KIND * max(1, len(pieces) - 1)
        choice = choice.noting(
            f"compiling would save {whole:,.0f} s and take about {takes:.0f} s",
            compiles=whole > takes and saved > _MIN_SAVED * speeds.seconds[best],
        )
    if not speeds.is_steady:
        choice = choice.noting("other programs disturbed the measurement")
    if kernels and (attentions := attentions_of(run)):
        candidates = {_AS_IT_COMES: Candidate(precision)}
        candidates |= {name: Candidate(precision, kernel) for name, kernel in kernels.items()}
        timed = _remembered(run, attentions, candidates, KERNELS, renew=renew)
        choice = _with_kernel(choice, timed)
    return choice


def _gains(speeds: Speeds, best: str) -> str:
    """Describe a candidate by how much faster it is than each of the others."""
    seconds = speeds.seconds
    gains = [f"{seconds[n] / seconds[best]:.2f} times as fast as {n}" for n in seconds if n != best]
    return ", ".join([best, *([" and ".join(gains)] if gains else [])])


def _with_kernel(choice: Choice, speeds: Speeds) -> Choice:
    """Return a choice with the fastest kernel of attention, if it gains enough."""
    choice = replace(choice, measured={**choice.measured, "attention": speeds})
    best = speeds.best(otherwise=_AS_IT_COMES)
    if best == _AS_IT_COMES:
        return choice
    gain = speeds.seconds[_AS_IT_COMES] / speeds.seconds[best]
    note = f"attention {best}, {gain:.2f} times as fast {_AS_IT_COMES}"
    return choice.noting(note, kernel=best)


def _remembered(
    run: Recipe,
    pieces: "Sequence[Piece]",
    candidates: Mapping[str, Candidate],
    effort: Effort,
    *,
    renew: bool,
) -> Speeds:
    """Return what was measured of candidates before, or measure it; see `measure`."""
    first = name_of(next(iter(candidates.values())).precision)
    kinds = [(cost.kind_of(piece.module), piece.count) for piece in pieces]
    measured = remembered(
        # Everything but the machine that the speed depends on.
        (kinds, run.seq_len, _rows(run), run.batch_size, [*candidates, first]),
        lambda: asdict(measure(run, pieces, candidates, effort)),
        read=lambda saved: saved if saved and saved["is_steady"] and not renew else None,
    )
    return Speeds(**measured)


def name_of(precision: Precision) -> str:
    """Return the name of a format, such as `float32` or `float32 (medium products)`."""
    name = str(precision.dtype).removeprefix("torch.")
    products = getattr(precision, "products", None)
    return f"{name} ({products} products)" if products else name


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Modules of the same kind and shapes; one of them is measured.

    Attributes:
      module: the one that is measured.
      index: of its layer; None for the unembedding, which is measured with the loss.
      count: how many there are.
    """

    module: nn.Module
    index: int | None
    count: int

    @property
    def num_parameters(self) -> int:
        """Parameters of the measured module."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def pieces_of(run: Recipe) -> list[Piece]:
    """Return the kinds of blocks, and the unembedding."""
    blocks = enumerate(getattr(run.model, "blocks", ()))
    return [*_kinds(blocks), Piece(module=run.model.unembedding, index=None, count=1)]


def attentions_of(run: Recipe) -> list[Piece]:
    """Return the kinds of attention whose kernel is as it comes."""
    blocks = enumerate(getattr(run.model, "blocks", ()))
    return _kinds((index, module) for index, block in blocks for module in attentions_in(block))


def _kinds(modules: Iterable[tuple[int, nn.Module]]) -> list[Piece]:
    """Return modules of layers by their kind."""
    kinds: dict[str, list[tuple[int, nn.Module]]] = {}
    for index, module in modules:
        kinds.setdefault(cost.kind_of(module), []).append((index, module))
    return [Piece(module=same[0][1], index=same[0][0], count=len(same)) for same in kinds.values()]


def _rows(run: Recipe) -> int:
    """Return the sequences that are computed at once."""
    return min(run.micro_batch_size or run.batch_size, run.batch_size)


def measure(
    run: Recipe, pieces: Sequence[Piece], candidates: Mapping[str, Candidate], effort: Effort
) -> Speeds:
    """Time one piece of each kind with each candidate, in turn.

    Args:
      run: whose batches and loss are timed.
      pieces: one of each kind.
      candidates: ways to compute; formats whose products are less exact are left out.
      effort: how long to measure.
    """
    usable = {
        name: candidate
        for name, candidate in candidates.items()
        if candidate.precision.dtype != torch.float32 or is_exact(candidate.precision)
    }
    usable = usable or dict(itertools.islice(candidates.items(), 1))
    taken = dict.fromkeys(usable, 0.0)
    products, is_steady, passes = dict(taken), True, run.batch_size / _rows(run)
    for piece in pieces:
        module = _with_values(piece.module).train()
        trials = [_Trial(run, piece, module, candidate) for candidate in usable.values()]
        timed = times_in_turn(trials, effort.seconds / len(pieces), effort.steady)
        for name, trial, times in zip(usable, trials, timed, strict=True):
            share = piece.count * run.batch_size * run.seq_len / trial.num_tokens
            taken[name] += min(took.computing for took in times) * share
            taken[name] += min(took.casting for took in times) * piece.count * passes
            products[name] += min(took.multiplying for took in times) * share
            is_steady &= agree(times, effort.steady)
    return Speeds(seconds=taken, products=products, is_steady=is_steady)


class _Timed(NamedTuple):
    """Seconds of a trial's three actions, and the share of them that threads waited for a core."""

    computing: float
    casting: float
    multiplying: float
    waiting: float


def agree(times: Sequence[_Timed], steady: float) -> bool:
    """Whether the two shortest times of computing agree, and no thread waited for a processor."""
    first, second = sorted(times)[:2]
    return (
        second.computing < steady * first.computing
        and max(first.waiting, second.waiting) < _WAITING
    )


def _waited() -> float:
    """Return the seconds that threads have waited for a processor; 0 if unknown, or for one."""
    waited = 0
    if torch.get_num_threads() == 1:
        return 0.0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread may have ended
            waited += int(file.read_text(encoding="ascii").split()[1])
    return waited / 1e9


class _Trial:
    """A piece with memory, in one format, that can be timed."""

    def __init__(self, run: Recipe, piece: Piece, module: nn.Module, candidate: Candidate) -> None:
        costs = 6 * cost.count_parameters(module).active
        at_most = max(_MIN_TOKENS, int(_PIECE_FLOPS / max(1, costs)))
        seq_len = min(run.seq_len, at_most)
        rows = max(1, min(_rows(run), at_most // run.seq_len))
        self.num_tokens = rows * seq_len
        self.precision = precision = candidate.precision
        self._module = module
        with computing_products(precision):  # which a replica may set for the whole process
            replica = precision.replica(module)
        self._is_own = replica is module
        # What is applied is for this trial alone.
        self._replica = copy.copy(replica) if candidate.kernel else replica
        candidate.apply(self._replica)
        # Of one document: a separator at every place would leave attention nothing to compute.
        token = int(getattr(run.model.layout, "end_of_text", None) == 0)
        tokens = torch.full((rows, seq_len), token, dtype=torch.int64, device="cpu")
        width = next(run.model.unembedding.parameters()).shape[-1]
        features = torch.randn(rows, seq_len, width, device="cpu")
        self._x = features.to(precision.dtype).requires_grad_()
        self._loss = run.loss if piece.index is None else None
        self._targets = tokens.flatten()
        self._ctx = run.model.layout(tokens).at_layer(piece.index or 0)
        self._weights = [
            part.weight.detach()
            for part in self._replica.modules()
            if isinstance(part, nn.Linear | Unembedding)
        ]

    def compute(self) -> None:
        """Run one forward and one backward pass."""
        if self._loss is not None:
            self._loss(self._x.flatten(0, 1), self._replica, self._targets, None).backward()
        else:
            out = self._replica(self._x, self._ctx)
            with_gradients(out, torch.ones_like(out)).backward()
        self._x.grad = None

    def cast(self) -> None:
        """Pull gradients and push weights, as a step does if the replica has weights of its own."""
        if self._is_own:
            self._module.zero_grad()
            return
        self.precision.pull_gradients(self._module, self._replica)
        self.precision.push_weights(self._module, self._replica)
        self._module.zero_grad()

    def multiply(self) -> None:
        """Compute the products of linear layers alone, one forward and two backward."""
        for weight in self._weights:
            rows, columns = weight.shape
            x = weight.new_ones(self.num_tokens, columns)
            out = weight.new_ones(self.num_tokens, rows)
            torch.mm(x, weight.T)
            torch.mm(out, weight)
            torch.mm(out.T, x)


def times_in_turn(trials: Sequence[_Trial], seconds: float, steady: float) -> list[list[_Timed]]:
    """Return the times of each trial, in rounds under the same conditions."""
    times: list[list[_Timed]] = [[] for _ in trials]
    begin, number = time.perf_counter(), 0
    while True:
        for trial, of_trial in zip(trials, times, strict=True):
            before = _waited()
            with computing_products(trial.precision):
                took = [_timed(action) for action in (trial.compute, trial.cast, trial.multiply)]
            if number:  # the first pass loads libraries and allocates memory
                of_trial.append(_Timed(*took, waiting=(_waited() - before) / sum(took)))
        spent, number = time.perf_counter() - begin, number + 1
        is_over = spent > seconds or number > _ROUNDS
        is_late = spent > _PATIENCE * seconds
        if number > 2 and is_over and (is_late or all(agree(each, steady) for each in times)):
            return times


def _timed(action: Callable[[], object]) -> float:
    # Other programs do not change the time that a single thread computes.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    action()
    return clock() - begin


@contextlib.contextmanager
def computing_products(precision: Precision) -> Iterator[None]:
    """Context in which products are computed as a run in this format computes them."""
    products = getattr(precision, "products", None)
    if products is None:
        yield
        return
    # Setting what torch has by default changes these too, by which compiled code is kept.
    mkldnn: Any = torch.backends.mkldnn
    kinds: list[Any] = [mkldnn.matmul, torch.backends.cuda.matmul]
    before = torch.get_float32_matmul_precision(), [kind.fp32_precision for kind in kinds]
    torch.set_float32_matmul_precision(products)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        for kind, setting in zip(kinds, before[1], strict=True):
            kind.fp32_precision = setting


def is_exact(
    precision: Precision, *, multiply: Callable[[Tensor, Tensor], Tensor] = torch.mm
) -> bool:
    """Return whether products in a format of float32 are as exact as float32."""
    a, b = (torch.randn(_PROBE, _PROBE, device="cpu") for _ in range(2))
    exact = a.double() @ b.double()
    with computing_products(precision):
        error = multiply(a, b).double() - exact
    return bool(error.norm() < _EXACT * exact.norm())


def _with_values(module: nn.Module) -> nn.Module:
    """Return a copy of a module with small random numbers, with the same ties."""
    numbers = torch.randn(4099, device="cpu") * 0.02  # of a prime length, so that rows differ

    def filled(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        repeats = -(-tensor.numel() // len(numbers))
        return numbers.repeat(repeats)[: tensor.numel()].view(tensor.shape)

    return cost.copied(module, filled)
