"""The command `python -m fidgpt.evaluate RUN`: a trained model on held-out text and on tasks.

Without --text and --tasks it is measured by what its run measures itself by.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.trained import load_trained

if TYPE_CHECKING:
    from fidgpt.cli.trained import Trained
    from fidgpt.data import EvaluationStream
    from fidgpt.train.evaluation import Evaluator


FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "text", [], "A file of text, JSON lines, Parquet or Arrow, or a folder of such. Repeated."
)
flags.DEFINE_string("text_field", "text", "Where the text is in JSON lines and tables.")
flags.DEFINE_integer(
    "seq_len", None, "Tokens of a sequence of --text; unless given, as trained.", 1
)
flags.DEFINE_multi_string(
    "tasks", [], "Tasks, groups or tags of the harness, with commas between them. Repeated."
)
flags.DEFINE_string("include_path", None, "A folder with task files of your own.")
flags.DEFINE_integer("limit", None, "Only so many documents of each task.", lower_bound=1)
flags.DEFINE_integer(
    "num_fewshot", None, "Solved examples before each question; unless given, as tasks say.", 0
)
flags.DEFINE_integer(
    "batch_size", 16, "How many sequences of --text, or requests of --tasks, go at once.", 1
)
flags.DEFINE_integer("task_seed", 0, "Another seed draws others, where a task draws texts.")
flags.DEFINE_string("out", None, "A file for the results, as JSON.")

_BELONGS_TO = {
    ("text",): ("text_field", "seq_len"),
    ("tasks",): ("include_path", "limit", "num_fewshot", "task_seed"),
    ("text", "tasks"): ("batch_size",),
}

Results = dict[str, dict[str, float]]


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Prints a table of metrics, with their standard errors where they have one.

    Raises:
      ConfigError: not one directory was named, or there is nothing to measure.
      DataError: a text cannot be read or is too short, the harness is not installed, or a task
        cannot be loaded.
      RunError: there is no run, it has no model that could answer, there is not enough memory, or
        --out cannot be written.
    """
    # Late: --help loads no torch.
    from fidgpt.graph import ConfigError
    from fidgpt.train.meters import within_memory

    if len(arguments) != 1:
        raise ConfigError("name one directory, of a run or of the hub: fidgpt.evaluate runs/NAME")
    _require_no_idle_flags()
    path, output = Path(arguments[0]), _output()
    tasks = [name.strip() for text in FLAGS.tasks if text for name in text.split(",")]
    remedy = "Let fewer go at once, with a smaller --batch_size."
    if not (FLAGS.text or tasks):
        remedy = "Its batches are those of its run: with --text=FILE they may be smaller."
    with within_memory(remedy=remedy):
        trained = load_trained(path)
        results: Results = {}
        if FLAGS.text or not tasks:
            results |= _measured(trained, _of_texts(trained, path) or _of_run(trained, path), path)
        if tasks:
            results |= _solved(trained, tasks, path)
    print("\n".join(_table(results)))
    if output:
        _write(results, output)


def _require_no_idle_flags() -> None:
    from fidgpt.graph import ConfigError

    for owners, names in _BELONGS_TO.items():
        given = [name for name in names if FLAGS[name].present]
        if given and not any(FLAGS[owner].value for owner in owners):
            said = " or --".join(owners)
            raise ConfigError(f"--{given[0]} says something of --{said}, which is not given.")


def _of_run(trained: "Trained", path: Path) -> Mapping[str, "Evaluator"]:
    from fidgpt.graph import ConfigError

    if not trained.evaluators:
        raise ConfigError(
            f"{path} does not say what it is measured by: name a text or a task, as "
            "--text=books.jsonl or --tasks=lambada_openai"
        )
    return trained.evaluators


def _of_texts(trained: "Trained", path: Path) -> Mapping[str, "Evaluator"]:
    """A validation of each --text, on all of it."""
    from fidgpt.data import Corpus, HeldOut, TextFiles, TokenizerFile
    from fidgpt.train.evaluation import Validation

    def validation(text: str) -> Validation:
        source = TextFiles(text, text_field=FLAGS.text_field)
        tokenizer = TokenizerFile(path / "tokenizer.json")
        corpus = Corpus(source, tokenizer=tokenizer, validation_fraction=1.0)
        seq_len = FLAGS.seq_len or trained.seq_len
        return Validation(HeldOut(corpus, seq_len=seq_len, batch_size=FLAGS.batch_size))

    return {text: validation(text) for text in FLAGS.text}


def _measured(trained: "Trained", evaluators: Mapping[str, "Evaluator"], path: Path) -> Results:
    """What evaluators find, in the number format of the run: what it was told itself."""
    from fidgpt.data import DataError
    from fidgpt.train import RunError
    from fidgpt.train.evaluation import Validation

    for name, evaluator in evaluators.items():
        try:
            evaluator.prepare()
            if isinstance(evaluator, Validation):
                _require_rows(trained, evaluator.data)
        except DataError as error:
            raise DataError(f"{name} cannot be measured. {error}") from error
    computing, trainer = trained.precision.replica(trained.model), trained.trainer
    try:
        return {
            name: evaluator(computing, trainer.loss, trainer.parallel)
            for name, evaluator in evaluators.items()
        }
    except ValueError as error:
        raise RunError(f"{path} cannot be measured: {error}") from error


def _require_rows(trained: "Trained", data: "EvaluationStream") -> None:
    """Raises DataError where a text has a token that the model has not.

    A tokenizer of the hub may have more tokens than its model, which no plain text needs.
    """
    from fidgpt.data import DataError

    rows = trained.trainer.vocab_size
    if trained.tokenizer.vocab_size <= rows:
        return
    largest = max(int(data.batch(number).max()) for number in range(data.num_batches))
    if largest >= rows:
        raise DataError(
            f"It holds the token {largest}, and the model's table has {rows} rows.\n"
            "Is tokenizer.json that of another model?"
        )


def _solved(trained: "Trained", names: Sequence[str], path: Path) -> Results:
    """The metrics of tasks of lm-evaluation-harness."""
    from fidgpt.model.generation import prepare_to_write
    from fidgpt.train import RunError
    from fidgpt.train.harness import Tasks, harness_model

    prepare_to_write(trained.model)
    tasks = Tasks(
        names,
        include_path=FLAGS.include_path,
        num_fewshot=FLAGS.num_fewshot,
        limit=FLAGS.limit,
    )
    answers = harness_model(
        trained.model,
        tokenizer=trained.tokenizer,
        context=trained.seq_len,
        batch_size=FLAGS.batch_size,
        seed=FLAGS.task_seed,
    )
    try:
        return tasks.run(answers, bootstrap_iters=1000)
    except ValueError as error:
        raise RunError(f"{path} cannot answer: {error}") from error


def _output() -> Path | None:
    """The file of --out, refused before hours of answers rather than after them."""
    from fidgpt.graph import ConfigError

    output = FLAGS.out and Path(FLAGS.out)
    is_something_else = output and output.exists() and not output.is_file()  # /dev/stdout, too
    if output and (is_something_else or not output.parent.is_dir()):
        raise ConfigError(f"--out={output} cannot be written: name a file in a folder.")
    return output


def _write(results: Mapping[str, Mapping[str, float]], output: Path) -> None:
    from fidgpt.files import write_whole
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
