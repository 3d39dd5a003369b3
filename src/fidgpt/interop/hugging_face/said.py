"""What a config.json says, in one flat form, whichever transformers wrote it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.files import CONFIG, read_json

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
