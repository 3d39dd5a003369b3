"""An Optuna study in the directory of a search: what was chosen, and what came of it."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from fidgpt.graph import ConfigError
from fidgpt.sweep.search.space import Space

FILE = "study.journal"
_SPACES = "spaces"


class Study:
    """What a sampler is asked and told; several processes may share one.

    Args:
      directory: where its file lies, which is made if there is none.
      spaces: what is chosen.
      sampler: chooses.
      pruner: says what is not worth going on with.
      num_trials: how often something is chosen, by all processes together.

    Raises:
      ConfigError: the file is of a search over other spaces.
    """

    def __init__(
        self,
        directory: Path,
        *,
        spaces: Sequence[Space],
        sampler: optuna.samplers.BaseSampler,
        pruner: optuna.pruners.BasePruner,
        num_trials: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._distributions = {space.name: space.range.distribution() for space in spaces}
        self._num_trials = num_trials
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(directory / FILE))),
            study_name="search",
            sampler=sampler,
            pruner=pruner,
            load_if_exists=True,
        )
        self._refuse_other([space.said for space in spaces], directory)

    def _refuse_other(self, said: list[str], directory: Path) -> None:
        known = self._study.user_attrs.get(_SPACES)
        if known is None:
            self._study.set_user_attr(_SPACES, said)
        elif known != said:
            raise ConfigError(
                f"{directory} holds a search over {json.dumps(known)}, and this one is over "
                f"{json.dumps(said)}: name another --run_dir."
            )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that was chosen so far."""
        return self._study.get_trials(deepcopy=False)

    def running(self) -> list[optuna.Trial]:
        """Trials of which nobody has told what came of them."""
        left = [one for one in self.trials if one.state == TrialState.RUNNING]
        complete = [one for one in left if one.params.keys() == self._distributions.keys()]
        return [optuna.Trial(self._study, one._trial_id) for one in complete]

    def ask(self) -> optuna.Trial | None:
        """The next choice; None where there were enough."""
        if len(self.trials) >= self._num_trials:
            return None
        trial = self._study.ask(self._distributions)
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
        self._study.tell(trial, value, state=state, skip_if_finished=True)

    def hopeless(self, trial: optuna.Trial, value: float, step: int) -> bool:
        """Takes down a value on the way; returns whether the trial is not worth going on with."""
        known: dict[int, Any] = self.trials[trial.number].intermediate_values
        if step in known:
            return False
        trial.report(value, step)
        return trial.should_prune()
