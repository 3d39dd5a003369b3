"""RoPE scaling: between the mapping of a config.json and our parts."""

import math
from collections.abc import Container, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph import ConfigError
from fidgpt.model import LinearScaling, Llama3Scaling, RoPEScaling, YaRN

_LENGTH, _SHARPNESS = "original_max_position_embeddings", "mscale_all_dim"
_LLAMA3 = {
    "factor": "factor",
    "original_seq_len": _LENGTH,
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
}
_YARN = {
    "factor": "factor",
    "original_seq_len": _LENGTH,
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
}
_FACTORS = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
_NUMBERS = (*_FACTORS, "attention_factor", "mscale", _SHARPNESS)
_ABOVE_0 = (*_FACTORS, "attention_factor", _LENGTH)


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
    rope.setdefault(_LENGTH, seq_len)
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
    for key in (*_NUMBERS, _LENGTH):
        value = rope.get(key)
        is_number = type(value) is (int if key == _LENGTH else float) and math.isfinite(value)
        if value is not None and not (is_number and (value > 0 or key not in _ABOVE_0)):
            kind = "a whole number" if key == _LENGTH else "a finite number"
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
