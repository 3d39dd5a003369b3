"""Keys of config.json that are no settings of a family: each has no effect, or is named."""

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from fidgpt.configs.facts import WITHOUT_EFFECT
from fidgpt.configs.hub import Family

_PARTIAL = "partial_rotary_factor"
LOCAL_PARTIAL = f"local_{_PARTIAL}"  # of layers with a window, if their RoPE is another one
# Of every family that has no setting for it: the values that change nothing, the default first.
FIXED: Mapping[str, tuple[Any, ...]] = {
    _PARTIAL: (None, 1.0),
    LOCAL_PARTIAL: (None, 1.0),
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "per_layer_config": (None, {}),
    "rope_local_base_freq": (None,),
    "llama_4_scaling_beta": (None,),
}
EXPERTS = ("num_experts", "num_local_experts")  # names of one key, of the hub and of transformers 5
UNKNOWN = "unknown"


def holders_in(family: Family) -> set[str]:
    """Return the names of objects in config.json whose keys the family reads, as `holder.key`."""
    keys = (*family.settings.values(), *family.fixed, *family.known, *family.constants)
    return {key.partition(".")[0] for key in keys if "." in key}


def other_values(family: Family, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each key with a value that the family does not compute."""
    settings = family.settings.values()
    for key, allowed in {**FIXED, **family.fixed}.items():
        if key in config and config[key] not in allowed and key not in settings:
            ours = " or ".join(repr(value) for value in allowed)
            yield f"{key} is {config[key]!r:.60}, and fidgpt's {family.model_type} computes {ours}"


def unknown_keys(family: Family, config: Mapping[str, Any]) -> list[str]:
    """Return the keys that are set and that may matter, as fidgpt does not know them."""
    return [
        key
        for key, value in config.items()
        if value is not None and reason_of(family, key) == UNKNOWN
    ]


def reason_of(family: Family, key: str) -> str:
    """Return why a key is no error: what reads it, or why it has no effect, or `UNKNOWN`."""
    read = {*family.settings.values(), *family.other_names, *family.switches.values()}
    read |= {*family.known, *family.constants, *holders_in(family)}
    if key in read or (key in EXPERTS and read.intersection(EXPERTS)):
        return "read"
    if key in FIXED or key in family.fixed:
        return "has the value that fidgpt computes"
    name = key.rpartition(".")[2]
    return next(
        (
            reason
            for reason, patterns in WITHOUT_EFFECT.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ),
        UNKNOWN,
    )
