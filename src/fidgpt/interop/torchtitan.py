"""Conversion of torchtitan's training configs, TOML files or dataclasses, to directives."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from fidgpt.compose.sources import read_text
from fidgpt.graph import ConfigError, suggest
from fidgpt.interop.directives_from import bring_about
from fidgpt.interop.levanter import Mapped
from fidgpt.interop.levanter_model import BLOCK, Plan, Section

_ATTENTION, _MLP = f"{BLOCK}.attention", f"{BLOCK}.mlp"
_SCALING = f"{_ATTENTION}.rope.scaling"


def _tests(num_layers: int, **sizes: Any) -> dict[str, Any]:
    """Return the sizes of a model for tests: those that all have, and others by path."""
    return {
        **{"vocab_size": 2048, "model.hidden_dim": 256, "model.num_layers": num_layers},
        **sizes,
    }


# The named config of each model and flavor, and values in which it differs.
_MODELS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "llama2": {size: (f"llama2_{size.lower()}", {}) for size in ("7B", "13B", "70B")},
    "llama3": {
        "debugmodel": (
            "llama3_1_8b",
            _tests(
                6,
                **{f"{_ATTENTION}.head_dim": 16, f"{_ATTENTION}.num_kv_heads": 16},
                **{f"{_MLP}.ffn_dim": 768},
            ),
        ),
        **{
            size: (f"llama3_2_{size.lower()}", {f"{_SCALING}.factor": 8.0}) for size in ("1B", "3B")
        },
        **{size: (f"llama3_1_{size.lower()}", {}) for size in ("8B", "70B", "405B")},
    },
    "qwen3": {
        "debugmodel": ("qwen3_0_6b", _tests(8)),
        "debugmodel_moe": (
            "qwen3_30b_a3b",
            _tests(
                8,
                **{f"{_ATTENTION}.num_heads": 16, f"{_ATTENTION}.num_kv_heads": 8},
                **{f"{_MLP}.num_experts": 64},
            ),
        ),
        **{
            size: (f"qwen3_{size.lower().replace('.', '_').replace('-', '_')}", {})
            for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
        },
    },
    "deepseek_v3": {
        "debugmodel": (
            "deepseek_v2_lite",
            _tests(
                6,
                **{f"{_ATTENTION}.num_heads": 16, "model.first_blocks[0].attention.num_heads": 16},
                **{"model.first_blocks[0].mlp.ffn_dim": 1024, f"{_MLP}.experts.ffn_dim": 256},
                **{f"{_MLP}.num_experts": 8, f"{_MLP}.router.top_k": 3},
                **{f"{_MLP}.shared.ffn_dim": 512, f"{_SCALING}.sharpness": 0.7},
            ),
        ),
        "16B": ("deepseek_v2_lite", {f"{_SCALING}.sharpness": 0.7}),
        "671B": ("deepseek_v3", {}),
    },
    "gpt_oss": {
        "debugmodel": (
            "gpt_oss_20b",
            _tests(4, **{f"model.blocks[{i}].mlp.num_experts": 8 for i in (0, 1)}),
        ),
        **{size: (f"gpt_oss_{size}", {}) for size in ("20b", "120b")},
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

# Entries that change nothing at these values where they are not read; null never does.
_NEUTRAL: dict[str, dict[str, Any]] = {
    "metrics": {"log_freq": 10, "save_tb_folder": "tb", "disable_color_printing": False},
    "training": {"dtype": "float32", "mixed_precision_reduce": "float32"},
    "parallelism": {
        "expert_tensor_parallel_degree": 1,
        **dict.fromkeys(("enable_async_tensor_parallel",), False),
        "fsdp_reshard_after_forward": "default",
    },
    "checkpoint": {"folder": "checkpoint", "async_mode": "disabled", "export_dtype": "float32"},
    "compile": {"backend": "inductor"},
    "profiling": {"save_traces_folder": "profile_trace", "enable_memory_snapshot": False},
}
_NEUTRAL["checkpoint"] |= {"last_save_model_only": True}
_NEUTRAL["profiling"] |= {"save_memory_snapshot_folder": "memory_snapshot"}


def read_torchtitan(config: str | Path | Any) -> Mapped:
    """Return the directives for a torchtitan run, and its entries without an equivalent.

    Unset entries have torchtitan's defaults as of 2026. The model is that of a named config.

    Args:
      config: a TOML file of before 2026, as a text or a Path to it; or what a function in a
        `config_registry.py` returns.

    Raises:
      ConfigErrors: all invalid entries.
      ConfigError: the file cannot be read, is not TOML, or names no model.
    """
    plan = Plan()
    name = "the torchtitan config"
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        tree = _tree_of(config)
    else:
        name, text = (name, config) if isinstance(config, str) else read_text(str(config))
        try:
            tree = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{name} is not TOML: {error}.") from error
    if not isinstance(tree.get("model"), dict):
        raise ConfigError(f"{name} is no training config: it has no model with name and flavor.")
    _move_former(tree)
    top = Section(plan, "", tree)
    sections = {key: top.section(key, _NEUTRAL.get(key)) for key in [*top.left]}
    empty = {key: top.section(key) for key in _SECTIONS if key not in sections}
    sections |= empty
    _map_model(sections["model"])
    _map_training(sections)
    _map_optimizer(sections["optimizer"])
    _map_schedule(sections["lr_scheduler"])
    _map_hardware(sections)
    _map_records(sections)
    sections["job"].left.clear()  # a folder and a description
    plan.close()
    directives = bring_about([plan.config, *plan.changes], [*plan.wanted.items()])
    return Mapped([*directives, *plan.last], plan.unmapped)


_SECTIONS = (
    *("job", "model", "training", "optimizer", "lr_scheduler", "parallelism", "compile"),
    *("activation_checkpoint", "checkpoint", "validation", "metrics", "profiling", "debug"),
)


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


def _map_model(section: Section) -> None:
    name, flavor = section.take("name", "llama3"), section.take("flavor", "debugmodel")
    flavors = _MODELS.get(name)
    for end in _ENDS_OF_KERNELS:
        if flavors and flavor.endswith(end) and flavor.removesuffix(end) in flavors:
            section.unmap("flavor", flavor, "no token attends across documents: use_document_mask")
            flavor = flavor.removesuffix(end)
    if flavors is None:
        section.error("name", name, f"a model that fidgpt has. {suggest(name, _MODELS)}"[:-1])
    elif flavor not in flavors:
        section.error("flavor", flavor, f"one that fidgpt has. {suggest(flavor, flavors)}"[:-1])
    else:
        config, values = flavors[flavor]
        section.plan.config = f"config:{config}"
        section.plan.wanted.update(values)
        if name in ("deepseek_v3", "gpt_oss") or flavor.endswith(_ENDS_OF_MIXTURES):
            section.change(_BALANCED)
            section.change(f"set:{BLOCK.replace('0', '*')}.mlp.balancing=[]")
    converters = section.left.pop("converters", None) or []
    if converters in (["float8"], ["quantize.linear.float8"]):
        section.plan.last.append("fiddler:use_float8")
    elif converters:
        section.unmap("converters", converters, "only float8 is known")
    section.drop(("hf_assets_path", "tokenizer_path"), "set a tokenizer")


def _map_training(sections: dict[str, Section]) -> None:
    section, plan = sections["training"], sections["training"].plan
    key = "batch_size" if "batch_size" in section.left else "local_batch_size"
    local, whole = section.take(key, 8), section.take("global_batch_size", -1)
    replicas = sections["parallelism"].left.get("data_parallel_replicate_degree", 1)
    shards = sections["parallelism"].left.get("data_parallel_shard_degree", -1)
    plan.wanted["micro_batch_size"] = local
    plan.wanted["batch_size"] = whole
    if whole == -1:
        plan.wanted["batch_size"] = local * max(replicas, 1) * max(shards, 1)
        if shards == -1:
            section.unmap(key, local, "multiply batch_size by the processes of the axis shard")
    section.want(
        {
            "seq_len": (2048, "seq_len"),
            "steps": (10_000, "num_steps"),
            "max_norm": (1.0, "max_grad_norm"),
        }
    )
    form = section.take("mixed_precision_param", "bfloat16")
    if form in _FORMATS:
        section.change(_FORMATS[form])
    else:
        section.error("mixed_precision_param", form, "bfloat16 or float32")
    section.drop(("dataset", "dataset_path"), "set a text")
    holders = (section, sections["debug"])
    seed = next((one.left.pop("seed") for one in holders if "seed" in one.left), None)
    if seed is not None:
        plan.wanted["seed"] = seed


def _map_optimizer(section: Section) -> None:
    name = section.take("name", "AdamW")
    if name != "AdamW":
        section.unmap("name", name, "AdamW is used")
    section.drop(("implementation",))
    section.want({"lr": (8e-4, "optimizer.lr"), "eps": (1e-8, "optimizer.eps")})
    section.want({"weight_decay": (0.1, "optimizer.weight_decay")})
    betas = section.left.pop("betas", None) or (0.9, 0.95)
    betas = section.take("beta1", float(betas[0])), section.take("beta2", float(betas[1]))
    section.plan.wanted["optimizer.betas"] = betas
    decay = section.plan.wanted["optimizer.weight_decay"]
    section.unmap("weight_decay", decay, "in torchtitan vectors decay too")


def _map_schedule(section: Section) -> None:
    """Map warm-up, a constant rate and a decay, which is all of the rest without a ratio."""
    steps = section.take("total_steps", section.plan.wanted["num_steps"])
    warmup = section.take("warmup_steps", 200)
    ratio = section.take("decay_ratio", None, float)
    shape = section.take("decay_type", "linear")
    if shape not in _SHAPES:
        section.unmap("decay_type", shape, "the decay is linear")
    floor = section.take("min_lr_factor", section.take("lr_min", 0.0))  # lr_min until August 2025
    section.change(f"fiddler:{_SHAPES.get(shape, 'use_linear')}", min_lr_ratio=floor)
    if shape == "sqrt":
        section.change("use:schedule.shape=SqrtDecay")
    if warmup > steps:
        section.unmap("warmup_steps", warmup, "the warm-up takes all steps")
    warmup = min(warmup, steps)
    section.change("fiddler:set_warmup", warmup=warmup)
    decay = steps if ratio is None else round(steps * ratio)
    # A step is added to the stable phase, so that the last step of a run is not at the floor.
    section.plan.wanted["schedule.num_steps"] = steps + 1
    section.plan.wanted["schedule.decay"] = min(decay, steps - warmup)


def _map_hardware(sections: dict[str, Section]) -> None:
    parallel, compiled = sections["parallelism"], sections["compile"]
    mesh = {name: parallel.take(key, default) for name, (key, default) in _AXES.items()}
    if mesh["expert"] > 1 and _BALANCED not in parallel.plan.changes:
        parallel.unmap(_AXES["expert"][0], mesh["expert"], "the model has no experts")
        mesh["expert"] = 1
    if (stages := parallel.take("pipeline_parallel_degree", 1)) > 1:
        mesh["pipeline"] = stages
    if max(mesh[name] for name in mesh if name != "shard") > 1:
        parallel.change("fiddler:use_mesh", **mesh)
        if mesh["tensor"] > 1 and parallel.take("enable_sequence_parallel", True):
            parallel.change("fiddler:use_sequence_parallel")
    elif mesh["shard"] != 1:
        parallel.change("fiddler:use_fsdp")
    _map_pipeline(parallel, stages)
    # Logits are divided with the vocabulary, and keys gathered where sequences are split.
    parallel.drop(("disable_loss_parallel", "context_parallel_rotate_method"))
    parts = compiled.left.pop("components", None) or ["model"]
    if compiled.take("enable", False):
        if "model" in parts:
            compiled.plan.last.append("fiddler:use_compile")
    elif compiled.left.get("backend"):
        compiled.drop(("backend",))
    recompute = sections["activation_checkpoint"]
    mode = recompute.take("mode", "selective")
    if mode == "full":
        recompute.plan.last.append("fiddler:use_recompute")
    elif mode == "selective":
        recompute.plan.last.append("fiddler:use_selective_recompute")
        recompute.unmap("mode", mode, "use_selective_recompute keeps every matrix product")
    recompute.drop(("selective_ac_option", "early_stop"))


def _map_pipeline(section: Section, stages: int) -> None:
    """Map the schedule and its micro-batches; with one stage, they change nothing."""
    schedule = section.take("pipeline_parallel_schedule", "1F1B")
    size = section.take("pipeline_parallel_microbatch_size", 1)
    if stages == 1:
        section.drop([key for key in section.left if key.startswith("pipeline_parallel_")])
        return
    if schedule in _SCHEDULES:
        section.change("fiddler:use_pipeline", schedule=_SCHEDULES[schedule])
    else:
        known = suggest(schedule, _SCHEDULES)
        section.error("pipeline_parallel_schedule", schedule, f"one that is here. {known}"[:-1])
    section.plan.wanted["micro_batch_size"] = size
    section.drop([f"pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last")])
    section.drop(("pipeline_parallel_layers_per_stage",), "set stages_per_rank of use_pipeline")
    section.drop(("pipeline_parallel_module_fqns_per_model_part",), "set step.stages")


def _map_records(sections: dict[str, Section]) -> None:
    """Map checkpoints, validation, trackers and the profiler."""
    saved = sections["checkpoint"]
    interval, keep = saved.take("interval", 500), saved.take("keep_latest_k", 10)
    is_saved = saved.take("enable", saved.take("enable_checkpoint", False))
    saved.plan.wanted["checkpoints.every"] = interval if is_saved else None
    if is_saved and keep:
        saved.plan.wanted["checkpoints.keep_last"] = keep
    validation = sections["validation"]
    every, batches = validation.take("freq", 10), validation.take("steps", -1)
    if validation.take("enable", False):
        validation.plan.wanted["evaluators.validation.every"] = every
        validation.plan.wanted["evaluators.validation.data.num_batches"] = (
            None if batches == -1 else batches
        )
        validation.drop(("dataset", "dataset_path"), "set a text")
    else:
        validation.left.clear()
    metrics, profiling = sections["metrics"], sections["profiling"]
    if metrics.take("enable_tensorboard", False):
        metrics.change("fiddler:use_tensorboard")
    if metrics.take("enable_wandb", False):
        metrics.change("fiddler:use_wandb")
    frequency = profiling.take("profile_freq", 10)
    if profiling.take("enable_profiling", False):
        profiling.change("fiddler:use_profiler", begin=max(frequency - 1, 1), num_steps=1)


def _tree_of(config: Any) -> dict[str, Any]:
    """Return a dataclass of 2026 in the form of the TOML files, without what is at its default."""
    found = _changed(config)
    spec, optimizer = getattr(config, "model_spec", None), getattr(config, "optimizer", None)
    tree: dict[str, Any] = {
        {"validator": "validation", "profiler": "profiling"}.get(key, key): value
        for key, value in found.items()
        if key not in ("model_spec", "optimizer", "dataloader", "hf_assets_path", "dump_folder")
    }
    tree["model"] = {"name": getattr(spec, "name", None), "flavor": getattr(spec, "flavor", None)}
    if "hf_assets_path" in found:
        tree["model"]["hf_assets_path"] = found["hf_assets_path"]
    groups = getattr(optimizer, "param_groups", None) or ()
    if len(groups) == 1:
        tree["optimizer"] = {"name": groups[0].optimizer_name, **groups[0].optimizer_kwargs}
    elif groups:
        names = ", ".join(group.pattern for group in groups)
        tree["optimizer"] = {"param_groups": names}
    loader = found.get("dataloader")
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
    found = tree.setdefault("training", {})
    found["seq_len"] = found.pop("max_context_length", length)
    for name, former in _IN_TOKENS.items():
        tokens = getattr(training, name, -1)
        if tokens > 0:
            found[former] = max(1, tokens // length)
        if tokens <= 0 or tokens % length == 0:
            found.pop(name, None)


def _changed(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, dataclasses as dicts."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        one, default = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            if inner := _changed(one):
                found[field.name] = inner
        elif one is not None and (default is dataclasses.MISSING or one != default):
            found[field.name] = list(one) if isinstance(one, tuple) else one
    return found
