"""What Ray Tune trains: a class of its own kind around a plain one, which it moves as it likes."""

from collections.abc import Callable, Mapping
from typing import Any


def trainable(make: Callable[[Mapping[str, Any], str], Any]) -> Any:
    """A class for Ray Tune.

    Args:
      make: makes what is trained, on its node, from a trial's config and identity. It has
        `step()`, which trains on and reports, and `end()`, which saves and ends; what is moved or
        cloned by the scheduler has `state()`, where it is in plain values, and `go_on_from(state)`.
    """
    from ray import tune

    class Training(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self._made = make(config, self.trial_id)

        def step(self) -> dict[str, Any]:
            return self._made.step()

        def cleanup(self) -> None:
            self._made.end()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._made.end()
            self._made = make(new_config, self.trial_id)
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return self._made.state()

        def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
            if checkpoint is not None:
                self._made.go_on_from(checkpoint)

    return Training
