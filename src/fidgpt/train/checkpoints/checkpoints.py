"""Saving and restoring checkpoints by policy."""

import contextlib
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.files import parse_json, read_bytes
from fidgpt.placement import whole_shape
from fidgpt.processes import Processes
from fidgpt.processes.heartbeat import BackgroundProcesses
from fidgpt.ranges import require_positive, require_size
from fidgpt.train.checkpoints import manifest, tensors
from fidgpt.train.checkpoints.manifest import CheckpointError, Saved
from fidgpt.train.checkpoints.memory import MemoryCheckpoints
from fidgpt.train.checkpoints.mirror import Mirror
from fidgpt.train.checkpoints.writing import SyncWriter
from fidgpt.train.run_directory import print_stderr
from fidgpt.train.state import Stateful

__all__ = ["Checkpoints", "EveryMinutes", "KeepBest", "KeepEvery"]

Warn = Callable[[str], object]


def save_files(
    pieces: tensors.Files,
    texts: Mapping[str, Any],
    final: Path,
    *,
    step: int,
    notes: Mapping[str, Any],
    peers: Processes,
) -> None:
    """Write a checkpoint from the parts of all processes, atomically.

    Args:
        pieces: of tensors that this process writes, by file and name.
        texts: JSON by the name of its file.
        final: the directory of the checkpoint.
        step: of the checkpoint.
        notes: plain values for the manifest.
        peers: the processes that write it.

    Raises:
        CheckpointError: it cannot be written; nothing half-written is left.
        ParallelError: another process could not write its part.
    """
    size = sum(piece.tensor.nbytes for file in pieces.values() for piece in file.values())

    @manifest.explained(final, size)
    def write() -> manifest.Seals:
        return tensors.write_files(temporary, pieces, texts)

    @manifest.explained(final, size)
    def seal_all() -> None:
        whole = {name: seal for table in seals for name, seal in table.items()}
        manifest.write_manifest(temporary, step=step, files=whole, notes=notes)
        publication.close()

    with contextlib.ExitStack() as publication:
        begin = partial(publication.enter_context, manifest.publishing(final))
        temporary = peers.on_main(manifest.explained(final, size)(begin))
        seals = peers.together(write)
        peers.on_main(seal_all)


class KeepEvery:
    """Saves every `every` steps until step `until`, and keeps those checkpoints permanently.

    Args:
        every: in steps.
        until: the last step that this applies to; None for no end.
    """

    def __init__(self, *, every: int, until: int | None = None) -> None:
        require_size(every=every, until=until)
        self.every = every
        self.until = until


class EveryMinutes:
    """Saves once some time has passed since the last checkpoint, and deletes the one before it.

    Args:
        minutes: by the main process's monotonic clock.
        clock: returns seconds.
    """

    def __init__(self, minutes: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        require_positive(minutes=minutes)
        self.minutes = minutes
        self._clock = clock
        self._last = clock()

    def start(self) -> None:
        """Count time from now."""
        self._last = self._clock()

    def due(self) -> bool:
        """Return whether the time has passed."""
        return self._clock() - self._last >= 60 * self.minutes


class KeepBest:
    """Keeps the checkpoint with the best value of a metric, and saves each new best.

    Args:
        metric: its name in the rows of numbers, such as `validation/loss`.
        better: whether its first number is better than its second; lower is better by default.
    """

    def __init__(
        self, metric: str, *, better: Callable[[float, float], bool] = operator.lt
    ) -> None:
        self.metric = metric
        self.better = better
        self._has_warned = False

    def missing(self, row: Mapping[str, Any]) -> str | None:
        """Return a warning, once, if its evaluator measured other metrics but not this one."""
        name = self.metric.partition("/")[0]
        measured = [key for key in row if key.startswith(f"{name}/")]
        if self._has_warned or not measured or self.metric in row:
            return None
        self._has_warned = True
        return (
            f"warning: no best checkpoint is kept: nothing measures {self.metric}; "
            f"{name} measures {', '.join(measured)}."
        )


def is_permanent(step: int, keep: Sequence[KeepEvery]) -> bool:
    """Return whether the entry of `keep` that ends first, of those that reach a step, saves it."""
    reaching = [part for part in keep if part.until is None or step <= part.until]
    part = min(reaching, key=lambda part: part.until or math.inf, default=None)
    return part is not None and step > 0 and step % part.every == 0


def best_of(saved: Sequence[Saved], best: KeepBest) -> Saved | None:
    """Return the best by its metric, the first of equals; None if none has the metric."""
    chosen: Saved | None = None
    for checkpoint in saved:
        if math.isnan(value := checkpoint.metrics.get(best.metric, math.nan)):
            continue
        if chosen is None or best.better(value, chosen.metrics[best.metric]):
            chosen = checkpoint
    return chosen


def retained(saved: Sequence[Saved], *, keep_last: int, best: KeepBest | None) -> set[int]:
    """Return the steps whose checkpoints are kept once the newest of `saved` is written.

    Kept are permanent ones, the newest `keep_last` regular ones, the best, and the newest of all. A
    temporary one is deleted as soon as another follows it.
    """
    ordered = sorted(saved, key=lambda checkpoint: checkpoint.step)
    regular = [checkpoint.step for checkpoint in ordered if manifest.REGULAR in checkpoint.reasons]
    kept_steps = {c.step for c in ordered if manifest.PERMANENT in c.reasons}
    kept_steps |= set(regular[-keep_last:])
    if best is not None and (chosen := best_of(ordered, best)) is not None:
        kept_steps.add(chosen.step)
    return kept_steps | {checkpoint.step for checkpoint in ordered[-1:]}


@dataclass(eq=False, kw_only=True)
class Checkpoints:
    """Saves every `every` steps (None: only the last one) and keeps the newest `keep_last`.

    A checkpoint is a directory `<run>/checkpoints/step_00000100` of safetensors and JSON. It is
    written under a temporary name, synced and renamed, so it is complete or absent, and its
    manifest holds the size and SHA-256 of each file. Several processes save it together, each its
    own shards, and any number of processes can restore it.

    Args:
      every: steps from one regular checkpoint to the next.
      keep_last: regular checkpoints to keep.
      keep: further steps to save at permanently, each from where the one before it ends.
      temporary: saves by time as well; such a checkpoint is deleted after the next one.
      best: also keeps the best by some metric.
      writer: writes checkpoints synchronously (None) or in the background.
      mirror: keeps a second copy in storage at a URL.
      memory: saves more often, in the memory of the machines.
    """

    every: int | None
    keep_last: int
    keep: Sequence[KeepEvery] = ()
    temporary: EveryMinutes | None = None
    best: KeepBest | None = None
    writer: SyncWriter | None = None
    mirror: Mirror | None = None
    memory: MemoryCheckpoints | None = None

    def __post_init__(self) -> None:
        require_size(every=self.every, keep_last=self.keep_last)
        self._writer = self.writer or SyncWriter()
        self._background = BackgroundProcesses()

    def planned(self, step: int, *, num_steps: int) -> list[str]:
        """Return the reasons to save after `step` of `num_steps` that depend on the step alone."""
        reasons = []
        if step == num_steps or (self.every is not None and step > 0 and step % self.every == 0):
            reasons.append(manifest.REGULAR)
        if is_permanent(step, self.keep):
            reasons.append(manifest.PERMANENT)
        return reasons

    @property
    def is_time(self) -> bool:
        """Whether it is time for a temporary checkpoint, by this process's clock."""
        return self.temporary is not None and self.temporary.due()

    def due(
        self,
        step: int,
        *,
        num_steps: int,
        directory: Path | None = None,
        row: Mapping[str, Any] | None = None,
        is_time: bool | None = None,
    ) -> Sequence[str]:
        """Return the reasons to save now: those `planned`, by the clock, and a new best.

        Args:
          step: counted from 1.
          num_steps: of the run.
          directory: of the run; None if there is no best so far.
          row: what was measured at this step.
          is_time: what the main process returned for `is_time`; None to look at the clock now.
        """
        reasons, measured = self.planned(step, num_steps=num_steps), row or {}
        if (best := self.best) is not None:
            if best.metric in measured:
                self.wait()  # the one being written may be the best so far
                saved = manifest.find(directory) if directory is not None else {}
                before = best_of([_saved(*checkpoint) for checkpoint in saved.items()], best)
                value = measured[best.metric]
                is_best = before is None or best.better(value, before.metrics[best.metric])
                if self._background.current().broadcast(is_best):
                    reasons.append(manifest.BEST)
            elif line := best.missing(measured):
                self._background.current().on_main(lambda: print_stderr(line))
        if self.is_time if is_time is None else is_time:
            reasons.append(manifest.TEMPORARY_SAVE)
        if not reasons and self.memory is not None and self.memory.due(step):
            reasons.append(manifest.IN_MEMORY)
        return reasons

    def save(
        self,
        directory: Path,
        *,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        state: dict[str, Any],
        stateful: Mapping[str, Stateful] | None = None,
        reasons: Sequence[str] = (manifest.REGULAR,),
        row: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the checkpoint of `step` into the run `directory`; return its path.

        All processes of a run call this. A checkpoint of the same step is replaced. Later ones (the
        run was resumed from an earlier step) are renamed to `abandoned-step_...`, so that the
        newest is always where the run stopped.

        Args:
          directory: of the run, visible to all processes.
          step: optimizer steps done.
          model: its parameters and persistent buffers are saved.
          optimizer: its `state_dict` is saved.
          state: plain numbers, strings, lists, tuples and dicts; the main process's are saved.
          stateful: further components with state.
          reasons: as returned by `due`; `IN_MEMORY` alone saves in memory and not on the disk.
          row: what was measured at this step.

        Raises:
          CheckpointError: the directory is full or cannot be written, some state cannot be saved,
            or the previous checkpoint could not be written. No partial file is left.
          ParallelError: another process could not write its part.
        """
        final = manifest.folder_of(directory) / manifest.name_of(step)
        sections, texts = contents_of(model, optimizer, state, stateful or {})
        notes = {
            "run": manifest.run_in(directory),
            "reasons": list(reasons) or [manifest.REGULAR],
            "metrics": self._metrics(row or {}),
        }
        if self.memory is not None and [*reasons] == [manifest.IN_MEMORY]:
            self.memory.save(directory, sections, texts, step=step, notes=notes)
            return final
        self.wait()
        if (peers := self._background.current()).is_main:
            manifest.create_folder(directory)
        pieces = tensors.kept(tensors.share_out(sections, peers), self._writer)

        def job() -> None:
            own = texts if peers.is_main else {}
            save_files(pieces, own, final, step=step, notes=notes, peers=peers)
            peers.on_main(lambda: self._retire(final, step))

        self._writer.write(job)
        if self.temporary is not None:
            self.temporary.start()
        return final

    def wait(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
          CheckpointError: the last one could not be.
          ParallelError: another process could not write its part.
        """
        self._writer.wait()

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Wrap a run: wait at its end for the last checkpoint, except after Ctrl-C.

        Raises:
          CheckpointError: the last checkpoint could not be written, and nothing else went wrong.
          ParallelError: the same, on the other processes.
        """
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            try:
                self.wait()
                if self.memory is not None:
                    self.memory.wait()
            except Exception as error:  # what ended the run matters more
                print_stderr(f"warning: {error}")
            raise
        self.wait()
        if (mirror := self.mirror) is not None:
            self._background.current().on_main(mirror.retry)
        if self.memory is not None:
            self.memory.finish()

    def restore(
        self,
        directory: Path,
        *,
        model: nn.Module,
        optimizer: Optimizer | None,
        step: int | None = None,
        stateful: Mapping[str, Stateful] | None = None,
        warn: Warn | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Copy a checkpoint of the run `directory` into `model` and `optimizer`, bit for bit.

        With `step` None the newest is used; an older one never silently replaces it. With
        `optimizer` None only the model's files are checked and read. Returns the step and `state`.

        Args:
          directory: of the run.
          model: has memory; its tensors are filled in place, and may be sharded in another way.
          optimizer: over the parameters of this model.
          step: of the checkpoint; None for the newest.
          stateful: all further components with state; None skips them.
          warn: receives a line for each component that the checkpoint lacks, which then starts from
            its initial state, or that only the checkpoint has; None refuses both.

        Raises:
          CheckpointError: there is none, it is damaged (the message names the newest good one), or
            it does not fit the model, the optimizer or the components.
        """
        self.wait()
        needed = manifest.MODEL if optimizer is None and stateful is None else manifest.ALL
        path = manifest.choose(directory, step, needed)
        with manifest.naming_damage(path):
            weights, own = _stored(path, "model"), tensors.model_tensors(model)
            _require_fit(path, weights, own)
            memories = _memories(path, stateful, warn) if stateful is not None else {}
            if optimizer is not None:
                saved, stored = _read(path, "optimizer.json"), _stored(path, "optimizer")
                tensors.check_optimizer(saved, optimizer, model)
                moments = {
                    name: tensors.empty(kind, like=tensors.parameter_of(name, optimizer))
                    for name, kind in stored.kinds.items()
                }
                stored.read_into(moments)
                tensors.load_optimizer(saved, moments, optimizer)
            weights.read_into(own)  # only if everything fits
            for name, memory in memories.items():
                (stateful or {})[name].load_state_dict(memory)
            return _step_and_state(path)

    def claim_mirror(self, draft: Path, *, directory: Path) -> None:
        """Claim the mirror for the new run `directory`, whose files are in a folder already."""
        if self.mirror is not None:
            self.mirror.claim(draft, directory=directory)

    def require_room(self, copies: int) -> None:
        """Raise RunError if this machine lacks so many bytes for copies in memory."""
        if self.memory is not None:
            self.memory.require_room(copies)

    def start(self, directory: Path) -> None:
        """Begin to save copies in memory, if that is configured; see `MemoryCheckpoints.start`."""
        if self.memory is not None:
            self.memory.start(directory)

    def fetch(self, directory: Path, *, step: int | None) -> None:
        """Copy a checkpoint from memory or the mirror, if it is newer or the run lacks it.

        All processes of a run call this.

        Raises:
          CheckpointError: the mirror cannot be read, or the disk cannot be written.
          ParallelError: on the other processes then.
        """
        if self.memory is not None:
            self.memory.recover(directory, step=step)
        if (mirror := self.mirror) is not None:
            self._background.current().on_main(lambda: mirror.fetch(directory, step=step))

    def abandon_after(self, directory: Path, *, step: int) -> None:
        """Rename checkpoints after `step` to `abandoned-step_...`, since the run left them behind.

        Raises:
          CheckpointError: the directory cannot be written.
        """
        final = manifest.folder_of(directory) / manifest.name_of(step)
        with manifest.explained(final):
            manifest.abandon_after(manifest.find(directory), step)

    def good_before(self, step: int, directory: Path, *, num_steps: int) -> int | None:
        """Return the step of the newest good checkpoint before `step`; None if there is none.

        Planned ones come first: an undisturbed run has no others, and should roll back alike.
        """
        good = [
            saved
            for saved, path in manifest.find(directory).items()
            if saved < step and manifest.refusal(path) is None
        ]
        planned = [saved for saved in good if self.planned(saved, num_steps=num_steps)]
        return max(planned or good, default=None)

    def _retire(self, final: Path, step: int) -> None:
        """Delete what need not be kept, now that the checkpoint of `step` is there."""
        with manifest.explained(final):
            checkpoints = manifest.abandon_after(manifest.find(final.parent.parent), step)
            keep = partial(retained, keep_last=self.keep_last, best=self.best)
            kept_steps = keep([_saved(step, path) for step, path in checkpoints.items()])
            for other in [other for other in checkpoints if other not in kept_steps]:
                manifest.discard(checkpoints[other])
            if self.mirror is not None:
                self.mirror.update(final.parent.parent, retained=keep, step=step)

    def _metrics(self, row: Mapping[str, Any]) -> dict[str, float]:
        if self.best is None or not math.isfinite(value := row.get(self.best.metric, math.nan)):
            return {}
        return {self.best.metric: float(value)}


def _saved(step: int, path: Path) -> Saved:
    return Saved.of(step, manifest.read_manifest(path))


def contents_of(
    model: nn.Module,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    stateful: Mapping[str, Stateful],
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the tensors of the run by section and name, and JSON by the name of its file.

    Raises:
        CheckpointError: some state cannot be saved.
    """
    weights = tensors.model_tensors(model)
    optimizer_json, moments = tensors.optimizer_parts(optimizer, model)
    plain, _ = tensors.flatten(state, root="state")
    sections = {"model": weights, "optimizer": moments}
    texts = {"optimizer.json": optimizer_json, "state.json": plain}
    if stateful:
        memories = {name: part.state_dict() for name, part in stateful.items()}
        texts["stateful.json"], sections["stateful"] = tensors.flatten(memories, root="stateful")
    return sections, texts


def check_fit(
    directory: Path, step: int | None, *, model: nn.Module, optimizer: Optimizer | None
) -> tuple[int, dict[str, Any]]:
    """Check by its metadata that a checkpoint fits; return its step and its `state`.

    No tensor is read, and no file except the manifest is checked for damage.

    Args:
        directory: of the run.
        step: of the checkpoint; None for the newest.
        model: may be on the meta device.
        optimizer: over the parameters of this model; None if it cannot be made there.

    Raises:
        CheckpointError: there is none, or it does not fit.
    """
    path = manifest.choose(directory, step, needed=())
    with manifest.naming_damage(path):
        _require_fit(path, _stored(path, "model"), tensors.model_tensors(model))
        if optimizer is not None:
            tensors.check_optimizer(_read(path, "optimizer.json"), optimizer, model)
        return _step_and_state(path)


def _require_fit(path: Path, weights: tensors.Stored, own: Mapping[str, Tensor]) -> None:
    if wrong := tensors.mismatches(weights.kinds, own):
        raise CheckpointError("\n  ".join([f"{path} does not fit this model:", *wrong]))


def _step_and_state(path: Path) -> tuple[int, dict[str, Any]]:
    state = tensors.unflatten(_read(path, "state.json"), {})
    return _read(path, manifest.MANIFEST)["step"], state


def _stored(path: Path, section: str) -> tensors.Stored:
    return tensors.Stored(manifest.files_of(path, section))


def _memories(path: Path, stateful: Mapping[str, Stateful], warn: Warn | None) -> dict[str, Any]:
    """Return what a checkpoint holds for each component, as far as it has them."""
    now = {name: part.state_dict() for name, part in stateful.items()}
    saved: dict[str, Any] = {}
    if (path / "stateful.json").exists():
        stored = _stored(path, "stateful")
        _, own = tensors.flatten(now, root="stateful")
        alike = {
            name: tensor
            for name, tensor in own.items()
            if name in stored.kinds and whole_shape(tensor) == stored.kinds[name].shape
        }
        memory = {
            name: tensors.empty(kind, like=alike.get(name)) for name, kind in stored.kinds.items()
        }
        stored.read_into(memory)
        saved = tensors.unflatten(_read(path, "stateful.json"), memory)
    fresh = [n for n in stateful if n not in saved or not now[n].keys() <= saved[n].keys()]
    lines = [f"{name} is not in {path}: it starts from its initial state." for name in fresh]
    gone = sorted(saved.keys() - now.keys())
    lines += [f"{name} in {path} is no component of this run." for name in gone]
    if warn is None and lines:
        raise CheckpointError(
            f"{path} does not fit the components of this run. Resume with those that it had when "
            "it was saved, or start a new run:\n  " + "\n  ".join(lines)
        )
    if warn is not None:
        for line in lines:
            warn(line)
    return {name: saved[name] for name in stateful if name not in fresh}


def _read(path: Path, name: str) -> Any:
    return parse_json(read_bytes(path / name))
