"""Initializing a new run with weights of another one."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn

from fidgpt.model.quantized import NF4_CODES, whole_weights
from fidgpt.train.checkpoints import manifest
from fidgpt.train.checkpoints.manifest import CheckpointError
from fidgpt.train.checkpoints.tensors import Stored, mismatches, model_tensors
from fidgpt.train.run_directory import print_stderr

__all__ = ["initial_weights"]


_LISTED = 8


def initial_weights(
    model: nn.Module,
    path: str | Path,
    *,
    only: Sequence[str] = ("*",),
    renamed: Mapping[str, str] | None = None,
    step: int | None = None,
) -> None:
    """Copy weights of another run into a model by name; the others keep their initial values.

    The names of copied and of remaining weights are logged. Number formats may differ; values are
    then rounded.

    Args:
        model: with memory; sharded or not.
        path: the directory of a run, of one of its checkpoints, or a file of safetensors.
        only: names in this model to copy, with `*` for any text; a name includes everything below
            it, so that `embedding` selects `embedding.weight`.
        renamed: maps names in this model to those in the source, as `{"blocks.*": "layers.*"}`; the
            `*`, at most one, is the same text on both sides. What is renamed must exist.
        step: of the run; None for the newest.

    Raises:
        CheckpointError: there is no good checkpoint, nothing is selected, a selected or renamed
            name is missing on one side, or shapes differ, which are all listed. The model is
            unchanged.
    """
    stored = _stored(Path(path).expanduser(), step)
    with _like(stored, model):
        own = model_tensors(model)
        taken = _matched(stored, own, path, only, renamed or {})
        stored.read_into({there: own[name] for name, there in taken.items()})
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        numbers = sum(own[name].numel() for name in taken)
        print_stderr(f"loaded {_counted(taken)} ({numbers:,} numbers) from {path}: {_some(taken)}.")
        if rest := [name for name in own if name not in taken]:
            print_stderr(f"{_counted(rest)} left at initial values: {_some(rest)}.")
        if spare := [name for name in stored.kinds if name not in taken.values()]:
            print_stderr(f"{_counted(spare)} not used: {_some(spare)}.")


def _like(stored: Stored, model: nn.Module) -> AbstractContextManager[None]:
    """Context in which weights in four bits are whole, unless their codes are stored."""
    has_codes = any(name.endswith(NF4_CODES) for name in stored.kinds)
    return nullcontext() if has_codes else whole_weights(model, to_fill=True)


def _matched(
    stored: Stored,
    own: Mapping[str, Tensor],
    path: str | Path,
    only: Sequence[str],
    renamed: Mapping[str, str],
) -> dict[str, str]:
    """Return the names in the source of the tensors to copy, by their names in the model.

    Raises:
        CheckpointError: as of `initial_weights`.
    """
    _check_words(own, only, renamed)
    wanted = [name for name in own if any(_selects(p).fullmatch(name) for p in only)]
    theirs = {name: _renamed(name, renamed) for name in wanted}
    taken = {name: there for name, there in theirs.items() if there in stored.kinds}
    absent = {name: there for name, there in theirs.items() if name not in taken}
    wrong = [f"{there} (for {name})" for name, there in absent.items() if name != there]
    if tuple(only) != ("*",) or not taken:
        wrong = wrong or [*absent]
    if wrong:
        raise CheckpointError(
            f"{path} does not have {_some(wrong)}; it has {_some(stored.kinds)}. Map names in "
            "this model to names there with `renamed`, or select others with `only`."
        )
    kinds = {name: stored.kinds[there] for name, there in taken.items()}
    shaped = {name: kind._replace(dtype=own[name].dtype) for name, kind in kinds.items()}
    if wrong := mismatches(shaped, {name: own[name] for name in taken}):
        raise CheckpointError("\n  ".join([f"{path} has weights of other shapes:", *wrong]))
    return taken


def _require_present(
    model: nn.Module,
    path: str | Path,
    *,
    only: Sequence[str] = ("*",),
    renamed: Mapping[str, str] | None = None,
    step: int | None = None,
) -> None:
    """Raise CheckpointError if there are no weights that fit; see `initial_weights`."""
    stored = _stored(Path(path).expanduser(), step)
    with _like(stored, model):
        _matched(stored, model_tensors(model), path, only, renamed or {})


vars(initial_weights)["require_present"] = _require_present


def _check_words(
    own: Mapping[str, Tensor], only: Sequence[str], renamed: Mapping[str, str]
) -> None:
    """Raise CheckpointError if patterns match nothing in the model."""
    patterns = {f"only={pattern!r}": _selects(pattern) for pattern in only}
    patterns |= {f"renamed={{{here!r}: ...}}": _rule(here) for here in renamed}
    for text, pattern in patterns.items():
        if not any(map(pattern.fullmatch, own)):
            raise CheckpointError(f"{text} matches nothing in the model, which has {_some(own)}.")


def _stored(path: Path, step: int | None) -> Stored:
    is_run = path.is_dir() and not (path / manifest.MANIFEST).is_file()
    if step is not None and not is_run and path.exists():
        raise CheckpointError(f"step={step} needs a run, and {path} is not one: omit `step`.")
    if path.is_file():
        try:
            return Stored([path])
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}.") from None
    if (path / manifest.MANIFEST).is_file():
        if reason := manifest.damage(path, manifest.MODEL):
            raise CheckpointError(f"{path} {reason}")
        return Stored(manifest.files_of(path, "model"))
    if not is_run:
        raise CheckpointError(f"{path} does not exist: name a run, a checkpoint or a file.")
    chosen = manifest.choose(path, step, manifest.MODEL, take="step={}")
    return Stored(manifest.files_of(chosen, "model"))


def _selects(pattern: str) -> re.Pattern[str]:
    """Return what matches the names that a pattern selects, and all below them."""
    return re.compile(rf"{fnmatch.translate(pattern)}|{fnmatch.translate(f'{pattern}.*')}")


def _rule(here: str) -> re.Pattern[str]:
    """Return what matches names by the `*` of a rule, else one name and all below it."""
    text = re.escape(here)
    return re.compile(text.replace(r"\*", "(.*)") if "*" in here else rf"{text}(\..*)?", re.DOTALL)


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    """Return the name in the source of a tensor of this model, by the first matching rule."""
    for here, there in renamed.items():
        if match := _rule(here).fullmatch(name):
            kept = match[1] or ""
            return there.replace("*", kept) if "*" in here else there + kept
    return name


def _counted(names: Collection[str]) -> str:
    return f"{len(names)} tensor{'s' * (len(names) != 1)}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more
