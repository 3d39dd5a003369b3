"""Studies of Optuna and their records."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from fidgpt.files import lock, wait_for_lock
from fidgpt.graph import ConfigError
from fidgpt.model import StartError
from fidgpt.sweep.objective import Objective, refuse_unreported, reported_by
from fidgpt.sweep.points import Point
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.results import ResultsTable
from fidgpt.sweep.runners.attempt import Job
from fidgpt.sweep.search.space import Space

FILE = "study.journal"
_LOCK, _PRESENCE = ".study.lock", ".search.lock"


def journal(directory: Path) -> JournalStorage:
    """The storage in the directory of a search, which is made if there is none.

    A last line that was cut short, as by a full disk, is taken away: it would spoil the next one.
    """
    path, own = directory / FILE, _Lock(directory / _LOCK)
    own.acquire()
    try:
        _cut_half_line(path)
    finally:
        own.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=own))


@contextlib.contextmanager
def present(directory: Path) -> Iterator[bool]:
    """While entered, others know that a search is driven here; gives whether none was before."""
    with (directory / _PRESENCE).open("ab") as file:
        is_alone = lock(file)
        wait_for_lock(file, fcntl.LOCK_SH)
        yield is_alone


class _Lock(JournalFileOpenLock):
    """Goes with its process; Optuna's own outlives one that is killed, and who comes next waits."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        self._file = self._path.open("ab")
        wait_for_lock(self._file)
        return True

    def release(self) -> None:
        assert self._file is not None
        self._file.close()


def _cut_half_line(path: Path) -> None:
    text = path.read_bytes() if path.exists() else b""
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)


NAME = "search"
_DIRECTIVES, _SPACES, _OBJECTIVE = "directives", "spaces", "objective"


class Study:
    """What a sampler is asked and told; several processes may share one.

    Args:
      directory: where its file lies, which is made if there is none.
      directives: what else makes each config.
      spaces: what is chosen.
      objective: what is to get small, or large.
      sampler: chooses.
      pruner: says what is not worth going on with.
      num_trials: how often something is chosen, by all processes together.

    Attributes:
      storage: Optuna's, for others who ask and tell the same study, by its `NAME`.
      sampler: as it was given.
      distributions: what is chosen, in Optuna's words.

    Raises:
      ConfigError: the file is of a search of other configs, over other spaces or for something
        else.
    """

    def __init__(
        self,
        directory: Path,
        *,
        directives: Sequence[str],
        spaces: Sequence[Space],
        objective: Objective,
        sampler: optuna.samplers.BaseSampler,
        pruner: optuna.pruners.BasePruner,
        num_trials: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.distributions = {space.name: space.range.distribution() for space in spaces}
        self.storage = journal(directory)
        self.sampler = sampler
        self._num_trials = num_trials
        self._study = optuna.create_study(
            storage=self.storage,
            study_name=NAME,
            sampler=sampler,
            pruner=pruner,
            load_if_exists=True,
            direction="maximize" if objective.is_larger_better else "minimize",
        )
        self._refuse_other(_DIRECTIVES, "of", list(directives), directory)
        self._refuse_other(_SPACES, "over", [space.said for space in spaces], directory)
        self._refuse_other(_OBJECTIVE, "for", objective.text, directory)

    def _refuse_other(self, name: str, word: str, said: str | list[str], directory: Path) -> None:
        known = self._study.user_attrs.get(name)
        if known is None:
            self._study.set_user_attr(name, said)
        elif known != said:
            raise ConfigError(
                f"{directory} holds a search {word} {json.dumps(known)}, and this one is {word} "
                f"{json.dumps(said)}: name another --run_dir."
            )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that was chosen so far."""
        return self._study.get_trials(deepcopy=False)

    def running(self) -> list[optuna.Trial]:
        """Trials of which nobody has told what came of them."""
        left = [one for one in self.trials if one.state == TrialState.RUNNING]
        return [self._chosen(optuna.Trial(self._study, one._trial_id)) for one in left]

    def _chosen(self, trial: optuna.Trial) -> optuna.Trial:
        """A trial with all its choices, where who asked for it was killed before they were made."""
        for name, distribution in self.distributions.items():
            if name not in trial.params:
                trial._suggest(name, distribution)
        return trial

    def told(self) -> list[FrozenTrial]:
        """Trials of which somebody has told what came of them."""
        return [one for one in self.trials if one.state.is_finished()]

    def put_back(self) -> None:
        """Lets trials of which nobody has told what came of them be asked for once more."""
        for one in self.trials:
            if one.state == TrialState.RUNNING:
                self.storage.set_trial_state_values(one._trial_id, TrialState.WAITING)

    @property
    def is_full(self) -> bool:
        """Whether there were enough choices."""
        trials = self.trials
        is_put_back = any(one.state == TrialState.WAITING for one in trials)
        return len(trials) >= self._num_trials and not is_put_back

    def ask(self) -> optuna.Trial | None:
        """The next choice; None where there were enough."""
        if len(self.trials) >= self._num_trials:
            return None
        trial = self._study.ask(self.distributions)
        if trial.number < self._num_trials:
            return trial
        self.failed(trial)  # another process asked at the same moment
        return None

    def finished(self, trial: optuna.Trial, value: float) -> None:
        """The point of a trial came to a value."""
        is_number = math.isfinite(value)
        state = TrialState.COMPLETE if is_number else TrialState.PRUNED
        self._tell(trial, state, value if is_number else None)

    def pruned(self, trial: optuna.Trial) -> None:
        """The point of a trial cannot be trained, or diverged, or was not worth going on with."""
        self._tell(trial, TrialState.PRUNED)

    def failed(self, trial: optuna.Trial) -> None:
        """Nobody knows what the point of a trial is worth."""
        self._tell(trial, TrialState.FAIL)

    def _tell(self, trial: optuna.Trial, state: TrialState, value: float | None = None) -> None:
        # Optuna looks first and tells then: another process may have told it in between.
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            self._study.tell(trial, value, state=state, skip_if_finished=True)

    def hopeless(self, trial: optuna.Trial, value: float, step: int) -> bool:
        """Takes down a value on the way; returns whether the trial is not worth going on with."""
        known: dict[int, Any] = self.trials[trial.number].intermediate_values
        if step in known:
            return False
        trial.report(value, step)
        return trial.should_prune()


_WORTHLESS = ("stopped early", "diverged")


class Asked(Protocol):
    """One choice of a sampler: its number, and a value for each space by its name."""

    @property
    def number(self) -> int: ...

    @property
    def params(self) -> Mapping[str, Any]: ...


T_contra = TypeVar("T_contra", contravariant=True)


class Told(Protocol[T_contra]):
    """Hears what came of choices, so that the next ones are better."""

    def finished(self, trial: T_contra, value: float) -> None:
        """The point of a trial came to a value."""
        ...

    def pruned(self, trial: T_contra) -> None:
        """The point of a trial cannot be trained, or diverged, or was not worth going on with."""
        ...

    def failed(self, trial: T_contra) -> None:
        """Nobody knows what the point of a trial is worth."""
        ...


T = TypeVar("T", bound=Asked)


@dataclass
class Counts:
    """What became of trials that trained no point of their own.

    Attributes:
      refused: those that do not check.
      known: those whose point another trial had trained.
    """

    refused: int = 0
    known: int = 0


@dataclass
class Ledger(Generic[T]):
    """Knows which trials wait for which job.

    Attributes:
      told: hears what came of trials.
      book: the table of the points.
      screen: where to say what is not run.
      objective: what is to get small, or large.
      make: the point of some choices, by the names of the spaces.
      job_of: the work of a point.
    """

    told: Told[T]
    book: ResultsTable
    screen: Screen
    objective: Objective
    make: Callable[[Mapping[str, Any]], Point]
    job_of: Callable[[Point], Job]
    counts: Counts = field(default_factory=Counts)
    _open: dict[str, list[T]] = field(default_factory=dict)

    def checked(self, trial: T) -> Job | None:
        """The job of a trial; None where its point does not check, which is told."""
        try:
            return self.job_of(self.make(trial.params))
        except (ConfigError, StartError) as error:
            self.counts.refused += 1
            self.told.pruned(trial)
            self.screen.say(f"trial {trial.number + 1} is not run: {_line(error)}")
            return None

    def has(self, trial: T) -> bool:
        """Whether a trial waits for a job."""
        return any(trial.number == one.number for trials in self._open.values() for one in trials)

    def recall(self, trials: Sequence[Asked]) -> None:
        """Brings back rows that the table has lost, of points whose worth was told long ago."""
        for trial in trials:
            try:
                job = self.job_of(self.make(trial.params))
            except (ConfigError, StartError):  # it was refused then, too
                continue
            if job.point.fingerprint not in self.book.rows and job.directory.exists():
                self.book.add(job)

    def joined(self, trial: T, job: Job) -> bool:
        """Whether another trial waits for the same job, and this one with it from now on."""
        identity = job.point.fingerprint
        if identity not in self._open:
            return False
        self.counts.known += 1
        self._open[identity].append(trial)
        return True

    def opened(self, trial: T, job: Job, *, is_new: bool = True) -> bool:
        """Whether a job is to be run, for this trial; where its worth is known, that is told.

        Raises:
          ConfigError: it came to its end before, and has not reported the objective.
        """
        if job.point.fingerprint not in {one.point.fingerprint for one in self.book.jobs}:
            self.book.add(job)
        self._open[job.point.fingerprint] = [trial]
        status = self.book.row(job)["status"]
        if status != "finished" and status not in _WORTHLESS:
            return True
        self.counts.known += is_new
        self.close(job, status)
        return False

    def waiting(self, job: Job) -> list[T]:
        """The trials that wait for a job."""
        return self._open.get(job.point.fingerprint, [])

    def close(self, job: Job, status: str) -> None:
        """Tells what came of a job, for all trials that wait for it.

        Raises:
          ConfigError: the run came to its end, and has not reported the objective.
        """
        reported = reported_by(job.directory) if status == "finished" else {}
        for trial in self._open.pop(job.point.fingerprint, []):
            if status in _WORTHLESS:
                self.told.pruned(trial)
            elif self.objective.name in reported:
                self.told.finished(trial, reported[self.objective.name])
            else:
                self.told.failed(trial)
        if status == "finished":
            refuse_unreported(self.objective, reported)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
