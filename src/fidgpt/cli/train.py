"""Train a model: `fidgpt train base make_small num_steps=200`, or `python train.py` with the same.

Words are names of configs and of fiddlers, which change them, `PATH=VALUE`, `LearningRate=3e-4` for
a quantity with a name, files, and directories of runs. Each stands for a directive of `--config`;
`--print` shows for which, and what would run.
"""

from functools import partial

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.app import define_path
from fidgpt.cli.flags import FLAGS, answered
from fidgpt.collection import gc_paused
from fidgpt.heap import restart_without_cache

flags.DEFINE_bool("dry_run", False, "Build the model and count it, without training.")
flags.DEFINE_bool(
    "check_parallel",
    False,
    "Compare one step of a small copy of the config on its mesh, here on CPUs, with one process: "
    "the loss and every parameter's gradient.",
)
define_path("resume", "Directory of a run to resume, or a copy of one to restore into --run_dir.")
flags.DEFINE_bool(
    "auto_resume", False, "Resume the run in --run_dir if there is one, otherwise start it there."
)
flags.DEFINE_bool("verbose", False, "Show every value that a directive changed.")
flags.DEFINE_bool("measure", False, "Measure again what this machine computes fastest with.")
flags.DEFINE_bool("allow_noop", False, "Accept directives that change nothing.")
flags.DEFINE_integer("resume_step", None, "Resume from this checkpoint rather than the newest.")
flags.DEFINE_integer("until_step", None, "Stop after this step.", lower_bound=1)
flags.DEFINE_multi_string(
    "why", [], "Show what set the value at this path, what set it before, and what it inherits."
)
flags.DEFINE_string(
    "diff", None, "Show what differs from another graph: a config, a file or a run directory."
)
flags.DEFINE_enum(
    "diff_form",
    "text",
    ["text", "directives", "patch", "html"],
    "Form of --diff: lines, directives or a patch that make the difference, or a page for a "
    "browser with both side by side.",
)
flags.DEFINE_bool("repro", False, "Print needed directives that make this graph again.")


def run() -> None:
    """Entry point of the command."""
    app.run(partial(main, restarts=True), takes_directives=True)


def main(arguments: list[str], *, restarts: bool = False) -> int | None:
    """Do what the flags ask; return the exit status.

    Args:
      arguments: words that are neither flags nor directives, of which there may be none.
      restarts: whether a program that trains may start again, with memory set up for that.
    """
    if answered(arguments):
        return None
    is_shown = bool(FLAGS.print or FLAGS.why or FLAGS.diff is not None or FLAGS.repro)
    if restarts and not (is_shown or FLAGS.dry_run or FLAGS.check_parallel):
        restart_without_cache()
    with gc_paused(stays=True):
        # Late: --help, --list and completion load no torch.
        from fidgpt.cli import show, training
        from fidgpt.compose.composition import compose

        catalogue, old = training.prepared()
        composition = compose(FLAGS.config, catalogue, base=old, other_errors=training.other_errors)
        if begun := training.begun(composition.config, catalogue):
            composition, old = compose([], catalogue, base=begun), begun
        if is_shown:
            return show.show(composition)
    if FLAGS.check_parallel:
        return training.check_parallel(composition)
    return training.run(composition, old)


if __name__ == "__main__":
    run()
