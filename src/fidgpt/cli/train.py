"""The command `train.py`: compose a config, check it, then print it, count it or train it."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app, show
from fidgpt.cli.flags import FLAGS, answered
from fidgpt.collection import gc_paused

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.compose.catalogue import Catalogue
    from fidgpt.compose.composition import Composition

flags.DEFINE_bool("dry_run", False, "Build and count, and train nothing.")
flags.DEFINE_string(
    "resume", None, "Directory of a run to resume; or a copy of one, to restore into --run_dir."
)
flags.DEFINE_bool(
    "auto_resume", False, "Resume the run in --run_dir if there is one, otherwise start it there."
)
flags.DEFINE_string(
    "hardware", None, "Show what fiddler:for_hardware makes of this machine, such as h100x8."
)
flags.DEFINE_bool("verbose", False, "Show every value that a directive changed.")
flags.DEFINE_bool("allow_noop", False, "Accept directives that change nothing.")
flags.DEFINE_integer("resume_step", None, "Resume from this checkpoint rather than the newest.")
flags.DEFINE_integer("until_step", None, "End after this step.", lower_bound=1)


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Do what the flags ask; return the exit status."""
    if answered(arguments):
        return None
    with gc_paused(stays=True):
        # Late: --help, --list and completion load no torch.
        from fidgpt.compose.catalogue import own_catalogue
        from fidgpt.compose.composition import compose
        from fidgpt.compose.report import other_errors
        from fidgpt.compose.runs import CONSTRAINTS
        from fidgpt.graph.errors import raise_all

        raise_all(list(_contradictions()))
        _pretend_machine()
        catalogue = own_catalogue(tuple(FLAGS.allow))
        old = _resumed(catalogue) if FLAGS.resume else None
        noop, keeps = FLAGS.allow_noop, CONSTRAINTS
        made = compose(
            FLAGS.config,
            catalogue,
            base=old,
            other_errors=lambda made: other_errors(made, constraints=keeps, allow_noop=noop),
        )
        if _is_there_already(made.config):
            old = _same_run(made.config, catalogue)
            made = compose([], catalogue, base=old)
        if show.is_asked():
            return _show(made)
    return _run(made, old)


def _show(made: "Composition") -> None:
    from fidgpt import graph
    from fidgpt.compose import report, runs

    with report.naming_directives(made, allow_noop=FLAGS.allow_noop):
        rejected = graph.rejections(made.resolved, constraints=runs.CONSTRAINTS)
    _warn([f"this would not run: {message}" for message in report.grouped(rejected)])
    _warn(_reported(made).warnings)
    _warn(report.unused_blocks(made))
    show.show(made)


def _run(made: "Composition", old: "fdl.Config | None") -> int | None:
    """Train what the directives made, or resume the run that had the config `old`."""
    from fidgpt.compose import report, runs
    from fidgpt.graph.unused import unused_arguments

    with report.naming_directives(made, allow_noop=FLAGS.allow_noop):
        trainer = runs.build_trainer(made.resolved)
    reported = _reported(made)
    print(*reported.changes, sep="\n", end="\n" if reported.changes else "", file=sys.stderr)
    _warn([*reported.warnings, *unused_arguments(made.config), *report.unused_blocks(made)])
    with report.naming_directives(made, allow_noop=FLAGS.allow_noop):
        allowed, own = made.catalogue.packages, runs.allow_flags(FLAGS.allow)
        if old is None:
            directory = runs.new_run(
                made.resolved,
                directives=FLAGS.config,
                path=FLAGS.run_dir,
                allowed=allowed,
                flags=own,
            )
        else:
            path = Path(FLAGS.run_dir or FLAGS.resume)
            directory = runs.resumed_run(path, old, made.resolved, allowed=allowed, flags=own)
    resume = old is not None
    if not FLAGS.dry_run:
        outcome = trainer.train(
            directory, resume=resume, resume_step=FLAGS.resume_step, until_step=FLAGS.until_step
        )
        return 128 + outcome.stopped_by if outcome.stopped_by else 0  # as a shell does for signals
    from rich.console import Console

    from fidgpt.train.summary_text import facts_table

    if resume:
        trainer.check_resumable(directory, step=FLAGS.resume_step)
    Console(highlight=False).print(facts_table(directory, trainer.facts(), step=0))
    return None


def _reported(made: "Composition"):
    from fidgpt.compose.report import report

    return report(made, verbose=FLAGS.verbose, allow_noop=FLAGS.allow_noop)


def _warn(lines: list[str]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _pretend_machine() -> None:
    """Let for_hardware see the machine of --hardware in place of the one at hand."""
    from fidgpt.compose.directives import is_by_machine
    from fidgpt.graph import ConfigError
    from fidgpt.train.device import VARIABLE

    if FLAGS.hardware is None:
        return
    if not any(map(is_by_machine, FLAGS.config)) and FLAGS.print != "summary":
        raise ConfigError(
            f"--hardware={FLAGS.hardware} changes nothing, because no directive asks for the "
            "machine: add --config=fiddler:for_hardware."
        )
    os.environ[VARIABLE] = FLAGS.hardware


def _resumed(catalogue: "Catalogue") -> "fdl.Config":
    """Return the graph of the run of --resume, restored into --run_dir if that is a copy.

    Raises:
      RunError, ConfigError: there is no such run, or its config cannot be read.
      CheckpointError: there is no copy, or it cannot be read.
    """
    from fidgpt.compose.sources import load_run
    from fidgpt.graph import ConfigError
    from fidgpt.train import Mirror

    if FLAGS.run_dir:
        if (Path(FLAGS.resume) / "config.json").exists():
            raise ConfigError(
                f"--resume={FLAGS.resume} resumes in the directory of the run: leave --run_dir out."
            )
        try:
            mirror = Mirror(FLAGS.resume)
        except ValueError as error:
            raise ConfigError(
                f"--resume={FLAGS.resume} holds no run, and is no copy of one: {error}"
            ) from None
        mirror.restore_run(Path(FLAGS.run_dir))
    return load_run(Path(FLAGS.run_dir or FLAGS.resume), allowed=catalogue.packages)


def _is_there_already(cfg: "fdl.Config") -> bool:
    """Return whether --run_dir holds a run to resume, restored from its copies if it was lost."""
    import fiddle as fdl

    from fidgpt.train import Mirror

    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if not (FLAGS.auto_resume or restarted) or FLAGS.run_dir is None or FLAGS.resume:
        return False
    path = Path(FLAGS.run_dir)
    mirror = getattr(getattr(cfg, "checkpoints", None), "mirror", None)
    if not path.exists() and isinstance(mirror, fdl.Buildable):
        built = fdl.build(mirror)
        if isinstance(built, Mirror) and built.holds_run():
            built.restore_run(path)
    return (path / "config.json").exists()


def _same_run(cfg: "fdl.Config", catalogue: "Catalogue") -> "fdl.Config":
    """Return the graph of the run in --run_dir.

    Raises:
      ConfigError: it is not the one that this command makes.
    """
    from fidgpt.compose.sources import load_run
    from fidgpt.graph import ConfigError, fingerprint

    old = load_run(Path(FLAGS.run_dir), allowed=catalogue.packages)
    if fingerprint(old) != fingerprint(cfg):
        differ = shlex.quote(f"--diff=config_file:{FLAGS.run_dir}/config.json")
        raise ConfigError(
            f"{FLAGS.run_dir} holds a run of another config: see how they differ with {differ}, "
            f"then resume it with {shlex.quote(f'--resume={FLAGS.run_dir}')}, or name another "
            "--run_dir."
        )
    return old


def _contradictions() -> Iterator[str]:
    """Yield what is wrong with flags that make no sense together, before anything is loaded."""
    for name in ("resume", "run_dir", "hardware", "diff"):  # as --resume=$RUN with RUN unset
        value = FLAGS[name].value
        if value is not None and not str(value).strip():
            yield f"--{name}= names nothing: give it a value, or leave it out."
    if "://" in (FLAGS.resume or "") and not FLAGS.run_dir:
        yield (
            f"--resume={FLAGS.resume} is a copy of a run: name with --run_dir the directory to "
            "restore it into."
        )
    if FLAGS.auto_resume and not FLAGS.run_dir:
        yield "--auto_resume resumes the run in --run_dir: name that directory."
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    if may_restart and not (FLAGS.resume or FLAGS.run_dir):
        yield (
            "torchrun may start this command again, and it must know which run is meant: name its "
            "directory with --run_dir."
        )
    if FLAGS["diff_form"].present and FLAGS.diff is None:
        yield "--diff_form sets how --diff is shown: name with --diff what to compare."
    if FLAGS.resume_step is not None and not FLAGS.resume:
        yield "--resume_step sets where to resume: it needs --resume=RUN_DIRECTORY."


if __name__ == "__main__":
    run()
