"""Runs whose disk was lost, brought back from where their checkpoints are copied to."""

from pathlib import Path

import fiddle as fdl

from fidgpt.graph import ConfigError
from fidgpt.train import Mirror


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
