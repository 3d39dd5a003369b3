"""Tasks of lm-evaluation-harness, and the answers of a model to their requests."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from fidgpt.data import DataError, Tokenizer
from fidgpt.data.streams import CorpusPart
from fidgpt.model.generation import Sampling
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_not_negative, require_size
from fidgpt.train.device import derive_seed
from fidgpt.train.evaluation import (
    Periodic,
    continuations,
    document_begin,
    evaluating,
    prompt_tokens,
)
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.scores.answering import Exam, Examinee, gathered
from fidgpt.train.scores.suites import CORE, Scores, is_own, own_exams, scores_of, with_core

__all__ = ["TaskEvaluation"]

_CHUNK = 1024  # tokens whose logits exist at once
_FEWSHOT_SEED = 1234  # the harness's default, for drawing the examples of a prompt


# Of some tokens after others: the log-probability in nats, and whether each is the most likely one.
Likelihood = tuple[float, bool]


class _Window(NamedTuple):
    """What the model sees at once: tokens, of which the last `scored` are scored."""

    owner: int
    tokens: Sequence[int]
    scored: int


@torch.inference_mode()
def _scores(model: LanguageModel, windows: Sequence[_Window]) -> list[Likelihood]:
    """Return log-probability and greediness of the scored tokens of each window."""
    width = max(len(window.tokens) for window in windows)
    # Padding is on the right, where no earlier token sees it.
    rows = torch.tensor([[*w.tokens, *[0] * (width - len(w.tokens))] for w in windows])
    rows = rows.to(model.device)
    features = model.features(rows[:, :-1])
    places = [slice(len(w.tokens) - 1 - w.scored, len(w.tokens) - 1) for w in windows]
    kept = torch.cat([row[place] for row, place in zip(features, places, strict=True)])
    targets = torch.cat([row[1:][place] for row, place in zip(rows, places, strict=True)])
    nats, greedy = [], []
    for x, y in zip(kept.split(_CHUNK), targets.split(_CHUNK), strict=True):
        logits = model.unembedding(x).float()
        nats.append(-F.cross_entropy(logits, y, reduction="none").double())
        greedy.append(logits.argmax(-1) == y)
    counts = [window.scored for window in windows]
    parts = (torch.cat(one).cpu().split(counts) for one in (nats, greedy))
    return [
        (float(some.sum()), bool(is_greedy.all())) for some, is_greedy in zip(*parts, strict=True)
    ]


class _Generation(NamedTuple):
    """How a task wants a text to be generated: as in `Sampling`; temperature 0 is greedy."""

    until: tuple[str, ...]
    num_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None


class Answers:
    """Likelihoods and texts of a model, for several requests at once.

    Every text begins as a document does in training, after the end of another one; with the
    harness's own adapter for Hugging Face models this is `add_bos_token=True`.

    Args:
      model: answers the requests.
      tokenizer: its tokens.
      context: the model sees at most this many of them.
      batch_size: requests that are answered at once.
      seed: of texts that are sampled.
      parallel: the processes that share the requests; all of them ask for the same ones.

    Raises:
      ValueError: a size is below 1.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        tokenizer: Tokenizer,
        context: int,
        batch_size: int = 16,
        seed: int = 0,
        parallel: DataParallel | None = None,
    ) -> None:
        super().__init__()  # of the harness's class, see `harness_model`
        require_size(context=context, batch_size=batch_size)
        self.model = model
        self.reader = tokenizer  # the harness's class has a `tokenizer` of its own
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.parallel = DataParallel() if parallel is None else parallel

    def loglikelihood(self, requests: Sequence[Any]) -> list[Likelihood]:
        """Return nats and greediness of the continuation of each (context, continuation)."""
        return self.likelihoods([self._split(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the nats of each whole (text,), in windows of which only the last overlaps."""
        begins = [document_begin(self.reader, request.args[0]) for request in requests]
        found = self.likelihoods([(begin[:1], begin[1:]) for begin in begins])
        return [nats for nats, _ in found]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the text after each (context, settings), up to its end.

        A long context is cut on the left to leave room for the text, up to a half of the model's.
        """
        begins = [prompt_tokens(self.reader, request.args[0]) for request in requests]
        settings = [_generation(request.args[1]) for request in requests]
        rank, size = self.parallel.data_rank, self.parallel.data_size
        if self.parallel.places.passes_together:  # of which the number is not known before
            rank, size = 0, 1
        texts: dict[int, str] = {}
        for one in dict.fromkeys(settings):
            numbers = [number for number, own in enumerate(settings) if own == one]
            numbers = sorted(numbers, key=lambda number: -len(begins[number]))[rank::size]
            for first in range(0, len(numbers), self.batch_size):
                batch = numbers[first : first + self.batch_size]
                written = self._written([begins[n] for n in batch], one, numbers=batch)
                texts |= zip(batch, written, strict=True)
        return gathered(texts, self.parallel)

    def likelihoods(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        """Return the likelihood of each text's second tokens after its first ones, at least one.

        A text longer than the context is cut on the left. If the second tokens alone are longer,
        they are scored `context` at a time, the first of them after one token, those of the last
        window after as many as fit: each token is scored once, as lm-evaluation-harness does.
        """
        windows: list[_Window] = []
        for owner, (before, scored) in enumerate(texts):
            seen = list(before)
            for first in range(0, len(scored), self.context):
                part = list(scored[first : first + self.context])
                seen = [*seen, *part][-self.context - 1 :]
                windows.append(_Window(owner, seen, len(part)))
        order = sorted(range(len(windows)), key=lambda i: -len(windows[i].tokens))  # little padding
        rank, size = self.parallel.data_rank, self.parallel.data_size
        # All have as many, as others may need the shard of a process without windows of its own.
        own = [order[min(i + rank, len(order) - 1)] for i in range(0, len(order), size)]
        scores: dict[int, Likelihood] = {}
        with evaluating(self.model):
            for first in range(0, len(own), self.batch_size):
                numbers = own[first : first + self.batch_size]
                batch = [windows[number] for number in numbers]
                scores |= zip(numbers, _scores(self.model, batch), strict=True)
        found: list[Likelihood] = [(0.0, True)] * len(texts)
        for window, (nats, is_greedy) in zip(windows, gathered(scores, self.parallel), strict=True):
            total, was_greedy = found[window.owner]
            found[window.owner] = total + nats, was_greedy and is_greedy
        return found

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and those after it, encoded as one text.

        White space at the end of a context belongs to what follows, as in the harness, because most
        tokenizers join it to a word.
        """
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        if not kept:
            return document_begin(self.reader, ""), self.reader.encode(continuation)
        before = prompt_tokens(self.reader, kept)
        whole = prompt_tokens(self.reader, kept + continuation)
        if len(whole) <= len(before):  # the tokenizer joined all that follows to the context
            return before, self.reader.encode(continuation)
        return whole[: len(before)], whole[len(before) :]

    def _written(
        self, begins: Sequence[list[int]], how: _Generation, *, numbers: Sequence[int]
    ) -> list[str]:
        room = max(self.context - how.num_tokens, (self.context + 1) // 2)
        choose = Sampling(
            seeds=[derive_seed(self.seed, "tasks", number) for number in numbers],
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            vocab_size=self.reader.vocab_size,
        )
        with evaluating(self.model):
            pieces = continuations(
                self.model,
                self.reader,
                [begin[-room:] for begin in begins],
                context=self.context,
                num_tokens=how.num_tokens,
                choose=choose,
                stop=how.until,
            )
            return ["".join(row) for row in zip(*pieces, strict=True)]


def _generation(settings: Mapping[str, Any]) -> _Generation:
    """Parse a task's `generation_kwargs`, which are those of transformers."""
    known = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"the task's generation_kwargs have {', '.join(unknown)}: fidgpt knows "
            f"{', '.join(sorted(known))}."
        )
    until = settings.get("until") or ()
    is_sampled = settings.get("do_sample", False)
    return _Generation(
        until=(until,) if isinstance(until, str) else tuple(until),
        num_tokens=int(settings.get("max_gen_toks", 256)),
        temperature=float(settings.get("temperature", 1.0)) if is_sampled else 0.0,
        top_k=settings.get("top_k") if is_sampled else None,
        top_p=settings.get("top_p") if is_sampled else None,
    )


def harness_model(model: LanguageModel, **settings: Any) -> Any:
    """Return the model as an `lm_eval.api.model.LM`; the arguments are those of `Answers`.

    Raises:
      DataError: the harness is not installed.
    """
    _require_harness()
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class FidgptLM(Answers, LM):
        """A fidgpt model, whose processes share the requests behind the harness's back."""

    return FidgptLM(model, **settings)


def answers_to(names: Sequence[str], model: LanguageModel, **settings: Any) -> Any:
    """Return what answers tasks of these names, as `harness_model` if one is the harness's."""
    return (Answers if all(map(is_own, names)) else harness_model)(model, **settings)


class Tasks:
    """Tasks by name, with their data; loaded once, run as often as needed.

    `core`, `core/LABEL` and the tasks of `fidgpt.train.scores.chats` are fidgpt's own, all others
    the harness's, and `lm_eval/NAME` one of the harness's that has the name of an own one.

    Args:
      names: of tasks, or groups or tags of the harness, or paths of its task files.
      include_path: a folder with custom task files of the harness.
      num_fewshot: solved examples before each question of the harness; None for the task's default.
      limit: the most documents of each task; None for all of them.
      data: a folder or zip file with the rows of own tasks; None for the published ones.
      runs_programs: whether own tasks may run programs that the model writes.

    Raises:
      DataError: the harness is not installed, has no such task, or the data of a task cannot be
        loaded.
      ValueError: there is no name, or a count is too small.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        include_path: str | Path | None = None,
        num_fewshot: int | None = None,
        limit: int | None = None,
        data: str | Path | None = None,
        runs_programs: bool = False,
    ) -> None:
        _require_tasks(names, num_fewshot, limit)
        self.names = names
        self._limit = limit
        self._own = [name for name in names if is_own(name)]
        self._settings = {"data": data, "limit": limit, "runs_programs": runs_programs}
        self._exams: dict[str, Exam] | None = None
        self._loaded: Any = None
        if others := [name.removeprefix("lm_eval/") for name in names if not is_own(name)]:
            with _silent():
                self._loaded = _load(others, include_path)
            for task in self._loaded["tasks"].values():
                fixed = task.get_config("num_fewshot")
                if fixed is None or (num_fewshot is not None and fixed != 0):  # 0 cannot be changed
                    task.set_config(key="num_fewshot", value=num_fewshot or 0)
                task.set_fewshot_seed(seed=_FEWSHOT_SEED)

    def prepare(self, tokenizer: Tokenizer) -> dict[str, Exam]:
        """Return the own tasks, loaded once; raise DataError as `own_exams` does."""
        if self._exams is None:
            self._exams = own_exams(self._own, tokenizer, **self._settings) if self._own else {}
        return self._exams

    def run(self, model: Any, *, bootstrap_iters: int = 0) -> Scores:
        """Return metrics of each task and group, such as `acc` and, with bootstrap, `acc_stderr`.

        Metrics of another filter of the harness than `none` are named `METRIC/FILTER`; those that
        are not finite numbers are left out.

        Args:
          model: as `answers_to` returned it.
          bootstrap_iters: resamplings for standard errors of the harness.
        """
        examinee = Examinee(model.model, model.reader, model.context, model.parallel)
        scores = scores_of(self.prepare(model.reader), examinee)
        scores = with_core(scores) if CORE in self._own else scores
        return scores if self._loaded is None else scores | self._run_loaded(model, bootstrap_iters)

    def _run_loaded(self, model: Any, bootstrap_iters: int) -> Scores:
        from lm_eval.evaluator import evaluate  # pyright: ignore[reportMissingImports]

        with _silent():
            results = evaluate(
                lm=model,
                task_dict=self._loaded,
                limit=self._limit,
                bootstrap_iters=bootstrap_iters,
                log_samples=False,
            )
        assert results is not None  # the adapter is the first process
        found: Scores = {}
        for task, row in {**results["results"], **results.get("groups", {})}.items():
            for key, value in row.items():
                metric, separator, how = key.partition(",")
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if separator and is_number and math.isfinite(value):
                    name = metric if how == "none" else f"{metric}/{how}"
                    found.setdefault(task, {})[name] = float(value)
        return found


def _require_tasks(names: Sequence[str], num_fewshot: int | None, limit: int | None) -> None:
    if isinstance(names, str) or not names:
        raise ValueError(f"{names!r} must be a list of at least one task.")
    require_not_negative(num_fewshot=num_fewshot)
    require_size(limit=limit)


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
    """Suppress the harness's progress bars and notes, which would mix with those of training."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            yield
    finally:
        logger.setLevel(level)


@dataclass(eq=False)
class TaskEvaluation(Periodic):
    """Scores of tasks, such as CORE, or of lm-evaluation-harness (the extra `lm-eval`).

    Processes with different rows share the questions; if weights are sharded, all of them write the
    texts of tasks that need some.

    Args:
      tasks: names of tasks, as in `Tasks`.
      corpus: the text whose tokenizer the model has.
      seq_len: the model sees at most this many tokens, except in CORE.
      include_path: a folder with custom task files of the harness.
      num_fewshot: solved examples before each question of the harness; None for the task's default.
      limit: the most documents of each task; None for all of them.
      batch_size: requests of the harness that are answered at once.
      data: a folder or zip file with the rows of own tasks; None for the published ones.
      runs_programs: whether own tasks may run programs that the model writes.
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: there is no task, or a count is too small.
    """

    RUNS: ClassVar[Mapping[str, str]] = {"tasks": "the task", "include_path": "the tasks"}

    tasks: Sequence[str]
    _: KW_ONLY
    corpus: CorpusPart
    seq_len: int
    include_path: str | Path | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    batch_size: int = 16
    data: str | Path | None = None
    runs_programs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_size(seq_len=self.seq_len, batch_size=self.batch_size)
        _require_tasks(self.tasks, self.num_fewshot, self.limit)
        self._prepared: tuple[Tasks, Tokenizer] | None = None

    def require_present(self) -> None:
        """Raise DataError if the harness is needed and not installed, or a folder is not there."""
        if not all(map(is_own, self.tasks)):
            _require_harness()
        for name, path in (("data", self.data), ("include_path", self.include_path)):
            if path is not None and not Path(path).expanduser().exists():
                raise DataError(f"{name}={path} of the tasks does not exist.")

    def prepare(self, *, show_progress: bool = True) -> None:
        """Load the tasks and their data, once.

        Raises:
          DataError: as in `Tasks`.
        """
        if self._prepared is None:
            tokenizer = self.corpus.prepare(show_progress=show_progress).tokenizer
            tasks = Tasks(
                self.tasks,
                include_path=self.include_path,
                num_fewshot=self.num_fewshot,
                limit=self.limit,
                data=self.data,
                runs_programs=self.runs_programs,
            )
            tasks.prepare(tokenizer)
            self._prepared = tasks, tokenizer

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Return `TASK/METRIC` of every task and group."""
        self.prepare(show_progress=False)
        assert self._prepared is not None
        tasks, tokenizer = self._prepared
        answers = answers_to(
            self.tasks,
            model,
            tokenizer=tokenizer,
            context=self.seq_len,
            batch_size=self.batch_size,
            parallel=parallel,
        )
        found = tasks.run(answers)
        row = {f"{task}/{name}": value for task, m in found.items() for name, value in m.items()}
        return parallel.world.broadcast(row)
