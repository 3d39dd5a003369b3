"""Between what a config.json says and the arguments of a family's config."""

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import fiddle as fdl

from fidgpt.configs.hub import Family
from fidgpt.configs.windows import SLIDING
from fidgpt.graph import ConfigError
from fidgpt.graph.signatures.annotations import hints_of, members_of
from fidgpt.interop.hugging_face.said import Said, nested, say
from fidgpt.interop.hugging_face.scales import unknown_codes
from fidgpt.interop.hugging_face.scaling import mapping_of, part_of

Settings = dict[str, Any]

_PLAIN = {bool, int, float, str, type(None)}
# What no family computes in another way.
_FIXED = {"partial_rotary_factor": (None, 1.0)}
_SIZES = {
    *("hidden_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_dim"),
    *("vocab_size", "seq_len", "every", "nope_every", "window", "query_scalar"),
    *("num_experts", "num_shared", "top_k", "expert_ffn_dim", "num_groups", "top_groups"),
    *("kv_rank", "query_rank", "rope_head_dim", "value_head_dim"),
}
_ABOVE_0 = {"theta", "local_theta", "score_cap", "logit_cap", "limit"}
# Lists that say something of every layer.
_BY_LAYER = {"layer_types", "roped"}


def settings_of(family: Family, said: Said) -> Settings:
    """The arguments of the family's config, as far as a config.json says them.

    Raises:
      ConfigError: something is missing or is nothing that we compute; a line for each.
    """
    reader = _Reader(family, said)
    settings = reader.read()
    wrong = [*_not_fixed(family, said), *unknown_codes(said), *reader.wrong]
    if not wrong:
        wrong = [*_uneven_heads(family, settings), *_without_window(family, settings)]
    if wrong:
        raise ConfigError("\n  ".join(wrong))
    return settings


def config_of(family: Family, settings: Settings) -> fdl.Config:
    """The config of the member that has some settings.

    Raises:
      ConfigError: the family has no such member.
    """
    try:
        return family.config(**settings)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{family.model_type}: {error}") from error


def said_of(family: Family, settings: Mapping[str, Any]) -> Said:
    """What a config.json says of some settings.

    Raises:
      ConfigError: there is no word for one of them.
    """
    said: Said = {key: allowed[0] for key, allowed in family.fixed.items()} | dict(family.says)
    for name, key in sorted(family.settings.items(), key=lambda item: "." in item[1]):
        if name in settings:
            value = settings[name]
            say(said, key, _scaling_said(family, value) if name == "scaling" else value)
    return said | {on: said.get(key) is not None for key, on in family.switches.items()}


def _scaling_said(family: Family, scaling: Any) -> dict[str, Any] | None:
    """Null says that there is none, unless it means a usual one."""
    is_usual = scaling is None and "rope_scaling" in family.defaults
    return {"rope_type": "default"} if is_usual else mapping_of(scaling)


class _Reader:
    """Goes through the settings of a family, and keeps a line for each that does not fit."""

    def __init__(self, family: Family, said: Said) -> None:
        self._family = family
        self._said = said
        self._hints = hints_of(family.config)
        self._parameters = inspect.signature(family.config).parameters
        self._settings: Settings = {}
        self.wrong: list[str] = []

    def read(self) -> Settings:
        for name, key in self._family.settings.items():
            if name == "scaling":
                self._read_scaling()
            else:
                self._read(name, key)
        return self._settings

    def _read_scaling(self) -> None:
        said = self._said.get("rope_scaling")
        rope = self._family.defaults.get("rope_scaling") if said is None else said
        try:
            scaling = part_of(rope, seq_len=self._said.get("max_position_embeddings"))
        except ConfigError as error:
            self.wrong.append(str(error))
        else:
            self._settings["scaling"] = scaling

    def _read(self, name: str, key: str) -> None:
        is_said, value = nested(self._said, key)
        switch = self._family.switches.get(key)
        if switch is not None and not self._said.get(switch):
            is_said, value = True, None
        if not is_said and key in self._family.defaults:
            is_said, value = True, self._family.defaults[key]
        has_default = self._parameters[name].default is not inspect.Parameter.empty
        if not is_said and has_default:
            return
        if value is None and not is_said:
            self.wrong.append(f"{key} is not said, and has no usual value")
        else:
            self._keep(name, key, value)

    def _keep(self, name: str, key: str, value: Any) -> None:
        kinds = self._kinds(name)
        if float in kinds and type(value) is int:
            value = float(value)
        is_size = name in _SIZES and not (value is None and type(None) in kinds)
        if is_size and (type(value) is not int or value < 1):
            self.wrong.append(f"{key} is {value!r:.60}, and has to be a whole number above 0")
        elif kinds <= _PLAIN and type(value) not in kinds:
            wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
            self.wrong.append(f"{key} is {value!r:.60}, and has to be of type {wanted}")
        elif type(value) is float and not _is_meant(name, value):
            least = "above 0" if name in _ABOVE_0 else "of at least 0"
            self.wrong.append(f"{key} is {value!r}, and has to be a finite number {least}")
        elif not kinds <= _PLAIN:
            self._keep_list(name, key, value)
        else:
            self._settings[name] = value

    def _keep_list(self, name: str, key: str, value: Any) -> None:
        """Null means what silence does."""
        kinds = {kind for one in self._kinds(name) for kind in get_args(one)}
        num_layers = self._settings.get("num_layers", 0)
        if value is not None and not isinstance(value, list):
            self.wrong.append(f"{key} is {value!r:.60}, and has to be a list")
        elif value is not None and name in _BY_LAYER and len(value) < num_layers:
            self.wrong.append(f"{key} tells of {len(value)} layers, and there are {num_layers}")
        elif value is not None and (strange := [one for one in value if type(one) not in kinds]):
            wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
            self.wrong.append(f"{key} has {strange[0]!r:.60}, and all of it has to be {wanted}")
        elif value is not None:
            self._settings[name] = value

    def _kinds(self, name: str) -> set[Any]:
        return {type(None) if one is None else one for one in members_of(self._hints[name])}


def _is_meant(name: str, value: float) -> bool:
    return math.isfinite(value) and (value > 0 or (value == 0 and name not in _ABOVE_0))


def _not_fixed(family: Family, said: Said) -> Iterator[str]:
    for key, allowed in (_FIXED | dict(family.fixed)).items():
        is_said, value = nested(said, key)
        if is_said and value not in allowed:
            ours = " or ".join(repr(one) for one in allowed)
            yield f"{key} is {value!r:.60}, and fidgpt's {family.model_type} computes {ours}"


def _uneven_heads(family: Family, settings: Settings) -> Iterator[str]:
    width, heads = settings.get("hidden_dim"), settings.get("num_heads")
    if width and heads and settings.get("head_dim") is None and width % heads:
        keys = family.settings
        yield (
            f"{keys['hidden_dim']}={width} is no whole number of {keys['num_heads']}={heads} heads"
        )


def _without_window(family: Family, settings: Settings) -> Iterator[str]:
    """Layers that are to slide, and no window: which of the two is meant, nobody knows."""
    if SLIDING not in settings.get("layer_types", ()):
        return
    key = family.settings["window"]
    usual = inspect.signature(family.config).parameters["window"].default
    if settings.get("window", usual) is None:
        switch = family.switches.get(key)
        also = f", or {switch} is not true" if switch else ""
        yield f"layer_types has {SLIDING}, and {key} says no window{also}"
