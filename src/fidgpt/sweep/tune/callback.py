"""How Ray Tune tells of its trials."""

from collections.abc import Mapping
from typing import Any, Protocol

from fidgpt.graph import ConfigError
from fidgpt.sweep.tune.trainable import BROKEN


class Heard(Protocol):
    """Hears of trials, by their identity."""

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        """A trial has reported."""
        ...

    def broke(self, trial: str, words: str) -> None:
        """The code of a trial raised something, so that going on makes no sense."""
        ...

    def completed(self, trial: str, report: Mapping[str, Any]) -> None:
        """A trial came to its end, or is ended; with its last report."""
        ...

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        """The node of a trial is gone; `again` where it is moved to another one."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


def callback(heard: Heard) -> Any:
    """The callback by which Ray Tune tells of its trials."""
    from ray import tune

    class Calling(tune.Callback):
        def __init__(self, heard: Heard) -> None:
            self._heard = heard

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Tune keeps a copy, for what we do otherwise

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if result.get("event") == BROKEN:
                self._heard.broke(trial.trial_id, result["words"])
            else:
                self._heard.reported(trial.trial_id, result)

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.completed(trial.trial_id, trial.last_result or {})

        def on_trial_error(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.lost(trial.trial_id, _reason(trial), again=False)

        def on_trial_recover(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.lost(trial.trial_id, _reason(trial), again=True)

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            self._heard.tick()

    return Calling(heard)


def _reason(trial: Any) -> str:
    """Why Ray took a trial for lost, in a line."""
    lines = [line.strip() for line in str(trial.get_error() or "").splitlines() if line.strip()]
    return f"its process on the node is gone: {lines[-1]}" if lines else "its node is gone."


def broken(words: str) -> ConfigError:
    """What ends a search in which a trial's own code fails, as it would on any node."""
    return ConfigError(f"the search cannot go on: {words}\nThe same command tries it again.")
