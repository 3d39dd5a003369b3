"""What Ray Tune trains: a class of its own kind around a plain one, which it moves as it likes."""

from collections.abc import Callable, Mapping
from typing import Any

BROKEN = "broken"  # the event of a report that only says what was raised


def trainable(make: Callable[[Mapping[str, Any], str], Any]) -> Any:
    """A class for Ray Tune.

    What is raised inside is reported, with the event `BROKEN`: Ray would begin it anew, as if the
    node were gone, again and again.

    Args:
      make: makes what is trained, on its node, from a trial's config and identity. It has
        `step()`, which trains on and reports, and `end()`, which saves and ends; what is moved or
        cloned by the scheduler has `state()`, where it is in plain values, and `go_on_from(state)`.
    """
    from ray import tune

    class Training(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self._made: Any = None
            self._words = ""
            self._try(lambda: self._make(config))

        def step(self) -> dict[str, Any]:
            report = None if self._words else self._try(lambda: self._made.step())
            return report or {"event": BROKEN, "words": self._words}

        def cleanup(self) -> None:
            if self._made is not None:
                self._made.end()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._try(self.cleanup)
            self._try(lambda: self._make(new_config))
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {} if self._words else self._made.state()

        def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
            if checkpoint:
                self._try(lambda: self._made.go_on_from(checkpoint))

        def _make(self, config: dict[str, Any]) -> None:
            self._made = make(config, self.trial_id)

        def _try(self, do: Callable[[], Any]) -> Any:
            try:
                return do()
            except Exception as error:
                self._words = f"{type(error).__name__}: {error}"

    return Training
