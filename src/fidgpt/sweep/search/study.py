"""An Optuna study in the directory of a search: what was chosen, and what came of it."""

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from fidgpt.graph import ConfigError
from fidgpt.sweep.results.objective import Objective
from fidgpt.sweep.search.journal import journal
from fidgpt.sweep.search.space import Space

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
