"""Tasks of lm-evaluation-harness as something that is measured during a run."""

from collections.abc import Sequence
from pathlib import Path

from fidgpt.data import Tokenizer
from fidgpt.data.streams.windows import CorpusPart
from fidgpt.model.language_model import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_size
from fidgpt.train.evaluation.answers import Answers
from fidgpt.train.evaluation.evaluator import Periodic
from fidgpt.train.evaluation.harness import Tasks
from fidgpt.train.losses.loss import CrossEntropy


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
