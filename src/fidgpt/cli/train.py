"""The command `train.py`: compose a config, check it, then print it, count it or train it."""

import os
import sys
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app, show
from fidgpt.cli.flags import FLAGS, refuse_arguments
from fidgpt.collection import gc_paused

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.compose.catalogue import Catalogue
    from fidgpt.compose.effects import Composed
    from fidgpt.graph import ConfigError
    from fidgpt.train import RunDirectory, Trainer

flags.DEFINE_bool("dry_run", False, "Build and count, and train nothing.")
flags.DEFINE_string(
    "resume", None, "Directory of a run that is to go on; or a copy to bring into --run_dir."
)
flags.DEFINE_bool(
    "auto_resume", False, "Go on with the run in --run_dir if there is one, else begin it there."
)
flags.DEFINE_string(
    "hardware", None, "Show what fiddler:for_hardware makes of this machine, such as h100x8."
)
flags.DEFINE_bool("verbose", False, "Tell every value that a directive changed.")
flags.DEFINE_bool("allow_noop", False, "Accept directives that change nothing.")
flags.DEFINE_integer("resume_step", None, "Go on from this checkpoint rather than the newest.")
flags.DEFINE_integer(
    "until_step", None, "End after this step, from where --resume goes on.", lower_bound=1
)


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Does what the flags say; returns the exit status."""
    refuse_arguments(arguments)
    if show.answered():
        return None
    with gc_paused(stays=True):
        from fidgpt.cli import resume as earlier

        earlier.refuse_contradictions()
        _pretend_machine()
        # Late: --help, --list and completion load no torch.
        from fidgpt.compose.catalogue import own_catalogue
        from fidgpt.compose.directives import composed

        catalogue = own_catalogue(tuple(FLAGS.allow))
        old = earlier.resumed(catalogue) if FLAGS.resume else None
        made = composed(FLAGS.config, catalogue, base=old, more=_wrong_beside)
        if earlier.is_there_already(made.root):
            old = earlier.same_run(made.root, catalogue)
            made = composed([], catalogue, base=old)
        if show.is_asked():
            return _show(made, catalogue)
    return _run(made, old, catalogue.packages)


def _show(made: "Composed", catalogue: "Catalogue") -> None:
    from fidgpt.compose.effects import spare_blocks
    from fidgpt.compose.report import (
        grouped,  # late, as they know the model
        naming_directives,
    )

    with naming_directives(made, allow_noop=FLAGS.allow_noop):
        mistakes = _cannot_run(made.root)
    _warn([f"this would not run: {message}" for message in grouped(mistakes)])
    _tell(made, all_of_it=FLAGS.verbose)
    _warn(spare_blocks(made.root))
    show.show(made.root, catalogue, directives=None if FLAGS.resume else FLAGS.config)


def _cannot_run(cfg: "fdl.Config") -> "list[ConfigError]":
    """The constraints that a graph breaks, which may be looked at for that very reason.

    Raises:
      ConfigErrors: the graph is so wrong that there is nothing to look at.
    """
    from fidgpt.compose.runs import CONSTRAINTS
    from fidgpt.graph import ConfigError, ConfigErrors, bind, check, check_and_bind

    try:
        check_and_bind(cfg, constraints=CONSTRAINTS)
    except ConfigErrors as errors:
        try:
            check(bind(check(cfg)))
        except ConfigError:
            raise errors from None
        return errors.mistakes
    return []


def _wrong_beside(made: "Composed") -> list[str]:
    """What is wrong with the graph too where a directive is, so that all is told at once."""
    from fidgpt.compose.report import wrong_beside
    from fidgpt.compose.runs import CONSTRAINTS

    return wrong_beside(made, constraints=CONSTRAINTS, allow_noop=FLAGS.allow_noop)


def _run(made: "Composed", old: "fdl.Config | None", allowed: tuple[str, ...]) -> int | None:
    """Trains what the directives made, or goes on with it where a run went by `old` so far."""
    from fidgpt.compose.effects import spare_blocks
    from fidgpt.compose.report import naming_directives
    from fidgpt.compose.runs import build_trainer
    from fidgpt.graph.unused import unused_arguments

    with naming_directives(made, allow_noop=FLAGS.allow_noop):
        trainer = build_trainer(made.root)
    _tell(made, all_of_it=True)
    _warn([*unused_arguments(made.root), *spare_blocks(made.root)])
    with naming_directives(made, allow_noop=FLAGS.allow_noop):
        directory = _directory(made.root, old, allowed)
    if FLAGS.dry_run:
        return _show_facts(trainer, directory, resume=old is not None)
    return _train(trainer, directory, resume=old is not None)


def _directory(
    cfg: "fdl.Config", old: "fdl.Config | None", allowed: tuple[str, ...]
) -> "RunDirectory":
    """Of a new run, or of the one that is to go on; nothing is written yet."""
    from fidgpt.compose.runs import allow_flags, new_run, resumed_run

    flags = allow_flags(FLAGS.allow)
    if old is None:
        return new_run(
            cfg, directives=FLAGS.config, path=FLAGS.run_dir, allowed=allowed, flags=flags
        )
    from fidgpt.cli import resume as earlier

    return resumed_run(earlier.directory(), old, cfg, allowed=allowed, flags=flags)


def _show_facts(trainer: "Trainer", directory: "RunDirectory", *, resume: bool) -> None:
    """What would be trained; of a run that is to go on, that it could."""
    from rich.console import Console

    from fidgpt.train.summary_text import facts_table

    if resume:
        trainer.check_resumable(directory, step=FLAGS.resume_step)
    Console(highlight=False).print(facts_table(directory, trainer.facts(), step=0))


def _train(trainer: "Trainer", directory: "RunDirectory", *, resume: bool) -> int:
    """Trains; a run that a signal stopped ends with the status that a shell gives the signal."""
    outcome = trainer.train(
        directory, resume=resume, resume_step=FLAGS.resume_step, until_step=FLAGS.until_step
    )
    return 128 + outcome.stopped_by if outcome.stopped_by else 0


def _tell(made: "Composed", *, all_of_it: bool) -> None:
    """What the directives changed, on standard error; without `all_of_it` only the warnings."""
    from fidgpt.compose.report import report

    told = report(made, verbose=FLAGS.verbose, allow_noop=FLAGS.allow_noop)
    for line in told.changes if all_of_it else []:
        print(line, file=sys.stderr)
    _warn(told.warnings)


def _warn(lines: list[str]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _pretend_machine() -> None:
    """Lets for_hardware see the machine of --hardware in place of the one at hand."""
    from fidgpt.compose.spelling import is_by_machine
    from fidgpt.graph import ConfigError
    from fidgpt.train.device import VARIABLE

    if FLAGS.hardware is None:
        return
    if not any(map(is_by_machine, FLAGS.config)) and FLAGS.print != "summary":
        raise ConfigError(
            f"--hardware={FLAGS.hardware} changes nothing, because no directive asks for the "
            "machine: say --config=fiddler:for_hardware too."
        )
    os.environ[VARIABLE] = FLAGS.hardware


if __name__ == "__main__":
    run()
