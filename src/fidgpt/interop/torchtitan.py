"""Conversion of torchtitan's training configs, TOML files or dataclasses, to directives."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.interop.levanter_model import BLOCK
from fidgpt.interop.recipes import Mapped, Recipe, content_of, refuse

_ATTENTION, _MLP = f"{BLOCK}.attention", f"{BLOCK}.mlp"
_SCALING = f"{_ATTENTION}.rope.scaling"
_SMALL = "set:vocab_size=2048 set:model.hidden_dim=256"  # of models for tests

# The named config of each model and flavor, and directives for what differs.
_MODELS: dict[str, dict[str, str]] = {
    "llama2": {size: f"llama2_{size.lower()}" for size in ("7B", "13B", "70B")},
    "llama3": {
        "debugmodel": f"llama3_1_8b {_SMALL} set:model.num_layers=6 set:{_ATTENTION}.head_dim=16 "
        f"set:{_ATTENTION}.num_kv_heads=16 set:{_MLP}.ffn_dim=768",
        **{size: f"llama3_2_{size.lower()} set:{_SCALING}.factor=8.0" for size in ("1B", "3B")},
        **{size: f"llama3_1_{size.lower()}" for size in ("8B", "70B", "405B")},
    },
    "qwen3": {
        "debugmodel": f"qwen3_0_6b {_SMALL} set:model.num_layers=8",
        "debugmodel_moe": f"qwen3_30b_a3b {_SMALL} set:model.num_layers=8 "
        f"set:{_ATTENTION}.num_heads=16 set:{_ATTENTION}.num_kv_heads=8 set:{_MLP}.num_experts=64",
        **{
            size: f"qwen3_{re.sub('[.-]', '_', size.lower())}"
            for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
        },
    },
    "deepseek_v3": {
        "debugmodel": f"deepseek_v2_lite {_SMALL} set:model.num_layers=6 "
        f"set:{_ATTENTION}.num_heads=16 set:model.first_blocks[0].attention.num_heads=16 "
        f"set:model.first_blocks[0].mlp.ffn_dim=1024 set:{_MLP}.experts.ffn_dim=256 "
        f"set:{_MLP}.num_experts=8 set:{_MLP}.router.top_k=3 set:{_MLP}.shared.ffn_dim=512 "
        f"set:{_SCALING}.sharpness=0.7",
        "16B": f"deepseek_v2_lite set:{_SCALING}.sharpness=0.7",
        "671B": "deepseek_v3",
    },
    "gpt_oss": {
        "debugmodel": f"gpt_oss_20b {_SMALL} set:model.num_layers=4 "
        "set:model.blocks[0].mlp.num_experts=8 set:model.blocks[1].mlp.num_experts=8",
        **{size: f"gpt_oss_{size}" for size in ("20b", "120b")},
    },
}
_BALANCED = "fiddler:use_loss_free_balancing(rate=0.001)"  # of all mixtures
_ENDS_OF_MIXTURES = ("A3B", "A22B", "_moe")  # of the names of flavors
_ENDS_OF_KERNELS = ("_flex_attn", "_varlen_attn", "_flex", "_varlen")
_FORMATS = {"bfloat16": "use:precision=BFloat16", "float32": "use:precision=Float32"}
_SHAPES = {"linear": "use_linear", "cosine": "use_cosine", "sqrt": "use_linear"}

# Entries of the axes of a mesh, and their defaults.
_AXES = {
    "replicate": ("data_parallel_replicate_degree", 1),
    "shard": ("data_parallel_shard_degree", -1),
    "context": ("context_parallel_degree", 1),
    "tensor": ("tensor_parallel_degree", 1),
    "expert": ("expert_parallel_degree", 1),
}
_SCHEDULES = {
    **{"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved"},
    **{"LoopedBFS": "breadth_first", "InterleavedZeroBubble": "zero_bubble"},
    **{"ZBVZeroBubble": "zero_bubble_v", "DualPipeV": "dual_pipe_v"},
}

_NEUTRAL = {
    **dict.fromkeys(("dtype", "mixed_precision_reduce", "export_dtype"), "float32"),
    "expert_tensor_parallel_degree": 1,
    "last_save_model_only": True,
}
# Records and kernels; logits are divided with the vocabulary, and keys gathered where sequences are
# split.
_ELSEWHERE = re.compile(
    r"job|metrics\..*|profiling\..*folder|compile\.backend|checkpoint\.folder|"
    r"optimizer\.implementation|activation_checkpoint\.(selective_ac_option|early_stop)|"
    r"parallelism\.(disable_loss_parallel|context_parallel_rotate_method)"
)


def read_torchtitan(config: str | Path | Any) -> Mapped:
    """Return the directives for a torchtitan run, and its entries without an equivalent.

    Unset entries have torchtitan's defaults as of 2026. The model comes from a named config.

    Args:
      config: a TOML file of before 2026, as a text or a Path to it; or what a function in a
        `config_registry.py` returns.

    Raises:
      ConfigError: the file cannot be read, is not TOML, or names no model or one that fidgpt does
        not have.
    """
    if isinstance(config, str | Path):
        name, text = content_of(config, "torchtitan")
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{name} is not TOML: {error}.") from error
    else:
        name, tree = "the torchtitan config", _tree_of(config)
    if not isinstance(tree.get("model"), dict):
        raise ConfigError(f"{name} is no training config: it has no model with name and flavor.")
    _move_former(tree)
    recipe = Recipe(tree, neutral=_NEUTRAL, elsewhere=_ELSEWHERE)
    mapped = (_map_model, _map_training, _map_optimizer, _map_schedule, _map_mesh, _map_wrappers)
    for convert in (*mapped, _map_records):
        convert(recipe)
    return recipe.mapped()


# Where files of 2024 have entries, by where they went.
_FORMER = {
    **{("parallelism", key): ("training", "experimental") for key, _ in _AXES.values()},
    ("parallelism", "pipeline_parallel_degree"): ("training", "experimental"),
    ("parallelism", "enable_async_tensor_parallel"): ("experimental",),
    ("lr_scheduler", "warmup_steps"): ("training", "optimizer"),
    ("compile", "enable"): ("training",),
}
_FORMER_NAMES = {
    ("parallelism", "data_parallel_shard_degree"): "data_parallel_degree",
    ("compile", "enable"): "compile",
}


def _move_former(tree: dict[str, Any]) -> None:
    """Move the entries of files of 2024 to the sections in which they are now."""
    for (section, key), homes in _FORMER.items():
        for home in homes:
            former = tree.get(home)
            for name in (key, _FORMER_NAMES.get((section, key))):
                if isinstance(former, dict) and name in former:
                    tree[section] = {key: former.pop(name), **tree.get(section, {})}
    for home in ("training", "float8"):
        if isinstance(former := tree.get(home), dict) and former.pop("enable_float8_linear", False):
            tree["model"].setdefault("converters", ["float8"])


def _map_model(recipe: Recipe) -> None:
    name, flavor = recipe.take("model.name", "llama3"), recipe.take("model.flavor", "debugmodel")
    flavors = _MODELS.get(name) or refuse("model.name", name, _MODELS)
    for end in _ENDS_OF_KERNELS:
        if flavor.endswith(end) and flavor.removesuffix(end) in flavors:
            why = "no token attends across documents: use_document_mask"
            recipe.note("model.flavor", flavor, why)
            flavor = flavor.removesuffix(end)
    if flavor not in flavors:
        refuse("model.flavor", flavor, flavors)
    recipe.directives += f"config:{flavors[flavor]}".split()
    if name in ("deepseek_v3", "gpt_oss") or flavor.endswith(_ENDS_OF_MIXTURES):
        recipe.directives += [_BALANCED, "set:model.blocks[*].mlp.balancing=[]"]
    converters = recipe.take("model.converters", [])
    others = [one for one in converters if one not in ("float8", "quantize.linear.float8")]
    if others != converters:
        recipe.last.append("fiddler:use_float8")
    if others:
        recipe.note("model.converters", ", ".join(others), "only float8 of linear layers is known")
    recipe.drop(("model.hf_assets_path", "model.tokenizer_path"), "set a tokenizer")


def _map_training(recipe: Recipe) -> None:
    local = recipe.take("training.batch_size", 8)  # the name until July 2025
    local = recipe.take("training.local_batch_size", local)
    whole = recipe.take("training.global_batch_size", -1)
    if whole == -1:
        mesh = recipe.section("parallelism")
        replicas, shards = (mesh.get(*_AXES[axis]) for axis in ("replicate", "shard"))
        whole = local * max(replicas, 1) * max(shards, 1)
        if shards == -1:
            why = "multiply batch_size by the processes of the axis shard"
            recipe.note("training.local_batch_size", local, why)
    recipe.wanted |= {"micro_batch_size": local, "batch_size": whole}
    recipe.want(
        {
            "training.seq_len": ("seq_len", 2048),
            "training.steps": ("num_steps", 10_000),
            "training.max_norm": ("max_grad_norm", 1.0),
        }
    )
    form = recipe.take("training.mixed_precision_param", "bfloat16")
    recipe.change(_FORMATS.get(form) or refuse("training.mixed_precision_param", form, _FORMATS))
    recipe.drop(("training.dataset", "training.dataset_path"), "set a text")
    if (seed := recipe.take("debug.seed", recipe.take("training.seed"))) is not None:
        recipe.wanted["seed"] = seed


def _map_optimizer(recipe: Recipe) -> None:
    name = recipe.take("optimizer.name", "AdamW")
    if name != "AdamW":
        recipe.note("optimizer.name", name, "AdamW is used")
    betas = recipe.take("optimizer.betas", [0.9, 0.95])
    betas = [recipe.take(f"optimizer.beta{i}", float(beta)) for i, beta in enumerate(betas, 1)]
    rate, eps = recipe.take("optimizer.lr", 8e-4), recipe.take("optimizer.eps", 1e-8)
    decay = recipe.take("optimizer.weight_decay", 0.1)
    recipe.adamw(rate, betas, eps, decay)
    recipe.note("optimizer.weight_decay", decay, "in torchtitan vectors decay too")


def _map_schedule(recipe: Recipe) -> None:
    """Map warm-up, a constant rate and a decay, which is all of the rest without a ratio."""
    section = "lr_scheduler"
    steps = recipe.take(f"{section}.total_steps", recipe.wanted["num_steps"])
    warmup = recipe.take(f"{section}.warmup_steps", 200)
    ratio = recipe.take(f"{section}.decay_ratio", None, float)
    shape = recipe.take(f"{section}.decay_type", "linear")
    if shape not in _SHAPES:
        recipe.note(f"{section}.decay_type", shape, "the decay is linear")
    floor = recipe.take(f"{section}.lr_min", 0.0)  # the name until August 2025
    floor = recipe.take(f"{section}.min_lr_factor", floor)
    recipe.change(f"fiddler:{_SHAPES.get(shape, 'use_linear')}", min_lr_ratio=floor)
    if shape == "sqrt":
        recipe.change("use:schedule.shape=SqrtDecay")
    if warmup > steps:
        recipe.note(f"{section}.warmup_steps", warmup, "the warm-up takes all steps")
    warmup = min(warmup, steps)
    recipe.change("fiddler:set_warmup", warmup=warmup)
    decay = steps if ratio is None else round(steps * ratio)
    # A step is added to the stable phase, so that the last step of a run is not at the floor.
    recipe.wanted["schedule.num_steps"] = steps + 1
    recipe.wanted["schedule.decay"] = min(decay, steps - warmup)


def _map_mesh(recipe: Recipe) -> None:
    section = "parallelism"
    mesh = {axis: recipe.take(f"{section}.{key}", usual) for axis, (key, usual) in _AXES.items()}
    if mesh["expert"] > 1 and _BALANCED not in recipe.directives:
        why = "the model has no experts"
        recipe.note(f"{section}.expert_parallel_degree", mesh["expert"], why)
        mesh["expert"] = 1
    if (stages := recipe.take(f"{section}.pipeline_parallel_degree", 1)) > 1:
        mesh["pipeline"] = stages
    if max(mesh[name] for name in mesh if name != "shard") > 1:
        recipe.change("fiddler:use_mesh", **mesh)
        if mesh["tensor"] > 1 and recipe.take(f"{section}.enable_sequence_parallel", True):
            recipe.change("fiddler:use_sequence_parallel")
    elif mesh["shard"] != 1:
        recipe.change("fiddler:use_fsdp")
    policy = recipe.take(f"{section}.fsdp_reshard_after_forward", "default")
    keeps_gathered = stages > 1 if policy == "default" else policy == "never"
    if mesh["shard"] != 1 and keeps_gathered:
        recipe.change("fiddler:use_zero2")
    _map_pipeline(recipe, stages)


def _map_pipeline(recipe: Recipe, stages: int) -> None:
    """Map the schedule and its micro-batches; with one stage, they change nothing."""
    prefix = "parallelism.pipeline_parallel"
    schedule = recipe.take(f"{prefix}_schedule", "1F1B")
    size = recipe.take(f"{prefix}_microbatch_size", 1)
    recipe.drop([f"{prefix}_{end}_stage_less_layers" for end in ("first", "last")])
    whys = {
        f"{prefix}_layers_per_stage": "set stages_per_rank of use_pipeline",
        f"{prefix}_module_fqns_per_model_part": "set step.stages",
    }
    for path, why in whys.items():
        recipe.drop([path], why if stages > 1 else "")
    if stages > 1:
        known = _SCHEDULES.get(schedule) or refuse(f"{prefix}_schedule", schedule, _SCHEDULES)
        recipe.change("fiddler:use_pipeline", schedule=known)
        recipe.wanted["micro_batch_size"] = size


def _map_wrappers(recipe: Recipe) -> None:
    """Map the settings of compilation and recomputation."""
    parts = recipe.take("compile.components", ["model"])
    if recipe.take("compile.enable", False) and "model" in parts:
        recipe.last.append("fiddler:use_compile")
    mode = recipe.take("activation_checkpoint.mode", "selective")
    if mode == "full":
        recipe.last.append("fiddler:use_recompute")
    elif mode == "selective":
        recipe.last.append("fiddler:use_selective_recompute")
        why = "use_selective_recompute keeps every matrix product"
        recipe.note("activation_checkpoint.mode", mode, why)


def _map_records(recipe: Recipe) -> None:
    """Map checkpoints, validation, trackers and the profiler."""
    interval = recipe.take("checkpoint.interval", 500)
    keep = recipe.take("checkpoint.keep_latest_k", 10)
    is_saved = recipe.take("checkpoint.enable_checkpoint", False)
    is_saved = recipe.take("checkpoint.enable", is_saved)
    recipe.wanted["checkpoints.every"] = interval if is_saved else None
    if is_saved and keep:
        recipe.wanted["checkpoints.keep_last"] = keep
    if recipe.take("checkpoint.async_mode", "disabled") != "disabled" and is_saved:
        recipe.change("fiddler:use_async_checkpoints")
    if recipe.take("validation.enable", False):
        batches = recipe.take("validation.steps", -1)
        evaluator = "evaluators.validation"
        recipe.wanted[f"{evaluator}.every"] = recipe.take("validation.freq", 10)
        recipe.wanted[f"{evaluator}.data.num_batches"] = None if batches == -1 else batches
        recipe.drop(("validation.dataset", "validation.dataset_path"), "set a text")
    else:
        recipe.drop(["validation"])
    recipe.switch({f"metrics.enable_{t}": f"fiddler:use_{t}" for t in ("tensorboard", "wandb")})
    frequency = recipe.take("profiling.profile_freq", 10)
    if recipe.take("profiling.enable_profiling", False):
        recipe.change("fiddler:use_profiler", begin=max(frequency - 1, 1), num_steps=1)


def _tree_of(config: Any) -> dict[str, Any]:
    """Return a dataclass of 2026 in the form of the TOML files, without entries at defaults."""
    changed = _changed(config)
    spec, optimizer = getattr(config, "model_spec", None), getattr(config, "optimizer", None)
    tree: dict[str, Any] = {
        {"validator": "validation", "profiler": "profiling"}.get(key, key): value
        for key, value in changed.items()
        if key not in ("model_spec", "optimizer", "dataloader", "hf_assets_path", "dump_folder")
    }
    tree["model"] = {key: getattr(spec, key, None) for key in ("name", "flavor")}
    tree["model"]["hf_assets_path"] = changed.get("hf_assets_path")
    groups = getattr(optimizer, "param_groups", None) or ()
    if len(groups) == 1:
        tree["optimizer"] = {"name": groups[0].optimizer_name, **groups[0].optimizer_kwargs}
    elif groups:
        tree["optimizer"] = {"param_groups": ", ".join(group.pattern for group in groups)}
    loader = changed.get("dataloader")
    if isinstance(loader, dict):
        loader.pop("read_options", None)  # threads and buffers
        tree.setdefault("training", {}).update(loader)
    _count_in_sequences(tree, getattr(config, "training", None))
    loss = getattr(config, "loss", None)
    if type(getattr(loss, "loss_fn", loss)).__qualname__.startswith("CrossEntropyLoss."):
        tree.pop("loss", None)
    kept = type(getattr(config, "activation_checkpoint", None)).__qualname__
    modes = {"FullAC": "full", "SelectiveAC": "selective", "NoneType": "none"}
    if (mode := modes.get(kept.partition(".")[0])) is not None:
        tree["activation_checkpoint"] = {"mode": mode}
    return tree


# Sizes of batches in tokens, as they are in the course of 2026, and before in sequences.
_IN_TOKENS = {
    "num_tokens_per_microbatch_per_dp_rank": "local_batch_size",
    "num_tokens_per_train_step": "global_batch_size",
}


def _count_in_sequences(tree: dict[str, Any], training: Any) -> None:
    """Replace sizes of batches in tokens; one that is not of whole sequences also stays."""
    length = getattr(training, "max_context_length", None)
    if not isinstance(length, int):
        return
    section = tree.setdefault("training", {})
    section["seq_len"] = section.pop("max_context_length", length)
    for name, former in _IN_TOKENS.items():
        tokens = getattr(training, name, -1)
        if tokens > 0:
            section[former] = max(1, tokens // length)
        if tokens <= 0 or tokens % length == 0:
            section.pop(name, None)


def _changed(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, dataclasses as dicts."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        given, default = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(given) and not isinstance(given, type):
            if inner := _changed(given):
                changed[field.name] = inner
        elif given is not None and (default is dataclasses.MISSING or given != default):
            changed[field.name] = list(given) if isinstance(given, tuple) else given
    return changed
