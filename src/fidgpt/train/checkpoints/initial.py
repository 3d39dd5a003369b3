"""How a new run begins with the weights of another one, or with some of them."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn

from fidgpt.train.checkpoints import manifest
from fidgpt.train.checkpoints.manifest import CheckpointError
from fidgpt.train.checkpoints.tensors import misfits, model_tensors
from fidgpt.train.run_directory import print_stderr

if TYPE_CHECKING:
    from fidgpt.train.checkpoints.sharded import Stored


_LISTED = 8


def initial_weights(
    model: nn.Module,
    path: str | Path,
    *,
    only: Sequence[str] = ("*",),
    renamed: Mapping[str, str] | None = None,
    step: int | None = None,
    tell: Callable[[str], object] | None = None,
) -> None:
    """Copies weights of another run into a model, by their names; the others stay as they began.

    What is copied, and what is not, is said. Number formats may differ; values are then rounded.

    Args:
        model: with memory; sharded or not.
        path: the directory of a run, of one of its checkpoints, or a file of safetensors.
        only: names in this model that are wanted, with `*` for any letters; a name stands for all
            that is below it as well, so that `embedding` takes `embedding.weight`.
        renamed: the name there for one here, as `{"blocks.*": "layers.*"}`; the `*`, at most one,
            stands for the same letters on both sides. What is renamed must be there.
        step: of the run; None for the newest.
        tell: receives lines about what was copied and what not; None prints them on standard error.

    Raises:
        CheckpointError: there is nothing good, nothing of it is wanted, a wanted or renamed name is
            not in the model or not there, or shapes differ, which are all listed. The model is as
            it was.
    """
    own = model_tensors(model)
    _check_words(own, only, renamed or {})
    stored = _stored(Path(path).expanduser(), step)
    wanted = [name for name in own if _matches(name, only)]
    theirs = {name: _renamed(name, renamed or {}) for name in wanted}
    taken = {name: there for name, there in theirs.items() if there in stored.kinds}
    absent = {name: there for name, there in theirs.items() if name not in taken}
    if wrong := {name: there for name, there in absent.items() if name != there}:
        pairs = _some(f"{there} (for {name})" for name, there in wrong.items())
        raise CheckpointError(
            f"{path} does not have {pairs}; it has {_some(stored.kinds)}. Mend `renamed`: it says "
            "the name there for one in this model."
        )
    if absent and tuple(only) != ("*",):
        raise CheckpointError(
            f"{path} does not have {_some(absent)}; it has {_some(stored.kinds)}. Say with "
            "`renamed` what they are called there, or leave them out of `only`."
        )
    if not taken:
        raise CheckpointError(
            f"no tensor of {path} has the name of one of the model: it has {_some(stored.kinds)}, "
            f"the model has {_some(own)}. Say with `renamed` what they are called there."
        )
    kinds = {name: stored.kinds[there] for name, there in taken.items()}
    shaped = {name: kind._replace(dtype=own[name].dtype) for name, kind in kinds.items()}
    if wrong := misfits(shaped, {name: own[name] for name in taken}):
        raise CheckpointError("\n  ".join([f"{path} has weights of other shapes:", *wrong]))
    stored.read_into({there: own[name] for name, there in taken.items()})
    for line in _report(path, taken, own, stored.kinds):
        (tell or _log)(line)


def _check_words(
    own: Mapping[str, Tensor], only: Sequence[str], renamed: Mapping[str, str]
) -> None:
    """Raises CheckpointError where patterns cannot be read, or name nothing in the model."""
    if not only:
        raise CheckpointError(
            "only=[] wants no weights: name some, as `embedding`, or leave `only` out for all."
        )
    for here, there in renamed.items():
        if here.count("*") != there.count("*") or here.count("*") > 1:
            raise CheckpointError(
                f"renamed={{{here!r}: {there!r}}} must have one `*` on both sides, or none: it "
                'stands for the same letters, as in {"blocks.*.norm": "layers.*.ln"}.'
            )
    said = {f"only={pattern!r}": _matching(own, pattern) for pattern in only}
    said |= {f"renamed={{{here!r}: ...}}": _fitting(own, here) for here in renamed}
    for word, names in said.items():
        if not names:
            raise CheckpointError(f"{word} names nothing in the model, which has {_some(own)}.")


def _stored(path: Path, step: int | None) -> "Stored":
    # Late: it needs torch.distributed.checkpoint, which is slow to import.
    from fidgpt.train.checkpoints.sharded import Stored

    is_run = path.is_dir() and not (path / manifest.MANIFEST).is_file()
    if step is not None and not is_run and path.exists():
        raise CheckpointError(f"step={step} is of a run, and {path} is none: leave `step` out.")
    if path.is_file():
        try:
            return Stored([path])
        except SafetensorError as error:
            raise CheckpointError(f"{path} is no file of safetensors: {error}.") from None
    if (path / manifest.MANIFEST).is_file():
        if reason := manifest.damage(path, manifest.MODEL):
            raise CheckpointError(f"{path} {reason}")
        return Stored(manifest.files_of(path, "model"))
    if not is_run:
        raise CheckpointError(f"{path} is not there: name a run, a checkpoint or a file.")
    if not manifest.find(path):
        files = sorted(file.name for file in path.glob("*.safetensors"))
        inside = f" There is {path / files[0]}, for one." if files else ""
        raise CheckpointError(
            f"{path} holds no checkpoint of a run: name a run that has saved one, one of its "
            f"checkpoints, or a file of safetensors.{inside}"
        )
    chosen = manifest.choose(path, step, manifest.MODEL, take="step={}")
    return Stored(manifest.files_of(chosen, "model"))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(_matching([name], pattern) for pattern in patterns)


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    below = f"{pattern}.*"
    return [n for n in names if fnmatch.fnmatchcase(n, pattern) or fnmatch.fnmatchcase(n, below)]


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    """The name there of a tensor of this model, by the first rule that fits."""
    for here, there in renamed.items():
        if _fitting([name], here):
            before, star, after = here.partition("*")
            if star:
                return there.replace("*", name[len(before) : len(name) - len(after)])
            return there + name.removeprefix(here)
    return name


def _fitting(names: Iterable[str], here: str) -> list[str]:
    """The names that a rule is about: with `*` those of that form, else one and all below it."""
    before, star, after = here.partition("*")
    if not star:
        return [name for name in names if name == here or name.startswith(f"{here}.")]
    long = len(before) + len(after)
    fits = [name for name in names if name.startswith(before) and name.endswith(after)]
    return [name for name in fits if len(name) >= long]


def _report(
    path: str | Path,
    taken: Mapping[str, str],
    own: Mapping[str, Tensor],
    stored: Mapping[str, object],
) -> list[str]:
    numbers = sum(own[name].numel() for name in taken)
    lines = [f"begins with {len(taken)} tensors ({numbers:,} numbers) of {path}: {_some(taken)}."]
    if rest := [name for name in own if name not in taken]:
        lines.append(f"{len(rest)} tensors keep their initial values: {_some(rest)}.")
    if spare := [name for name in stored if name not in taken.values()]:
        lines.append(f"{len(spare)} tensors there are not used: {_some(spare)}.")
    return lines


def _log(line: str) -> None:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
        print_stderr(line)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more
