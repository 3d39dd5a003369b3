"""Conversion of fine-tuning files of Axolotl, LLaMA-Factory and TRL to directives."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.errors import at
from fidgpt.graph import ConfigError
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.hugging_face.files import is_hub_directory
from fidgpt.interop.recipes import (
    FROM_CHECKPOINT,
    PROJECTIONS,
    Mapped,
    Recipe,
    content_of,
    model_directives,
    refuse,
)

_NOTHING = None, None, None
# The keys of each setting in Axolotl, LLaMA-Factory or TRL, and what they take without it.
_SETTINGS: dict[str, tuple[str, tuple[Any, Any, Any]]] = {
    "base": ("base_model model_name_or_path", _NOTHING),
    "kind": ("rl stage", _NOTHING),
    "loss": ("pref_loss loss_type", _NOTHING),
    "beta": ("dpo_beta rl_beta orpo_alpha pref_beta beta", (0.1, 0.1, None)),
    "datasets": ("datasets dataset_mixture dataset dataset_mixer dataset_name", _NOTHING),
    "splits": ("dataset_train_split dataset_splits", _NOTHING),
    "template": ("chat_template template chat_template_path", _NOTHING),
    "all": ("train_on_inputs train_on_prompt", _NOTHING),
    "seq_len": ("sequence_len cutoff_len max_length max_seq_length", (512, 2048, 1024)),
    "packing": ("sample_packing packing", _NOTHING),
    "validation": ("val_set_size val_size", (0, 0, 0)),
    "method": ("adapter finetuning_type", (None, "lora", None)),
    "rank": ("lora_r lora_rank", (8, 8, 16)),
    "alpha": ("lora_alpha", (16, None, 32)),  # None is twice the rank
    "dropout": ("lora_dropout", (0.0, 0.0, 0.05)),
    # The modules that peft adapts by default in most families.
    "targets": ("lora_target_modules lora_target", (None, None, "q_proj,v_proj")),
    "size": ("micro_batch_size per_device_train_batch_size", (1, 8, 8)),
    "epochs": ("num_epochs num_train_epochs", (1, 3, 3)),
    "warmup": ("warmup_ratio", (0.03, 0, 0)),
    "schedule": ("lr_scheduler lr_scheduler_type", ("cosine", "linear", "linear")),
    "optimizer": ("optimizer optim", ("adamw_torch", "adamw_torch", "adamw_torch")),
    "rate": ("learning_rate", (5e-5, 5e-5, 2e-5)),
}
_AXOLOTL, _FACTORY, _TRL = range(3)
# Entries of a dataset: what to read, and names of columns, which are found in the rows.
_ENTRY = re.compile(
    "path|id|name|config|split|type|data_files|ds_type|columns|roles|field|"
    "(field|message)_(?!field_training).*"
)
# Formats of a dataset whose prompts the chat template writes.
_CHATS = re.compile("(chat_template|sharegpt)?(\\..*)?")
_BASES = {"base_model", "model_name_or_path"}
_LOSSES = {"sigmoid": "dpo", **{name: name for name in ("dpo", "ipo", "orpo")}}
_SHAPES = {
    **{name: "use_cosine" for name in ("cosine", "cosine_with_min_lr")},
    **{name: "use_constant" for name in ("constant", "constant_with_warmup")},
    **{"linear": "use_linear", "inverse_sqrt": "use_inverse_sqrt"},
}
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
# Of the system, its records and kernels: what a run here decides, or writes, by itself.
_ELSEWHERE = re.compile(
    "(wandb|mlflow|comet|swanlab|hub|logging|saves?|evals?|dataloader|log|preprocessing|ddp|do|is|"
    "liger|xformers|flash|sdp|report|overwrite|model|tokenizer|ray|early_stopping|auto|_?attn|eager)_.*|"
    "dataset_(num_proc|prepared_path|processes|dir|test_split)|push_to_hub|plot_loss|run_name|"
    "output_dir|tf32|resume_from_checkpoint|trust_remote_code|gradient_checkpointing_kwargs|debug|"
    "(torch_)?dtype|(pure_)?bf16|bfloat16|use_liger_kernel|remove_unused_columns|strict|pad_to_sequence_len|packing_.*|"
    "group_by_length|max_prompt_length|average_tokens_across_devices|plugins|per_device_eval_.*"
)


def read_fine_tuning(text_or_path: str | Path) -> Mapped:
    """Return the directives for a file of Axolotl, LLaMA-Factory or TRL, and its unmapped entries.

    Unset entries have the defaults of that system, as of 2026.

    Args:
      text_or_path: contents of the file, or a Path to it.

    Raises:
      ConfigError: the file cannot be read, or asks for a model, a loss or adapters that fidgpt does
        not have.
    """
    name, text = content_of(text_or_path, "fine-tuning")
    with at(name):
        document = read_yaml(text)
        if not isinstance(document, dict) or not document.keys() & _BASES:
            raise ConfigError("it is no file of Axolotl, LLaMA-Factory or TRL.")
        recipe = _File(document, str(name))
        for convert in (recipe.model, recipe.data, recipe.adapters, recipe.run):
            convert()
        return recipe.mapped()


class _File(Recipe):
    """A conversion, by the names in `_SETTINGS`."""

    def __init__(self, document: Mapping[str, Any], name: str) -> None:
        super().__init__(document, elsewhere=_ELSEWHERE)
        is_factory = document.keys() & {"stage", "finetuning_type", "cutoff_len", "template"}
        others = _FACTORY if is_factory else _TRL
        self.system = _AXOLOTL if "base_model" in document else others
        # A file of TRL does not say which trainer reads it: its name and the names of its results
        # may.
        about = [*Path(name).parts[-2:], document.get("output_dir"), document.get("hub_model_id")]
        words = re.split("[^a-z]+", " ".join(map(str, about)).lower())
        self.trainer = next((trainer for trainer in ("sft", *_LOSSES) if trainer in words), None)

    def value(self, setting: str, default: Any = None) -> Any:
        """Remove a setting; return its value, or the default of the system."""
        keys, defaults = _SETTINGS.get(setting, (setting, (default,) * 3))
        values = [self.take(key) for key in keys.split()]
        return next((value for value in values if value is not None), defaults[self.system])

    def model(self) -> None:
        """Map the model, which is read if it is on this machine."""
        base = str(self.value("base"))
        if is_hub_directory(Path(base).expanduser()):
            self.directives.append(f"config:chat(base={base!r})")
        else:
            self.directives += model_directives(base)
            self.note("the model", base, FROM_CHECKPOINT)

    def data(self) -> None:
        """Map the dataset, with what counts in the loss."""
        self.wanted["seq_len"] = int(self.value("seq_len"))
        for key in ("reward_model", "process_reward_model", "reward_funcs", "processor_type"):
            if self.value(key):
                refuse("the setting", key)
        kind, beta, loss = self.value("kind"), self.value("beta"), self.value("loss")
        if self.system == _TRL:
            is_paired = beta is not None or loss not in (None, "nll", "chunked_nll")
            kind = self.trainer if self.trainer in _LOSSES or not is_paired else "dpo"
        dataset = self.dataset()
        is_text = dataset.pop("is_text") or kind == "pt"
        file = dataset["path"].endswith((".json", ".jsonl", ".parquet"))
        options = {key: dataset[key] for key in dataset if not (file and key in ("name", "split"))}
        fiddler = "fiddler:use_" if file else "fiddler:use_hub_"
        packing = self.value("packing")
        if is_text:
            self.change(f"{fiddler}text", **options)
        elif kind in (None, "sft"):
            options |= {"train_on": self.counted(), **self.template()}
            self.change(f"{fiddler}conversations", **options)
            if not packing:
                self.note("packing", False, "conversations are packed, and do not see each other")
        else:
            loss = (loss or "sigmoid") if kind == "dpo" else kind
            if loss not in _LOSSES:
                refuse("the loss", loss)
            options |= {"beta": float(beta or 0.1), "loss": _LOSSES[loss], **self.template()}
            self.change(f"{fiddler}preferences", **options)
            if self.system == _TRL:
                self.left.setdefault("learning_rate", 1e-6)
            return
        share = self.value("validation", 0)
        self.wanted["data.corpus.validation_fraction"] = share if share < 1 else 0
        if not 0 < share < 1:
            self.directives.append("set:evaluators={}")

    def dataset(self) -> dict[str, Any]:
        """Remove the datasets; return the arguments of the first one, and whether it is text."""
        text = self.value("pretraining_dataset")
        datasets = text or self.value("datasets")
        if isinstance(datasets, dict):  # TRL's mixtures: a list, or fractions by name
            for name, share in datasets.items() if "datasets" not in datasets else ():
                if share != 1:
                    self.note(f"datasets.{name}", share, "all of its rows are read")
            datasets = datasets.get("datasets") or [*datasets]
        listed: list[Any] = datasets.split(",") if isinstance(datasets, str) else datasets or [{}]
        first: dict[str, Any] = listed[0] if isinstance(listed[0], dict) else {"path": listed[0]}
        if not (path := first.get("path") or first.get("id")):
            raise ConfigError("it names no dataset.")
        for other in listed[1:]:
            self.note("datasets", other, "one is read: write the others into its file")
        if self.system == _FACTORY:
            self.note("dataset", path, "a name in dataset_info.json: give its file, or hub name")
        if path in ("json", "parquet"):  # names of readers of files
            files = first.get("data_files")
            path = files[0] if isinstance(files, list) else files
        name = first.get("name") or first.get("config") or self.value("dataset_config")
        splits = self.value("splits") or "train"
        split = str(first.get("split") or (splits if isinstance(splits, str) else splits[0]))
        if (whole := split.partition("[")[0]) != split:
            self.note("datasets.split", split, f"all of {whole} is read")
        others = {"name": name, "split": whole if whole != "train" else None}
        for key, value in first.items():
            if not _ENTRY.fullmatch(key):
                self.note(f"datasets.{key}", value, "fidgpt has no equivalent")
        kind = first.get("type") or ""
        is_text = bool(text) or kind in ("completion", "pretrain")
        if self.system == _AXOLOTL and not is_text and not _CHATS.fullmatch(str(kind)):
            self.note("datasets.type", kind, "the chat template writes the prompts")
        return {
            "path": str(path).strip(),
            **{key: value for key, value in others.items() if value},
            **({"text_field": first["field"]} if first.get("field") else {}),
            "is_text": is_text,
        }

    def counted(self) -> str:
        """Return which tokens count in the loss."""
        if self.system == _TRL:  # all, unless its file says otherwise
            return "assistant" if self.value("assistant_only_loss") else "all"
        if self.value("mask_history"):
            return "last"
        return "all" if self.value("all") else "assistant"

    def template(self) -> dict[str, str]:
        """Return the chat template, unless it is the tokenizer's own."""
        template = self.value("template")
        if template in ("chatml", "llama3"):
            return {"template": template}
        if template not in (None, "tokenizer_default"):
            why = "the tokenizer's own is taken: template=FILE takes another"
            self.note("the chat template", template, why)
        return {}

    def adapters(self) -> None:
        """Map adapters, and the weights that they adapt."""
        has_four_bits = self.value("load_in_4bit") or self.value("quantization_bit") == 4
        method, uses = self.value("method"), self.value("use_peft")
        rank, alpha = int(self.value("rank")), self.value("alpha")
        dropout, targets = float(self.value("dropout")), self.value("targets")
        if self.value("lora_target_linear"):
            targets = None
        if method in (None, "full") and not uses:
            return
        if method not in (None, "lora", "qlora"):
            refuse("the method", method)
        names = targets.split(",") if isinstance(targets, str) else targets or []
        options: dict[str, Any] = {"rank": rank, "alpha": float(alpha or 2 * rank)}
        options |= {"dropout": dropout} if dropout else {}
        if known := [PROJECTIONS[name] for name in names if name in PROJECTIONS]:
            options["modules"] = known
        for name in names:
            if name not in (*PROJECTIONS, "all", "all-linear"):
                self.note("adapted modules", name, "only those of attention and MLPs are")
        self.change("fiddler:use_qlora" if has_four_bits else "fiddler:use_lora", **options)

    def run(self) -> None:
        """Map optimizer, schedule, length and memory."""
        name = str(self.value("optimizer"))
        if "adamw" not in name:
            refuse("the optimizer", name)
        if name not in _ADAMW:
            self.note("the optimizer", name, "replaced by AdamW")
        betas = self.value("adam_beta1", 0.9), self.value("adam_beta2", 0.999)
        eps, decay = self.value("adam_epsilon", 1e-8), self.value("weight_decay", 0.0)
        rate = float(self.value("rate"))
        self.adamw(rate, betas, eps, decay)
        shape = self.value("schedule")
        if shape not in _SHAPES:
            refuse("the schedule", shape)
        given = self.value("lr_scheduler_kwargs", {}).items()
        settings = {key: value for key, value in given if value is not None}
        floor = float(settings.pop("min_lr", 0.0)) / (rate or 1.0)
        least = self.value("cosine_min_lr_ratio", settings.pop("min_lr_rate", floor))
        for key, value in settings.items():
            self.note(f"lr_scheduler_kwargs.{key}", value, "fidgpt has no equivalent")
        ratio = {} if _SHAPES[shape] == "use_constant" else {"min_lr_ratio": float(least)}
        self.change(f"fiddler:{_SHAPES[shape]}", **ratio)
        # As in transformers, steps below 1 are a share, and warmup_ratio counts where steps are 0
        # or missing. The default share counts only where both are missing.
        share, steps = self.left.get("warmup_ratio"), self.value("warmup_steps")
        usual = self.value("warmup")
        warmup = float(steps or (usual if steps is None else share or 0))
        self.change("fiddler:set_warmup", warmup=warmup if 0 < warmup < 1 else int(warmup))
        parts, limit = int(self.value("gradient_accumulation_steps", 1)), self.value("max_steps", 0)
        self.length(int(self.value("size")), parts, self.value("epochs"), max(0, int(limit)))
        self.wanted["seed"] = int(self.value("seed", 42))
        self.wanted["max_grad_norm"] = float(self.value("max_grad_norm", 1.0)) or None
        others = map(self.left.get, ("torch_dtype", "dtype", "bfloat16", "pure_bf16"))
        is_narrow = any(value is True or str(value).endswith("16") for value in others)
        if self.value("fp16") or self.value("float16"):
            self.change("fiddler:use_float16")
        elif self.value("bf16") is False and not is_narrow:
            self.change("fiddler:use_float32")
        if self.value("gradient_checkpointing", self.system != _AXOLOTL):
            self.change("fiddler:use_recompute")
        if self.value("torch_compile") is True:
            self.change("fiddler:use_compile")
