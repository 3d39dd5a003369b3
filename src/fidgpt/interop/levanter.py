"""Conversion of Levanter training files to directives."""

import re
from pathlib import Path
from typing import Any

from fidgpt.data import DataError, load_tokenizer
from fidgpt.errors import at
from fidgpt.graph import ConfigError
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.levanter_model import map_model
from fidgpt.interop.recipes import Mapped, Recipe, content_of

# Entries by which a model of the hub has the sizes of its own config.json, if there is no `model:`.
_OF_HUB = ("use_hf_model_config", "initialize_from_hf", "hf_checkpoint", "checkpoint_is_hf")
_FROM_HUB = "a model of the hub is begun with by config:from_hf(directory=...), once downloaded"
# What makes a file one of training.
_TRAINING = ("model", "optimizer", "trainer", "data", "train_seq_len", "z_loss_weight")
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("crash_on_nan", "crash_on_inf", "save_code", "scan_layers"), True),
    **dict.fromkeys(("shuffle", "enforce_eos", "stream"), True),
    **dict.fromkeys(("per_device_parallelism", "per_device_eval_parallelism"), -1),
    **dict.fromkeys(("model_axis_size", "replica_ici_axis_size", "replica_dcn_axis_size"), 1),
    **{"stop_strategy": "restart", "resume": "allow", "exponent": 1.0},
    "activation_function": "gelu_new",
}
# Rare entries, and the fiddlers by which a config does the same.
_BY_HAND = {
    "trainer.profiler": "use_profiler",
    "trainer.model_averaging": "use_ema or use_ema_decay_sqrt",
    "optimizer.skip_bad_steps": "use_skip_step",
    "model.scale_attn_by_inverse_layer_idx": "unroll, then set attention.scale of each layer",
}
# Kernels, and how devices share a batch.
_ELSEWHERE = re.compile(
    r"trainer\.(batch_axis|profiler_.*)|model\.(use_flash_attention|attn_backend|flash_attention_block_size)"
)


def read_levanter(text_or_path: str | Path) -> Mapped:
    """Return the directives for a Levanter training file, and its entries that are not mapped.

    Unset entries have Levanter's defaults as of 2025. Settings that Levanter files do not have stay
    as in `base` or `gpt2_124m`, such as the shape of the initial distribution.

    Args:
      text_or_path: contents of the file, or a Path to it.

    Raises:
      ConfigError: the file cannot be read, is not YAML of plain data, is not one of training, or
        has an invalid entry.
    """
    name, text = content_of(text_or_path, "Levanter")
    with at(name):
        document = read_yaml(text, schema="omegaconf", foreign=("!include",))
        if not isinstance(document, dict) or not document.keys() & {*_TRAINING}:
            raise ConfigError("it is no training file: it has no model:, optimizer: or trainer:.")
        foreign = [key for key in document if key not in {*_TRAINING, *_OF_HUB}]
        if "trainer" not in document and 2 * len(foreign) > len(document):
            listed = ", ".join(map(str, foreign[:4]))
            raise ConfigError(
                f"it is no training file of Levanter: most entries are others: {listed}."
            )
        recipe = Recipe(document, neutral=_NEUTRAL, elsewhere=_ELSEWHERE)
        recipe.directives.append("config:base")
        sized_by = [key for key in _OF_HUB if document.get(key)]
        if sized_by and ("model" not in document or sized_by[0] == "use_hf_model_config"):
            raise ConfigError(f"{sized_by[0]} must be unset: {_FROM_HUB}.")
        recipe.drop(["initialize_from_hf"], _FROM_HUB)
        for convert in (_map_trainer, _map_optimizer, map_model, _map_data):
            convert(recipe)
        for path, fiddler in _BY_HAND.items():
            if value := recipe.take(path):
                recipe.note(path, value, f"is not mapped: apply {fiddler}")
        if weight := recipe.take("z_loss_weight", 0.0):
            recipe.change("fiddler:use_z_loss", weight=weight)
        return recipe.mapped()


def _map_trainer(recipe: Recipe) -> None:
    trainer = recipe.section("trainer")
    recipe.want({"trainer.num_train_steps": ("num_steps", 400_000)})
    size = trainer.get("train_batch_size")
    if isinstance(size, list | dict) or size == -1:
        recipe.drop(["trainer.train_batch_size"], "it is one size for all steps and devices")
    else:
        recipe.want({"trainer.train_batch_size": ("batch_size", 512)})
    if trainer.get("per_device_parallelism") not in (None, -1):
        recipe.want({"trainer.per_device_parallelism": ("micro_batch_size", -1)})
    recipe.want({"trainer.seed": ("seed", 0)})
    recipe.want({"trainer.steps_per_eval": ("evaluators.validation.every", 1000)})
    recipe.want({"trainer.max_eval_batches": ("evaluators.validation.data.num_batches", None)})
    _map_precision(recipe)
    if trainer.get("model_axis_size") in (None, 1):
        recipe.drop(["trainer.tensor_parallel_axes"])  # there is no device to shard them over
    if recipe.take("trainer.fsdp_axis") is not None:
        recipe.change("fiddler:use_fsdp")
    _map_trackers(recipe, trainer)
    _map_checkpoints(recipe)


_FULL = ("f32", "float32", "full")
_PRECISIONS = {
    **dict.fromkeys(_FULL, "use:precision=Float32"),
    **dict.fromkeys(("bf16", "bfloat16"), "use:precision=BFloat16"),
    **dict.fromkeys(("f16", "float16", "half"), "fiddler:use_float16"),
}


def _map_precision(recipe: Recipe) -> None:
    """Map `mp:`, a policy of jmp, such as `p=f32,c=bfloat16`."""
    text = recipe.take("trainer.mp", "f32")
    policy = text.replace(" ", "").lower()
    entries = (policy if "=" in policy else f"p={policy}").split(",")
    formats = {entry[:1]: entry.partition("=")[2] for entry in entries}
    compute = formats.get("c", formats.get("p", ""))
    if formats.get("p") not in _FULL or compute not in _PRECISIONS:
        why = "weights are float32, and the machine determines the precision"
        recipe.note("trainer.mp", text, why)
        return
    recipe.change(_PRECISIONS[compute])
    if formats.get("o", compute) != compute:
        recipe.note("trainer.mp", text, "logits have the dtype of the computation")


# The fiddler for each type of tracker, and its argument for each of Levanter's.
_TRACKERS: dict[str, tuple[str, dict[str, str]]] = {
    "wandb": ("fiddler:use_wandb", {"project": "project", "entity": "entity", "mode": "mode"}),
    "trackio": ("fiddler:use_trackio", {"project": "project", "space_id": "space"}),
    "tensorboard": ("fiddler:use_tensorboard", {}),
}


def _map_trackers(recipe: Recipe, trainer: dict[Any, Any]) -> None:
    """Map `tracker:`, one or a list, and `wandb:`, an older form."""
    if isinstance(trackers := trainer.get("tracker"), list):
        del trainer["tracker"]
        trainer |= {f"tracker[{i}]": tracker for i, tracker in enumerate(trackers)}
    for name in [key for key in trainer if re.fullmatch(r"wandb|tracker.*", key)]:
        path = f"trainer.{name}"
        kind = recipe.take(f"{path}.type", "wandb")
        if not trainer[name] or trainer[name].get("mode") == "disabled":
            del trainer[name]
        if kind in _TRACKERS and name in trainer:
            fiddler, names = _TRACKERS[kind]
            values = {ours: recipe.take(f"{path}.{theirs}") for theirs, ours in names.items()}
            recipe.change(fiddler, **{k: v for k, v in values.items() if v is not None})
        elif kind not in (*_TRACKERS, "noop", "json_logger"):
            recipe.note(f"{path}.type", kind, "fidgpt has no such tracker")


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _map_checkpoints(recipe: Recipe) -> None:
    """Map permanent checkpoints, by step, and temporary ones, by time."""
    section = recipe.section("trainer.checkpointer")
    is_timed = section.get("save_interval", "") is not None
    interval = str(recipe.take("trainer.checkpointer.save_interval", "15m"))
    spans = re.findall(r"(\d+(?:\.\d+)?) *([smhd]?)", interval) if is_timed else []
    if seconds := sum(float(count) * _SECONDS[unit or "s"] for count, unit in spans):
        recipe.change("fiddler:save_by_time", minutes=seconds / 60)
    elif is_timed:
        why = "checkpoints are saved by step only"
        recipe.note("trainer.checkpointer.save_interval", interval, why)
    keep = recipe.take("trainer.checkpointer.keep", [{"every": 10_000}])
    if len(keep) == 1 and keep[0].get("until") is None:
        every = recipe.wanted["checkpoints.every"] = keep[0]["every"]
        recipe.wanted["checkpoints.keep_last"] = max(1, -(-recipe.wanted["num_steps"] // every))
    else:
        recipe.wanted["checkpoints.every"] = None
        for rule in keep:
            recipe.change("fiddler:keep_checkpoints", every=rule["every"], until=rule.get("until"))


def _map_optimizer(recipe: Recipe) -> None:
    """Map AdamW, Muon or Lion, and the learning rate.

    Other optimizers become AdamW with the same learning rate and weight decay.
    """
    kind, section = recipe.take("optimizer.type", "adam"), recipe.section("optimizer")
    rate = recipe.take("optimizer.learning_rate", 6e-4)
    if kind == "muon":
        rate = _map_muon(recipe, rate)
    elif kind == "lion":
        recipe.change("fiddler:use_lion")
        recipe.drop(["optimizer.epsilon"])  # Lion has none
    elif kind != "adam":
        recipe.note("optimizer.type", kind, "AdamW is used")
    recipe.wanted["optimizer.lr"] = rate
    decay = 0.0 if kind == "muon" else 0.1
    recipe.want({"optimizer.weight_decay": ("optimizer.weight_decay", decay)})
    is_clipped = section.get("max_grad_norm", 1.0)  # null and 0 disable clipping
    norm = recipe.take("optimizer.max_grad_norm", 1.0)
    recipe.wanted["max_grad_norm"] = norm if is_clipped else None
    if kind in ("adam", "muon", "lion"):
        betas = recipe.take("optimizer.beta1", 0.9), recipe.take("optimizer.beta2", 0.95)
        recipe.wanted["optimizer.betas"] = betas
    if kind in ("adam", "muon"):
        recipe.want({"optimizer.epsilon": ("optimizer.eps", 1e-8)})
    _map_schedule(recipe, section)
    mask = recipe.take("optimizer.default_weight_decay_mask")
    why = "every matrix decays, the embedding too"
    recipe.note("optimizer.default_weight_decay_mask", mask, why)


def _map_muon(recipe: Recipe, rate: float) -> float:
    """Map Muon with learning rate `rate`; return AdamW's rate for the other parameters."""
    others = recipe.take("optimizer.adam_lr", 6e-4)
    is_rescaled = recipe.take("optimizer.use_kimi_scaling", False)
    recipe.change("fiddler:use_muon", matrix_scale=rate / others if others else 1.0)
    recipe.want(
        {
            "optimizer.momentum": ("optimizer.momentum", 0.95),
            "optimizer.nesterov": ("optimizer.nesterov", True),
            "optimizer.backend_steps": ("optimizer.ns_steps", 5),
        }
    )
    rule = "match_rms_adamw" if is_rescaled else "original"
    recipe.wanted["optimizer.adjust_lr_fn"] = rule
    return others


# The fiddler for each shape of decay.
_SHAPES = {
    "constant": "use_constant",
    "cosine": "use_cosine",
    "linear": "use_linear",
    "inv": "use_inverse",
    "inv_sqrt": "use_inverse_sqrt",
}


def _map_schedule(recipe: Recipe, section: dict[Any, Any]) -> None:
    """Map warm-up, decay and cycles."""
    warmup = _length(recipe.take("optimizer.warmup", 0.01))
    if warmup <= 1 and int(warmup * recipe.wanted["num_steps"]) == 0:
        warmup = 0  # Levanter rounds down
    rewarmup = _length(recipe.take("optimizer.rewarmup", 0.0))
    decay = recipe.take("optimizer.decay", None, float)
    floor = recipe.take("optimizer.min_lr_ratio", 0.1)
    path = "optimizer.lr_schedule"
    if not isinstance(section.get("lr_schedule"), dict):
        section["lr_schedule"] = {"type": recipe.take(path, "cosine")}
    kind = recipe.take(f"{path}.type", "cosine")
    arguments = {} if kind == "constant" else {"min_lr_ratio": floor}
    if kind == "inv_sqrt":
        arguments["timescale"] = int(recipe.take(f"{path}.timescale", 10_000.0))
    elif kind not in _SHAPES:
        recipe.note(path, kind, "a cosine is used")
        kind = "cosine"
    if kind == "inv":
        recipe.note(path, kind, "its second step of the decay is that of the first")
    recipe.change(f"fiddler:{_SHAPES[kind]}", **arguments)
    recipe.change("fiddler:set_warmup", warmup=warmup)
    recipe.wanted["schedule.first"] = 0  # optax counts from the beginning of steps
    if decay is not None:
        recipe.wanted["schedule.decay"] = _length(decay)
    cycles = {
        "cycles": recipe.take("optimizer.cycles", recipe.take("optimizer.haps")),
        "cycle_length": recipe.take("optimizer.cycle_length", None, int | float | list[int]),
    }
    if isinstance(length := cycles["cycle_length"], int | float):
        cycles["cycle_length"] = _length(length)
    if given := {name: value for name, value in cycles.items() if value is not None}:
        recipe.change("fiddler:use_cycles", **given, rewarmup=rewarmup)


def _length(value: float) -> int | float:
    """Return a fraction or a number of steps; Levanter takes values up to 1 as fractions."""
    return value if value <= 1 else int(value)


_PLAIN_PATH = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*://)[^{}*?\[\]]+")
_TOKENIZER = "tokenizer.json"
_OWN = "own"  # the name in `use_mixture` of the config's existing text


def _map_data(recipe: Recipe) -> None:
    """Map texts: local files and folders, or a hub dataset, which must be first in a mixture."""
    _map_tokenizer(recipe)
    if "configs" in recipe.section("data"):
        _map_mixture(recipe)
    elif text := _text(recipe, "data"):
        _use_text(recipe, text)


def _map_tokenizer(recipe: Recipe) -> None:
    """Map a tokenizer in a local file or folder; one on the hub has to be downloaded first."""
    if (name := recipe.take("data.tokenizer", None, str)) is None:
        return
    path = Path(name).expanduser()
    path = path / _TOKENIZER if path.suffix != ".json" else path
    try:
        recipe.wanted["vocab_size"] = load_tokenizer(path).vocab_size
        recipe.change("use:data.corpus.tokenizer=TokenizerFile", path=str(path))
    except DataError as error:
        why = f"download it, and use TokenizerFile. {str(error).splitlines()[0]}"
        recipe.note("data.tokenizer", name, why)


def _map_mixture(recipe: Recipe) -> None:
    """Map a mixture of local files, the first of which may be on the hub, with fixed weights."""
    section = recipe.section("data")
    sources, weights = section["configs"], section.get("train_weights")
    if not isinstance(sources, dict) or not isinstance(weights, dict):
        return
    names = [name for name in sources if weights.get(name)]
    texts = [_text(recipe, f"data.configs.{name}") for name in names]
    is_local = all(text and text["fiddler"] == "use_text" for text in texts[1:])
    fields = {text["text_field"] for text in texts if text}
    if len(fields) != 1 or not is_local or not texts[0]:
        why = "the texts of a mixture must be local files"
        recipe.drop(("data.configs", "data.train_weights"), why)
        return
    recipe.drop(["data.train_weights"])
    first, *others = [text for text in texts if text]
    _use_text(recipe, first)
    if others:
        ours = [_OWN, *(f"{name}_" if name == _OWN else name for name in names[1:])]
        recipe.change(
            "fiddler:use_mixture",
            texts={our: text["path"] for our, text in zip(ours[1:], others, strict=True)},
            weights={our: float(weights[name]) for our, name in zip(ours, names, strict=True)},
            text_field=first["text_field"],
        )
    unused = [f"data.configs.{name}" for name in sources if name not in names]
    recipe.drop(unused, "it has no weight in training")


def _text(recipe: Recipe, source: str) -> dict[str, Any]:
    """Remove the text of a source, and return how to read it; empty if fidgpt cannot."""
    section = recipe.section(source)
    urls, hub, form = section.get("train_urls"), section.get("id"), section.get("format")
    url = urls[0] if isinstance(urls, list) and len(urls) == 1 else None
    here = url if isinstance(url, str) and _PLAIN_PATH.fullmatch(url) else None
    path = here or (hub if urls is None else None)
    if path is None or (isinstance(form, dict) and form.get("type", "text") != "text"):
        return {}
    recipe.drop([f"{source}.{name}" for name in ("train_urls", "id", "format.type")])
    name = recipe.take(f"{source}.name", None, str) if here is None else None
    field = recipe.take(f"{source}.text_key", "text")
    return {
        "fiddler": "use_text" if here else "use_hub_text",
        "path": path,
        "name": name,
        "text_field": recipe.take(f"{source}.format.text_key", field),
    }


def _use_text(recipe: Recipe, text: dict[str, Any]) -> None:
    defaults = {"name": None, "text_field": "text", "fiddler": text["fiddler"]}
    arguments = {key: value for key, value in text.items() if value != defaults.get(key)}
    recipe.change(f"fiddler:{text['fiddler']}", **arguments)
