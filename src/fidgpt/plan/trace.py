"""One micro-batch of a process's share of a model, executed without memory: work and activations.

One block of each kind stands for all of its kind. The model is divided over the axes of a mesh as
in a run, by the same components, whose collectives are recorded in place of being sent.
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config

from fidgpt import cost
from fidgpt.attributes import changed
from fidgpt.model.quantized import NF4Weight
from fidgpt.model.transformer import LanguageModel
from fidgpt.model.wrappers import Compiled, InFloat8
from fidgpt.parallel.sharding import fsdp_units
from fidgpt.placement import shards_of
from fidgpt.processes import Processes
from fidgpt.recording import Product, Recorder, Sent, Work, fused_operations, mark, plan_kernels

__all__ = ["Part", "Trace", "Unit", "divided_again", "repeated", "trace", "untraced"]

BEGIN, END, LOSS = "begin", "end", "loss"
_BACKWARD = "backward of "


class Unit(NamedTuple):
    """Weights that FSDP would gather together, of those that one axis divides.

    Attributes:
      axis: name of the axis that divides them; "" for none.
      kind: as `fidgpt.parallel.sharding.fsdp_units` returns.
      number: of the unit, in the model.
    """

    axis: str
    kind: str
    number: int


_T = TypeVar("_T", Product, Sent)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A kind of blocks, or the computation before or after all blocks, or of the loss.

    Attributes:
      name: `begin`, `end` with the loss, or the first layer of a kind.
      layers: the indices of its layers; empty outside of blocks.
      distinct: share of its layers that have weights of their own, as several may use one block.
      forward: work of the forward pass of one layer.
      loss: the work in it that is left out where tokens are counted first.
      backward: work of the backward pass, with what it recomputes.
      kept: bytes that one layer keeps from its forward to its backward pass.
      unplaced: bytes of those gradients of one layer that are as large as each tensor of its
        forward pass, so that no such tensor leaves a hole for them in a heap.
      parameters: elements of its weights, by unit.
      trained: elements of its trained weights, by the same units.
      tied: elements of weights that count in another part and that this one uses too, and those
        of them that are trained.
      summed: elements of gradients that processes of an axis sum, by the name of the axis.
      is_compiled: whether it is compiled.
      is_float8: whether it multiplies in 8 bits.
    """

    name: str
    layers: tuple[int, ...] = ()
    distinct: float = 1.0
    forward: Work
    loss: Work = field(default_factory=Work)
    backward: Work
    kept: int = 0
    unplaced: int = 0
    parameters: Mapping[Unit, int]
    trained: Mapping[Unit, int]
    tied: Mapping[Unit, tuple[int, int]] = field(default_factory=dict)
    summed: Mapping[str, int] = field(default_factory=dict)
    is_compiled: bool = False
    is_float8: bool = False

    @property
    def size(self) -> int:
        """Elements of its weights."""
        return sum(self.parameters.values())

    def num_distinct(self, layers: int) -> float:
        """Return how many times a stage with so many of its layers has its weights."""
        return max(min(layers, 1), layers * self.distinct)

    def with_tied(self) -> "Part":
        """Return the part of a process that holds no other part which uses the same weights."""
        sizes, trained = Counter(self.parameters), Counter(self.trained)
        for unit, (number, number_trained) in self.tied.items():
            sizes[unit] += number
            trained[unit] += number_trained
        return replace(self, parameters=sizes, trained=trained)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A pass of a process.

    Attributes:
      parts: begin, kinds of blocks, end.
      kept: bytes from the forward to the backward pass, of the whole model.
      passing_in_blocks: the peak of what else exists in blocks.
      passing_outside: the same outside of them, such as logits.
      chunks: of logits that the rows of the loss fill.
      stream: bytes of what one layer gives the next.
      buffers: bytes that are no parameters, such as tables of positions.
    """

    parts: tuple[Part, ...]
    kept: int
    passing_in_blocks: int
    passing_outside: int
    chunks: float
    stream: int
    buffers: int = 0

    @property
    def passing(self) -> int:
        """The peak of what else exists in the pass."""
        return max(self.passing_in_blocks, self.passing_outside)

    @property
    def blocks(self) -> tuple[Part, ...]:
        """The kinds of blocks."""
        return self.parts[1:-1]


def repeated(one: Trace, two: Trace, number: int) -> Trace:
    """Return the trace of `number` sequences at once from the traces of one and of two."""

    def linear(first: int, second: int, sequences: float = number) -> int:
        return max(0, round(first + (sequences - 1) * (second - first)))

    def larger(amounts: Counter[_T], before: Counter[_T], names: Sequence[str]) -> Counter[_T]:
        """Return operations whose size grows with the rows, and more of them where none does."""
        grown = Counter[Any]()
        for each, count in amounts.items():
            sizes = {name: getattr(each, name) for name in names}
            doubled = [n for n, size in sizes.items() if each._replace(**{n: size // 2}) in before]
            if len(doubled) == 1:
                size = round(sizes[doubled[0]] * number / 2)
                grown[each._replace(**{doubled[0]: size})] += count
            else:
                grown[each] += count if before[each] == count else cast(int, count * number / 2)
        return grown

    def work(one: Work, two: Work) -> Work:
        return replace(
            two.times(number / 2),
            products=larger(two.products, one.products, ("m", "k", "n", "batch")),
            moved=one.moved + (number - 1) * (two.moved - one.moved),
            launches=two.launches,
            sent=larger(two.sent, one.sent, ("bytes",)),
        )

    parts = tuple(
        replace(
            b,
            forward=work(a.forward, b.forward),
            loss=work(a.loss, b.loss),
            backward=work(a.backward, b.backward),
            kept=linear(a.kept, b.kept),
        )
        for a, b in zip(one.parts, two.parts, strict=True)
    )
    # Two chunks of logits exist at once. Further rows add the gradients of their features alone.
    # A loss of pairs of answers may fill no chunk.
    full = min(number, max(2.0, 2 / one.chunks)) if 0 < one.chunks < 2 else number
    outside = linear(one.passing_outside, two.passing_outside, full)
    return replace(
        two,
        parts=parts,
        kept=linear(one.kept, two.kept),
        passing_in_blocks=linear(one.passing_in_blocks, two.passing_in_blocks),
        passing_outside=outside + round((number - full) * (two.stream - one.stream)),
        chunks=one.chunks * number,
        stream=linear(one.stream, two.stream),
    )


def divided_again(quarter: Trace, half: Trace) -> Trace | None:
    """Return the trace of twice as many processes on an axis, from two traces; None if unknown.

    It is known if two traces differ in the sizes of weights, and of the products with them, alone:
    then so does the next one.
    """

    def work(one: Work, two: Work) -> Work | None:
        others = [replace(each, products=Counter[Product]()) for each in (one, two)]
        if others[0] != others[1] or one.products.total() != two.products.total():
            return None
        products = Counter[Product]()
        for product, count in two.products.items():
            # With half as many experts, each is multiplied by twice as many rows.
            twice = [
                product._replace(batch=product.batch // 2, **{name: 2 * size})
                for name, size in (("m", product.m), ("k", product.k))
                if product._replace(batch=2 * product.batch, **{name: size // 2}) in one.products
            ]
            is_same = one.products[product] >= count
            if not is_same and len(twice) != 1:
                return None
            products[product if is_same else twice[0]] += count
        return replace(two, products=products)

    def elements(one: Mapping[Unit, int], two: Mapping[Unit, int]) -> dict[Unit, int]:
        return {unit: _next(one[unit], number) for unit, number in two.items()}

    if replace(quarter, parts=()) != replace(half, parts=()):
        return None
    parts = list[Part]()
    for a, b in zip(quarter.parts, half.parts, strict=True):
        forward, backward = work(a.forward, b.forward), work(a.backward, b.backward)
        if a.kept != b.kept or forward is None or backward is None:
            return None
        sizes = elements(a.parameters, b.parameters), elements(a.trained, b.trained)
        parts.append(
            replace(b, forward=forward, backward=backward, parameters=sizes[0], trained=sizes[1])
        )
    return replace(half, parts=tuple(parts))


def _next(first: int, second: int) -> int:
    """Return the next number of a geometric sequence."""
    return second * second // first if first else second


@dataclass(frozen=True, eq=False)
class RecordedProcesses(Processes):
    """Processes of an axis that are not there; what would be sent is recorded.

    Attributes:
      name: of the axis.
      tell: called with name, kind and bytes of a collective.
    """

    name: str = ""
    tell: Callable[[str, str, int], object] = lambda *_: None

    def record(self, kind: str, size: int) -> None:
        """Record a collective of a whole tensor of so many bytes."""
        self.tell(self.name, kind, size)


class Divider(Protocol):
    """Divides a model over axes, given the processes of each by its name."""

    def __call__(self, model: nn.Module, processes: Callable[[str, int], Processes], /) -> None: ...


def trace(
    model: LanguageModel,
    objective: Callable[[LanguageModel], nn.Module],
    divide: Divider,
    *,
    replica: Callable[[Any], Any],
    num_rows: int,
    sequences_per_row: int,
    seq_len: int,
    chunk_size: int,
    kinds: Mapping[str, Sequence[int]],
    borrowing: Collection[str],
) -> Trace:
    """Return what a micro-batch takes of a process.

    Args:
      model: with one block of each kind, without memory or full of zeros, which compute as a CPU
        does; it is divided, and of no use afterwards.
      objective: gives the module whose forward pass is the loss of tokens
        [rows, sequences_per_row * (seq_len + 1)].
      divide: over a mesh.
      replica: makes the model that computes, in its number format.
      num_rows: of the micro-batch.
      sequences_per_row: of each row.
      seq_len: tokens of each sequence, on all processes together.
      chunk_size: rows whose logits exist at once.
      kinds: by the name of a block, the layers of its kind.
      borrowing: names of axes that borrow the processes of others.
    """

    def tell(*sent: Any) -> None:
        recorder.send(*sent)  # which is made once the model is divided

    def processes(name: str, size: int) -> Processes:
        return RecordedProcesses(size, is_planned=True, name=name, tell=tell)

    divide(model, processes)
    computing = replica(model)
    is_narrow = any(parameter.dtype != torch.float32 for parameter in computing.parameters())
    weights = _weights(model, borrowing, is_narrow=is_narrow)
    is_meta = next(computing.parameters()).is_meta
    if is_meta:
        plan_kernels(computing)
    blocks = {name: computing.get_submodule(f"blocks.{name}") for name in kinds}
    width = sequences_per_row * (seq_len + 1)
    device = "meta" if is_meta else "cpu"
    batch = torch.zeros(num_rows, width, dtype=torch.int64, device=device)
    module = objective(computing)
    recorder = Recorder([*module.parameters(), *module.buffers(), batch])
    kept: dict[str, int] = {}
    stream, loss_rows = [0], [0]
    counts = {name: len(layers) for name, layers in kinds.items()}

    def enter(name: str, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        def finished() -> None:
            recorder.elsewhere -= (counts[name] - 1) * kept[name]
            recorder.enter(_BACKWARD + BEGIN)

        x = mark(args[0], partial(recorder.enter, name), finished)
        stream[0] = x.nbytes
        for module in block.modules():  # what layers share is made by the first of them
            if hasattr(type(module), "prepare_pass"):
                cast(Any, module).prepare_pass(args[1], x.dtype)
        kept[name] = recorder.now - args[1].shared_bytes()
        return x, *args[1:]

    def leave(name: str, block: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        kept[name] = recorder.now - args[1].shared_bytes() - kept[name]
        recorder.elsewhere += (counts[name] - 1) * kept[name]
        return mark(out, partial(recorder.enter, END), partial(recorder.enter, _BACKWARD + name))

    def begin_loss(rows: int) -> None:
        loss_rows[0] = rows
        recorder.enter(LOSS)

    with ExitStack() as stack:
        for name, block in blocks.items():
            stack.enter_context(block.register_forward_pre_hook(partial(enter, name)))
            # Before the hooks that end a run of blocks whose stream is split.
            hook = block.register_forward_hook(partial(leave, name), prepend=True)
            stack.enter_context(hook)
        for parameter in module.parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(_drop)
                stack.enter_context(handle)
        for each in module.modules():  # some predict tokens of their own
            if hasattr(loss := getattr(each, "loss", None), "rows_on"):
                each.loss = _Marked.of(loss, begin_loss, partial(recorder.enter, END))
        stack.enter_context(fused_operations() if is_meta else nullcontext())
        # What counts in a loss is unknown without numbers: all tokens are taken.
        stack.enter_context(changed(_config, meta_nonzero_assume_all_nonzero=True))
        stack.enter_context(recorder)
        loss = module.train()(batch)
        most = recorder.now + recorder.elsewhere
        recorder.enter(_BACKWARD + END)
        if loss.requires_grad:
            loss.backward()
    chunks = loss_rows[0] / chunk_size
    return _trace_of(computing, weights, recorder, kinds, kept, most, stream[0], chunks)


def untraced(
    model: LanguageModel, kinds: Mapping[str, Sequence[int]], borrowing: Collection[str]
) -> Trace:
    """Return the weights alone, of a model that cannot be executed without values."""
    weights = _weights(model, borrowing, is_narrow=False)
    return _trace_of(model, weights, Recorder([]), kinds, dict.fromkeys(kinds, 0), 0, 0, 1)


class _Weight(NamedTuple):
    """A parameter's unit, and the elements of its gradient that are summed, by axis."""

    unit: Unit
    summed: Mapping[str, int]


def _weights(
    model: nn.Module, borrowing: Collection[str], *, is_narrow: bool
) -> dict[str, _Weight]:
    """Return what is known of each parameter of a divided model, by its name."""
    axes = {parameter: _axis_of(parameter, borrowing) for parameter in model.parameters()}
    apart = {parameter for parameter, axis in axes.items() if axis in borrowing}
    units = dict[nn.Parameter, Unit]()
    for number, (module, kind) in enumerate(fsdp_units(model, apart, is_narrow=is_narrow).items()):
        for parameter in module.parameters():
            units.setdefault(parameter, Unit(axes[parameter], kind, number))
    return {
        name: _Weight(units[parameter], _summed(parameter))
        for name, parameter in model.named_parameters()
    }


def _summed(parameter: nn.Parameter) -> dict[str, int]:
    """Return how many elements of a gradient `reduce_gradients` sums over an axis, by its name."""
    return {
        shard.axis.name: parameter.numel() * (1 if shard.is_partial else shard.num_shards)
        for shard in shards_of(parameter)
        if isinstance(shard.axis, RecordedProcesses)
        and (shard.is_partial or (shard.dim is not None and shard.copies > 1))
    }


def _drop(parameter: Tensor) -> None:
    parameter.grad = None  # which are counted with the weights


class _Marked:
    """Makes a loss that calls functions as it begins and ends."""

    @classmethod
    def of(cls, loss: Any, begins: Callable[[int], object], ends: Callable[[], object]) -> Any:
        """Return a copy of a loss that calls `begins` with the number of its rows, and `ends`."""
        twin = copy.copy(loss)
        kind = type(loss)

        def call(self: Any, features: Tensor, *args: Any) -> Any:
            begins(features.numel() // features.shape[-1])
            result = kind.__call__(self, features, *args)
            ends()
            return result

        twin.__class__ = type(kind.__name__, (kind,), {"__call__": call})
        return twin


def _trace_of(
    model: nn.Module,
    weights: Mapping[str, _Weight],
    recorder: Recorder,
    kinds: Mapping[str, Sequence[int]],
    kept: Mapping[str, int],
    most: int,
    stream: int,
    chunks: float,
) -> Trace:
    sections = recorder.sections
    known = {parameter: weights[name] for name, parameter in model.named_parameters()}
    held: set[nn.Parameter] = set()

    def work(name: str) -> Work:
        return sections.get(name, Work())

    def part(name: str, modules: Sequence[nn.Module], **others: Any) -> Part:
        """Return a part of the pass; a weight counts in the first part that holds it."""
        every, trained, summed = Counter[Unit](), Counter[Unit](), Counter[str]()
        for parameter in (p for module in modules for p in module.parameters()):
            if parameter not in held:
                held.add(parameter)
                (unit, of_axes), number = known[parameter], parameter.numel()
                every[unit] += number
                trained[unit] += number * parameter.requires_grad
                summed.update(of_axes if parameter.requires_grad else {})
        return Part(
            name=name,
            forward=work(name),
            backward=work(_BACKWARD + name),
            parameters=every,
            trained=trained,
            summed=summed,
            **others,
        )

    embedding = getattr(model, "embedding", None)
    first = [embedding] if isinstance(embedding, nn.Module) else []
    parts = [part(BEGIN, first)]
    buffers = cost.bytes_of(model.buffers())
    for name, layers in kinds.items():
        block = model.get_submodule(f"blocks.{name}")
        trained = [p.nbytes for p in block.parameters() if p.requires_grad]
        parts.append(
            part(
                name,
                [block],
                layers=tuple(layers),
                kept=kept[name],
                unplaced=sum(n for n in trained if n >= recorder.largest.get(name, 0)),
                is_compiled=isinstance(block, Compiled),
                is_float8=any(isinstance(module, InFloat8) for module in block.modules()),
            )
        )
        quantized = [module for module in block.modules() if isinstance(module, NF4Weight)]
        codes = sum(cost.bytes_of(weight.buffers()) for weight in quantized)
        buffers += (len(layers) - 1) * codes  # one block stands for all layers
    tied = dict[Unit, tuple[int, int]]()
    last = cast(Any, model).ends()[1] if kinds else []
    for parameter in held.intersection(p for module in last for p in module.parameters()):
        number, number_trained = tied.get(unit := known[parameter].unit, (0, 0))
        size = parameter.numel()
        tied[unit] = number + size, number_trained + size * parameter.requires_grad
    end = part(END, [model], tied=tied)
    # On the meta device, two chunks of logits stand for all.
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    loss = work(LOSS).times(max(1.0, chunks / 2) if is_meta else 1.0)
    of_blocks = {f"{way}{name}" for name in kinds for way in ("", _BACKWARD)}
    peaks = {name: max(0, peak - most) for name, peak in recorder.peaks.items()}
    return Trace(
        parts=(*parts, replace(end, forward=end.forward + loss, loss=loss)),
        kept=most,
        passing_in_blocks=max((peaks.get(name, 0) for name in of_blocks), default=0),
        passing_outside=max((peaks[name] for name in peaks.keys() - of_blocks), default=0),
        chunks=chunks,
        stream=stream,
        buffers=buffers,
    )


def _axis_of(parameter: nn.Parameter, borrowing: Collection[str]) -> str:
    """Return the name of the last axis that divides a parameter, as expert; "" if there is none.

    A whole parameter of a component that such a borrowing axis divides belongs to it, too.
    """
    for shard in reversed(shards_of(parameter)):
        axis = shard.axis
        if isinstance(axis, RecordedProcesses) and (shard.divides or axis.name in borrowing):
            return axis.name
    return ""
