"""CORE, the mean of 22 tasks without what guessing gives (DCLM, Li et al., 2024, arXiv:2406.11794).

Prompts, few-shot examples and scores follow nanochat (https://github.com/karpathy/nanochat), so
that numbers compare with its leaderboard, and with GPT-2's 0.256525.
"""

import csv
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fidgpt.data import DataError, Tokenizer
from fidgpt.data.rows import read_rows
from fidgpt.train.evaluation import document_begin
from fidgpt.train.scores.answering import Choices, Completion, Exam, Question

Row = Mapping[str, Any]


def core_exams(folder: Path, tokenizer: Tokenizer, *, limit: int | None) -> dict[str, Exam]:
    """Return the tasks of a bundle by their labels.

    Args:
      folder: holds `core.yaml`, the table `eval_meta_data.csv` of baselines, and `eval_data`.
      tokenizer: of the model.
      limit: the most questions of a task, which are drawn; None for all.

    Raises:
      DataError: a file is missing or damaged.
    """
    import yaml

    try:
        tasks = yaml.safe_load((folder / "core.yaml").read_text(encoding="utf-8"))["icl_tasks"]
        with (folder / "eval_meta_data.csv").open(encoding="utf-8", newline="") as file:
            table = {
                row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(file)
            }
        return {
            task["label"]: _exam(
                task,
                read_rows(folder / "eval_data" / task["dataset_uri"]),
                tokenizer,
                baseline=0.01 * table[task["label"]],
                limit=limit,
            )
            for task in tasks
        }
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise DataError(
            f"{folder} is no bundle of CORE's tasks that can be read: {error!r}.\nIt holds "
            "core.yaml, eval_meta_data.csv and eval_data."
        ) from error


def _exam(
    task: Row,
    rows: list[dict[str, Any]],
    tokenizer: Tokenizer,
    *,
    baseline: float,
    limit: int | None,
) -> Exam:
    random.Random(1337).shuffle(rows)
    rows = rows[:limit]
    make = _QUESTIONS[task["icl_task_type"]]
    shots, delimiter = task["num_fewshot"][0], task.get("continuation_delimiter", " ")
    encode = partial(document_begin, tokenizer)

    def question(index: int) -> Question:
        others = [i for i in range(len(rows)) if i != index] if shots else []
        chosen = random.Random(1234 + index).sample(others, min(shots, len(others)))
        return make(rows[index], [rows[i] for i in chosen], delimiter, encode)

    return Exam(count=len(rows), question=question, baseline=baseline)


def _choice(row: Row, examples: Sequence[Row], delimiter: str, encode: Any) -> Question:
    """Return a question whose context is followed by one of several endings."""
    shown = "".join(
        f"{row['query']}{delimiter}{row['choices'][row['gold']]}\n\n" for row in examples
    )
    rows = [encode(f"{shown}{row['query']}{delimiter}{choice}") for choice in row["choices"]]
    return Choices(rows, [_common(rows)] * len(rows), row["gold"])


def _schema(row: Row, examples: Sequence[Row], delimiter: str, encode: Any) -> Question:
    """Return a question whose ending is preceded by one of several contexts."""
    shown = "".join(
        f"{example['context_options'][example['gold']]}{delimiter}{example['continuation']}\n\n"
        for example in examples
    )
    ending = f"{delimiter}{row['continuation']}"
    rows = [encode(f"{shown}{context}{ending}") for context in row["context_options"]]
    alike = _common([tokens[::-1] for tokens in rows])
    return Choices(rows, [len(tokens) - alike for tokens in rows], row["gold"])


def _completion(row: Row, examples: Sequence[Row], delimiter: str, encode: Any) -> Question:
    """Return a question whose context has one right ending."""
    shown = "".join(
        f"{row['context'].strip()}{delimiter}{row['continuation']}\n\n" for row in examples
    )
    begin = f"{shown}{row['context'].strip()}{delimiter}"
    whole = encode(f"{begin}{row['continuation']}")
    # A tokenizer may join the end of the context to what follows.
    return Completion(whole, min(_common([encode(begin.strip()), whole]), len(whole) - 1))


def _common(rows: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens are the same in all rows."""
    columns = enumerate(zip(*rows, strict=False))
    return next((i for i, column in columns if len({*column}) > 1), min(map(len, rows)))


_QUESTIONS = {
    "multiple_choice": _choice,
    "schema": _schema,
    "language_modeling": _completion,
}
