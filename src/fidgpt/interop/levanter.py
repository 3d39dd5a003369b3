"""Conversion of Levanter training files to directives."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fidgpt.compose.sources import read_text
from fidgpt.data import DataError, load_tokenizer
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at
from fidgpt.graph.hints import fits
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.directives_from import bring_about
from fidgpt.interop.levanter_model import MODEL_NEUTRAL, Plan, Section, map_model


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


# Entries by which a model of the hub has the sizes of its own config.json, if there is no `model:`.
_OF_HUB = ("use_hf_model_config", "initialize_from_hf", "hf_checkpoint", "checkpoint_is_hf")

# Entries that change nothing at these values where they are not read; null never does.
_TOP_NEUTRAL: dict[str, Any] = dict.fromkeys(
    ("initialize_from_hf", "use_hf_model_config", "log_entropy", "epoch"), 0
)
_TRAINER_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("crash_on_nan", "crash_on_inf"), True),
    **dict.fromkeys(("allow_nondivisible_batch_size", "allow_partial_checkpoint"), False),
    **dict.fromkeys(("shutdown_at_exit", "profiler_perfetto_link"), False),
    **dict.fromkeys(("per_device_parallelism", "per_device_eval_parallelism"), -1),
    **dict.fromkeys(("model_axis_size", "replica_ici_axis_size", "replica_dcn_axis_size"), 1),
    **{"axis_resources": {}, "parameter_axis_resources": {}},
}
_OPTIMIZER_NEUTRAL = {"nesterov": False, "adamc_weight_decay": False}
_DATA_NEUTRAL = {"shuffle": True, "enforce_eos": True, "stream": True, "stop_strategy": "restart"}
_TRACKER_NEUTRAL = {"resume": "allow", "save_code": True, "save_xla_dumps": False}


_FROM_HUB = "a model of the hub is begun with by config:from_hf(directory=...), once downloaded"
# What makes a file one of training.
_TRAINING = ("model", "optimizer", "trainer", "data", "train_seq_len", "z_loss_weight")


def read_levanter(text_or_path: str | Path) -> Mapped:
    """Return the directives for a Levanter training file, and its entries without an equivalent.

    Unset entries have Levanter's defaults as of 2025. Settings that Levanter files do not have stay
    as in `base` or `gpt2_124m`, such as the shape of the initial distribution.

    Args:
      text_or_path: contents of the file, or a Path to it.

    Raises:
      ConfigErrors: all invalid entries.
      ConfigError: the file cannot be read, is not YAML of plain data, or is not one of training.
    """
    plan = Plan()
    is_text = isinstance(text_or_path, str)
    name, text = ("the Levanter file", text_or_path) if is_text else read_text(str(text_or_path))
    with at(name):
        document = read_yaml(text, schema="omegaconf", foreign=("!include",))
    if not isinstance(document, dict):
        raise ConfigError(f"{name} is not a mapping with model:, optimizer: and trainer:.")
    if not any(key in document for key in _TRAINING):
        raise ConfigError(
            f"{name} is no training file: it has {', '.join(map(str, document)) or 'nothing':.80}, "
            "but neither model: nor optimizer:, trainer: or data:."
        )
    top = Section(plan, "", document, _TOP_NEUTRAL)
    sized_by = [key for key in _OF_HUB if document.get(key)]
    if sized_by and ("model" not in document or sized_by[0] == "use_hf_model_config"):
        top.error(sized_by[0], document[sized_by[0]], f"unset: {_FROM_HUB}")
    elif source := top.left.pop("initialize_from_hf", None):
        top.unmap("initialize_from_hf", source, _FROM_HUB)
    _map_trainer(top.section("trainer", _TRAINER_NEUTRAL))
    _map_optimizer(top.section("optimizer", _OPTIMIZER_NEUTRAL))
    map_model(top.section("model", MODEL_NEUTRAL), top.take("train_seq_len", None, int))
    _map_data(top.section("data", _DATA_NEUTRAL))
    if weight := top.take("z_loss_weight", 0.0):
        top.change("fiddler:use_z_loss", weight=weight)
    plan.close()
    directives = bring_about([plan.config, *plan.changes], [*plan.wanted.items()])
    return Mapped([*directives, *plan.last], plan.unmapped)


def _map_trainer(section: Section) -> None:
    num_steps = section.plan.wanted["num_steps"] = section.take("num_train_steps", 400_000)
    if isinstance(section.left.get("train_batch_size"), list | dict):
        section.drop(["train_batch_size"], "one size for all")
    elif section.left.get("train_batch_size") == -1:
        section.drop(["train_batch_size"], "devices decide")
    else:
        section.want({"train_batch_size": (512, "batch_size")})
    if section.left.get("per_device_parallelism") not in (None, -1):
        section.want({"per_device_parallelism": (-1, "micro_batch_size")})
    section.want(
        {
            "seed": (0, "seed"),
            "steps_per_eval": (1000, "evaluators.validation.every"),
            "max_eval_batches": (None, "evaluators.validation.data.num_batches"),
        }
    )
    _map_precision(section)
    section.drop(["batch_axis"])
    if section.left.get("model_axis_size") in (None, 1):
        section.drop(["tensor_parallel_axes"])  # there is no device to shard them over
    if section.left.pop("fsdp_axis", None) is not None:
        section.change("fiddler:use_fsdp")
    begin = section.take("profiler_start_step", 5)
    profiled = section.take("profiler_num_steps", 100)
    if section.take("profiler", False):
        section.change("fiddler:use_profiler", begin=begin, num_steps=profiled)
    _map_trackers(section)
    _map_checkpoints(section.section("checkpointer"), num_steps)
    _map_average(section.section("model_averaging"))


_FULL = ("f32", "float32", "full")
_PRECISIONS = {
    **dict.fromkeys(_FULL, "use:precision=Float32"),
    **dict.fromkeys(("bf16", "bfloat16"), "use:precision=BFloat16"),
    **dict.fromkeys(("f16", "float16", "half"), "fiddler:use_float16"),
}


def _map_precision(section: Section) -> None:
    """Map `mp:`, a policy of jmp, such as `p=f32,c=bfloat16`."""
    text = section.take("mp", "f32")
    policy = text.replace(" ", "").lower()
    entries = (policy if "=" in policy else f"p={policy}").split(",")
    formats = {entry[:1]: entry.partition("=")[2] for entry in entries}
    compute = formats.get("c", formats.get("p", ""))
    if formats.get("p") not in _FULL or compute not in _PRECISIONS:
        section.unmap("mp", text, "weights are float32, and the machine determines the precision")
        return
    section.change(_PRECISIONS[compute])
    if formats.get("o", compute) != compute:
        section.unmap("mp", text, "logits have the dtype of the computation")


# The fiddler for each type of tracker, and its argument for each of Levanter's.
_TRACKERS: dict[str, tuple[str, dict[str, str]]] = {
    "wandb": ("fiddler:use_wandb", {"project": "project", "entity": "entity", "mode": "mode"}),
    "trackio": ("fiddler:use_trackio", {"project": "project", "space_id": "space"}),
    "tensorboard": ("fiddler:use_tensorboard", {}),
}


def _map_trackers(section: Section) -> None:
    """Map `tracker:` and `wandb:`, an older form."""
    written = section.left.pop("tracker", None)
    is_list = isinstance(written, list)
    trackers = [
        section.inside(f"tracker[{i}]" if is_list else "tracker", one, _TRACKER_NEUTRAL)
        for i, one in enumerate(written if is_list else [written])
    ]
    for tracker in [*trackers, section.section("wandb", _TRACKER_NEUTRAL)]:
        kind = tracker.take("type", "wandb") if tracker.left else "noop"
        if tracker.left.get("mode") == "disabled":
            tracker.left.clear()
        elif kind in _TRACKERS:
            fiddler, names = _TRACKERS[kind]
            values = {ours: tracker.take(theirs, None, str) for theirs, ours in names.items()}
            tracker.change(
                fiddler, **{k: value for k, value in values.items() if value is not None}
            )
        elif kind not in ("noop", "json_logger"):
            tracker.unmap("type", kind, "fidgpt has no such tracker")


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def _map_checkpoints(section: Section, num_steps: int) -> None:
    """Map permanent checkpoints, by step, and temporary ones, by time."""
    interval = section.left.pop("save_interval", "15m")
    seconds = 0.0
    if isinstance(interval, str) and _SPAN.fullmatch(interval.replace(" ", "")):
        spans = re.findall(r"([\d.]+)([smhd])", interval)
        seconds = sum(float(count) * _SECONDS[unit] for count, unit in spans)
    elif type(interval) in (int, float):
        seconds = float(interval)
    elif interval is not None:
        section.unmap("save_interval", interval, "checkpoints are saved by step only")
    if seconds > 0:
        section.change("fiddler:save_by_time", minutes=seconds / 60)
    keep = section.left.pop("keep", [{"every": 10_000}])
    if not isinstance(keep, list) or not all(map(_is_interval, keep)):
        section.unmap("keep", keep, "checkpoints are saved at a fixed interval")
    elif len(keep) == 1 and keep[0].get("until") is None:
        every = section.plan.wanted["checkpoints.every"] = keep[0]["every"]
        section.plan.wanted["checkpoints.keep_last"] = max(1, -(-num_steps // every))
    else:
        section.plan.wanted["checkpoints.every"] = None
        for one in keep:
            section.change("fiddler:keep_checkpoints", every=one["every"], until=one.get("until"))


def _is_interval(one: Any) -> bool:
    is_mapping = fits(one, dict[str, int | None]) and one.keys() <= {"every", "until"}
    return is_mapping and (one.get("every") or 0) > 0


def _map_average(section: Section) -> None:
    if not section.left:
        return
    kind, beta = section.take("type", ""), section.take("beta", 0.999)
    if kind in ("ema", "ema_decay_sqrt"):
        section.change(f"fiddler:use_{kind}", beta=beta)
    else:
        section.unmap("type", kind or None, "weights are not averaged")
    if kind == "ema_decay_sqrt":
        names = ("switch_step", "decay_steps")
        section.want({name: (100_000, f"average.{name}") for name in names})


def _map_optimizer(section: Section) -> None:
    """Map AdamW, Muon or Lion, and the learning rate.

    Other optimizers become AdamW with the same learning rate and weight decay.
    """
    plan = section.plan
    kind = section.take("type", "adam")
    rate = section.take("learning_rate", 6e-4)
    if kind == "muon":
        rate = _map_muon(section, rate)
    elif kind == "lion":
        section.change("fiddler:use_lion")
        section.drop(["epsilon"])  # Lion has none
    elif kind != "adam":
        section.unmap("type", kind, "AdamW is used")
    plan.wanted["optimizer.lr"] = rate
    decay = 0.0 if kind == "muon" else 0.1
    section.want({"weight_decay": (decay, "optimizer.weight_decay")})
    norm = section.left.get("max_grad_norm", 1.0)  # null and 0 disable clipping
    clipped = section.take("max_grad_norm", 1.0)
    plan.wanted["max_grad_norm"] = None if norm is None else clipped or None
    if kind in ("adam", "muon", "lion"):
        betas = section.take("beta1", 0.9), section.take("beta2", 0.95)
        plan.wanted["optimizer.betas"] = betas
    if kind in ("adam", "muon"):
        section.want({"epsilon": (1e-8, "optimizer.eps")})
    _map_schedule(section)
    _map_skipped_steps(section)
    mask = section.left.pop("default_weight_decay_mask", None)
    section.unmap("default_weight_decay_mask", mask, "every matrix decays, the embedding too")


def _map_muon(section: Section, rate: float) -> float:
    """Map Muon with learning rate `rate`; return AdamW's rate for the other parameters."""
    others = section.take("adam_lr", 6e-4)
    is_rescaled = section.take("use_kimi_scaling", False)
    section.change("fiddler:use_muon", matrix_scale=rate / others if others else 1.0)
    section.want(
        {
            "momentum": (0.95, "optimizer.momentum"),
            "nesterov": (True, "optimizer.nesterov"),
            "backend_steps": (5, "optimizer.ns_steps"),
        }
    )
    rule = "match_rms_adamw" if is_rescaled else "original"
    section.plan.wanted["optimizer.adjust_lr_fn"] = rule
    return others


def _map_skipped_steps(section: Section) -> None:
    """Map `skip_bad_steps`: true, a window, or a mapping with both settings."""
    written = section.left.pop("skip_bad_steps", None)
    deviations = 6.0
    if isinstance(written, dict):
        settings = section.inside("skip_bad_steps", written)
        window = settings.take("rolling_interval_length", 128)
        deviations = settings.take("sigma_factor", deviations)
    elif isinstance(written, bool | int | None):
        window = 128 if written is True else written or 0
    else:
        section.unmap("skip_bad_steps", written, "no step is skipped")
        return
    if window:
        section.change("fiddler:use_skip_step", window=window, num_deviations=deviations)


# The fiddler for each shape of decay.
_SHAPES = {
    "constant": "use_constant",
    "cosine": "use_cosine",
    "linear": "use_linear",
    "inv": "use_inverse",
    "inv_sqrt": "use_inverse_sqrt",
}


def _map_schedule(section: Section) -> None:
    """Map warm-up, decay and cycles."""
    warmup = _length(section.take("warmup", 0.01))
    if warmup <= 1 and int(warmup * section.plan.wanted["num_steps"]) == 0:
        warmup = 0  # Levanter rounds down
    rewarmup = _length(section.take("rewarmup", 0.0))
    decay, floor = section.take("decay", None, float), section.take("min_lr_ratio", 0.1)
    if not isinstance(section.left.get("lr_schedule"), dict):
        section.left["lr_schedule"] = {"type": section.take("lr_schedule", "cosine")}
    shape = section.section("lr_schedule", {"exponent": 1.0})
    kind = shape.take("type", "cosine")
    arguments = {} if kind == "constant" else {"min_lr_ratio": floor}
    if kind == "inv_sqrt":
        arguments["timescale"] = int(shape.take("timescale", 10_000.0))
    elif kind not in _SHAPES:
        section.unmap("lr_schedule", kind, "a cosine is used")
        kind = "cosine"
    if kind == "inv":
        section.unmap("lr_schedule", kind, "its second step of the decay is that of the first")
    section.change(f"fiddler:{_SHAPES[kind]}", **arguments)
    section.change("fiddler:set_warmup", warmup=warmup)
    section.plan.wanted["schedule.first"] = 0  # optax counts from the beginning of steps
    if decay is not None:
        section.plan.wanted["schedule.decay"] = _length(decay)
    if cycles := _cycles(section):
        section.change("fiddler:use_cycles", **cycles, rewarmup=rewarmup)


def _cycles(section: Section) -> dict[str, Any]:
    """Return the arguments of `use_cycles`; empty for a single cycle."""
    keys = [key for key in ("cycles", "cycle_length", "haps") if section.left.get(key) is not None]
    found: dict[str, Any] = {}
    for key in keys:
        value: Any = section.left.pop(key)
        name = "cycles" if key == "haps" else key
        if key == "cycle_length" and isinstance(value, int | float):
            found[name] = _length(float(value))
        elif (value and fits(value, list[int])) or (key == "cycles" and fits(value, int)):
            found[name] = value
        else:
            section.error(key, value, "a number or a list of steps")
    return found


def _length(value: float) -> int | float:
    """Return a fraction or a number of steps; Levanter takes values up to 1 as fractions."""
    return value if value <= 1 else int(value)


_PLAIN_PATH = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*://)[^{}*?\[\]]+")
_TOKENIZER = "tokenizer.json"
_OWN = "own"  # the name in `use_mixture` of the config's existing text


class _Text(NamedTuple):
    """A local text or a dataset on the hub, and its text field."""

    path: str
    field: str
    is_on_hub: bool
    name: str | None


def _map_data(section: Section) -> None:
    """Map texts: local files and folders, or a hub dataset, which must be first in a mixture."""
    _map_tokenizer(section)
    if "configs" in section.left:
        _map_mixture(section)
    elif text := _text(section):
        _use_text(section, text)


def _map_tokenizer(section: Section) -> None:
    """Map a tokenizer in a local file or folder; one on the hub has to be downloaded first."""
    name = section.take("tokenizer", None, str)
    if name is None:
        return
    path = Path(name).expanduser()
    path = path / _TOKENIZER if path.suffix != ".json" else path
    if not path.is_file():
        reason = f"there is no local {_TOKENIZER}; download it, and use TokenizerFile"
        section.unmap("tokenizer", name, reason)
        return
    try:
        section.plan.wanted["vocab_size"] = load_tokenizer(path).vocab_size
    except DataError as error:
        section.unmap("tokenizer", name, str(error).splitlines()[0])
        return
    section.change("use:data.corpus.tokenizer=TokenizerFile", path=str(path))


def _map_mixture(section: Section) -> None:
    """Map a mixture of local files, the first of which may be on the hub, with fixed weights."""
    sources, weights = section.left["configs"], section.left.get("train_weights")
    if not isinstance(sources, dict) or not isinstance(weights, dict):
        return
    names = [name for name in sources if weights.get(name)]
    sections = [section.inside(f"configs.{name}", sources[name], _DATA_NEUTRAL) for name in names]
    texts = [text for text in map(_text, sections) if text is not None]
    is_one_field = len({text.field for text in texts}) == 1
    if len(texts) < len(names) or any(text.is_on_hub for text in texts[1:]) or not is_one_field:
        for source in sections:
            source.left.clear()
        reason = "the texts of a mixture must be local files"
        section.drop(("configs", "train_weights"), reason)
        return
    section.drop(("configs", "train_weights"))
    _use_text(section, texts[0])
    if len(names) > 1:
        ours = [_OWN, *(f"{name}_" if name == _OWN else name for name in names[1:])]
        section.change(
            "fiddler:use_mixture",
            texts={our: text.path for our, text in zip(ours[1:], texts[1:], strict=True)},
            weights={our: float(weights[name]) for our, name in zip(ours, names, strict=True)},
            text_field=texts[0].field,
        )
    for name in sources.keys() - {*names}:
        section.unmap(f"configs.{name}", sources[name], "it has no weight in training")


def _text(section: Section) -> _Text | None:
    """Remove the text from a source and return it; None if fidgpt cannot read any."""
    urls, hub = section.left.get("train_urls"), section.left.get("id")
    url = urls[0] if isinstance(urls, list) and len(urls) == 1 else None
    here = url if isinstance(url, str) and _PLAIN_PATH.fullmatch(url) else None
    path = here or (hub if isinstance(hub, str) and urls is None else None)
    form = section.left.get("format")
    if path is None or (isinstance(form, dict) and form.get("type", "text") != "text"):
        return None
    section.drop(("train_urls", "id"))
    name = section.take("name", None, str) if here is None else None
    holder = section.section("format", {"type": "text"}) if isinstance(form, dict) else section
    field = holder.take("text_key", "text")
    return _Text(path, field, here is None, name)


def _use_text(section: Section, text: _Text) -> None:
    arguments = {"path": text.path, "name": text.name}
    arguments["text_field"] = None if text.field == "text" else text.field
    fiddler = "use_hub_text" if text.is_on_hub else "use_text"
    section.change(f"fiddler:{fiddler}", **{key: one for key, one in arguments.items() if one})
