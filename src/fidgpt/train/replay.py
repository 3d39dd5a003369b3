"""Silent corruption: steps that are computed twice from one state, and copies that are compared."""

import contextlib
import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fidgpt.attributes import changed
from fidgpt.parallel import DataParallel
from fidgpt.placement import block_of, held
from fidgpt.ranges import require_size
from fidgpt.train.checkpoints import tensors
from fidgpt.train.checkpoints.checkpoints import contents_of
from fidgpt.train.divergence import Diverged
from fidgpt.train.run_directory import RunError, print_stderr
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import Stopwatch

__all__ = ["StepReplay"]

Update = Callable[[], dict[str, Any]]
_CHUNK = 1 << 22  # elements that are hashed at once, as int64
_LISTED = 6
# Stages of a step, in their order: what differs in an early one spoils all that follow.
_STAGES = ("weight", "gradient", "result", "metrics")


class StepReplay:
    """Computes every `every`-th step twice from the same state, and compares all bits.

    A processor that computes something else for the same numbers now and then gives no error
    (Dixit et al., 2021, arXiv:2102.11245); Llama 3 was interrupted by such failures six times in 54
    days (Grattafiori et al., 2024, arXiv:2407.21783, table 5). State is the weights, buffers,
    optimizer, average, policies and random numbers; both computations have the same batch. Compared
    are 64-bit checksums of the weights and gradients during each backward pass, of the state after
    the step, and the metrics. A step whose loss or gradients are not finite only the first time
    counts as different. If processes hold copies of the same weights, their states before the step
    are compared as well: a bit that has changed in memory since the last replay is found so.

    What differs is reported by parameter and process, from the first stage of the step in which
    anything does, and the step is computed a third time, to tell a rare error from an algorithm
    that is not deterministic.

    The saved state is in main memory, as much as this process's part of a checkpoint. The second
    computation takes as long as the first; its time is `seconds/replay`.

    Args:
      every: steps.
      stops: whether a difference ends the run; if not, it is a warning, and the run continues with
        the third result.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(self, *, every: int = 1000, stops: bool = True) -> None:
        require_size(every=every)
        self.every = every
        self.stops = stops

    def due(self, step: int) -> bool:
        """Return whether to compute a step twice, counted from 1."""
        return step % self.every == 0

    def __call__(self, update: Update, state: TrainState, parallel: DataParallel) -> dict[str, Any]:
        """Take a step twice; return its metrics.

        All processes of a run call this.

        Args:
          update: takes the step after `state` and returns metrics; random numbers are seeded.
          state: of the run.
          parallel: the processes of the run.

        Raises:
          RunError: the results differ, or the states of processes that should be the same do.
          Diverged: the step is not finite, both times.
        """
        clock, step = state.clock, state.step + 1
        uncounted = changed(state, clock=Stopwatch(state.model.device))  # phases count one step
        with clock.phase("replay"):
            before = _Saved(state)
            self._report(_unlike_copies(before, step, parallel), parallel)
        first = _computed(update, state)
        with clock.phase("replay"), uncounted:
            before.restore(state)
            last = _computed(update, state)
            differences = parallel.world.gather(_different(first, last))
            if any(differences):
                before.restore(state)
                second, last = last, _computed(update, state)
                known = [_different(result, last) for result in (first, second)]
                repeats = [not any(parallel.world.gather(bool(d))) for d in known]
                self._report(_text(differences, step, repeats), parallel)
        return last.finish()

    def _report(self, text: str | None, parallel: DataParallel) -> None:
        if text is None:
            return
        if self.stops:
            raise RunError(text)
        if parallel.is_main:
            print_stderr(f"warning: {text}")


class _Saved:
    """A copy of the state before a step, in main memory.

    Attributes:
      checks: checksum of each tensor, by section and name.
      blocks: where the block of each tensor begins, of those that this process holds.
    """

    def __init__(self, state: TrainState) -> None:
        self._step = state.step
        sections, self._texts = contents_of(state.model, state.optimizer, {}, state.stateful)
        self._sections = {**sections, "buffers": _buffers(state)}
        every = {(s, name): x for s, named in self._sections.items() for name, x in named.items()}
        held_blocks = {key: block_of(x) for key, x in every.items() if key[0] in sections}
        self.blocks = {key: block.begin for key, block in held_blocks.items() if block is not None}
        self._live = {key: held(tensor) for key, tensor in every.items()}
        self.checks = _read({key: checksum(tensor) for key, tensor in self._live.items()})
        self._copies = {key: _kept(tensor) for key, tensor in self._live.items()}

    @torch.no_grad()
    def restore(self, state: TrainState) -> None:
        """Put the state back, bit for bit, into the tensors that had it."""
        for key, live in self._live.items():
            live.copy_(self._copies[key])
        optimizer = self._texts["optimizer.json"]
        tensors.load_optimizer(optimizer, self._sections["optimizer"], state.optimizer)
        memories = tensors.unflatten(
            self._texts.get("stateful.json", {}), self._sections.get("stateful", {})
        )
        for name, memory in memories.items():
            state.stateful[name].load_state_dict(memory)
        state.precision.push_weights(state.model, state.replica)
        state.step = self._step


def _buffers(state: TrainState) -> dict[str, Tensor]:
    """Return the buffers of model and replica; those that are not saved in checkpoints too."""
    modules = {"model": state.model, "replica": state.replica}
    named = {
        f"{which}.{name}": buffer
        for which, module in modules.items()
        for name, buffer in module.named_buffers()
    }
    saved = {id(tensor) for tensor in tensors.model_tensors(state.model).values()}
    return {name: tensor for name, tensor in named.items() if id(tensor) not in saved}


def _kept(tensor: Tensor) -> Tensor:
    # Pinned memory is copied to and from a GPU several times as fast.
    copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach())


Key = tuple[str, str]  # stage and name


@dataclass(frozen=True)
class _Result:
    """What came of a computation of a step.

    Attributes:
      outcome: its metrics, or why it is not finite.
      checks: checksums, and metrics as text, in which NaN equals NaN, by stage and name.
    """

    outcome: dict[str, Any] | Diverged
    checks: Mapping[Key, int | str]

    def finish(self) -> dict[str, Any]:
        """Return the metrics, or raise why there are none."""
        if isinstance(self.outcome, Diverged):
            raise self.outcome
        return self.outcome


def _computed(update: Update, state: TrainState) -> _Result:
    """Compute the step; the next computation draws the same random numbers."""
    device = state.model.device
    with (
        torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type),
        _watched(state.replica) as watched,
    ):
        try:
            outcome: Any = update()
        except Diverged as diverged:
            outcome = diverged
    sections, texts = contents_of(state.model, state.optimizer, {}, state.stateful)
    for named in sections.values():
        watched |= {("result", name): checksum(held(tensor)) for name, tensor in named.items()}
    checks: dict[Key, int | str] = {**_read(watched)}
    checks["result", "settings and policies"] = hash(repr(texts))
    metrics = {"loss and gradients": outcome} if isinstance(outcome, Diverged) else outcome
    return _Result(outcome, checks | {("metrics", k): repr(v) for k, v in metrics.items()})


@contextlib.contextmanager
def _watched(replica: nn.Module) -> Iterator[dict[Key, Tensor]]:
    """Collect checksums of each weight, and of its gradient, when a backward pass reaches it.

    The gradients are this process's own where torch reduces them later; gradients of sharded
    weights are reduced already.
    """
    checks: dict[Key, Tensor] = {}
    passes: dict[str, int] = {}

    def watch(name: str, parameter: Tensor) -> None:
        passes[name] = passes.get(name, 0) + 1
        place = name if passes[name] == 1 else f"{name} (micro-batch {passes[name]})"
        checks["weight", place] = checksum(held(parameter))
        if parameter.grad is not None:
            checks["gradient", place] = checksum(held(parameter.grad))

    handles = [
        parameter.register_post_accumulate_grad_hook(partial(watch, name))
        for name, parameter in replica.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield checks
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def checksum(tensor: Tensor) -> Tensor:
    """Return a 64-bit checksum of a tensor's bits as a tensor on its device.

    It is the sum of all elements as integers, each times an odd number that depends on its place,
    modulo 2^64: a single element that differs always shows, several but once in 2^64.
    """
    bits = tensor.detach().contiguous().flatten()
    if bits.dtype == torch.bool or bits.element_size() == 1:
        bits = bits.view(torch.uint8)
    else:
        sizes = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
        bits = bits.view(sizes[bits.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for begin in range(0, bits.numel(), _CHUNK):
        chunk = bits[begin : begin + _CHUNK].to(torch.int64)
        places = torch.arange(begin, begin + chunk.numel(), device=bits.device)
        # The constant spreads the factors over all 64 bits (Knuth, volume 3, 6.4); | 1: odd.
        total += (chunk * ((places * -7046029254386353131) | 1)).sum()
    return total


def _read(checks: Mapping[Key, Tensor]) -> dict[Key, int]:
    return {key: int(value) for key, value in checks.items()}


class _Difference(NamedTuple):
    """What differs on a process, in the first stage where anything does."""

    stage: str
    names: list[str]
    host: str


def _different(first: _Result, other: _Result) -> _Difference | None:
    keys = [*first.checks, *(other.checks.keys() - first.checks.keys())]
    bad = [key for key in keys if first.checks.get(key) != other.checks.get(key)]
    for stage in _STAGES:
        if names := [name for kind, name in bad if kind == stage]:
            return _Difference(stage, names, socket.gethostname())
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


_WHAT = {
    "weight": "weights changed while it was computed",
    "gradient": "gradients differ",
    "result": "the state after it differs",
    "metrics": "metrics differ",
}


def _text(differences: Sequence[_Difference | None], step: int, repeats: Sequence[bool]) -> str:
    """Describe what differs, where, and what to do.

    Args:
      differences: of each process.
      step: that was computed three times.
      repeats: whether the first, and the second result are the third.
    """
    stages = [difference.stage for difference in differences if difference is not None]
    stage = min(stages, key=_STAGES.index)
    places = "; ".join(
        f"on process {rank} ({difference.host}): {_listed(difference.names)}"
        for rank, difference in enumerate(differences)
        if difference is not None and difference.stage == stage
    )
    if any(repeats):
        which = "second" if repeats[1] else "first"
        advice = (
            f"A third computation equals the {which}, so that a processor or memory there makes "
            "rare errors: replace that machine, and resume from the last checkpoint."
        )
    else:
        advice = (
            "A third computation differs from both: use deterministic algorithms "
            "(--config=fiddler:use_determinism); if it is used, replace that machine."
        )
    return (
        f"step {step} was computed twice from the same state, and {_WHAT[stage]} {places}. {advice}"
    )


def _unlike_copies(saved: _Saved, step: int, parallel: DataParallel) -> str | None:
    """Compare the state of processes that hold the same blocks; describe what differs."""
    own = {(*key, begin): saved.checks[key] for key, begin in saved.blocks.items()}
    seals = parallel.world.gather((hash_of([*own]), hash_of([*own.items()])))
    if len(set(seals)) == len({place for place, _ in seals}):
        return None
    whole = parallel.world.gather((own, socket.gethostname()))
    lines = []
    for place in dict.fromkeys(place for place, _ in seals):
        ranks = [rank for rank, seal in enumerate(seals) if seal[0] == place]
        names = [key for key in whole[ranks[0]][0] if len({whole[r][0][key] for r in ranks}) > 1]
        for section, name, begin in names:
            values = [whole[rank][0][section, name, begin] for rank in ranks]
            usual = max(values, key=values.count)
            odd = [rank for rank, v in zip(ranks, values, strict=True) if v != usual]
            if 2 * values.count(usual) <= len(values):  # no majority
                odd = ranks
            on = ", ".join(f"{rank} ({whole[rank][1]})" for rank in odd)
            lines.append(f"{name} on {'process' if len(odd) == 1 else 'processes'} {on}")
    return (
        f"before step {step}, processes that hold copies of the same state hold other bits: "
        f"{_listed(lines)}. A bit has changed in memory or on the way since the last replay: "
        "replace that machine, and resume from a checkpoint that is older, with --resume_step."
    )


def hash_of(value: object) -> str:
    """Return a digest of plain values that is the same on every process."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
