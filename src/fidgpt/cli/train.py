"""The command `train.py`: compose a config, check it, then print it, count it or train it."""

from pathlib import Path

from absl import flags
from rich.console import Console as RichConsole

from fidgpt.cli import app
from fidgpt.cli.catalogue import own_catalogue
from fidgpt.cli.directives import compose
from fidgpt.cli.flags import FLAGS, refuse_arguments
from fidgpt.cli.runs import build_trainer, load_run, new_run
from fidgpt.graph import ConfigError, bind, check, dump, outline
from fidgpt.train import RunDirectory, Trainer
from fidgpt.train.console import facts_table

flags.DEFINE_bool("dry_run", False, "Build and count, and train nothing.")
flags.DEFINE_string("resume", None, "Directory of a run that is to go on where it stopped.")
flags.DEFINE_integer("resume_step", None, "Go on from this checkpoint rather than the newest.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Does what the flags say; returns the exit status."""
    refuse_arguments(arguments)
    _refuse_contradictions()
    resumed = Path(FLAGS.resume) if FLAGS.resume else None
    cfg = check(load_run(resumed) if resumed else compose(FLAGS.config, own_catalogue()))
    if FLAGS.print:
        check(bind(cfg))
        print(outline(cfg) if FLAGS.print == "text" else dump(cfg), end="")
        return None
    trainer = build_trainer(cfg)
    if resumed:
        directory = RunDirectory(resumed, texts={})
    else:
        directory = new_run(cfg, directives=FLAGS.config, path=FLAGS.run_dir)
    if FLAGS.dry_run:
        RichConsole(highlight=False).print(facts_table(directory, trainer.facts(), step=0))
        return None
    return _status(trainer, directory, resume=resumed is not None)


def _refuse_contradictions() -> None:
    if FLAGS.resume and (FLAGS.config or FLAGS.run_dir):
        raise ConfigError(
            "--resume goes on with the config of the run as it is: leave --config and --run_dir "
            "out, or begin a new run."
        )
    if FLAGS.resume_step is not None and not FLAGS.resume:
        raise ConfigError("--resume_step says where to go on: it needs --resume=RUN_DIRECTORY.")


def _status(trainer: Trainer, directory: RunDirectory, *, resume: bool) -> int:
    """Trains; a run that a signal stopped ends with the status that a shell gives the signal."""
    outcome = trainer.train(directory, resume=resume, resume_step=FLAGS.resume_step)
    return 128 + outcome.stopped_by if outcome.stopped_by else 0


if __name__ == "__main__":
    run()
