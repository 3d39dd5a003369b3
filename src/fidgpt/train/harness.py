"""Tasks of lm-eval."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from fidgpt.data import DataError, Tokenizer
from fidgpt.data.order import CorpusPart
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_size
from fidgpt.train.evaluation import Periodic
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.tasks import Answers

_FEWSHOT_SEED = 1234  # the harness's own, by which it draws the examples of a prompt


class Tasks:
    """Tasks of the harness by name, with their data; made once, run as often as wanted.

    Args:
      names: of tasks, groups or tags, or paths of task files.
      include_path: a folder with task files of your own.
      num_fewshot: solved examples before each question; as each task says unless given.
      limit: only so many documents of each task; all of them unless given.

    Raises:
      DataError: the harness is not installed, knows no such task, or its data cannot be had.
      ValueError: there is no name, or a count is too small.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        include_path: str | Path | None = None,
        num_fewshot: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.check_arguments(names=names, num_fewshot=num_fewshot, limit=limit)
        self.names = names
        with _silent():
            self._loaded = _load(names, include_path)
        for task in self._loaded["tasks"].values():
            fixed = task.get_config("num_fewshot")
            if fixed is None or (num_fewshot is not None and fixed != 0):  # 0 is a task's last word
                task.set_config(key="num_fewshot", value=num_fewshot or 0)
            task.set_fewshot_seed(seed=_FEWSHOT_SEED)
        self._limit = limit

    @staticmethod
    def check_arguments(
        *, names: Sequence[str], num_fewshot: int | None, limit: int | None
    ) -> None:
        """Raises ValueError unless there is a task and a document of it."""
        if isinstance(names, str) or not names:
            raise ValueError(f"{names!r} is no list of tasks: name one at least.")
        if num_fewshot is not None and num_fewshot < 0:
            raise ValueError(f"{num_fewshot=} examples have to be 0 or more.")
        if limit is not None and limit < 1:
            raise ValueError(f"{limit=} documents of a task have to be 1 or more, or None for all.")

    def run(self, answers: Answers, *, bootstrap_iters: int = 0) -> dict[str, dict[str, float]]:
        """The metrics of each task and group, such as `acc` and, with bootstrap, `acc_stderr`.

        A metric of another filter than the harness's `none` has its name behind it: `acc/FILTER`.
        """
        from lm_eval.evaluator import evaluate  # pyright: ignore[reportMissingImports]

        with _silent():
            results = evaluate(
                lm=_adapted(answers),
                task_dict=self._loaded,
                limit=self._limit,
                bootstrap_iters=bootstrap_iters,
                log_samples=False,
            )
        assert results is not None  # the adapter says that it is the first process
        return {**_metrics(results["results"]), **_metrics(results.get("groups", {}))}


def harness_model(
    model: LanguageModel,
    *,
    tokenizer: Tokenizer,
    context: int,
    batch_size: int = 16,
    seed: int = 0,
) -> Any:
    """The model as an `lm_eval.api.model.LM`, for whoever calls the harness themselves.

    The arguments are those of `Answers`.

    Raises:
      DataError: the harness is not installed.
    """
    answers = Answers(model, tokenizer=tokenizer, context=context, batch_size=batch_size, seed=seed)
    return _adapted(answers)


def _adapted(answers: Answers) -> Any:
    """The answers behind the harness's own class, which is not there before it is imported."""
    _require_harness()
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class FidgptLM(Answers, LM):
        """A fidgpt model that answers all requests on this process."""

    return FidgptLM(
        answers.model,
        tokenizer=answers.reader,
        context=answers.context,
        batch_size=answers.batch_size,
        seed=answers.seed,
    )


def _load(names: Sequence[str], include_path: str | Path | None) -> Any:
    _require_harness()
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    if include_path is not None and not Path(include_path).expanduser().is_dir():
        raise DataError(f"include_path={include_path} is no folder: it should hold task files.")
    own = None if include_path is None else str(Path(include_path).expanduser())
    manager = TaskManager(include_path=own, include_defaults=False)
    if _unknown(names, manager):  # late: reading all of the harness's own tasks takes seconds
        manager = TaskManager(include_path=own)
    if strange := _unknown(names, manager):
        raise DataError(
            f"lm-evaluation-harness has no task {strange[0]!r}: `lm_eval ls tasks` lists those it "
            "has, and include_path names a folder with your own."
        )
    try:
        return manager.load(list(names))
    except Exception as error:  # of whatever package reads the task's data
        raise DataError(
            f"the tasks {', '.join(names)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _unknown(names: Sequence[str], manager: Any) -> list[str]:
    known = {*manager.all_tasks}
    return [name for name in names if name not in known and not Path(name).is_file()]


def _require_harness() -> None:
    try:
        import lm_eval.evaluator  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(
            f"tasks need lm-evaluation-harness, and {error.name} is not installed: "
            "pip install 'fidgpt[lm-eval]'"
        ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Without the harness's progress bars and notes, which would run into those of training."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            yield
    finally:
        logger.setLevel(level)


def _metrics(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Those that are numbers: what a task cannot say has text in its place, or no number."""
    found: dict[str, dict[str, float]] = {}
    for task, row in results.items():
        for key, value in row.items():
            metric, separator, how = key.partition(",")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if separator and number and math.isfinite(value):
                name = metric if how == "none" else f"{metric}/{how}"
                found.setdefault(task, {})[name] = float(value)
    return found


class TaskEvaluation(Periodic):
    """Tasks of lm-evaluation-harness (the extra `lm-eval`), such as the accuracy of LAMBADA.

    Every process answers all requests, so that those of a model that is parted among them stay in
    step; the numbers are the first one's.

    Args:
      tasks: names of tasks, groups or tags, or paths of task files.
      corpus: the text whose tokenizer the model has.
      seq_len: the model sees at most this many tokens.
      include_path: a folder with task files of your own.
      num_fewshot: solved examples before each question; as each task says unless given.
      limit: only so many documents of each task; all of them unless given.
      batch_size: requests that are answered at once.
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: there is no task, or a count is too small.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        *,
        corpus: CorpusPart,
        seq_len: int,
        include_path: str | Path | None = None,
        num_fewshot: int | None = None,
        limit: int | None = None,
        batch_size: int = 16,
        every: int | None = None,
    ) -> None:
        super().__init__(every=every)
        require_size("seq_len", seq_len)
        require_size("batch_size", batch_size)
        Tasks.check_arguments(names=tasks, num_fewshot=num_fewshot, limit=limit)
        self.tasks = tasks
        self.corpus = corpus
        self.seq_len = seq_len
        self.include_path = include_path
        self.num_fewshot = num_fewshot
        self.limit = limit
        self.batch_size = batch_size
        self._loaded: Tasks | None = None
        self._tokenizer: Tokenizer | None = None

    def prepare(self, *, show_progress: bool = True) -> None:
        """Loads the tasks and their data; again, it costs nothing. Raises DataError."""
        if self._loaded is not None:
            return
        self._tokenizer = self.corpus.prepare(show_progress=show_progress).tokenizer
        self._loaded = Tasks(
            self.tasks,
            include_path=self.include_path,
            num_fewshot=self.num_fewshot,
            limit=self.limit,
        )

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Returns `TASK/METRIC` of every task and group, metrics that are numbers."""
        self.prepare(show_progress=False)
        assert self._loaded is not None and self._tokenizer is not None  # prepare made them
        answers = Answers(
            model, tokenizer=self._tokenizer, context=self.seq_len, batch_size=self.batch_size
        )
        found = self._loaded.run(answers)
        row = {f"{task}/{name}": value for task, m in found.items() for name, value in m.items()}
        return parallel.agree(row)
