"""The command `python -m fidgpt.evaluate RUN`: tasks of lm-evaluation-harness on a model."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.running.trained import load_trained

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "tasks", [], "Tasks, groups or tags of the harness, with commas between them. Repeated."
)
flags.DEFINE_string("include_path", None, "A folder with task files of your own.")
flags.DEFINE_integer("limit", None, "Only so many documents of each task.", lower_bound=1)
flags.DEFINE_integer(
    "num_fewshot", None, "Solved examples before each question; unless given, as tasks say.", 0
)
flags.DEFINE_integer("batch_size", 16, "How many requests are answered at once.", lower_bound=1)
flags.DEFINE_integer("task_seed", 0, "Another seed draws others, where a task draws texts.")
flags.DEFINE_string("output", None, "A file for the results, as JSON.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Prints a table of metrics with their standard errors.

    Raises:
      ConfigError: not one directory was named, or no task.
      DataError: the harness is not installed, or a task cannot be loaded.
      RunError: the run has no model that could answer, or --output cannot be written.
    """
    # Late: --help loads no torch.
    from fidgpt.graph import ConfigError
    from fidgpt.model.generation import prepare_to_write
    from fidgpt.train import RunError
    from fidgpt.train.evaluation import Answers, Tasks

    if len(arguments) != 1:
        raise ConfigError("name one directory, of a run or of the hub: fidgpt.evaluate runs/NAME")
    names = [name.strip() for text in FLAGS.tasks if text for name in text.split(",")]
    if not names:
        raise ConfigError("--tasks is missing: name a task at least, as --tasks=lambada_openai")
    path, output = Path(arguments[0]), _output()
    model, tokenizer, context, _ = load_trained(path)
    prepare_to_write(model)
    tasks = Tasks(
        names,
        include_path=FLAGS.include_path,
        num_fewshot=FLAGS.num_fewshot,
        limit=FLAGS.limit,
    )
    answers = Answers(
        model,
        tokenizer=tokenizer,
        context=context,
        batch_size=FLAGS.batch_size,
        seed=FLAGS.task_seed,
    )
    try:
        results = tasks.run(answers, bootstrap_iters=1000)
    except ValueError as error:
        raise RunError(f"{path} cannot answer: {error}") from error
    print("\n".join(_table(results)))
    if output:
        _write(results, output)


def _output() -> Path | None:
    """The file of --output, refused before hours of answers rather than after them."""
    from fidgpt.graph import ConfigError

    output = FLAGS.output and Path(FLAGS.output)
    is_something_else = output and output.exists() and not output.is_file()  # /dev/stdout, too
    if output and (is_something_else or not output.parent.is_dir()):
        raise ConfigError(f"--output={output} cannot be written: name a file in a folder.")
    return output


def _write(results: Mapping[str, Mapping[str, float]], output: Path) -> None:
    from fidgpt.data.preparing.atomic import write_whole
    from fidgpt.train import RunError

    try:
        write_whole(output, json.dumps(results, indent=2) + "\n")
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror}.") from error


def _table(results: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """A line for each metric, with its standard error behind it where there is one."""
    width = max((len(task) for task in results), default=0)
    for task, metrics in results.items():
        for name, value in metrics.items():
            error = metrics.get(_error_of(name))
            if not _is_error(name):
                behind = "" if error is None else f" ± {error:.4f}"
                yield f"{task:{width}}  {name:20}  {value:.4f}{behind}"


def _is_error(name: str) -> bool:
    return name.partition("/")[0].endswith("_stderr")


def _error_of(name: str) -> str:
    metric, slash, how = name.partition("/")
    return f"{metric}_stderr{slash}{how}"


if __name__ == "__main__":
    run()
