"""What a config.json says, in one flat form, whichever transformers wrote it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.files import CONFIG, read_json

Said = dict[str, Any]

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def read_said(directory: Path) -> Said:
    """The keys of a directory's config.json in the form that hub files had before transformers 5.

    RoPE is `rope_theta` and `rope_scaling`, the latter None or a mapping with a `rope_type`; where
    layers with a window turn otherwise, `rope_local_base_freq` is their theta. What stands in
    `text_config` stands at the top. `layer_types` is there where the file says it in any way.

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
    rope = said.get("rope_scaling") or said.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ConfigError(f"{path} cannot be used: its RoPE is {rope!r:.60}, and no mapping.")
    is_silent = said.keys().isdisjoint(("rope_theta", "rope_scaling", "rope_parameters"))
    found: Said = {} if is_silent else {"rope_scaling": None}
    if isinstance(rope.get(_GLOBAL), dict):
        local, rope = rope.get(_LOCAL) or {}, rope[_GLOBAL]
        if _kind(local) != "default":
            raise ConfigError(
                f"{path} cannot be used: layers with a window have RoPE of the type "
                f"{_kind(local)!r}, and fidgpt knows it without scaling there."
            )
        if "rope_theta" in local:
            found["rope_local_base_freq"] = local["rope_theta"]
    if "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
    if _kind(rope) != "default":
        rest = {key: value for key, value in rope.items() if key not in ("rope_theta", "type")}
        found["rope_scaling"] = rest | {"rope_type": _kind(rope)}
    return found


def _kind(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _experts(said: Said) -> Said:
    """Of Qwen, whose files on the hub and those of transformers 5 have different words."""
    one, other = "num_experts", "num_local_experts"
    return {one: said[other]} if other in said and one not in said else {}


def _layer_types(said: Said) -> Said:
    """Of Gemma 3 before transformers 5: every so-many-th layer has no window."""
    every = said.get("sliding_window_pattern") or said.get("_sliding_window_pattern")
    if not isinstance(every, int) or "layer_types" in said:
        return {}
    return {"layer_types": [_LOCAL] * (every - 1) + [_GLOBAL]}
