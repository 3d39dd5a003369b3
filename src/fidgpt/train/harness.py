"""Tasks of lm-evaluation-harness, and the answers of a model to their requests."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from fidgpt.data import DataError, Tokenizer
from fidgpt.data.streams import CorpusPart
from fidgpt.model.generation import Sampling
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_not_negative, require_size
from fidgpt.train.device import derive_seed
from fidgpt.train.evaluation import Periodic, document_begin, evaluating, prompt_tokens
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.scores import suites
from fidgpt.train.scores.answering import Exam, Examinee, gathered, own_share
from fidgpt.train.scores.suites import Scores, is_own

__all__ = ["TaskEvaluation"]

_FEWSHOT_SEED = 1234  # the harness's default, for drawing the examples of a prompt


# Of some tokens after others: the log-probability in nats, and whether each is the most likely one.
Likelihood = tuple[float, bool]


class Answers:
    """Likelihoods and texts of a model, for several requests at once.

    Every text begins as a document does in training, after the end of another one; with the
    harness's own adapter for Hugging Face models this is `add_bos_token=True`.

    Args:
      examinee: answers the requests, which its processes share; all of them ask for the same ones.
      batch_size: requests that are answered at once.
      seed: of texts that are sampled.

    Raises:
      ValueError: a size is below 1.
    """

    def __init__(self, examinee: Examinee, *, batch_size: int = 16, seed: int = 0) -> None:
        super().__init__()  # of the harness's class, see `harness_model`
        require_size(context=examinee.context, batch_size=batch_size)
        self.examinee = examinee
        self.batch_size = batch_size
        self.seed = seed

    def loglikelihood(self, requests: Sequence[Any]) -> list[Likelihood]:
        """Return nats and greediness of the continuation of each (context, continuation)."""
        return self.likelihoods([self._split(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the nats of each whole (text,), in windows; only the last window overlaps."""
        tokenizer = self.examinee.tokenizer
        begins = [document_begin(tokenizer, request.args[0]) for request in requests]
        likelihoods = self.likelihoods([(begin[:1], begin[1:]) for begin in begins])
        return [nats for nats, _ in likelihoods]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the text after each (context, settings), up to its end."""
        examinee, parallel = self.examinee, self.examinee.parallel
        begins = [prompt_tokens(examinee.tokenizer, request.args[0]) for request in requests]
        settings = [_generation(request.args[1]) for request in requests]
        texts: dict[int, str] = {}
        for how in dict.fromkeys(settings):
            until, num_tokens, options = how
            numbers = [number for number, own in enumerate(settings) if own == how]
            numbers.sort(key=lambda number: -len(begins[number]))
            numbers = own_share(numbers, parallel, writes=True)
            for first in range(0, len(numbers), self.batch_size):
                batch = numbers[first : first + self.batch_size]
                choose = Sampling(
                    seeds=[derive_seed(self.seed, "tasks", number) for number in batch],
                    vocab_size=examinee.tokenizer.vocab_size,
                    **dict(options),
                )
                prompts = [begins[number] for number in batch]
                with evaluating(examinee.model):
                    written = examinee.write(
                        prompts, num_tokens=num_tokens, stop=until, choose=choose
                    )
                texts |= zip(batch, written, strict=True)
        return gathered(texts, parallel)

    def likelihoods(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        """Return the likelihood of each text's second tokens after its first ones, at least one.

        A text longer than the context is cut on the left. If the second tokens alone are longer,
        they are scored `context` at a time, the first window after one token, the last
        window after as many as fit: each token is scored once, as lm-evaluation-harness does.
        """
        examinee, parallel, context = self.examinee, self.examinee.parallel, self.examinee.context
        windows: list[tuple[int, list[int], int]] = []  # text, tokens, and how many are scored
        for owner, (before, scored) in enumerate(texts):
            seen = list(before)
            for first in range(0, len(scored), context):
                part = list(scored[first : first + context])
                seen = [*seen, *part][-context - 1 :]
                windows.append((owner, seen, len(part)))
        order = sorted(range(len(windows)), key=lambda i: -len(windows[i][1]))  # little padding
        own = own_share(order, parallel)
        scores: dict[int, Likelihood] = {}
        with evaluating(examinee.model):
            for first in range(0, len(own), self.batch_size):
                numbers = own[first : first + self.batch_size]
                rows = [windows[number][1] for number in numbers]
                starts = [len(windows[number][1]) - windows[number][2] for number in numbers]
                each = examinee.likelihoods(rows, starts)
                sums = [(float(nats.double().sum()), bool(greedy.all())) for nats, greedy in each]
                scores |= zip(numbers, sums, strict=True)
        likelihoods: list[Likelihood] = [(0.0, True)] * len(texts)
        for (owner, _, _), (nats, is_greedy) in zip(
            windows, gathered(scores, parallel), strict=True
        ):
            total, was_greedy = likelihoods[owner]
            likelihoods[owner] = total + nats, was_greedy and is_greedy
        return likelihoods

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and those after it, encoded as one text.

        White space at the end of a context belongs to what follows, as in the harness, because most
        tokenizers join it to a word.
        """
        kept, tokenizer = context.rstrip(), self.examinee.tokenizer
        continuation = context[len(kept) :] + continuation
        if not kept:
            return document_begin(tokenizer, ""), tokenizer.encode(continuation)
        before = prompt_tokens(tokenizer, kept)
        whole = prompt_tokens(tokenizer, kept + continuation)
        if len(whole) <= len(before):  # the tokenizer joined all that follows to the context
            return before, tokenizer.encode(continuation)
        return whole[: len(before)], whole[len(before) :]


# Strings that end a text, its length, and options of `Sampling`; temperature 0 is greedy.
_Generation = tuple[tuple[str, ...], int, tuple[tuple[str, Any], ...]]


def _generation(settings: Mapping[str, Any]) -> _Generation:
    """Parse a task's `generation_kwargs`, which are options of transformers."""
    drawn = {"temperature": 1.0, "top_k": None, "top_p": None}
    known = {"until", "max_gen_toks", "do_sample", *drawn}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"the task's generation_kwargs have {', '.join(unknown)}: fidgpt knows "
            f"{', '.join(sorted(known))}."
        )
    until = settings.get("until") or ()
    options = {name: settings.get(name, default) for name, default in drawn.items()}
    options = options if settings.get("do_sample") else {"temperature": 0.0}
    until = (until,) if isinstance(until, str) else tuple(until)
    return until, int(settings.get("max_gen_toks", 256)), tuple(options.items())


def harness_model(examinee: Examinee, **settings: Any) -> Any:
    """Return a model as an `lm_eval.api.model.LM`; takes the arguments of `Answers`.

    Raises:
      DataError: the harness is not installed.
    """
    _require_harness()
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class FidgptLM(Answers, LM):
        """A fidgpt model, whose processes share the requests behind the harness's back."""

    return FidgptLM(examinee, **settings)


@dataclass(eq=False)
class Tasks:
    """Tasks by name, with their data; loaded once, run as often as needed.

    `core`, `core/LABEL` and the tasks of `fidgpt.train.scores.suites` are fidgpt's own, all others
    the harness's, and `lm_eval/NAME` one of the harness's that has the name of an own one.

    Args:
      tasks: names of tasks, or groups or tags of the harness, or paths of its task files.
      include_path: a folder with custom task files of the harness.
      num_fewshot: solved examples before each question of the harness; None for the task's default.
      limit: the most documents of each task; None for all of them.
      data: a folder or zip file with the rows of own tasks; None for the published ones.
      runs_programs: whether own tasks may run programs that the model writes.

    Raises:
      ValueError: there is no name, or a count is too small.
    """

    tasks: Sequence[str]
    _: KW_ONLY
    include_path: str | Path | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    data: str | Path | None = None
    runs_programs: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.tasks, str) or not self.tasks:
            raise ValueError(f"{self.tasks!r} must be a list of at least one task.")
        require_not_negative(num_fewshot=self.num_fewshot)
        require_size(limit=self.limit)
        self._exams: dict[str, Exam] | None = None
        self._loaded: Any = None

    def load(self, tokenizer: Tokenizer) -> dict[str, Exam]:
        """Load all tasks and their data, once; return the own ones.

        Raises:
          DataError: the harness is not installed, has no such task, or the data of a task cannot be
            loaded.
        """
        if self._exams is None:
            if others := [n.removeprefix("lm_eval/") for n in self.tasks if not is_own(n)]:
                with _silent():
                    self._loaded = _load(others, self.include_path)
                for task in self._loaded["tasks"].values():
                    fixed, wanted = task.get_config("num_fewshot"), self.num_fewshot
                    if fixed is None or (wanted is not None and fixed != 0):  # 0 cannot be changed
                        task.set_config(key="num_fewshot", value=wanted or 0)
                    task.set_fewshot_seed(seed=_FEWSHOT_SEED)
            names, exams = [name for name in self.tasks if is_own(name)], dict[str, Exam]()
            folder = suites.unpacked(Path(self.data).expanduser()) if self.data and names else None
            for name in names:
                if name not in suites.CHATS:
                    exams |= suites.core_exams(name, tokenizer, folder=folder, limit=self.limit)
                    continue
                allowed, limit = self.runs_programs, self.limit
                exams[name] = suites.chat_exam(
                    name, tokenizer, folder=folder, limit=limit, runs_programs=allowed
                )
            self._exams = exams
        return self._exams

    def run(self, examinee: Examinee, *, bootstrap_iters: int = 0, **settings: Any) -> Scores:
        """Return metrics of each task and group, such as `acc` and, with bootstrap, `acc_stderr`.

        Metrics of another filter of the harness than `none` are named `METRIC/FILTER`; those that
        are not finite numbers are left out.

        Args:
          examinee: answers.
          bootstrap_iters: resamplings for standard errors of the harness.
          settings: of `Answers` to the harness.
        """
        scores = suites.scores_of(self.load(examinee.tokenizer), examinee)
        scores = suites.with_core(scores) if suites.CORE in self.tasks else scores
        if self._loaded is None:
            return scores
        from lm_eval.evaluator import evaluate  # pyright: ignore[reportMissingImports]

        with _silent():
            results = evaluate(
                lm=harness_model(examinee, **settings),
                task_dict=self._loaded,
                limit=self.limit,
                bootstrap_iters=bootstrap_iters,
                log_samples=False,
            )
        assert results is not None  # the adapter is the first process
        for task, row in {**results["results"], **results.get("groups", {})}.items():
            for key, value in row.items():
                metric, separator, how = key.partition(",")
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if separator and is_number and math.isfinite(value):
                    name = metric if how == "none" else f"{metric}/{how}"
                    scores.setdefault(task, {})[name] = float(value)
        return scores


def _load(names: Sequence[str], include_path: str | Path | None) -> Any:
    _require_harness()
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    folder = None if include_path is None else Path(include_path).expanduser()
    if folder is not None and not folder.is_dir():
        raise DataError(f"include_path={include_path} must be a folder with task files.")
    own = None if folder is None else str(folder)

    def unknown(manager: Any) -> list[str]:
        return [n for n in names if n not in {*manager.all_tasks} and not Path(n).is_file()]

    manager = TaskManager(include_path=own, include_defaults=False)
    if unknown(manager):  # late: reading all of the harness's tasks takes seconds
        manager = TaskManager(include_path=own)
    if missing := unknown(manager):
        raise DataError(
            f"lm-evaluation-harness has no task {missing[0]!r}: `lm_eval ls tasks` lists those it "
            "has, and include_path names a folder with your own."
        )
    try:
        return manager.load(list(names))
    except Exception as error:  # of whatever package reads the task's data
        raise DataError(
            f"the tasks {', '.join(names)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


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
    """Suppress the harness's progress bars and notes, which would mix with training's."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            yield
    finally:
        logger.setLevel(level)


@dataclass(eq=False, kw_only=True)
class TaskEvaluation(Tasks, Periodic):
    """Scores of tasks, such as CORE, or of lm-evaluation-harness (the extra `lm-eval`).

    Processes with different rows share the questions; if weights are sharded, all of them write the
    texts of tasks that need some.

    Args:
      tasks: names of tasks, as in `Tasks`.
      include_path: as in `Tasks`.
      num_fewshot: as in `Tasks`.
      limit: as in `Tasks`.
      data: as in `Tasks`.
      runs_programs: as in `Tasks`.
      corpus: the text whose tokenizer the model has.
      seq_len: the model sees at most this many tokens, except in CORE.
      batch_size: requests of the harness that are answered at once.
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: there is no task, or a count is too small.
    """

    RUNS: ClassVar[Mapping[str, str]] = {"tasks": "the task", "include_path": "the tasks"}

    corpus: CorpusPart
    seq_len: int
    batch_size: int = 16

    def __post_init__(self) -> None:
        Tasks.__post_init__(self)
        Periodic.__post_init__(self)
        require_size(seq_len=self.seq_len, batch_size=self.batch_size)

    def require_present(self) -> None:
        """Raise DataError if the harness is needed and not installed, or a folder is not there."""
        if not all(map(is_own, self.tasks)):
            _require_harness()
        for name, path in (("data", self.data), ("include_path", self.include_path)):
            if path is not None and not Path(path).expanduser().exists():
                raise DataError(f"{name}={path} of the tasks does not exist.")

    def prepare(self, *, show_progress: bool = True) -> None:
        """Load the tasks and their data, once; raise DataError as `load` does."""
        self.load(self.corpus.prepare(show_progress=show_progress).tokenizer)

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Return `TASK/METRIC` of every task and group."""
        tokenizer = self.corpus.prepare(show_progress=False).tokenizer
        examinee = Examinee(model, tokenizer, self.seq_len, parallel)
        scores = self.run(examinee, batch_size=self.batch_size)
        row = {f"{task}/{name}": value for task, m in scores.items() for name, value in m.items()}
        return parallel.world.broadcast(row)
