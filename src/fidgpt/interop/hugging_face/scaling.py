"""RoPE scaling: between the mapping of a config.json and our parts."""

import math
from collections.abc import Container, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph import ConfigError
from fidgpt.model import LinearScaling, Llama3Scaling, RoPEScaling, YaRN

_LENGTH = "original_max_position_embeddings"
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


def part_of(rope: Mapping[str, Any] | None, *, seq_len: int | None) -> fdl.Config | None:
    """The part that a mapping of config.json describes; None for none.

    Args:
      rope: with a `rope_type`.
      seq_len: stands for the old length where the mapping does not say it.

    Raises:
      ConfigError: it is of a type that we do not know, or says too little.
    """
    if rope is None:
        return None
    rope = dict[str, Any](rope)
    rope.setdefault(_LENGTH, seq_len)
    rope |= {key: float(rope[key]) for key in _FACTORS if type(rope.get(key)) is int}
    kind = rope.get("rope_type")
    try:
        if kind == "linear":
            return fdl.Config(LinearScaling, factor=float(rope["factor"]))
        if kind == "llama3":
            return fdl.Config(Llama3Scaling, **_arguments(_LLAMA3, rope, needed=_LLAMA3))
        if kind == "yarn":
            known = _arguments(_YARN, rope, needed=("factor", "original_seq_len"))
            return fdl.Config(YaRN, **known, amplitude=_amplitude(rope))
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
        return {"rope_type": "yarn", **said, "attention_factor": scaling.amplitude}
    raise ConfigError(f"config.json has no word for the RoPE scaling {type(scaling).__name__}")


def _arguments(
    names: Mapping[str, str], rope: Mapping[str, Any], *, needed: Container[str]
) -> dict[str, Any]:
    """By our names; factors are whole numbers in many files, and lengths are never others."""
    said = {
        ours: rope[theirs] for ours, theirs in names.items() if theirs in rope or ours in needed
    }
    return {
        ours: float(value) if type(value) is int and ours != "original_seq_len" else value
        for ours, value in said.items()
    }


def _amplitude(rope: Mapping[str, Any]) -> float | None:
    """As transformers reads it: said, or the ratio of two sharpenings; None by YaRN's formula."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    if not over or not under:
        return None
    growth = math.log(rope["factor"]) if rope["factor"] > 1 else 0.0
    return (0.1 * over * growth + 1) / (0.1 * under * growth + 1)
