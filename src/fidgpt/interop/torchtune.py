"""Conversion of torchtune's recipe files to directives: full, LoRA, QLoRA, DPO and distillation."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.errors import at
from fidgpt.graph import ConfigError
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.recipes import (
    FROM_CHECKPOINT,
    MLP,
    PROJECTIONS,
    Mapped,
    Recipe,
    content_of,
    model_directives,
    refuse,
)

_COMPONENT = "_component_"
_ALPACA = {
    "alpaca_dataset": "tatsu-lab/alpaca",
    "alpaca_cleaned_dataset": "yahma/alpaca-cleaned",
}
_LOSSES = ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss", "DPOLoss")
_TEACHER_LOSSES = ("ForwardKLLoss", "ForwardKLWithChunkedOutputLoss")
# Kernels and formats of torch's AdamW.
_SUBSTITUTES = ("PagedAdamW", "PagedAdamW8bit", "AdamW8bit")
_DEFAULT_SEQ_LEN = 2048
# Of the system and its files: what a run here decides, or writes, by itself.
_ELSEWHERE = re.compile(
    "(.*_)?checkpointer|(resume|save|log|run_val|ac)_.*|output_dir|metric_logger|profiler|device|"
    "dataset_val|batch_size_val|shuffle|low_cpu_ram|enable_activation_offloading|optimizer_in_bwd|"
    "compile|custom_sharded_layers|fsdp_cpu_offload|data_parallel_shard_dim|collate_fn"
)


class _Recipe(Recipe):
    """A conversion, by the components of the file."""

    def component(self, key: str, known: str = "") -> tuple[str, dict[str, Any]]:
        """Remove a component, the first of a list; return the last part of its name, and arguments.

        Other arguments than those in `known` are noted, as are other components.
        """
        value = self.take(key)
        for other in value[1:] if isinstance(value, list) else ():
            self.note(key, other.get(_COMPONENT), "one is read: write the others into its file")
        value = value[0] if isinstance(value, list) and value else value
        arguments = dict(value) if isinstance(value, dict) else {}
        name = str(arguments.pop(_COMPONENT, "")).rpartition(".")[2]
        for argument, given in arguments.items():
            if argument not in known.split() and given not in (None, False, 0):
                self.note(f"{key}.{argument}", given, "fidgpt has no equivalent")
        return name, arguments


def is_torchtune(document: Any) -> bool:
    """Whether a mapping is a file of torchtune, by the names of its components."""
    parts = document.values() if isinstance(document, dict) else ()
    names = [part.get(_COMPONENT) for part in parts if isinstance(part, dict)]
    return any(str(name).startswith("torchtune.") for name in names)


def read_torchtune(text_or_path: str | Path) -> Mapped:
    """Return the directives for a torchtune recipe's file, and its entries without an equivalent.

    Unset entries have torchtune's defaults as of version 0.6.1. Weights and tokenizer come from
    the file's checkpoint, if it is on this machine.

    Args:
      text_or_path: contents of the file, or a Path to it.

    Raises:
      ConfigError: the file cannot be read, or is of a recipe or a model that fidgpt does not have.
    """
    name, text = content_of(text_or_path, "torchtune")
    with at(name):
        document = read_yaml(text, schema="omegaconf")
        if not is_torchtune(document) or "model" not in document:
            raise ConfigError("it is no training recipe of torchtune, with a model and a dataset.")
        recipe = _Recipe(document, elsewhere=_ELSEWHERE)
        loss, options = recipe.component("loss", "beta label_smoothing num_output_chunks")
        if loss not in _LOSSES:
            refuse("the loss", loss)
        if "quantizer" in document:
            raise ConfigError("fidgpt has no quantization-aware training (quantizer).")
        adapters = _model(recipe)
        _data(recipe, options if loss == "DPOLoss" else None)
        if adapters is not None:
            _lora(recipe, adapters)
        _distillation(recipe)
        _optimizer(recipe)
        _length(recipe)
        _computation(recipe)
    return recipe.mapped()


def _checkpoint(recipe: _Recipe, key: str) -> Path | None:
    """Return the directory of a checkpoint, if it is on this machine."""
    part = recipe.left.get(key)
    directory = part.get("checkpoint_dir") if isinstance(part, dict) else None
    path = Path(str(directory)).expanduser()
    if directory and (path / "config.json").is_file():
        return path
    if directory:
        recipe.note(f"{key}.checkpoint_dir", directory, FROM_CHECKPOINT)
    return None


def _model(recipe: _Recipe) -> dict[str, Any] | None:
    """Map the model; return the settings of its adapters, or None."""
    name, arguments = recipe.component(
        "model",
        "lora_attn_modules apply_lora_to_mlp lora_rank lora_alpha lora_dropout quantize_base",
    )
    path = _checkpoint(recipe, "checkpointer")
    recipe.directives += [f"config:chat(base={str(path)!r})"] if path else model_directives(name)
    arguments["quantize_base"] = name.startswith("qlora_") or arguments.get("quantize_base")
    if arguments["quantize_base"]:
        recipe.note("model", name, "scales of the four-bit weights are not quantized again")
    return arguments if "lora_" in name else None


def _data(recipe: _Recipe, dpo: Mapping[str, Any] | None) -> None:
    if "datasets" in recipe.section("dataset"):  # of a ConcatDataset
        recipe.left["dataset"] = recipe.left["dataset"]["datasets"]
    known = "source column train_on_input packed split data_files"
    name, arguments = recipe.component("dataset", known)
    _, tokenizer = recipe.component("tokenizer", "path merges_file max_seq_len")
    recipe.wanted["seq_len"] = tokenizer.get("max_seq_len") or _DEFAULT_SEQ_LEN
    if not tokenizer.get("max_seq_len"):
        recipe.note("tokenizer.max_seq_len", None, f"sequences have {_DEFAULT_SEQ_LEN} tokens")
    source, files = arguments.get("source"), arguments.get("data_files")
    hub = "" if files else "hub_"
    if files:  # the source is the name of a reader
        [source, *others] = files if isinstance(files, list) else [files]
        if others:
            recipe.note("dataset.data_files", others, "one is read: give a folder of them")
    if dpo is not None and name == "stack_exchange_paired_dataset":
        path = source or "lvwerra/stack-exchange-paired"
        recipe.change(f"fiddler:use_{hub}preferences", path=path, beta=float(dpo.get("beta", 0.1)))
        if smoothing := dpo.get("label_smoothing"):
            recipe.wanted["step.preference.label_smoothing"] = smoothing
    elif name in _ALPACA:
        path = source or _ALPACA[name]
        recipe.note("dataset", name, "the chat template writes the prompts")
        train_on = "all" if arguments.get("train_on_input", True) else "assistant"
        recipe.change(f"fiddler:use_{hub}conversations", path=path, train_on=train_on)
    elif name == "text_completion_dataset" and source:
        field = arguments.get("column") or "text"
        recipe.change(f"fiddler:use_{hub}text", path=source, text_field=field)
    else:
        refuse("the dataset", name)
    split = re.fullmatch(r"train\[:(\d+)%\]", str(arguments.get("split")))
    if not split and arguments.get("split") not in (None, "train"):
        recipe.note("dataset.split", arguments["split"], "all of train is read")
    held_out = round(1 - int(split[1]) / 100, 2) if split else 0
    recipe.wanted["data.corpus.validation_fraction"] = held_out
    if not split and dpo is None:
        recipe.directives.append("set:evaluators={}")
    if name in _ALPACA and not arguments.get("packed"):
        recipe.note("dataset.packed", False, "conversations are packed, and do not see each other")


def _lora(recipe: _Recipe, adapters: Mapping[str, Any]) -> None:
    modules = [PROJECTIONS[name] for name in adapters.get("lora_attn_modules", ())]
    modules += MLP if adapters.get("apply_lora_to_mlp") else ()
    rank, alpha = adapters.get("lora_rank", 8), float(adapters.get("lora_alpha", 16))
    dropout = float(adapters.get("lora_dropout", 0.0))
    name = "fiddler:use_qlora" if adapters["quantize_base"] else "fiddler:use_lora"
    recipe.change(name, rank=rank, alpha=alpha, dropout=dropout, modules=modules)


def _distillation(recipe: _Recipe) -> None:
    model, _ = recipe.component("teacher_model")
    kind, ratio = recipe.component("kd_loss", "num_output_chunks")[0], recipe.take("kd_ratio", 0.5)
    if not model:
        return
    if kind not in _TEACHER_LOSSES:
        refuse("the loss", kind)
    path = _checkpoint(recipe, "teacher_checkpointer")
    teacher = str(path) if path else model_directives(model)[0]
    recipe.change("fiddler:use_distillation", teacher=teacher, ratio=float(ratio))


def _optimizer(recipe: _Recipe) -> None:
    name, arguments = recipe.component("optimizer", "lr betas eps weight_decay fused")
    if name in _SUBSTITUTES:
        recipe.note("optimizer", name, "replaced by AdamW")
    elif name != "AdamW":
        refuse("the optimizer", name)
    usual = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    recipe.adamw(*(arguments.get(key, value) for key, value in usual.items()))
    recipe.directives.append("use:groups=ParameterGroups([])")  # all weights decay
    schedule, options = recipe.component("lr_scheduler", "num_warmup_steps")
    shape = {"min_lr_ratio": 0.0} if schedule else {}
    recipe.change("fiddler:use_cosine" if schedule else "fiddler:use_constant", **shape)
    recipe.change("fiddler:set_warmup", warmup=int(options.get("num_warmup_steps", 0)))


def _length(recipe: _Recipe) -> None:
    names = ("batch_size", "gradient_accumulation_steps", "epochs", "max_steps_per_epoch")
    size, parts, epochs, steps = (recipe.take(name) for name in names)
    num_steps = int(steps) * int(epochs or 1) if steps else None
    recipe.length(int(size or 1), int(parts or 1), epochs, num_steps)


def _computation(recipe: _Recipe) -> None:
    if (seed := recipe.take("seed")) is not None:
        recipe.wanted["seed"] = seed
    if recipe.take("dtype", "bf16") == "fp32":
        recipe.change("fiddler:use_float32")
    recipe.wanted["max_grad_norm"] = recipe.take("clip_grad_norm")
    recipe.switch({"enable_activation_checkpointing": "fiddler:use_recompute"})
    if recipe.left.get("compile") is True:
        recipe.change("fiddler:use_compile")
