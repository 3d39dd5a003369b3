"""The run with which `train.py` goes on: that of --resume, or one that stands in --run_dir."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fidgpt.cli.flags import FLAGS

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.cli.catalogue.catalogue import Catalogue


def resumed(catalogue: "Catalogue") -> "fdl.Config":
    """The graph of the run of --resume, brought into --run_dir first where its disk was lost.

    Raises:
      RunError, ConfigError: there is no such run, or its config cannot be read.
    """
    from fidgpt.cli.running.lost import bring_back  # late: they know files and differences
    from fidgpt.cli.running.runs import load_run

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
        from fidgpt.cli.running.lost import bring_back_lost  # late: it knows torch

        bring_back_lost(cfg, path)
    return (path / "config.json").exists()


def same_run(cfg: "fdl.Config", catalogue: "Catalogue") -> "fdl.Config":
    """The graph of the run in --run_dir.

    Raises:
      ConfigError: it is not the one that this command makes.
    """
    from fidgpt.cli.running.runs import load_run  # late: it knows files and differences
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
