"""Checkpoints of a run: when to save one, what it holds, how many stay, and how it is restored."""

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import nn
from torch.optim import Optimizer

from fidgpt.train import files, manifest, tensors, tree
from fidgpt.train.files import CheckpointError
from fidgpt.train.run import resume_flag

__all__ = ["CheckpointError", "Checkpoints", "has_checkpoints", "newest_good", "verify"]

newest_good = manifest.newest_good


class Checkpoints:
    """Saves every `every` steps (None: only the last one) and keeps the newest `keep_last`.

    A checkpoint is a directory `<run>/checkpoints/step_00000100` of safetensors and JSON. It is
    written beside, synced and renamed, so it is whole or absent, and its manifest holds the size
    and SHA-256 of each file. Only one process of a run may save; all of them may restore.
    """

    def __init__(self, *, every: int | None, keep_last: int) -> None:
        self.check_arguments(every=every, keep_last=keep_last)
        self.every = every
        self.keep_last = keep_last

    @staticmethod
    def check_arguments(*, every: int | None, keep_last: int) -> None:
        """Raises ValueError unless `every` and `keep_last` are at least 1."""
        if every is not None and every < 1:
            raise ValueError(f"{every=} must be 1 or more steps, or None to save only the last.")
        if keep_last < 1:
            raise ValueError(f"{keep_last=} must be 1 or more checkpoints.")

    def due(self, step: int, *, num_steps: int) -> bool:
        """Whether to save once `step` of `num_steps` optimizer steps are done."""
        return step == num_steps or (self.every is not None and step > 0 and step % self.every == 0)

    def save(
        self,
        directory: Path,
        *,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        state: dict[str, Any],
    ) -> Path:
        """Writes the checkpoint of `step` into the run `directory`; returns where it lies.

        `state` holds plain numbers, strings, lists, tuples and dicts. A checkpoint of the same step
        is replaced. Later ones (the run was resumed from an earlier step) are renamed to
        `abandoned-step_...`, so that the newest is always where the run stopped.

        Raises:
            CheckpointError: the directory is full or cannot be written, or `state` or the optimizer
                holds what a checkpoint cannot. Nothing half-written is left.
        """
        weights = tensors.model_tensors(model)
        optimizer_json, moments = tensors.optimizer_parts(optimizer, model)
        plain, unexpected = tree.flatten(state, root="state")
        if unexpected:
            raise CheckpointError(f"{min(unexpected)} is a tensor; `state` is for plain values.")
        final = manifest.folder_of(directory) / manifest.name_of(step)
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            files.sync(directory)
            files.settle(final.parent)
            with files.whole_directory(final) as temporary:
                tensors.write_tensors(temporary / "model.safetensors", weights)
                tensors.write_tensors(temporary / "optimizer.safetensors", moments)
                files.write_json(temporary / "optimizer.json", optimizer_json)
                files.write_json(temporary / "state.json", plain)
                manifest.write_manifest(temporary, step=step)
            self._retire(directory, step)
        except (OSError, SafetensorError) as error:
            size = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
            raise CheckpointError(_cannot_write(final, error, size)) from error
        return final

    def restore(
        self,
        directory: Path,
        *,
        model: nn.Module,
        optimizer: Optimizer | None,
        step: int | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Copies a checkpoint of the run `directory` into `model` and `optimizer`, bit for bit.

        With `step` None the newest is taken; an older one never replaces it in silence. With
        `optimizer` None only the model's files are checked and read. Returns the step and `state`.

        Raises:
            CheckpointError: there is none, it is damaged (the newest good one is offered), or it
                does not fit the model or the optimizer.
        """
        needed = manifest.MODEL_FILES if optimizer is None else manifest.ALL_FILES
        path = manifest.choose(directory, step, needed)
        weights = safetensors.torch.load_file(path / "model.safetensors")
        own = tensors.model_tensors(model)
        if wrong := tensors.misfits(weights, own):
            raise CheckpointError("\n  ".join([f"{path} does not fit this model:", *wrong]))
        if optimizer is not None:
            _restore_optimizer(path, optimizer, model)
        tensors.copy_tensors(weights, own)
        state = tree.unflatten(_read_json(path / "state.json"), {})
        return _read_json(path / manifest.MANIFEST)["step"], state

    def go_on(self, directory: Path, *, step: int) -> None:
        """Renames later checkpoints than `step` to `abandoned-step_...`: the run takes another way.

        Raises:
            CheckpointError: the directory cannot be written.
        """
        try:
            for later, path in manifest.find(directory).items():
                if later > step:
                    _abandon(path)
        except OSError as error:
            final = manifest.folder_of(directory) / manifest.name_of(step)
            raise CheckpointError(_cannot_write(final, error, 0)) from error

    def _retire(self, directory: Path, step: int) -> None:
        found = manifest.find(directory)
        for later in [other for other in found if other > step]:
            _abandon(found.pop(later))
        for path in list(found.values())[: -self.keep_last]:
            files.discard(path)


def _abandon(path: Path) -> None:
    abandoned = path.with_name(f"abandoned-{path.name.removeprefix(files.REPLACED)}")
    if abandoned.exists():
        files.discard(abandoned)
    os.rename(path, abandoned)


def has_checkpoints(directory: Path) -> bool:
    """Whether a run saved anything yet, good or not."""
    return bool(manifest.find(directory))


def verify(path: Path) -> None:
    """Checks one checkpoint's directory against its manifest, by size and SHA-256.

    Raises:
        CheckpointError: naming the directory, the file, and what differs.
    """
    if reason := manifest.damage(path):
        raise CheckpointError(f"{path} {reason}")


def _restore_optimizer(path: Path, optimizer: Optimizer, model: nn.Module) -> None:
    saved = _read_json(path / "optimizer.json")
    moments = safetensors.torch.load_file(path / "optimizer.safetensors")
    try:
        tensors.check_optimizer(saved, optimizer, model)
        tensors.load_optimizer(saved, moments, optimizer)
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit this optimizer: {error}.") from None


def _read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _cannot_write(final: Path, error: Exception, size: int) -> str:
    # safetensors reports the operating system's error as text only.
    found = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    reason = str(error) if number is None else os.strerror(number)
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "give the run a directory that can be written"
    if full:
        free = shutil.disk_usage(next(path for path in final.parents if path.exists())).free
        room = f"it takes {size / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free"
        remedy = f"{room}: make room or raise the quota"
    return (
        f"{final} cannot be written ({reason}); {remedy}, then go on with "
        f"{resume_flag(final.parent.parent)}\n"
        "Nothing half-written is left, and the earlier checkpoints are as they were."
    )
