"""What conversions of fine-tuning files share: entries that are read, directives, and notes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fidgpt import configs
from fidgpt.interop.directives_from import bring_about
from fidgpt.interop.levanter import Mapped
from fidgpt.interop.levanter_model import shown

MLP = ("gate", "up", "down")
PROJECTIONS = {
    **{"q_proj": "query", "k_proj": "key", "v_proj": "value"},
    **dict.fromkeys(("o_proj", "output_proj"), "out"),
    **{f"{name}_proj": name for name in MLP},
}
# Models with the architecture of another name here, by their name in torchtune.
NAMES = {
    "llama3_3_70b": "llama3_1_70b",
    "phi3_mini": "phi3_3_8b",
    "qwen2_0_5b": "qwen2_5_0_5b",
    "qwen2_1_5b": "qwen2_5_1_5b",
    "qwen2_7b": "qwen2_5_7b",
}
PACKED = "conversations are packed, and do not see each other"
FROM_CHECKPOINT = (
    "it is not here: where it is, begin with --config='config:chat(base=DIRECTORY)', which has its "
    "weights and its tokenizer"
)


class Recipe:
    """A conversion: entries of the file are removed once they are read."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.left = dict(document)
        self.directives: list[str] = []
        self.wanted: dict[str, Any] = {}
        self.unmapped: list[str] = []

    def fiddle(self, fiddler: str, /, **arguments: Any) -> None:
        """Add the directive of a fiddler."""
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        self.directives.append(f"fiddler:{fiddler}" + (f"({text})" if text else ""))

    def set(self, path: str, value: Any) -> None:
        """Ask for a value, which may be there already."""
        self.wanted[path] = value

    def note(self, key: str, value: Any, why: str) -> None:
        """Record an entry without an exact equivalent, and why."""
        self.unmapped.append(f"{key}: {shown(value)} ({why})")

    def adamw(self, lr: float, betas: Sequence[float], eps: float, weight_decay: float) -> None:
        """Map the settings of AdamW."""
        self.set("optimizer.lr", float(lr))
        self.set("optimizer.betas", [float(beta) for beta in betas])
        self.set("optimizer.eps", float(eps))
        self.set("optimizer.weight_decay", float(weight_decay))

    def length(self, size: int, parts: int, epochs: Any, num_steps: int | None) -> None:
        """Map the length of a run and the sizes of its batches.

        Args:
          size: sequences of a micro-batch.
          parts: micro-batches of a step.
          epochs: passes over the data, for the note where steps are not limited.
          num_steps: steps of the run; None or 0 for as many as the config has.
        """
        self.set("batch_size", size * parts)
        self.set("micro_batch_size", size)
        self.note("batch_size", size, "of one device: times their number with several")
        usual = configs.base().num_steps
        self.set("num_steps", num_steps or usual)
        if not num_steps:
            why = f"{usual} steps: set num_steps, as an epoch has as many rows as packing makes"
            self.note("epochs", epochs, why)

    def mapped(self, elsewhere: re.Pattern[str]) -> Mapped:
        """Return the conversion, with a note for each entry that is left.

        Args:
          elsewhere: matches keys of entries that are no part of a config here.

        Raises:
          ConfigErrors: values do not fit the config.
        """
        for key, value in self.left.items():
            if value not in (None, False, "", [], {}) and not elsewhere.fullmatch(key):
                self.note(key, value, "fidgpt has no equivalent")
        return Mapped(bring_about(self.directives, [*self.wanted.items()]), self.unmapped)
