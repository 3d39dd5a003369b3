"""Resuming: the previous run, and flags that contradict it."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import fiddle as fdl

from fidgpt.cli.flags import FLAGS
from fidgpt.graph import ConfigError
from fidgpt.train import Mirror

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.compose.catalogue import Catalogue


def resumed(catalogue: "Catalogue") -> "fdl.Config":
    """The graph of the run of --resume, brought into --run_dir first where its disk was lost.

    Raises:
      RunError, ConfigError: there is no such run, or its config cannot be read.
    """
    from fidgpt.compose.runs import load_run

    if FLAGS.run_dir:
        bring_back(FLAGS.resume, Path(FLAGS.run_dir))
    return load_run(directory(), allowed=catalogue.packages)


def directory() -> Path:
    """Where a run goes on: in --run_dir where --resume is where its copies are."""
    return Path(FLAGS.run_dir or FLAGS.resume)


def is_there_already(cfg: "fdl.Config") -> bool:
    """Whether --run_dir holds a run that this command is to go on with, or did on a lost disk."""
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if not (FLAGS.auto_resume or restarted) or FLAGS.run_dir is None or FLAGS.resume:
        return False
    path = Path(FLAGS.run_dir)
    if not path.exists():
        bring_back_lost(cfg, path)
    return (path / "config.json").exists()


def same_run(cfg: "fdl.Config", catalogue: "Catalogue") -> "fdl.Config":
    """The graph of the run in --run_dir.

    Raises:
      ConfigError: it is not the one that this command makes.
    """
    from fidgpt.compose.runs import load_run  # late: it knows files and differences
    from fidgpt.graph import ConfigError, fingerprint

    old = load_run(Path(FLAGS.run_dir), allowed=catalogue.packages)
    if fingerprint(old) != fingerprint(cfg):
        differ = shlex.quote(f"--diff=config_file:{FLAGS.run_dir}/config.json")
        raise ConfigError(
            f"{FLAGS.run_dir} holds a run of another config: see how they differ with {differ}, "
            f"then go on with it by {shlex.quote(f'--resume={FLAGS.run_dir}')}, or name another "
            "--run_dir."
        )
    return old


def bring_back(url: str, directory: Path) -> None:
    """Makes the directory of a run anew, as it was copied to `url`.

    Raises:
      ConfigError: that is no URL, or the directory of a run itself.
      CheckpointError: there is no copy, or it cannot be read.
      RunError: the directory cannot be made.
    """
    if (Path(url) / "config.json").exists():
        raise ConfigError(
            f"--resume={url} goes on in the directory of the run: leave --run_dir out."
        )
    try:
        mirror = Mirror(url)
    except ValueError as error:
        raise ConfigError(f"--resume={url} holds no run, and is no copy of one: {error}") from None
    mirror.bring(directory)


def bring_back_lost(cfg: fdl.Config, directory: Path) -> None:
    """The same where a config says where the copies are, if there are any.

    Raises:
      CheckpointError: the storage cannot be read, or what lies there cannot be brought.
      RunError: the directory cannot be made.
    """
    said = getattr(getattr(cfg, "checkpoints", None), "mirror", None)
    mirror = fdl.build(said) if isinstance(said, fdl.Buildable) else None
    if isinstance(mirror, Mirror) and mirror.holds_run():
        mirror.bring(directory)


_NAMING = ("resume", "run_dir", "hardware", "diff")


def refuse_contradictions() -> None:
    """Refuses flags that make no sense together, before anything is loaded for them.

    Raises:
      ConfigErrors: there are some.
    """
    from fidgpt.graph.errors import raise_all  # late: --help needs no graph

    raise_all(list(_contradictions()))


def _contradictions() -> Iterator[str]:
    for name in _NAMING:  # such as --resume=$RUN where RUN is not set
        said = FLAGS[name].value
        if said is not None and not str(said).strip():
            yield f"--{name}= names nothing: give it a value, or leave it out."
    if "://" in (FLAGS.resume or "") and not FLAGS.run_dir:
        yield (
            f"--resume={FLAGS.resume} is a copy of a run: say with --run_dir where the run is to "
            "go on."
        )
    if FLAGS.auto_resume and not FLAGS.run_dir:
        yield "--auto_resume goes on with the run in --run_dir: name that directory."
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    if may_restart and not (FLAGS.resume or FLAGS.run_dir):
        yield (
            "torchrun may start this command again, and it must know which run is meant: name its "
            "directory with --run_dir."
        )
    if FLAGS["diff_form"].present and FLAGS.diff is None:
        yield "--diff_form says how --diff is shown: name with --diff what to compare."
    if FLAGS.resume_step is not None and not FLAGS.resume:
        yield "--resume_step says where to go on: it needs --resume=RUN_DIRECTORY."
