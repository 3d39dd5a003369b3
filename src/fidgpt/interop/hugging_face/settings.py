"""A family's settings: to and from the keys of config.json, and read from a model."""

import inspect
import math
from collections.abc import Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, get_origin

import fiddle as fdl

from fidgpt import model as library
from fidgpt.compose.catalogue import project_modules
from fidgpt.configs.facts import MISSING, SEQ_LENS
from fidgpt.configs.hub import Family
from fidgpt.configs.readings import READINGS
from fidgpt.configs.windows import FULL, OLD_KINDS, SLIDING
from fidgpt.graph import ConfigError
from fidgpt.graph.expressions import as_asked
from fidgpt.graph.hints import fits, hints_of, members_of, name_of
from fidgpt.interop.hugging_face.files import CONFIG, read_json
from fidgpt.interop.hugging_face.keys import EXPERTS, LOCAL_PARTIAL, holders_in, other_values
from fidgpt.interop.hugging_face.quantized import unknown_codes
from fidgpt.model import (
    DynamicNTKScaling,
    LanguageModel,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    PartialRotation,
    RoPEScaling,
    YaRN,
)

HubConfig = dict[str, Any]  # the content of config.json
Settings = dict[str, Any]  # arguments of a family's config

# The modules in configs/ with families, in the order in which `save_hf` tries them.
_MODULES = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3"),
    *("deepseek2", "deepseek3", "olmo2", "smollm", "gpt_oss", "gpt2"),
    *("phi3", "gpt_neox", "granite", "olmoe", "cohere", "falcon"),
    *("near_llama", "mixtures", "older"),
    *("qwen3_next", "mamba", "granite4", "lfm2", "kimi_linear", "minimax"),
    *("routed", "llama4", "windowed_mixtures", "recent", "single_branch", "falcon_h1"),
)
_OWN = {
    f"fidgpt.configs.{name}": vars(import_module(f"fidgpt.configs.{name}")) for name in _MODULES
}
_LISTED = [f for members in _OWN.values() for f in members.values() if isinstance(f, Family)]
FAMILIES = tuple({f.model_type: f for f in _LISTED}.values())  # a module may import from another

_GEMMA3 = "gemma3_text"  # has one RoPE for each kind of layer
_LENGTH, _SHARPNESS = "original_max_position_embeddings", "mscale_all_dim"
_SCALINGS = {  # by the rope_type
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "yarn": YaRN,
    "longrope": LongRoPE,
    "dynamic": DynamicNTKScaling,
    "proportional": PartialRotation,
}
_KEYS = {
    "original_seq_len": _LENGTH,
    "share": "partial_rotary_factor",
}  # where it is not the name of the argument
_OPTIONAL = ("beta_fast", "beta_slow", "truncate")
_AMPLITUDES = ("attention_factor", "mscale", _SHARPNESS)
_PER_LAYER = ("layer_types", "roped", "mixers", "thetas", "kinds", "attention_layers")
_PARTIAL = "partial_rotary_factor"
_TEXT_OF = {"phi4_multimodal": "phi3"}  # the family of the text of a model without a text_config
# Families that read no rope_theta beside defaults of their own.
_WHOLE_ROPE = ("apertus", "cwm", "laguna", "lfm3", "mellum", "ministral3")
_WHOLE_ROPE += ("modernbert-decoder",)
_BY_KIND = (_GEMMA3, "olmo3")  # transformers puts rope_scaling into the RoPE of one kind of layer
_LOCAL = "rope_local_base_freq"
_STRENGTH = "llama_4_scaling_beta"
_ALPHA = "alpha"  # of NTK-aware scaling in Hunyuan
_IN_ROPE = {"rope_theta", _PARTIAL, _STRENGTH}
# Keys of a RoPE; others are refused, as they may belong to a scaling that fidgpt does not know.
_ROPE_KEYS = {"rope_type", "type", "rope_theta", _PARTIAL, _LENGTH, *_AMPLITUDES}
_ROPE_KEYS |= {"factor", "low_freq_factor", "high_freq_factor", *_OPTIONAL, "finetuned"}
_ROPE_KEYS |= {"short_factor", "long_factor", _STRENGTH, "max_position_embeddings"}
_ROPE_KEYS |= {_ALPHA, "mrope_section", "mrope_interleaved"}  # of images: text has one position


class UnknownScaling(ConfigError):
    """A RoPE scaling that no config.json can express."""


def families() -> dict[str, Family]:
    """Return the families by model_type: fidgpt's own, and the families of installed projects.

    A project offers what its module `families` holds. One with a model_type of fidgpt's own
    replaces it.

    Raises:
      ConfigError: two projects have a family of the same model_type.
    """
    projects: dict[str, tuple[str, Family]] = {}
    for module in project_modules("families"):
        for family in (member for member in vars(module).values() if isinstance(member, Family)):
            other, known = projects.setdefault(family.model_type, (module.__name__, family))
            if known is not family:
                raise ConfigError(
                    f"model_type={family.model_type!r} is a family of {other} and of "
                    f"{module.__name__}; uninstall one of them."
                )
    own = {family.model_type: family for family in FAMILIES}
    return own | {name: family for name, (_, family) in projects.items()}


def missing_component(model_type: str) -> str | None:
    """Return what models of a type need that fidgpt does not have, if that is known."""
    return next((part for name, part in MISSING.items() if name in model_type), None)


def family_of(model_type: str) -> Family:
    """Return the family that config.json names.

    Raises:
      ConfigError: it is unknown.
    """
    known = families()
    family = known.get(model_type) or known.get(f"{model_type}_text")  # of a model of images
    if family is None:
        missing = missing_component(model_type)
        lacks = f": fidgpt has no {missing}" if missing else ""
        raise ConfigError(
            f"{model_type=} is not supported{lacks}. docs/models.md shows how to add a family, and "
            "docs/components.md a component that it needs."
        )
    return family


def family_modules() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names of the modules that have families, and what they hold."""
    yield from _OWN.items()
    for module in project_modules("families"):
        yield module.__name__, vars(module)


def read_config(directory: Path, family: Family | None = None) -> HubConfig:
    """Return a directory's config.json in the form that hub files had before transformers 5.

    RoPE is `rope_theta` and `rope_scaling`, a mapping with a `rope_type`, or None if unset; where
    layers with a window have another RoPE, `rope_local_base_freq` is its theta. The content of
    `text_config` is at the top. `layer_types` is there if the file has it in any form.

    A value under another name of a key is also there under the family's name. Beside a RoPE, as
    transformers does, its theta is only read under the family's own name. If the
    family has a key with a dot, such as `attn_config.clip_qkv`, all entries of the object
    `attn_config` are at the top under keys with a dot.

    Args:
      directory: holds a config.json.
      family: has the names of keys; defaults to the family of the model_type.

    Raises:
      ConfigError: there is no such file, or it is not a config.
    """
    path = directory / CONFIG
    config = read_json(path)
    config |= text_keys(config)
    config.pop("text_config", None)
    if not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{path} cannot be used: it has no model_type.")
    config["model_type"] = _TEXT_OF.get(config["model_type"]) or config["model_type"]
    if config["model_type"] == "mistral" and "layer_types" in config:
        config["model_type"] = "ministral"  # as transformers reads it
    family = families().get(config["model_type"]) if family is None else family
    aliases = {} if family is None else family.other_names
    for holder in set() if family is None else holders_in(family):
        inner = _mapping(config, holder)
        config.pop(holder, None)
        config |= {f"{holder}.{key}": value for key, value in inner.items()}
    config |= {key: config[one] for one, key in aliases.items() if one in config.keys() - _IN_ROPE}
    try:
        config |= {aliases.get(key, key): value for key, value in _rope(config).items()}
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None
    if isinstance(kinds := config.get("layer_types"), list):
        config["layer_types"] = [OLD_KINDS.get(str(kind), kind) for kind in kinds]
    experts = [config[key] for key in EXPERTS if key in config]
    return {key: experts[0] for key in EXPERTS if experts} | config


def text_keys(content: HubConfig) -> HubConfig:
    """Return the keys of a model's text, which a model of images has apart but for a tie."""
    text = content.get("text_config")
    if not isinstance(text, dict):
        return content
    return text | {key: content[key] for key in ("tie_word_embeddings",) if key in content}


def _rope(config: HubConfig) -> HubConfig:
    scaling, rope = (_mapping(config, key) for key in ("rope_scaling", "rope_parameters"))
    result: HubConfig = {"rope_scaling": None}
    if config["model_type"] in _WHOLE_ROPE and "rope_theta" in config and not (scaling or rope):
        raise ConfigError("rope_theta has no effect without rope_parameters; remove it.")
    if _rope_type(scaling) != "default":
        if config["model_type"] in ("cohere2_moe", "modernbert-decoder"):
            raise ConfigError(
                "rope_scaling is not read; put it into rope_parameters, or remove it."
            )
        if config["model_type"] in _BY_KIND and "rope_type" not in scaling:
            raise ConfigError("rope_scaling has type, which has no effect; name it rope_type.")
    if FULL in rope or SLIDING in rope:
        local, rope = (_mapping(rope, kind) for kind in (SLIDING, FULL))
        if config["model_type"] == "laguna" and _PARTIAL not in rope:
            raise ConfigError(f"rope_parameters.{FULL} lacks {_PARTIAL}.")
        if _rope_type(local) != "default":
            kind = _rope_type(local)
            raise ConfigError(f"layers with a window have RoPE of the type {kind!r}, not 'default'")
        scaling = rope | scaling
        keys = {"rope_theta": _LOCAL, _PARTIAL: LOCAL_PARTIAL}
        result |= {ours: local[key] for key, ours in keys.items() if key in local}
    elif rope and config["model_type"] in _BY_KIND:
        raise ConfigError(f"rope_parameters has neither {FULL} nor {SLIDING}.")
    rope = scaling or rope
    if unknown := sorted({key for key, value in rope.items() if value is not None} - _ROPE_KEYS):
        raise ConfigError(
            f"its RoPE of type {_rope_type(rope)!r} has {', '.join(unknown)}, which fidgpt does "
            "not know."
        )
    is_whole = _rope_type(rope) == "proportional"  # a whole head, part of which does not rotate
    beside = _IN_ROPE - {_PARTIAL} if is_whole else _IN_ROPE
    result |= {key: rope[key] for key in beside if key in rope}
    if rope or config.get("rope_parameters") == {}:
        rest = {key: value for key, value in rope.items() if key not in {"type", *result}}
        length = {_LENGTH: config[_LENGTH]} if _LENGTH in config else {}
        result["rope_scaling"] = rest | length | {"rope_type": _rope_type(rope)}
    return result


def _mapping(config: HubConfig, key: str) -> HubConfig:
    return _checked(key, config.get(key) or {}, dict[str, Any])


def _rope_type(rope: Mapping[str, Any]) -> str:
    kind = _checked("rope_type", rope.get("rope_type") or rope.get("type") or "default", str)
    return "longrope" if kind == "su" else kind  # as the first Phi-3 called it


def settings_of(family: Family, config: HubConfig) -> Settings:
    """Return the arguments of the family's config, as far as a config.json sets them.

    Raises:
      ConfigError: something is missing, or cannot be computed; a line for each.
    """
    wrong = [*other_values(family, config), *unknown_codes(config)]
    if family.model_type in SEQ_LENS and (key := family.settings.get("seq_len")):
        config = {key: SEQ_LENS[family.model_type]} | config
    settings: Settings = {}
    for name, key in family.settings.items():
        try:
            settings |= _setting(family, config, name, key)
            layers = settings.get("num_layers", 0)
            is_listed = name in _PER_LAYER and config.get(key) is not None
            if is_listed and len(settings[name]) < layers:
                raise ConfigError(f"{key} has {len(settings[name])} layers, not {layers}")
        except ConfigError as error:
            wrong.append(str(error))
    if wrong := wrong or [*_contradictions(family, settings)]:
        raise ConfigError("\n  ".join(wrong))
    return settings


def _setting(family: Family, config: HubConfig, name: str, key: str) -> Settings:
    """Return one setting by its name; nothing where the family's default holds."""
    if name == "scaling":
        rope = config.get("rope_scaling") or family.defaults.get("rope_scaling")
        for key, scaling in family.scalings.items():
            if rope and rope["rope_type"] == "dynamic" and rope.get(key):
                factor = _checked(f"rope_scaling.{key}", rope[key], float)
                return {name: fdl.Config(scaling, factor=factor)}
        share, *_ = family.fixed.get(_PARTIAL, (None,))
        is_split = "rotary_share" in family.settings or share not in (None, 1.0)
        if rope and rope["rope_type"] == "proportional" and is_split:
            raise ConfigError("rope_scaling is of type 'proportional', beside a part of each head")
        if rope and rope.get(_ALPHA):
            raise ConfigError(f"rope_scaling has {_ALPHA}, which {family.model_type} does not read")
        return {name: _scaling(rope, seq_len=config.get("max_position_embeddings"))}
    value = default = family.defaults.get(key, inspect.Parameter.empty)
    is_computed = callable(default) and default is not inspect.Parameter.empty
    is_optional = is_computed or isinstance(value, list)  # null then means the default
    if key in config and not (is_optional and config[key] is None):
        value = config[key]
    elif is_computed:
        try:
            value = default(config)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{key} is missing, and cannot be computed: {error}") from error
    if key in family.switches and not config.get(family.switches[key]):
        value = None
    hint = hints_of(family.config)[name]
    is_list = any(get_origin(member) for member in members_of(hint))
    default = inspect.signature(family.config).parameters[name].default
    if value is inspect.Parameter.empty or (value is None and is_list):
        if default is inspect.Parameter.empty:
            raise ConfigError(
                f"{key} is missing, and has no default; `defaults` of the family may have one"
            )
        return {}
    return {name: _checked(key, value, hint)}


def _checked(key: str, value: Any, hint: Any) -> Any:
    """Return a value of config.json, converted as an annotation requires.

    Raises:
      ConfigError: it does not fit.
    """
    value = as_asked(value, hint)
    if not fits(value, hint):
        raise ConfigError(f"{key}={value!r:.60} must be {name_of(hint)}")
    return value


def _contradictions(family: Family, settings: Settings) -> Iterator[str]:
    keys, whole = family.settings, family.complete(settings)
    width, heads = settings.get("hidden_dim"), settings.get("num_heads")
    if width and heads and whole.get("head_dim") is None and width % heads:
        yield f"{keys['hidden_dim']}={width} must be a multiple of {keys['num_heads']}={heads}"
    if SLIDING in settings.get("layer_types", ()) and whole["window"] is None:
        switch = family.switches.get(keys["window"])
        also = f", or {switch} is not true" if switch else ""
        yield f"layer_types has {SLIDING}, but {keys['window']} is unset{also}"


def _scaling(rope: Mapping[str, Any] | None, *, seq_len: int | None) -> fdl.Config | None:
    """Return the part that a mapping of config.json describes; null in it means unset.

    Args:
      rope: with a `rope_type`.
      seq_len: the old length if the mapping has none.

    Raises:
      ConfigError: its type is unknown, or a number is missing or wrong.
    """
    kind = "default" if rope is None else rope["rope_type"]
    if rope is None or kind == "default":
        return None
    if kind not in _SCALINGS:
        raise ConfigError(
            f"rope_scaling is of type {kind!r}, and fidgpt knows {', '.join(_SCALINGS)}"
        )
    if kind == "proportional":
        rope = {"factor": 1.0, _PARTIAL: 1.0} | dict(rope)
    if kind == "dynamic":  # transformers counts from here, whatever the mapping has
        rope = {key: value for key, value in rope.items() if key != _LENGTH}
    rope = {_LENGTH: seq_len} | {key: value for key, value in rope.items() if value is not None}
    scaling = _SCALINGS[kind]
    length = rope.get(_LENGTH)
    if kind == "longrope" and seq_len and isinstance(length, int) and length:
        rope.setdefault("factor", seq_len / length)
    arguments: dict[str, Any] = {}
    for name in _names(scaling):
        key = _KEYS.get(name, name)
        if rope.get(key) is not None:
            arguments[name] = _checked(f"rope_scaling.{key}", rope[key], hints_of(scaling)[name])
        elif name not in _OPTIONAL:
            raise ConfigError(f"rope_scaling of type {kind!r} lacks {key!r}")
    if kind == "yarn":
        arguments["amplitude"], arguments["sharpness"] = _amplitude(rope)
    elif kind == "longrope":
        key = _AMPLITUDES[0]
        arguments["amplitude"] = _checked(f"rope_scaling.{key}", rope.get(key), float | None)
    elif rope.get(_SHARPNESS):
        raise ConfigError(f"rope_scaling of type {kind!r} has {_SHARPNESS}, which only YaRN has")
    return fdl.Config(scaling, **arguments)


def _names(scaling: Any) -> list[str]:
    """Return the arguments of a scaling that are plain keys of config.json."""
    names = inspect.signature(scaling).parameters
    return [name for name in names if name not in ("amplitude", "sharpness")]


def _amplitude(rope: Mapping[str, Any]) -> tuple[float | None, float]:
    """Return YaRN's amplitude, or None if its formula sets it, and its sharpness.

    As transformers does: the amplitude is set, or the ratio of two sharpenings.
    """
    amplitude, over, under = (
        _checked(f"rope_scaling.{key}", rope.get(key), float | None) for key in _AMPLITUDES
    )
    if amplitude is None and over and under:
        growth = _growth(rope["factor"])
        amplitude = (over * growth + 1) / (under * growth + 1)
    return amplitude, under or 0.0


def _growth(factor: float) -> float:
    return 0.1 * math.log(factor) if factor > 1 else 0.0


def config_keys(family: Family, settings: Mapping[str, Any]) -> HubConfig:
    """Return the keys of config.json for some settings; the setting `scaling` is an object.

    Raises:
      ConfigError: config.json has no form for the scaling.
    """
    hub: HubConfig = {key: allowed[0] for key, allowed in family.fixed.items()}
    hub |= dict(family.constants) | {family.settings[name]: one for name, one in settings.items()}
    if "scaling" in settings:
        rope = hub[family.settings["scaling"]] = _scaling_keys(settings["scaling"], family)
        if rope is not None and hub.get(_STRENGTH) is not None:
            rope[_STRENGTH] = hub[_STRENGTH]
    return hub | {on: hub.get(key) is not None for key, on in family.switches.items()}


def published_keys(family: Family, config: HubConfig) -> HubConfig:
    """Return the keys of `config_keys` with one RoPE for each kind of layer, where there are two.

    Of Gemma 3 transformers reads the base of the second RoPE from a key of its own. A key with a
    dot is written into its object.
    """
    for key in [key for key in config if "." in key]:
        holder, _, name = key.partition(".")
        inner = {**config.get(holder, {}), name: config[key]}
        config = {other: value for other, value in config.items() if other != key}
        config |= {holder: inner}
    if "rope_theta" in config and config["rope_theta"] is None:  # no RoPE at all
        return config | {"rope_parameters": {"rope_type": "default", "rope_theta": None}}
    if family.settings.get("local_theta") is None or family.model_type == _GEMMA3:
        return config
    flat = ("rope_theta", "rope_scaling", _LOCAL)
    theta, scaling, local = (config.get(key) for key in flat)
    ropes = {
        FULL: {"rope_type": "default", **(scaling or {}), "rope_theta": theta},
        SLIDING: {"rope_type": "default", "rope_theta": theta if local is None else local},
    }
    rest = {key: value for key, value in config.items() if key not in flat}
    for kind, key in ((FULL, _PARTIAL), (SLIDING, LOCAL_PARTIAL)):
        ropes[kind] |= {_PARTIAL: rest.pop(key)} if key in config else {}
    return rest | {"rope_parameters": ropes}


def _scaling_keys(scaling: RoPEScaling | None, family: Family) -> dict[str, Any] | None:
    if scaling is None:  # null means a default scaling if the family has one
        return {"rope_type": "default"} if "rope_scaling" in family.defaults else None
    for key, function in family.scalings.items():
        if type(scaling) is function:
            return {"rope_type": "dynamic", "factor": 1.0, key: vars(scaling)["factor"]}
    for kind, function in _SCALINGS.items():
        if type(scaling) is function:
            keys = {_KEYS.get(name, name): getattr(scaling, name) for name in _names(function)}
            keys["rope_type"] = kind
            if isinstance(scaling, LongRoPE):
                keys["attention_factor"] = scaling.amplitude
            return keys | (_sharpness_keys(scaling) if isinstance(scaling, YaRN) else {})
    raise UnknownScaling(f"config.json has no form for the RoPE scaling {type(scaling).__name__}")


def _sharpness_keys(scaling: YaRN) -> dict[str, float]:
    """Return the amplitude, and the sharpenings from which DeepSeek's own code computes it."""
    keys, growth = {"attention_factor": scaling.amplitude}, _growth(scaling.factor)
    if scaling.sharpness and growth:
        over = (scaling.amplitude * (scaling.sharpness * growth + 1) - 1) / growth
        keys |= {"mscale": round(over, 12), _SHARPNESS: scaling.sharpness}
    return keys


def read_settings(family: Family, model: LanguageModel, *, seq_len: int | None) -> dict[str, Any]:
    """Return the settings that a model would have if it were of the family.

    Whether they describe all of it shows when a model is built from them. RoPE scaling is the
    built object. Settings that no layer has are left out.

    Args:
      family: has the names of the settings.
      model: built, with memory or without.
      seq_len: used where the model itself has no longest sequence.

    Raises:
      ConfigError: the model lacks a module for which the family has a setting.
    """
    settings: dict[str, Any] = {}
    positions = getattr(getattr(model, "embedding", None), "positions", None)
    if isinstance(positions, library.LearnedPositions):
        seq_len = positions.num_positions
    readings = {**READINGS, "seq_len": lambda _: seq_len, **family.readings}
    for name in filter(readings.__contains__, family.settings):
        reading = readings[name]
        try:
            settings[name] = (attrgetter(reading) if isinstance(reading, str) else reading)(model)
        except StopIteration:
            pass  # no layer has it, so that any value would do
        except (AttributeError, IndexError, TypeError) as error:
            raise ConfigError(f"the model has no {name}: {error}") from error
    is_free = "layer_types" in family.settings and "window" not in family.readings
    if is_free and settings.get("window") is None:
        settings.pop("window", None)
    return settings
