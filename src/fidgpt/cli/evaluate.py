"""Measure a trained model on held-out text and on tasks: `fidgpt evaluate runs/NAME`.

Without --text and --tasks it is measured by the evaluators of its run.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app, trained
from fidgpt.errors import ConfigError

if TYPE_CHECKING:
    from fidgpt.data import Tokenizer
    from fidgpt.parallel import DataParallel
    from fidgpt.train import Trainer

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "text", [], "A text, JSON lines, Parquet or Arrow file, or a folder of them. Repeatable."
)
flags.DEFINE_string("text_field", "text", "Field of the text in JSON lines and tables.")
flags.DEFINE_integer("seq_len", None, "Sequence length for --text; by default as trained.", 1)
flags.DEFINE_multi_string(
    "tasks", [], "Comma-separated: core, gsm8k, ..., or tasks of the harness. Repeatable."
)
flags.DEFINE_string("data", None, "A folder or zip file with rows of core, gsm8k, ...")
flags.DEFINE_boolean("run_programs", False, "Let humaneval run programs that the model writes.")
flags.DEFINE_string("include_path", None, "A folder with your own task files of the harness.")
flags.DEFINE_integer("limit", None, "Maximum number of documents per task.", lower_bound=1)
flags.DEFINE_integer(
    "num_fewshot", None, "Few-shot examples per question; defaults to each task's own.", 0
)
flags.DEFINE_integer("batch_size", 16, "Sequences of --text, or requests of --tasks, per batch.", 1)
flags.DEFINE_integer("task_seed", 0, "Seed of tasks that sample texts.")
app.define_path("out", "Write the results to this file, as JSON.")

_BELONGS_TO = {
    ("text",): ("text_field", "seq_len"),
    ("tasks",): ("data", "run_programs", "include_path", "limit", "num_fewshot", "task_seed"),
    ("text", "tasks"): ("batch_size",),
}

Results = dict[str, dict[str, float]]


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Print a table of metrics, with their standard errors if they have any.

    Raises:
      ConfigError: not one directory was named, or there is nothing to measure.
      DataError: a text cannot be read or is too short, the harness is not installed, or a task
        cannot be loaded.
      RunError: there is no run, it has no model that could answer, there is not enough memory, or
        --out cannot be written.
    """
    # Late: --help loads no torch.
    from fidgpt.parallel import DataParallel
    from fidgpt.train.device import within_memory

    path = trained.one_directory(arguments, "evaluate")
    app.refuse_unused(_BELONGS_TO)
    output = FLAGS.out and Path(FLAGS.out)
    if output and not output.parent.is_dir():  # rejected before hours of answers
        raise ConfigError(f"--out={output} cannot be written: name a file in a folder.")
    tasks = [name.strip() for text in FLAGS.tasks if text for name in text.split(",")]
    remedy = "Use a smaller --batch_size."
    if not (FLAGS.text or tasks):
        remedy = "The batch size is that of its run: use --text=FILE with a smaller one."
    # Each of several processes has the whole model, and rows and questions of its own.
    with within_memory(remedy=remedy), trained.naming(path), DataParallel() as parallel:
        trainer, tokenizer = trained.load_trained(path)
        results: Results = {}
        if FLAGS.text or not tasks:
            results |= _measured(path, trainer, parallel)
        if tasks:
            results |= _solved(trainer, tokenizer, tasks, parallel)
        if not parallel.is_main:
            return
    print("\n".join(_table(results)))
    if output:
        from fidgpt.files import write_whole

        write_whole(output, json.dumps(results, indent=2) + "\n")


def _measured(path: Path, trainer: "Trainer", parallel: "DataParallel") -> Results:
    """Return the metrics of each --text, or else of the run's evaluators, in its number format."""
    from fidgpt import data, graph
    from fidgpt.train.evaluation import Validation

    evaluators = {} if FLAGS.text else {**trainer.evaluators}
    file, seq_len = data.TokenizerFile(path / "tokenizer.json"), FLAGS.seq_len or trainer.seq_len
    for text in FLAGS.text:
        source = data.TextFiles(text, text_field=FLAGS.text_field)
        corpus = data.Corpus(source, tokenizer=file, validation_fraction=1.0)
        held_out = data.HeldOut(corpus, seq_len=seq_len, batch_size=FLAGS.batch_size)
        evaluators[text] = Validation(held_out)
    if not evaluators:
        raise graph.ConfigError(
            f"{path} has no evaluators: name a text or a task: --text=books.jsonl or "
            "--tasks=lambada_openai"
        )
    for evaluator in evaluators.values():
        evaluator.prepare()
    model = trainer.precision.replica(trainer.model)
    return {
        name: evaluator(model, trainer.loss, parallel) for name, evaluator in evaluators.items()
    }


def _solved(
    trainer: "Trainer", tokenizer: "Tokenizer", names: list[str], parallel: "DataParallel"
) -> Results:
    """Return the metrics of tasks."""
    from fidgpt.model.generation import prepare_to_write
    from fidgpt.train.harness import Tasks
    from fidgpt.train.scores.answering import Examinee

    prepare_to_write(trainer.model)
    tasks = Tasks(
        names,
        include_path=FLAGS.include_path,
        num_fewshot=FLAGS.num_fewshot,
        limit=FLAGS.limit,
        data=FLAGS.data,
        runs_programs=FLAGS.run_programs,
    )
    examinee = Examinee(trainer.model, tokenizer, trainer.seq_len, parallel)
    return tasks.run(
        examinee, bootstrap_iters=1000, batch_size=FLAGS.batch_size, seed=FLAGS.task_seed
    )


def _table(results: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each metric, with its standard error behind it if it has one."""
    width = max(map(len, results))
    for task, metrics in results.items():
        for name, value in metrics.items():
            metric, slash, how = name.partition("/")
            error = metrics.get(f"{metric}_stderr{slash}{how}")
            if not metric.endswith("_stderr"):
                behind = "" if error is None else f" ± {error:.4f}"
                yield f"{task:{width}}  {name:20}  {value:.4f}{behind}"
