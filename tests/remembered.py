"""Runs of two processes on two machines with memories of their own, of which parts are lost."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch.distributed as dist
from launches import before_steps
from run_facts import reproducible

from fidgpt import configs, fiddlers
from fidgpt.processes.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.train import RunDirectory, Trainer
from fidgpt.train.checkpoints import manifest
from fidgpt.train.state import TrainState
from fidgpt.train.trackers.trackers import read_rows

NUM_STEPS, EVERY, DIES_IN = 8, 2, 7
Change = Callable[[fdl.Config], object]


def config_of(*changes: Change, keep_last: int = 1) -> fdl.Config[Trainer]:
    """A short run that saves on the disk at its end only, and in `$MEMORY`."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.trackers, cfg.samples, cfg.evaluators = cfg.trackers[1:], None, {}
    cfg.num_steps, cfg.checkpoints.every = NUM_STEPS, None
    for change in changes:
        change(cfg)
    fiddlers.use_memory_checkpoints(cfg, every=EVERY, folder="$MEMORY", keep_last=keep_last)
    return cfg


class Dies(Exception):
    """Ends a run as a failure does."""


def dying(step: int) -> Any:
    """Let a run fail in a step."""

    def fail(_: Any, state: TrainState) -> None:
        if state.step + 1 == step:
            raise Dies

    return before_steps(fail)


def train(cfg: fdl.Config[Trainer], path: Path, *, resume: bool = False) -> list[Any]:
    """Train into a directory; return the rows that do not depend on the machine."""
    build_trainer(cfg).train(RunDirectory(path, texts={}), resume=resume)
    return [*map(reproducible, read_rows(path / "metrics.jsonl"))]


def files_in(memory: Path, step: int, pattern: str = "*") -> list[Path]:
    """The files of a step in a memory, the manifest excepted."""
    paths = memory.glob(f"fidgpt-*/process_*/checkpoints/{manifest.name_of(step)}/{pattern}")
    return sorted(path for path in paths if path.name != manifest.MANIFEST)


def cut(paths: Iterable[Path]) -> None:
    """Flip a bit in the middle of files."""
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def machine_lost(folder: Path, number: int) -> None:
    shutil.rmtree(folder / f"machine{number}")


def part_lost(folder: Path) -> None:
    """Both copies of the newest part of the second process are damaged."""
    for number in (0, 1):
        paths = files_in(folder / f"machine{number}", 6, "model-00002*")
        assert paths, number
        cut(paths)


def sharded(cfg: fdl.Config) -> None:
    fiddlers.use_fsdp(cfg)
    fiddlers.use_ema(cfg, beta=0.5)


# Machines with which a run begins, what is lost, those with which it continues, and its step.
RESIZED: dict[str, tuple[int, Callable[[Path], None], int, int]] = {
    "by_the_second_machine_alone": (2, partial(machine_lost, number=0), 1, 6),
    "by_one_machine_more": (1, lambda folder: None, 2, 6),
    "by_one_machine_from_an_older_step": (2, part_lost, 1, 4),
}


def resized(folder: Path, case: str) -> dict[str, Any]:
    """Return the rows of a run that others continue, and how many steps are taken again."""
    before, lose, after, _ = RESIZED[case]
    path = folder / "run"

    def work(rank: int, *, dies: bool) -> list[Any]:
        # What one machine has left is that of the second, if there were two.
        number = before - 1 if after == 1 and not dies else rank
        os.environ["MEMORY"] = str(folder / f"machine{number}")
        cfg = config_of(sharded, keep_last=2)
        if not dies:
            return train(cfg, path, resume=True)
        try:
            with dying(DIES_IN):
                train(cfg, path)
        except Dies:
            pass
        return []

    def works(number: int, *, dies: bool) -> list[Any]:
        # A process of its own even if it is one, since this one forks.
        return run_ranks(number, lambda: work(_rank(), dies=dies))[0]

    works(before, dies=True)
    lose(folder)
    rows = works(after, dies=False)
    redone = read_rows(path / "metrics.jsonl")[-1]["goodput/redone_steps"]
    return {"rows": rows, "redone": redone}


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def main(folder: Path, *cases: str) -> None:
    """Leaves what each process found, by case, in one file."""
    import torch

    os.environ["MEMORY"] = str(folder / "memory")
    results: dict[str, Any] = {
        "whole": run_ranks(1, partial(train, config_of(sharded), folder / "whole"))[0]
    }
    for case in cases:
        (folder / case).mkdir()
        os.environ["MEMORY"] = str(folder / case / "memory")
        results[case] = resized(folder / case, case)
    torch.save(results, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
