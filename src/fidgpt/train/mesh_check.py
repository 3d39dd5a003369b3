"""A check that a run computes on its mesh what one process would: the loss and every gradient.

Errors of parallelism are silent: with a sum left out, the loss equals one process's and the
gradients do not. So one step is taken on one process and on the mesh, from the same weights and
tokens, and each parameter's gradient is gathered whole and compared. The collectives of the step
are counted by kind and by block.
"""

import contextlib
import importlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fidgpt.data import Batch
from fidgpt.data.streams import rows_of_rank
from fidgpt.parallel import MeshSizes
from fidgpt.placement import whole_of
from fidgpt.processes.ranks import run_ranks
from fidgpt.train.run_directory import RunDirectory

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer

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


# Sums of float32 in another order differ by about 1e-6 over a dozen layers, and by 2e-5 over those
# of a recurrence; an error of parallelism is one summand of a few, or one token of a few dozens.
BOUND = 5e-5
# Share of the norm of all gradients, below which a gradient is rounding and not compared to itself,
# such as the gradient of a bias of keys, which softmax ignores.
_TINY = 1e-3
ALONE = "One process fails without the mesh."  # the last line of its error
_ALIGNED = 0.999  # least cosine at which a gradient counts as a multiple of the right one


@dataclass
class Step:
    """What one step of training gives.

    Attributes:
      loss: the mean over all counted targets.
      norm: of all gradients, by which they are clipped.
      gradients: whole ones by the parameter's path, before they are clipped.
      outputs: sum of squares of what each part of a block returned, by path in order, on all
        processes.
      counts: collectives of this process.
    """

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    outputs: dict[str, float]
    counts: CollectiveCounts


@dataclass(frozen=True)
class Difference:
    """How a value on the mesh differs from the value in one process.

    Attributes:
      path: of the parameter, or `loss`, or `norm of all gradients`.
      error: norm of the difference, relative to the norm in one process.
      ratio: of the norm on the mesh to that in one process; inf or nan where that is zero.
      cosine: of the angle between both.
    """

    path: str
    error: float
    ratio: float = 1.0
    cosine: float = 1.0

    @property
    def is_bad(self) -> bool:
        """Whether it is more than rounding."""
        return not self.error <= BOUND  # NaN is bad

    def meaning(self, sizes: Mapping[str, int]) -> str:
        """Return what may have caused it, from the sizes of the mesh's axes."""
        if not self.is_bad:
            return ""
        if self.ratio == 0:
            return "no gradient on the mesh"
        if not math.isfinite(self.ratio):
            return "a gradient on the mesh only" if self.error == math.inf else "not finite"
        if self.cosine < _ALIGNED:
            return "not a multiple: a summand is missing or added twice, or inputs differ"
        for inverse in (False, True):
            for size, axes in _products(sizes).items():
                target = 1 / size if inverse else size
                if size > 1 and abs(self.ratio / target - 1) < 0.01:
                    named = " or ".join(axes)
                    if inverse:
                        return f"1/{size}: a sum over {named} is missing, or it is a mean"
                    return f"{size}: summed twice over {named}, or not averaged"
        return "a multiple of no axis: part of it is counted twice, or not at all"


def _products(sizes: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the axes, and products of axes, of each size; single axes first."""
    products: dict[int, list[str]] = {}
    names = [name for name, size in sizes.items() if size > 1]
    for length in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, length):
            size = math.prod(sizes[name] for name in chosen)
            products.setdefault(size, []).append(" x ".join(chosen))
    return products


@dataclass(frozen=True)
class Comparison:
    """One step on the mesh beside one process.

    Attributes:
      mesh: with all sizes.
      differences: of the loss, of the norm of all gradients, and of every parameter with a
        gradient; the worst first.
      first: path of the first part of the model whose output differs; None if none does.
      counts: collectives of the first process.
    """

    mesh: MeshSizes
    differences: tuple[Difference, ...]
    first: str | None
    counts: CollectiveCounts

    @classmethod
    def of(cls, mesh: MeshSizes, one: Step, other: Step) -> "Comparison":
        """Compare a step of one process with one on a mesh."""
        return cls(mesh, compare(one, other), _first_difference(one, other, mesh), other.counts)

    @property
    def bad(self) -> list[Difference]:
        """What differs by more than rounding."""
        return [difference for difference in self.differences if difference.is_bad]


def check_mesh(alone: "Trainer", shared: "Trainer", *, num_processes: int) -> Comparison:
    """Take one step on one process and one on a mesh of processes of this machine, and compare.

    Args:
      alone: for one process; small, in float32 and without dropout.
      shared: the same for the mesh, built again.
      num_processes: number of processes of the mesh.

    Raises:
      RanksError: a process fails, or the processes wait for each other.
    """
    # What every process would import, in place of this one.
    for name in ("device_mesh", "fsdp", "tensor.experimental"):
        importlib.import_module(f"torch.distributed.{name}")

    def compared() -> Comparison | None:
        try:
            expected = take_step(alone, joins=False) if dist.get_rank() == 0 else None
        except Exception as error:
            error.add_note(ALONE)
            raise
        other = take_step(shared, joins=True)
        mesh = shared.parallel.layout(num_processes)
        return None if expected is None else Comparison.of(mesh, expected, other)

    comparison = run_ranks(num_processes, compared)[0]
    assert comparison is not None
    return comparison


def take_step(trainer: "Trainer", *, joins: bool) -> Step:
    """Take one step on weights and tokens that leave no gradient zero.

    Args:
      trainer: which is used up.
      joins: whether this process belongs to the mesh of `trainer.parallel`; else it is alone.
    """
    gradients: dict[str, Tensor] = {}
    transform = trainer.gradient_transform

    def keep(parameters: Iterable[nn.Parameter]) -> None:
        counter.is_paused = True
        for name, parameter in state.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = whole_of(parameter.grad, parameter).clone()
        counter.is_paused = False
        if transform is not None:
            transform(parameters)

    trainer.gradient_transform = keep
    for parameter in trainer.model.parameters():
        setattr(parameter, "init", _spread)  # noqa: B010
    with trainer.parallel if joins else contextlib.nullcontext():
        parallel = trainer.parallel
        state = trainer.setup(RunDirectory(Path("unused"), texts={}))
        own = rows_of_rank(
            trainer.batch_size, rank=parallel.data_rank, world_size=parallel.data_size
        )
        batch = _batch(trainer).map(lambda rows: rows[own.start : own.stop])
        with counting(state.replica) as counter, _measuring(state.replica) as squares:
            row = trainer.update(state, batch)
        names = [name for name, _ in state.replica.named_modules()]  # the same on all processes
        zero = torch.zeros((), dtype=torch.float64)
        sums = torch.stack([torch.stack([zero, *squares.get(name, [])]).sum() for name in names])
        if joins:
            dist.all_reduce(sums)
    outputs = dict(zip(names, sums.tolist(), strict=True))
    named = {name: outputs[name] for name in [*squares, *names]}  # this process's outputs first
    return Step(float(row["loss"]), float(row["grad_norm"]), gradients, named, counter.counts)


@contextlib.contextmanager
def _measuring(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Context that sums the squares of outputs: of the model's children and of blocks' children."""
    # Listed rather than added up, which selective recomputation would take for a part of blocks.
    squares: dict[str, list[Tensor]] = {}

    def measure(name: str, out: Any) -> None:
        if isinstance(out, Tensor):
            squares.setdefault(name, []).append(out.detach().double().square().sum())

    handles = []
    for name, module in model.named_modules():
        parents = [model.get_submodule(name.rpartition(".")[0])]
        parents.append(model.get_submodule(name.rpartition(".")[0].rpartition(".")[0]))
        if name and (parents[0] is model or isinstance(parents[1], nn.ModuleList)):
            hook = partial(lambda name, module, args, out: measure(name, out), name)
            handles.append(module.register_forward_hook(hook))
    yield squares
    for handle in handles:
        handle.remove()


def _first_difference(expected: Step, other: Step, mesh: MeshSizes) -> str | None:
    """Return the path of the first output that differs, which processes may hold whole or split."""
    numbers = 1, mesh.token_copies, mesh.layer_copies
    for name, squares in expected.outputs.items():
        ratio = other.outputs.get(name, 0.0) / squares if squares else 1.0
        if all(abs(ratio / copies - 1) > 2 * BOUND for copies in numbers):
            return name
    return None


def _spread(tensor: Tensor, generator: torch.Generator | None) -> None:
    """Initialize so that no gradient is zero, as the gradients of adapters are at first."""
    tensor.normal_(
        std=1 / math.sqrt(tensor.shape[-1] if tensor.dim() > 1 else 25), generator=generator
    )
    if tensor.dim() == 1:
        tensor += 0.5


def _batch(trainer: "Trainer") -> Batch:
    """Return rows of a few documents, with unequal numbers of tokens that count in the loss."""
    rows, columns = trainer.batch_size * trainer.step.sequences_per_row, trainer.seq_len + 1
    generator = torch.Generator().manual_seed(trainer.seed)
    tokens = torch.randint(0, trainer.vocab_size, (rows, columns), generator=generator)
    counted = torch.ones_like(tokens, dtype=torch.bool)
    separator = getattr(getattr(trainer.model, "layout", None), "end_of_text", None)
    for row in range(rows):
        if separator is not None:
            tokens[row, [(3 + 5 * row) % columns, (15 + 7 * row) % columns]] = separator
        begin = columns - 1 - (columns // 2 + 5 * row) % (columns - 4)
        counted[row, begin + 2 :] = False
    return Batch(tokens, counted).map(lambda x: x.reshape(trainer.batch_size, -1))


def compare(one: Step, other: Step) -> tuple[Difference, ...]:
    """Return how the loss and each gradient differ between two steps; worst first."""
    numbers = {"loss": (one.loss, other.loss), "norm of all gradients": (one.norm, other.norm)}
    differences = [
        Difference(name, abs(there - here) / abs(here), there / here)
        for name, (here, there) in numbers.items()
    ]
    norms = {name: one.gradients[name].norm().item() for name in one.gradients}
    tiny = _TINY * math.hypot(*norms.values())
    for name in {**one.gradients, **other.gradients}:
        if name not in one.gradients:
            differences.append(Difference(name, math.inf, math.inf))
        elif name not in other.gradients:
            differences.append(Difference(name, 1.0, 0.0, 0.0))
        else:
            differences.append(_difference(name, one.gradients[name], other.gradients[name], tiny))
    return tuple(sorted(differences, key=lambda d: -math.inf if d.error != d.error else -d.error))


def _difference(path: str, expected: Tensor, other: Tensor, tiny: float) -> Difference:
    expected, other = expected.double(), other.double()
    here, there = expected.norm().item(), other.norm().item()
    both = here * there
    return Difference(
        path,
        error=(other - expected).norm().item() / (here + tiny),
        ratio=there / here if here else (1.0 if not there else math.inf),
        cosine=(expected * other).sum().item() / both if both else 1.0,
    )


_WORST = 8  # gradients that are listed at least
_MOST = 40


def comparison_text(comparison: Comparison) -> str:
    """Format a comparison: the worst gradients, and the collectives of a step."""
    bad, gradients = comparison.bad, len(comparison.differences) - 2
    rows = [
        (
            difference.path,
            f"{difference.error:.1e}",
            f"{difference.ratio:.4g}",
            difference.meaning(comparison.mesh.sizes) or "rounding",
        )
        for difference in comparison.differences[: max(_WORST, min(len(bad), _MOST))]
    ]
    header = ("worst first", "relative error", "ratio of norms", "")
    verdict = (
        f"The loss and all {gradients} gradients are those of one process, up to {BOUND:g}.\nWhat "
        "the optimizer makes of them is not compared, such as by the norm of a part of a weight."
    )
    if bad:
        verdict = f"{len(bad)} of the loss and {gradients} gradients differ by more than {BOUND:g}."
        if comparison.first is not None:
            verdict += (
                f"\nThe forward pass differs first in the output of {comparison.first}: gradients "
                "follow from it."
            )
        else:
            verdict += "\nThe forward pass is right: gradients are wrong from the backward pass on."
    lines = [*_table(header, rows, "<>><"), "", verdict, "", *counts_lines(comparison.counts)]
    return "".join(f"{line}\n" for line in lines)


def counts_lines(counts: CollectiveCounts) -> list[str]:
    """Format the collectives of each block in lines; blocks that are alike share a line."""
    kinds = [kind for kind in KINDS if any(row[kind] for row in counts.values())]
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, row in sorted(counts.items(), key=lambda item: _order(item[0])):
        alike.setdefault(tuple(row[kind] for kind in kinds), []).append(name)
    rows = [(_listed(names), *map(str, own)) for own, names in alike.items()]
    totals = [sum(row[kind] for row in counts.values()) for kind in kinds]
    header = ("collectives of a process", *kinds)
    return _table(header, [*rows, ("a step", *map(str, totals))], "<" + ">" * len(kinds))


def _order(name: str) -> tuple[bool, str, int]:
    stem, _, number = name.rpartition(".")
    return name == OUTSIDE, stem, int(number) if number.isdecimal() else 0


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return (
        f"each of {', '.join(names)}" if len(names) < 4 else f"each of {names[0]} ... {names[-1]}"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return the lines of a table, whose columns are flush with the left or right side."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]
