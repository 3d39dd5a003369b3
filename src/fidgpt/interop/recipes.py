"""What conversions of other trainers' files share: entries that are read, directives, notes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fidgpt import configs
from fidgpt.compose.sources import read_text
from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.expressions import as_asked
from fidgpt.graph.hints import fits, name_of
from fidgpt.graph.yaml import Foreign
from fidgpt.interop.directives_from import bring_about

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
# for models whose names contain the name of another architecture.
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
      model: its name on the hub, or the name of its function in torchtune.

    Raises:
      ConfigError: no named config has it.
    """
    name = model.rpartition("/")[2].lower()
    name = re.sub("(?<=2.5-)coder|instruct|thinking|safeguard|[^a-z0-9]", "", name)
    named = {key.replace("_", ""): key for key in configs.__all__ if any(map(str.isdigit, key))}
    known = {**named, **_MODELS}
    config = known.get(max((key for key in known if key in name), key=len, default=""))
    if not config:
        raise ConfigError(
            f"fidgpt has no named config of {model:.80}: download the model, and name its "
            "directory in the file."
        )
    return f"config:{config}".split()


@dataclass(frozen=True, slots=True)
class Mapped:
    """The conversion of another system's file.

    Attributes:
      directives: a named config and its changes, for `compose.composition.compose`.
      unmapped: `path: value (why)` for each entry of the file without an equivalent, including
        relevant defaults of the other system.
    """

    directives: list[str]
    unmapped: list[str]


class Recipe:
    """A conversion. Entries of the file, by paths such as `trainer.seed`, are removed once read.

    Args:
      document: the content of the file.
      neutral: by the last name of their path, values at which entries change nothing if they are
        not read; for others, these are null, false, zero and empty values.
      elsewhere: matches paths of entries that are no part of a config here.
    """

    def __init__(
        self,
        document: Mapping[Any, Any],
        *,
        neutral: Mapping[str, Any] | None = None,
        elsewhere: re.Pattern[str] | None = None,
    ) -> None:
        self.left: dict[Any, Any] = _copied(document)
        self.directives: list[str] = []
        self.wanted: dict[str, Any] = {}
        self.last: list[str] = []  # directives that follow the wanted values
        self.unmapped: list[str] = []
        self._neutral = neutral or {}
        self._elsewhere = elsewhere or re.compile("")
        self._read = {""}

    def section(self, path: str) -> dict[Any, Any]:
        """Return the unread entries of a section; an empty dict if there is no such section."""
        value: Any = self.left
        for name in filter(None, path.split(".")):
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}

    def take(self, path: str, default: Any = None, kind: Any = None) -> Any:
        """Remove an entry; return its value, of the type of its default, which replaces null.

        Raises:
          ConfigError: the value is of another type.
        """
        section, _, key = path.rpartition(".")
        self._read.add(section)
        value = self.section(section).pop(key, None)
        if value is None:
            return default
        kind = kind or (Any if default is None else type(default))
        value = as_asked(value, kind)
        if not fits(value, kind):
            raise ConfigError(f"{path} is {shown(value)}, but must be {name_of(kind)}.")
        return value

    def want(self, rows: Mapping[str, tuple[str, Any]]) -> None:
        """Map entries to paths of the graph; `rows` has the path and the default of each entry."""
        for entry, (path, default) in rows.items():
            self.wanted[path] = self.take(entry, default)

    def drop(self, paths: Iterable[str], why: str = "") -> None:
        """Remove entries; with a reason, note that they have no equivalent."""
        for path in paths:
            value = self.take(path)
            if value is not None and why:
                self.note(path, value, why)

    def change(self, name: str, /, **arguments: Any) -> None:
        """Add a directive, such as `fiddler:use_x(a=1)`."""
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        self.directives.append(f"{name}({text})" if text else name)

    def switch(self, directives: Mapping[str, str]) -> None:
        """Add the directive of each entry that is true."""
        for entry, directive in directives.items():
            if self.take(entry, False):
                self.change(directive)

    def note(self, path: str, value: Any, why: str) -> None:
        """Record what has no equivalent, or another one."""
        self.unmapped.append(f"{path}: {shown(value)} ({why})")

    def adamw(self, lr: float, betas: Sequence[float], eps: float, weight_decay: float) -> None:
        """Map the settings of AdamW."""
        self.wanted["optimizer.lr"] = float(lr)
        self.wanted["optimizer.betas"] = [float(beta) for beta in betas]
        self.wanted["optimizer.eps"] = float(eps)
        self.wanted["optimizer.weight_decay"] = float(weight_decay)

    def length(self, size: int, parts: int, epochs: Any, num_steps: int | None) -> None:
        """Map sequences of a micro-batch, micro-batches of a step, and the number of steps."""
        usual = configs.base().num_steps
        self.wanted |= {"batch_size": size * parts, "micro_batch_size": size}
        self.wanted["num_steps"] = num_steps or usual
        self.note("batch_size", size, "of one device: times their number with several")
        if not num_steps:
            why = f"{usual} steps: set num_steps, as an epoch has as many rows as packing makes"
            self.note("epochs", epochs, why)

    def mapped(self) -> Mapped:
        """Return the conversion, with a note for each entry that is left.

        Raises:
          ConfigErrors: values do not fit the config.
        """
        self._note_rest(self.left, "")
        directives = bring_about(self.directives, [*self.wanted.items()])
        return Mapped([*directives, *self.last], self.unmapped)

    def _note_rest(self, left: Mapping[Any, Any], section: str) -> None:
        for key, value in left.items():
            path = f"{section}.{key}".removeprefix(".")
            if isinstance(value, dict) and path in self._read:
                self._note_rest(value, path)
                continue
            is_neutral = value in (None, "", [], {}, self._neutral.get(key, False))
            if not is_neutral and not self._elsewhere.fullmatch(path):
                is_file = isinstance(value, Foreign)
                self.note(path, value, "is another file" if is_file else "fidgpt has no equivalent")


def content_of(text_or_path: str | Path, kind: str) -> tuple[str, str]:
    """Return how messages name a file, by its kind if it is a text, and its text."""
    is_text = isinstance(text_or_path, str)
    return (f"the {kind} file", text_or_path) if is_text else read_text(str(text_or_path))


def refuse(what: str, value: Any, known: Iterable[str] = ()) -> NoReturn:
    """Raise ConfigError for a value without an equivalent."""
    hint = f" {suggest(str(value), known)}" if known else ""
    raise ConfigError(f"fidgpt has no equivalent of {what} {value!r:.80}.{hint}")


def shown(value: Any) -> str:
    """Return a short text of a value for a message."""
    if isinstance(value, dict | list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, Foreign):
        return f"{value.tag} {value.value:.60}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value!s:.60}"


def _copied(value: Any) -> Any:
    """Return plain data in which nothing is shared, as by an alias."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else value
