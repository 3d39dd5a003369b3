"""What conversions of fine-tuning files share: entries that are read, directives, and notes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fidgpt import configs
from fidgpt.graph import ConfigError
from fidgpt.interop.directives_from import bring_about
from fidgpt.interop.levanter import Mapped
from fidgpt.interop.levanter_model import shown

MLP = ("gate", "up", "down")
PROJECTIONS = {
    **{"q_proj": "query", "k_proj": "key", "v_proj": "value"},
    **dict.fromkeys(("o_proj", "output_proj"), "out"),
    **{f"{name}_proj": name for name in MLP},
}
FROM_CHECKPOINT = (
    "it is not here: where it is, begin with --config='config:chat(base=DIRECTORY)', which has its "
    "weights and its tokenizer"
)
# Models with the architecture of another name: its config, and directives for what differs. None is
# for models whose names contain that of another architecture.
_MODELS: dict[str, str | None] = {
    "codellama7b": "llama2_7b set:vocab_size=32016 tag:Theta=1e6",
    "codellama13b": "llama2_13b set:vocab_size=32016 tag:Theta=1e6",
    "codellama34b": "llama2_70b set:model.num_layers=48 set:model.blocks[0].mlp.ffn_dim=22016 "
    "tag:Theta=1e6",
    "cogitov1previewllama3b": "llama3_2_3b",
    "cogitov1previewqwen14b": "qwen2_5_14b",
    "deepcoder14b": "qwen2_5_14b",
    "devstralsmall25": "mistral_small_24b tag:Theta=1e9",
    "llama3370b": "llama3_1_70b",
    "magistralsmall25": "mistral_small_24b tag:Theta=1e9",
    "mistral7bv02": "mistral_7b tag:Window=None tag:Theta=1e6",
    "phi3mini": "phi3_3_8b",
    "phi3mini128k": None,
    "qwen205b": "qwen2_5_0_5b",
    "qwen215b": "qwen2_5_1_5b",
    "qwen27b": "qwen2_5_7b",
    "qwen272b": "qwen2_5_72b",
    "qwen25math7b": "qwen2_5_7b tag:Theta=1e4",
    "qwen25math7brope300k": "qwen2_5_7b tag:Theta=3e5",
    "qwen34b2507": "qwen3_4b tag:Theta=5e6",
    "qwen330ba3b2507": "qwen3_30b_a3b tag:Theta=1e7",
    "tinyllama": "llama2_7b set:model.num_layers=22 set:model.hidden_dim=2048 tag:HeadDim=64 "
    "tag:NumKVHeads=4 set:model.blocks[0].mlp.ffn_dim=5632",
    "yi34b": "llama2_70b set:vocab_size=64000 set:model.num_layers=60 set:model.hidden_dim=7168 "
    "set:model.blocks[0].mlp.ffn_dim=20480 tag:Theta=5e6",
    "zephyr7b": "mistral_7b",
    "zephyr7bgemma": None,
}


def model_directives(model: str) -> list[str]:
    """Return the directives for the architecture of a model.

    Args:
      model: its name on the hub, or that of its function in torchtune.

    Raises:
      ConfigError: no named config has it.
    """
    name = model.rpartition("/")[2].lower()
    name = re.sub("(?<=2.5-)coder|instruct|thinking|safeguard|[^a-z0-9]", "", name)
    named = {one.replace("_", ""): one for one in configs.__all__ if any(map(str.isdigit, one))}
    known = {**named, **_MODELS}
    found = known.get(max((one for one in known if one in name), key=len, default=""))
    if not found:
        raise ConfigError(
            f"fidgpt has no named config of {model:.80}: download the model, and name its "
            "directory in the file."
        )
    return f"config:{found}".split()


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
        """Record what has no equivalent, or another one."""
        self.unmapped.append(f"{key}: {shown(value)} ({why})")

    def adamw(self, lr: float, betas: Sequence[float], eps: float, weight_decay: float) -> None:
        """Map the settings of AdamW."""
        self.set("optimizer.lr", float(lr))
        self.set("optimizer.betas", [float(beta) for beta in betas])
        self.set("optimizer.eps", float(eps))
        self.set("optimizer.weight_decay", float(weight_decay))

    def length(self, size: int, parts: int, epochs: Any, num_steps: int | None) -> None:
        """Map sequences of a micro-batch, micro-batches of a step, and the number of steps."""
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
