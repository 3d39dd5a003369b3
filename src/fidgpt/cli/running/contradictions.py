"""Flags of `train.py` that name nothing, or that need others which were not said."""

import os
from collections.abc import Iterator

from fidgpt.cli.flags import FLAGS

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
