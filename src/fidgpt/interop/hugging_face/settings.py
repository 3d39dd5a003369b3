"""Settings of a hub config."""

import inspect
import math
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import fiddle as fdl

from fidgpt.configs.hub import Family
from fidgpt.configs.windows import SLIDING
from fidgpt.graph import ConfigError
from fidgpt.graph.hints import hints_of, members_of
from fidgpt.interop.hugging_face.files import CONFIG, read_json
from fidgpt.interop.hugging_face.tensors import unknown_codes
from fidgpt.model import LinearScaling, Llama3Scaling, RoPEScaling, YaRN

Said = dict[str, Any]

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_LENGTH = "original_max_position_embeddings"
_OF_TWO_ROPES = "gemma3_text"


def read_said(directory: Path) -> Said:
    """The keys of a directory's config.json in the form that hub files had before transformers 5.

    RoPE is `rope_theta` and `rope_scaling`, a mapping with a `rope_type`, or None where nothing is
    said; where layers with a window turn otherwise, `rope_local_base_freq` is their theta. What
    stands in `text_config` stands at the top. `layer_types` is there where the file says it in any
    way.

    Raises:
      ConfigError: there is no such file, or it is no config.
    """
    path = directory / CONFIG
    said = read_json(path)
    text = said.pop("text_config", None)
    if isinstance(text, dict):
        said |= text
    if not isinstance(said.get("model_type"), str):
        raise ConfigError(f"{path} cannot be used: it says no model_type.")
    return said | _rope(said, path) | _layer_types(said) | _experts(said)


def nested(said: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Whether something is said at `a` or `a.b`, and what."""
    value: Any = said
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            return False, None
        value = value[step]
    return True, value


def say(said: Said, key: str, value: Any) -> None:
    """Says something at `a` or `a.b`; inside of a mapping that is not there, nothing."""
    holder, _, last = key.rpartition(".")
    inside = nested(said, holder)[1] if holder else said
    if isinstance(inside, dict):
        inside[last] = value


def _rope(said: Said, path: Path) -> Said:
    scaling, rope = (said.get(key) or {} for key in ("rope_scaling", "rope_parameters"))
    if wrong := [one for one in (scaling, rope) if not isinstance(one, dict)]:
        raise ConfigError(f"{path} cannot be used: its RoPE is {wrong[0]!r:.60}, and no mapping.")
    found: Said = {"rope_scaling": None}
    if _GLOBAL in rope or _LOCAL in rope:
        local, rope = (rope.get(kind) or {} for kind in (_LOCAL, _GLOBAL))
        scaling, found = rope | scaling, _local_rope(local, path)
    elif rope and said["model_type"] == _OF_TWO_ROPES:
        raise ConfigError(
            f"{path} cannot be used: rope_parameters says nothing of {_GLOBAL} or {_LOCAL}."
        )
    rope = scaling or rope
    if "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
    if rope or said.get("rope_parameters") == {}:
        rest = {key: value for key, value in rope.items() if key not in ("rope_theta", "type")}
        lengths = {_LENGTH: said[_LENGTH]} if _LENGTH in said else {}
        found["rope_scaling"] = rest | lengths | {"rope_type": _kind(rope)}
    return found


def _local_rope(rope: Mapping[str, Any], path: Path) -> Said:
    """What the RoPE of layers with a window says."""
    if _kind(rope) != "default":
        raise ConfigError(
            f"{path} cannot be used: layers with a window have RoPE of the type "
            f"{_kind(rope)!r}, and fidgpt knows it without scaling there."
        )
    return {"rope_local_base_freq": rope["rope_theta"]} if "rope_theta" in rope else {}


def _kind(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _experts(said: Said) -> Said:
    """Of mixtures whose files on the hub and those of transformers 5 have different words."""
    words = ("num_experts", "num_local_experts")
    known = [said[word] for word in words if word in said]
    return {word: known[0] for word in words if known and word not in said}


def _layer_types(said: Said) -> Said:
    """Of Gemma 3 before transformers 5: every so-many-th layer has no window."""
    every = said.get("sliding_window_pattern") or said.get("_sliding_window_pattern")
    is_said = said.get("layer_types") is not None
    if not isinstance(every, int) or is_said or said["model_type"] != _OF_TWO_ROPES:
        return {}
    layers = said.get("num_hidden_layers")
    count = layers if isinstance(layers, int) else every
    return {"layer_types": [_LOCAL if (i + 1) % every else _GLOBAL for i in range(count)]}


_SCALED_LENGTH, _SHARPNESS = "original_max_position_embeddings", "mscale_all_dim"
_LLAMA3 = {
    "factor": "factor",
    "original_seq_len": _SCALED_LENGTH,
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
}
_YARN = {
    "factor": "factor",
    "original_seq_len": _SCALED_LENGTH,
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
}
_FACTORS = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
_NUMBERS = (*_FACTORS, "attention_factor", "mscale", _SHARPNESS)
_ABOVE_0 = (*_FACTORS, "attention_factor", _SCALED_LENGTH)


def part_of(rope: Mapping[str, Any] | None, *, seq_len: int | None) -> fdl.Config | None:
    """The part that a mapping of config.json describes; None for none. Null says nothing in it.

    Args:
      rope: with a `rope_type`.
      seq_len: stands for the old length where the mapping does not say it.

    Raises:
      ConfigError: it is of a type that we do not know, says too little, or what is no number.
    """
    kind = None if rope is None else rope.get("rope_type")
    if rope is None or kind == "default":
        return None
    rope = {key: value for key, value in rope.items() if value is not None}
    rope.setdefault(_SCALED_LENGTH, seq_len)
    rope |= {key: float(rope[key]) for key in _NUMBERS if type(rope.get(key)) is int}
    _require_numbers(rope)
    if kind != "yarn" and rope.get(_SHARPNESS):
        raise ConfigError(f"rope_scaling of type {kind!r} says {_SHARPNESS}, which is YaRN's alone")
    try:
        if kind == "linear":
            return fdl.Config(LinearScaling, factor=rope["factor"])
        if kind == "llama3":
            return fdl.Config(Llama3Scaling, **_arguments(_LLAMA3, rope, needed=_LLAMA3))
        if kind == "yarn":
            known = _arguments(_YARN, rope, needed=("factor", "original_seq_len"))
            sharpness = rope.get(_SHARPNESS, 0.0)
            return fdl.Config(YaRN, **known, amplitude=_amplitude(rope), sharpness=sharpness)
    except KeyError as error:
        raise ConfigError(f"rope_scaling of type {kind!r} does not say {error}") from None
    raise ConfigError(f"rope_scaling is of type {kind!r}, and fidgpt knows linear, llama3 and yarn")


def mapping_of(scaling: RoPEScaling | None) -> dict[str, Any] | None:
    """What config.json says of a built part.

    Raises:
      ConfigError: there is no word for it.
    """
    if scaling is None:
        return None
    if type(scaling) is LinearScaling:
        return {"rope_type": "linear", "factor": scaling.factor}
    if type(scaling) is Llama3Scaling:
        said = {theirs: getattr(scaling, ours) for ours, theirs in _LLAMA3.items()}
        return {"rope_type": "llama3", **said}
    if type(scaling) is YaRN:
        said = {theirs: getattr(scaling, ours) for ours, theirs in _YARN.items()}
        return {
            "rope_type": "yarn",
            **said,
            "attention_factor": scaling.amplitude,
            **_sharpenings(scaling),
        }
    raise ConfigError(f"config.json has no word for the RoPE scaling {type(scaling).__name__}")


def _arguments(
    names: Mapping[str, str], rope: Mapping[str, Any], *, needed: Container[str]
) -> dict[str, Any]:
    """By our names."""
    return {
        ours: rope[theirs] for ours, theirs in names.items() if theirs in rope or ours in needed
    }


def _require_numbers(rope: Mapping[str, Any]) -> None:
    """Raises ConfigError where a number is none, or none that waves can have."""
    for key in (*_NUMBERS, _SCALED_LENGTH):
        value = rope.get(key)
        is_number = type(value) is (int if key == _SCALED_LENGTH else float) and math.isfinite(
            value
        )
        if value is not None and not (is_number and (value > 0 or key not in _ABOVE_0)):
            kind = "a whole number" if key == _SCALED_LENGTH else "a finite number"
            least = " above 0" if key in _ABOVE_0 else ""
            raise ConfigError(
                f"{key} of rope_scaling is {value!r:.60}, and has to be {kind}{least}"
            )
    if type(rope.get("truncate", True)) is not bool:
        raise ConfigError(f"truncate of rope_scaling is {rope['truncate']!r:.60}, and no bool")
    if rope.get("low_freq_factor", 0.0) == rope.get("high_freq_factor"):
        raise ConfigError("low_freq_factor and high_freq_factor of rope_scaling are the same")


def _amplitude(rope: Mapping[str, Any]) -> float | None:
    """As transformers reads it: said, or the ratio of two sharpenings; None by YaRN's formula."""
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    over, under = rope.get("mscale"), rope.get(_SHARPNESS)
    if not over or not under:
        return None
    growth = _growth(rope["factor"])
    return (over * growth + 1) / (under * growth + 1)


def _sharpenings(scaling: YaRN) -> dict[str, float]:
    """Those of which DeepSeek's own code makes the amplitude, where there are any."""
    growth = _growth(scaling.factor)
    if not scaling.sharpness or not growth:
        return {}
    over = (scaling.amplitude * (scaling.sharpness * growth + 1) - 1) / growth
    return {"mscale": round(over, 12), _SHARPNESS: scaling.sharpness}


def _growth(factor: float) -> float:
    return 0.1 * math.log(factor) if factor > 1 else 0.0


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
_POSITIVE_SETTINGS = {"theta", "local_theta", "score_cap", "logit_cap", "limit"}
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
            least = "above 0" if name in _POSITIVE_SETTINGS else "of at least 0"
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
    return math.isfinite(value) and (value > 0 or (value == 0 and name not in _POSITIVE_SETTINGS))


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
