"""The contents of a checkpoint: collected from a run, and restored into one."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.train.checkpoints import manifest, tensors
from fidgpt.train.checkpoints.manifest import CheckpointError
from fidgpt.train.state import Stateful

if TYPE_CHECKING:
    from fidgpt.train.checkpoints.sharded import Stored


Warn = Callable[[str], object]


class Contents(NamedTuple):
    """A checkpoint before it is written.

    Attributes:
        tensors: by section and name.
        texts: JSON by the name of its file; the same on every process.
    """

    tensors: dict[str, dict[str, Tensor]]
    texts: dict[str, Any]


def contents_of(
    model: nn.Module,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    stateful: Mapping[str, Stateful],
) -> Contents:
    """Collect the contents; the tensors are still those of the run.

    Raises:
        CheckpointError: some state cannot be saved.
    """
    weights = tensors.model_tensors(model)
    optimizer_json, moments = tensors.optimizer_parts(optimizer, model)
    plain, unexpected = tensors.flatten(state, root="state")
    if unexpected:
        raise CheckpointError(f"{min(unexpected)} is a tensor; `state` is for plain values.")
    made = Contents(
        {"model": weights, "optimizer": moments},
        {"optimizer.json": optimizer_json, "state.json": plain},
    )
    if stateful:
        memories = {name: part.state_dict() for name, part in stateful.items()}
        made.texts["stateful.json"], made.tensors["stateful"] = tensors.flatten(
            memories, root="stateful"
        )
    return made


def restore_chosen(
    directory: Path,
    step: int | None,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    stateful: Mapping[str, Stateful] | None,
    warn: Warn | None,
) -> tuple[int, dict[str, Any]]:
    """Restore a step, or the newest (None), of a run that may be training meanwhile.

    Raises:
        CheckpointError: there is none, it is damaged, or it does not fit.
    """
    needed = manifest.MODEL if optimizer is None and stateful is None else manifest.ALL
    while True:
        path = manifest.choose(directory, step, needed)
        try:
            return restore_from(
                path, model=model, optimizer=optimizer, stateful=stateful, warn=warn
            )
        except (OSError, SafetensorError) as error:
            if path.exists():
                raise CheckpointError(f"{path} cannot be read: {error}.") from error
            # The run has deleted it meanwhile, since there is a newer one.


def restore_from(
    path: Path,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    stateful: Mapping[str, Stateful] | None,
    warn: Warn | None,
) -> tuple[int, dict[str, Any]]:
    """Copy a good checkpoint into a run; the model is changed only if everything fits.

    Raises:
        CheckpointError: it does not fit.
    """
    weights, own = _stored(path, "model"), tensors.model_tensors(model)
    _require_fit(path, weights, own)
    memories = _memories(path, stateful, warn) if stateful is not None else {}
    if optimizer is not None:
        _restore_optimizer(path, optimizer, model)
    weights.read_into(own)
    for name, memory in memories.items():
        (stateful or {})[name].load_state_dict(memory)
    return _step_and_state(path)


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
    _require_fit(path, _stored(path, "model"), tensors.named_tensors(model))
    if optimizer is not None:
        with _refusing(path):
            tensors.check_optimizer(_read(path, "optimizer.json"), optimizer, model)
    return _step_and_state(path)


def _require_fit(path: Path, weights: "Stored", own: Mapping[str, Tensor]) -> None:
    if wrong := tensors.misfits(weights.kinds, own):
        raise CheckpointError("\n  ".join([f"{path} does not fit this model:", *wrong]))


def _step_and_state(path: Path) -> tuple[int, dict[str, Any]]:
    return _read(path, manifest.MANIFEST)["step"], tensors.unflatten(_read(path, "state.json"), {})


def _stored(path: Path, section: str) -> "Stored":
    # Late: it needs torch.distributed.checkpoint, which is slow to import.
    from fidgpt.train.checkpoints.sharded import Stored

    return Stored(manifest.files_of(path, section))


def _restore_optimizer(path: Path, optimizer: Optimizer, model: nn.Module) -> None:
    saved, stored = _read(path, "optimizer.json"), _stored(path, "optimizer")
    with _refusing(path):
        tensors.check_optimizer(saved, optimizer, model)
        moments = tensors.optimizer_targets(stored.kinds, optimizer)
        stored.read_into(moments)
        tensors.load_optimizer(saved, moments, optimizer)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Add the path of a checkpoint that does not fit the optimizer to the error."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit this optimizer: {error}.") from None


def _memories(path: Path, stateful: Mapping[str, Stateful], warn: Warn | None) -> dict[str, Any]:
    """Return what a checkpoint holds for each component, as far as it has them."""
    saved: dict[str, Any] = {}
    if (path / "stateful.json").exists():
        saved = _read_memories(path, stateful)
    new = [name for name in stateful if name not in saved]
    other = [name for name in stateful if name in saved and _is_of_another(stateful, saved, name)]
    gone = [name for name in saved if name not in stateful]
    known = {name: saved[name] for name in stateful if name not in (*new, *other)}
    if not (new or other or gone):
        return known
    if warn is None:
        lines = [f"{name} is missing" for name in new]
        lines += [f"{name} is of another kind" for name in other]
        lines += [f"{name} is not part of this run" for name in gone]
        raise CheckpointError(
            f"{path} does not fit the components of this run: {'; '.join(lines)}.\n"
            "Resume with the components that the run had when it was saved, or start a new run."
        )
    for line in (
        *(f"{name} starts from its initial state: it is not in {path}." for name in new),
        *(f"{name} starts from its initial state: {path} has another kind." for name in other),
        *(f"{name} in {path} is ignored: this run has no such component." for name in gone),
    ):
        warn(line)
    return known


def _is_of_another(
    stateful: Mapping[str, Stateful], saved: Mapping[str, Mapping[str, Any]], name: str
) -> bool:
    """Whether a component has state that the one saved under its name did not have."""
    return not stateful[name].state_dict().keys() <= saved[name].keys()


def _read_memories(path: Path, stateful: Mapping[str, Stateful]) -> dict[str, Any]:
    stored = _stored(path, "stateful")
    now = {name: part.state_dict() for name, part in stateful.items()}
    _, places = tensors.flatten(now, root="stateful")
    memory = {
        name: tensors.empty(kind, like=_alike(places.get(name), kind.shape))
        for name, kind in stored.kinds.items()
    }
    stored.read_into(memory)
    return tensors.unflatten(_read(path, "stateful.json"), memory)


def _alike(tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return tensor if tensor is not None and tuple(tensor.shape) == shape else None


def _read(path: Path, name: str) -> Any:
    return json.loads((path / name).read_bytes())
