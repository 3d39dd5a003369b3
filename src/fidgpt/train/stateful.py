"""What has something to remember from step to step, besides the model and its optimizer."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """A part whose memory goes into checkpoints, as torch's optimizers and modules do it."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values (numbers, strings, None, lists, tuples, dicts)."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Puts back what `state_dict` gave."""
        ...
