"""A run as a copy of another one at a checkpoint, without copying what it was trained to."""

import json
import os
import shutil
from pathlib import Path

from fidgpt.drafts import drafted

PINS = ".pins"  # in the directory of a sweep
_KEPT = 2  # pins of a run: between a look at the population and the clone, it may train one stretch
_NOT_COPIED = ("done.json",)


def pin(run: Path, step: int) -> None:
    """Keeps the checkpoint of a step for who is cloned from it, even where the run drops it."""
    folder = run.parent / PINS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _name(step)).exists():
        _link(run / "checkpoints" / _name(step), folder / _name(step))
    pins = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in pins[:-_KEPT]:
        shutil.rmtree(path)


def pinned(folder: Path, run: str, step: int) -> Path:
    """Where the checkpoint of a run is kept."""
    return folder / PINS / run / _name(step)


def clone(parent: Path, checkpoint: Path, run: Path, *, step: int) -> None:
    """Makes a run directory that reads as its parent's after a step; whole or not at all.

    Its own trackers know nothing of it yet: what they keep in folders of the parent stays there.

    Args:
      parent: a run directory.
      checkpoint: of the step.
      run: the new directory.
      step: the last one that both have in common.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    with drafted(run) as draft:
        draft.mkdir()
        for path in parent.iterdir():
            if path.is_file() and path.name not in _NOT_COPIED and not path.name.startswith("."):
                shutil.copy2(path, draft / path.name)
        metrics = (parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [one for one in metrics if one.endswith("\n") and json.loads(one)["step"] <= step]
        (draft / "metrics.jsonl").write_text("".join(kept), encoding="utf-8")
        _link(checkpoint, draft / "checkpoints" / checkpoint.name)


def _link(source: Path, target: Path) -> None:
    """The same files under another name, or copies where there can be no second name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with drafted(target) as draft:
        shutil.copytree(source, draft, copy_function=_linked)


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _name(step: int) -> str:
    return f"step_{step:08d}"
