"""Searches: points that Optuna chooses by the results of earlier ones, on any runner.

Search("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), sampler="tpe:50",
       objective="validation/loss", stop="asha").run(jobs=2)
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import optuna
from optuna import distributions, pruners, samplers
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt import files
from fidgpt.compose import catalogue, reproduction
from fidgpt.compose.directives import split_directive, takes_numbers
from fidgpt.errors import raise_all
from fidgpt.graph import ConfigError, expressions, suggest
from fidgpt.model import InitError
from fidgpt.runs.directories import name_of_base
from fidgpt.sweep import objective as objectives
from fidgpt.sweep.axes import Axis, Choice, axis_values, split_value, with_files_read, written
from fidgpt.sweep.points import Maker
from fidgpt.sweep.results import SEARCH, Result, Results, ResultsTable, Screen, claim, results_table
from fidgpt.sweep.runners.jobs import Ending, Job, LocalRunner, Runner, jobs_of
from fidgpt.train import device, run_directory

_LOCK, _ASKING = ".journal", ".search.lock"
_RANGE = re.compile(r"\s*(lin|log|range)\(([^()]*)\)\s*")
_DIGITS = 5  # significant digits of a float, so that a directive stays readable
_HALVING, _RUNGS = 3, 3  # of that many points ASHA continues one; how often it decides
_SHARES = _HALVING**_RUNGS  # of a run; points are compared after each share
_ENDED = ("finished", "stopped early", "diverged")  # statuses of points that are not run again
MakeSampler = Callable[[int], samplers.BaseSampler]
Distribution = (
    distributions.FloatDistribution
    | distributions.IntDistribution
    | distributions.CategoricalDistribution
)


@dataclass(frozen=True)
class Space:
    """One value that a search chooses, at the position of its directive among the others.

    Attributes:
      text: the space as the user wrote it.
      prefix: the directive up to its value.
      distribution: the values, as Optuna describes them.
    """

    text: str
    prefix: str
    distribution: Distribution

    @property
    def name(self) -> str:
        """The directive without its value, which identifies the space in a study."""
        return self.prefix.rstrip("=:*+- ")

    @property
    def values(self) -> Sequence[Any] | None:
        """All values, or None for a continuous range."""
        match self.distribution:
            case distributions.IntDistribution(low=low, high=high, step=step):
                return range(low, high + 1, step)
            case distributions.CategoricalDistribution(choices=choices):
                return choices
        return None

    def choice(self, value: Any) -> Choice:
        """Return a value as a directive; a float is rounded, inside its range."""
        if isinstance(self.distribution, distributions.FloatDistribution):
            low, high = self.distribution.low, self.distribution.high
            value = written(min(high, max(low, float(f"{value:.{_DIGITS}g}"))), 17)
        return Choice((f"{self.prefix}{value}",))

    def axis(self) -> Axis:
        """Return the first and last value as an axis, which affects the same parameters."""
        values = self.values
        if isinstance(self.distribution, distributions.FloatDistribution):
            values = [self.distribution.low, self.distribution.high]
        assert values  # of all other distributions
        return Axis(f"--space={self.text}", (self.choice(values[0]), self.choice(values[-1])))


def space(text: str) -> Space:
    """Parse a space: `tag:LearningRate=log(1e-5,1e-1)`, `set:seq_len=range(64,257,64)`.

    `lin(0,0.2)` and `log(1e-5,1e-1)` include both ends; `range(64,257,64)` holds integers and
    excludes its end; anything else lists values as an axis does, such as `fiddler:a,b`.

    Raises:
      ConfigError: there is nothing to choose from.
    """
    kind, rest = split_directive(text)
    if takes_numbers(kind) and "=" in rest:
        prefix, right = split_value(text)
        values = expressions.split_at_commas(right)
        match = _RANGE.fullmatch(values[0]) if len(values) == 1 else None
        distribution = None if match is None else _range(match[1], match[2], text)
        if distribution is not None:
            return Space(text, prefix.lstrip(), distribution)
    directives = axis_values(text, flag="--space")
    if len(set(directives)) < 2:
        raise ConfigError(
            f"--space={text} has a single value: write log(1e-5,1e-1), lin(0,0.2), "
            "range(64,513,64) or several values separated by commas."
        )
    prefix = split_value(directives[0])[0]
    choices = tuple(directive.removeprefix(prefix) for directive in directives)
    return Space(text, prefix, distributions.CategoricalDistribution(choices))


def _range(kind: str, inside: str, text: str) -> Distribution | None:
    """Return the range of a call, or None if the call lists values as on an axis."""
    try:
        numbers = [float(number) for number in inside.split(",")]
    except ValueError:
        return None
    numbers = [*numbers, 1.0] if kind == "range" and len(numbers) == 2 else numbers
    is_whole = all(map(float.is_integer, numbers))
    try:
        match kind, numbers:
            case "range", [first, end, step] if is_whole and step >= 1:
                last = first + (end - 1 - first) // step * step
                return distributions.IntDistribution(int(first), int(last), step=int(step))
            case "lin" | "log", [low, high] if math.isfinite(high - low):
                return distributions.FloatDistribution(low, high, log=kind == "log")
    except ValueError as error:
        raise ConfigError(f"--space={text}: {error}") from error
    return None


def sampler_factory(name: str, spaces: Sequence[Space], *, parallel: bool) -> MakeSampler:
    """Return a function that makes a sampler from a seed.

    Args:
      name: tpe, random, grid or cmaes.
      spaces: the values to choose from.
      parallel: whether trials run at the same time, so that a sampler must not take trials whose
        value is unknown for good ones.

    Raises:
      ConfigError: there is no such sampler, or it cannot sample these spaces.
    """
    factories: dict[str, MakeSampler] = {
        "tpe": lambda seed: samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=parallel
        ),
        "random": lambda seed: samplers.RandomSampler(seed=seed),
        "grid": lambda _: samplers.GridSampler(grid_of(spaces), seed=0),
        "cmaes": lambda seed: samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    }
    if name not in factories:
        raise ConfigError(f"--search={name}: there is no such sampler. {suggest(name, factories)}")
    if name == "grid":
        grid_of(spaces)
    if name == "cmaes" and sum(space.values is None for space in spaces) < 2:
        raise ConfigError(
            "--search=cmaes needs at least two continuous ranges, such as "
            "--space=tag:LearningRate=log(1e-5,1e-1): use --search=tpe."
        )
    return factories[name]


def grid_of(spaces: Sequence[Space]) -> dict[str, list[Any]]:
    """Return all values of every space by its name.

    Raises:
      ConfigError: a space is continuous.
    """
    grid: dict[str, list[Any]] = {}
    for space in spaces:
        if space.values is None:
            raise ConfigError(
                f"--space={space.text} is continuous, and --search=grid tries all values: add "
                "their count, as in log(first, last, count)."
            )
        grid[space.name] = [*space.values]
    return grid


def pruner(name: str | None) -> pruners.BasePruner:
    """Return the rule that stops points early, by their values after shares of their runs.

    Args:
      name: asha or median; None to stop none.

    Raises:
      ConfigError: there is no such rule.
    """
    rules: dict[str | None, Callable[[], pruners.BasePruner]] = {
        None: pruners.NopPruner,
        "median": partial(pruners.MedianPruner, n_warmup_steps=_SHARES // 10),
        "asha": partial(pruners.SuccessiveHalvingPruner, 1, _HALVING),
    }
    if name not in rules:
        likely = suggest(str(name), ("asha", "median"))
        raise ConfigError(f"--stop={name}: there is no such rule. {likely}")
    return rules[name]()


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
      results: the rows of all points in its table.
      objective: what was compared.
      is_whole: whether it finished, rather than being stopped by a signal.
      summary: how many points there were.
      allowed: packages of the user's own whose callables a config may name.
    """

    results: Results
    objective: objectives.Objective
    is_whole: bool
    summary: str
    allowed: Sequence[str]

    @property
    def best(self) -> Result | None:
        """The best finished row; None without any."""
        row = self.results.best()
        return row if row is not None and row["status"] == "finished" else None

    def __rich__(self) -> RenderableType:
        lines = [self.summary]
        if (row := self.best) is not None:
            value = row["metrics"][self.objective.name]
            lines.append(f"best: {row['name']}, {self.objective.name} {value:.4f}")
            lines.append(f"  {reproduction.train_command(row['directives'], allowed=self.allowed)}")
        return Group(results_table(self.results, self.objective), *map(Text, lines))


class Search:
    """Points that a sampler chooses to minimize or maximize an objective.

    Args:
      items: directives such as `config:base`, and spaces at their positions among them.
      sampler: tpe, random, grid or cmaes, with the number of trials: `tpe:50`; a grid defaults to
        all of its points.
      objective: what to minimize, such as `validation/loss`; `max:tasks/arc_easy/acc` maximizes.
      stop: asha or median, which end unpromising points early; None for neither.
      seed: of the sampler: a search with one job at a time is reproducible.
      directory: of the search; defaults to `runs/search-...` of these spaces.
      allowed: the user's own packages whose callables a config may name.

    Raises:
      ConfigError: there is no space, or no such sampler, or a file of overrides is wrong.
    """

    def __init__(
        self,
        *items: str | Space,
        sampler: str,
        objective: str,
        stop: str | None = None,
        seed: int = 0,
        directory: str | Path | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self.items = tuple(with_files_read(items, {"sweep": space}))
        self.spaces = [item for item in self.items if isinstance(item, Space)]
        self.objective = objectives.objective_of(objective)
        self.stop = stop
        self.seed = seed
        self.allowed = tuple(allowed)
        if not self.spaces:
            raise ConfigError(
                "a search needs a space: --space='tag:LearningRate=log(1e-4,1e-2)', in quotes."
            )
        self.sampler = sampler.partition(":")[0]
        sampler_factory(self.sampler, self.spaces, parallel=False)
        self.num_trials = _num_trials(sampler, self.spaces)
        pruner(stop)
        directives = [item for item in items if isinstance(item, str)]
        self._content = {
            "directives": directives,
            "spaces": [space.text for space in self.spaces],
            "objective": self.objective.text,
        }
        texts = [item if isinstance(item, str) else item.text for item in items]
        digest = hashlib.sha256(repr([texts, self.objective.text]).encode()).hexdigest()[:8]
        name = f"search-{name_of_base(directives)}-{digest}"
        self.directory = Path(directory or Path("runs") / name).expanduser()

    @property
    def distributions(self) -> dict[str, Any]:
        """What is chosen, by name."""
        return {space.name: space.distribution for space in self.spaces}

    @cached_property
    def points(self) -> Maker:
        """The maker of points, after checking for errors that all points share.

        Raises:
          ConfigErrors: a directive is wrong, or overwrites what a space chooses.
          ConfigError: no run reports the objective.
        """
        items = [item if isinstance(item, str) else item.axis() for item in self.items]
        maker = Maker(items, catalogue.own_catalogue(self.allowed))
        graph = maker.graph(maker.first)
        raise_all(maker.effects[0])
        objectives.refuse_unreportable(self.objective, graph)
        return maker

    def job(self, values: Mapping[str, Any]) -> Job:
        """Return the job of values by the names of their spaces.

        Raises:
          ConfigError, InitError: the point fails its checks.
        """
        chosen = [space.choice(values[space.name]) for space in self.spaces]
        point = self.points.point(chosen, self.points.graph(chosen))
        return jobs_of([point], self.directory, reproduction.allow_flags(self.allowed))[0]

    def study(self) -> optuna.Study:
        """Open the study, which several processes may share, creating it if there is none.

        Raises:
          ConfigError: the directory holds a different search.
        """
        # An error that all points share is raised before anything is written.
        _ = self.points
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        claim(self.directory)
        study = optuna.create_study(
            storage=_open_journal(self.directory),
            study_name="search",
            load_if_exists=True,
            pruner=pruner(self.stop),
            direction="maximize" if self.objective.is_larger_better else "minimize",
        )
        for name, value in self._content.items():
            recorded = study.user_attrs.get(name)
            if recorded is None:
                study.set_user_attr(name, value)
            elif recorded != value:
                raise ConfigError(
                    f"{self.directory} holds a search with {name} {json.dumps(recorded)}, and this "
                    f"one has {json.dumps(value)}: name another --run_dir."
                )
        return study

    def run(
        self,
        *,
        jobs: int = 1,
        retries: int = 0,
        runner: Runner | None = None,
        console: Console | None = None,
    ) -> Found:
        """Train points until there are enough, or continue a search that was stopped.

        Args:
          jobs: points at a time.
          retries: how often a point that failed is retried.
          runner: runs as many points; defaults to processes on this machine.
          console: where to show progress; defaults to standard output.

        Raises:
          ConfigError: as `points`; or no point could be run.
        """
        runner = runner or LocalRunner(jobs=jobs, retries=retries)
        study = self.study()
        make = sampler_factory(self.sampler, self.spaces, parallel=jobs > 1)
        with Driver(self, study, make, runner, console) as driver:
            is_whole = runner.run(driver.jobs(), driver)
        if driver.num_refused and not driver.table.rows:
            raise ConfigError("no point of the search could be run: see each one's error.")
        summary = (
            f"{len(study.trials)} trials; of the new ones, {driver.num_refused} could not be run "
            f"and {driver.num_known} had results already"
        )
        results = Results(list(driver.table.rows.values()), self.objective)
        return Found(results, self.objective, is_whole, summary, self.allowed)

    def __rich__(self) -> RenderableType:
        trials = f"{self.num_trials} trials by {self.sampler}"
        line = f"{trials}, for {self.objective.text}, in {self.directory}"
        return Group(*map(Text, [line, *self.points.effects[1]]))


class Driver(Screen):
    """A screen that turns trials into jobs as slots free up, and reports results to the study.

    Args:
      search: the search.
      study: its study.
      make_sampler: from a seed.
      runner: runs the jobs.
      console: where to show progress.

    Attributes:
      num_refused: trials that failed their checks.
      num_known: trials whose point another trial had trained.
    """

    def __init__(
        self,
        search: Search,
        study: optuna.Study,
        make_sampler: MakeSampler,
        runner: Runner,
        console: Console | None,
    ) -> None:
        super().__init__(
            ResultsTable(search.directory, []),
            console=console,
            num_jobs=search.num_trials,
            objective=search.objective,
        )
        self.num_refused = self.num_known = 0
        self._search = search
        self._study = study
        self._make_sampler = make_sampler
        self._runner = runner
        self._open: dict[str, list[optuna.Trial]] = {}  # by the fingerprint of their job

    def jobs(self) -> Iterator[Job | None]:
        """Yield what to train next as slots free up; None while nothing may begin.

        Stopped points come first. Points that other processes run are waited for in the end, in
        case their process dies.
        """
        yield from self._unfinished()
        while (trial := self.ask()) is not None:
            if (job := self._job(trial, is_new=True)) is not None:
                yield job
        while self._others():
            yield from self._unfinished()
            yield None

    @property
    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def ask(self) -> optuna.Trial | None:
        """Return the next trial, or None when there are enough.

        It depends on its number and the results before it alone: a search that was stopped
        continues as if it had not been.
        """
        with (self._search.directory / _ASKING).open("ab") as file:
            files.wait_for_lock(file)  # processes that share a study ask one after the other
            number = len(self._trials)
            if number >= self._search.num_trials:
                return None
            seed = device.derive_seed(self._search.seed, "search", number) % 2**32
            self._study.sampler = self._make_sampler(seed)
            trial = self._study.ask(self._search.distributions)
            self._study.sampler = samplers.RandomSampler()  # a grid would stop the study at its end
            return trial

    def report(self, trial: optuna.Trial, state: TrialState, value: float | None = None) -> None:
        """Report the result of a trial, unless another process has."""
        # Optuna checks before it writes: another process may write in between.
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            self._study.tell(trial, value, state=state, skip_if_finished=True)

    def _others(self) -> list[FrozenTrial]:
        """Return the trials that were begun before, or by other processes, and have no result."""
        mine = {trial.number for trials in self._open.values() for trial in trials}
        running = [trial for trial in self._trials if trial.state == TrialState.RUNNING]
        return [trial for trial in running if trial.number not in mine]

    def _unfinished(self) -> Iterator[Job]:
        """Yield what was begun before, or by other processes, and is not running now."""
        for other in self._others():
            trial = optuna.Trial(self._study, other._trial_id)
            for name, distribution in self._search.distributions.items():
                if name not in trial.params:  # its process was killed before it chose
                    trial._suggest(name, distribution)
            if (job := self._job(trial, is_new=False)) is not None:
                yield job

    def _job(self, trial: optuna.Trial, *, is_new: bool) -> Job | None:
        """Return the job of a trial; None if it fails its checks, is known or runs elsewhere."""
        try:
            job = self._search.job(trial.params)
        except (ConfigError, InitError) as error:
            self.num_refused += 1
            self.report(trial, TrialState.PRUNED)
            line = " ".join(str(error).split())[:300]
            self.log(f"trial {trial.number + 1} is not run: {line}")
            return None
        if (open_trials := self._open.get(job.point.fingerprint)) is not None:
            self.num_known += 1
            open_trials.append(trial)
            return None
        with job.opened_log() as log:
            if log is None:
                if is_new:  # otherwise the other process will report it
                    self.report(trial, TrialState.FAIL)
                return None
        if job not in self.table.jobs:
            self.table.add(job)
        self._open[job.point.fingerprint] = [trial]
        status = self.table.row(job)["status"]
        if status not in _ENDED:
            return job
        self.num_known += is_new
        self._close(job, status)
        return None

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """Show a row of metrics; end a job early if one of its trials is not promising.

        Points are compared after the same share of their runs, which may differ in length.
        """
        super().progressed(job, row)
        name, share = self._search.objective.name, _SHARES * row["step"] // job.point.cost.num_steps
        if name not in row or not 0 < share < _SHARES:
            return
        for trial in self._open.get(job.point.fingerprint, []):
            if share in self._trials[trial.number].intermediate_values:
                continue
            # Another command may report the result of a point before this one sees its end.
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                trial.report(row[name], share)
                if trial.should_prune():
                    self._runner.end_early(job)

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Report a result; the same command continues a point that was stopped or failed."""
        super().ended(job, ending, again=again)
        if not again and ending.status in _ENDED:
            self._close(job, ending.status)

    def _close(self, job: Job, status: str) -> None:
        """Report the result of a job to its trials.

        Raises:
          ConfigError: the run finished without reporting the objective.
        """
        objective, is_finished = self._search.objective, status == "finished"
        reported = objectives.reported_by(job.directory) if is_finished else {}
        value = reported.get(objective.name)
        state = TrialState.FAIL if is_finished and value is None else TrialState.PRUNED
        if value is not None and math.isfinite(value):
            state = TrialState.COMPLETE
        for trial in self._open.pop(job.point.fingerprint, []):
            self.report(trial, state, value if state == TrialState.COMPLETE else None)
        if is_finished:
            objectives.refuse_unreported(objective, reported)


def _open_journal(directory: Path) -> JournalStorage:
    """Open the storage of a search; a damaged file is moved aside.

    The search then makes its choices again, and takes over what its points have reported.
    """
    path, lock = directory / SEARCH, JournalFileOpenLock(str(directory / _LOCK))
    try:
        lock.acquire()
        text = path.read_bytes() if path.exists() else b""
        lock.release()
        if not text.endswith(b"\n") and text:
            raise ValueError("its last line is incomplete")
        for line in text.splitlines():
            json.loads(line)  # Optuna fails at a wrong last line once it has added another one
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except OSError:
        raise
    except Exception as error:  # Optuna does not expect other lines than its own
        path.rename(path.with_suffix(".damaged"))
        run_directory.print_stderr(
            f"warning: {path} is damaged ({error}): its points are chosen again."
        )
        return _open_journal(directory)


def _num_trials(text: str, spaces: Sequence[Space]) -> int:
    """Return the number of trials; a grid has no more than all of its points."""
    name, _, count = text.partition(":")
    size = math.prod(map(len, grid_of(spaces).values())) if name == "grid" else math.inf
    number = int(count) if count.isdecimal() else 0
    if not number and name != "grid":
        raise ConfigError(f"--search={text} needs the number of points: write --search={name}:50.")
    return int(min(number or size, size))
