"""Conversion of fine-tuning files of Axolotl, LLaMA-Factory and TRL to directives."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from fidgpt import configs
from fidgpt.compose.sources import read_text
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.hugging_face.files import is_hub_directory
from fidgpt.interop.levanter import Mapped
from fidgpt.interop.recipes import FROM_CHECKPOINT, NAMES, PACKED, PROJECTIONS, Recipe

_NOTHING = None, None, None
# The keys of each setting in Axolotl, LLaMA-Factory or TRL, and what they take without it.
_SETTINGS: dict[str, tuple[str, tuple[Any, Any, Any]]] = {
    "base": ("base_model model_name_or_path", _NOTHING),
    "kind": ("rl stage", _NOTHING),
    "loss": ("pref_loss loss_type", _NOTHING),
    "beta": ("dpo_beta rl_beta orpo_alpha pref_beta beta", (0.1, 0.1, None)),
    "datasets": ("datasets dataset_mixture dataset dataset_mixer dataset_name", _NOTHING),
    "template": ("chat_template template chat_template_path", _NOTHING),
    "all": ("train_on_inputs train_on_prompt", _NOTHING),
    "seq_len": ("sequence_len cutoff_len max_length max_seq_length", (512, 2048, 1024)),
    "packing": ("sample_packing packing", _NOTHING),
    "validation": ("val_set_size val_size", (0, 0, 0)),
    "method": ("adapter finetuning_type", (None, "lora", None)),
    "rank": ("lora_r lora_rank", (8, 8, 16)),
    "alpha": ("lora_alpha", (16, None, 32)),  # None is twice the rank
    "dropout": ("lora_dropout", (0.0, 0.0, 0.05)),
    "targets": ("lora_target_modules lora_target", _NOTHING),
    "size": ("micro_batch_size per_device_train_batch_size", (1, 8, 8)),
    "epochs": ("num_epochs num_train_epochs", (1, 3, 3)),
    "schedule": ("lr_scheduler lr_scheduler_type", ("cosine", "linear", "linear")),
    "optimizer": ("optimizer optim", ("adamw_torch", "adamw_torch", "adamw_torch")),
    "rate": ("learning_rate", (5e-5, 5e-5, 2e-5)),
}
_AXOLOTL, _FACTORY, _TRL = range(3)
_BASES = {"base_model", "model_name_or_path"}
_LOSSES = {"sigmoid": "dpo", **{name: name for name in ("dpo", "ipo", "orpo")}}
_SHAPES = {
    **{name: "use_cosine" for name in ("cosine", "cosine_with_min_lr")},
    **{name: "use_constant" for name in ("constant", "constant_with_warmup")},
    **{"linear": "use_linear", "inverse_sqrt": "use_inverse_sqrt"},
}
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
# Settings of the system, its records and kernels, which a run here decides or writes by itself.
_ELSEWHERE = re.compile(
    "(wandb|mlflow|comet|swanlab|hub|logging|saves?|evals?|dataloader|log|preprocessing|ddp|do|is|"
    "liger|xformers|flash|sdp|report|overwrite|model|tokenizer|ray|early_stopping|auto)_.*|.*attn.*|"
    "dataset_(num_proc|prepared_path|processes|dir|test_split|splits)|push_to_hub|plot_loss|run_name|"
    "output_dir|tf32|resume_from_checkpoint|trust_remote_code|gradient_checkpointing_kwargs|debug|"
    "(torch_)?dtype|(pure_)?bf16|bfloat16|use_liger_kernel|remove_unused_columns|strict|pad_to_sequence_len|packing_.*|"
    "group_by_length|max_prompt_length|average_tokens_across_devices|plugins|per_device_eval_.*"
)


def read_fine_tuning(text_or_path: str | Path) -> Mapped:
    """Return the directives for a file of Axolotl, LLaMA-Factory or TRL, and what is missing here.

    Unset entries have the defaults of that system, as of 2026.

    Args:
      text_or_path: contents of the file, or a Path to it.

    Raises:
      ConfigError: the file cannot be read, or asks for a model, a loss or adapters that fidgpt does
        not have.
    """
    is_text = isinstance(text_or_path, str)
    name, text = ("the file", text_or_path) if is_text else read_text(str(text_or_path))
    with at(name):
        document = read_yaml(text)
        if not isinstance(document, dict) or not document.keys() & _BASES:
            raise ConfigError("it is no file of Axolotl, LLaMA-Factory or TRL.")
        recipe = _File(document, str(name))
        for convert in (recipe.model, recipe.data, recipe.adapters, recipe.run):
            convert()
        return recipe.mapped(_ELSEWHERE)


def _named_config(model: str) -> str:
    """Return the named config with the architecture of a model of the hub.

    Raises:
      ConfigError: there is none.
    """
    name = re.sub("[^a-z0-9]|coder|math|safeguard", "", model.rpartition("/")[2].lower())
    sized = {config: config for config in configs.__all__ if any(map(str.isdigit, config))}
    named = {**sized, **NAMES, "zephyr_7b_s": "mistral_7b"}
    fitting = [short for short in named if short.replace("_", "") in name]
    if not fitting:
        raise ConfigError(
            f"fidgpt has no named config of {model:.80}: download the model, and name its "
            "directory in the file."
        )
    return named[max(fitting, key=lambda short: len(short.replace("_", "")))]


class _File(Recipe):
    """A conversion, by the names in `_SETTINGS`."""

    def __init__(self, document: Mapping[str, Any], name: str) -> None:
        super().__init__(document)
        is_factory = document.keys() & {"stage", "finetuning_type", "cutoff_len", "template"}
        self.system = _FACTORY if is_factory else _TRL
        if "base_model" in document:
            self.system = _AXOLOTL
        # A file of TRL does not say which trainer reads it.
        about = [name, *(str(document.get(key)) for key in ("output_dir", "hub_model_id"))]
        self.trainer = next((loss for loss in _LOSSES if loss in " ".join(about)), "dpo")

    def take(self, setting: str, default: Any = None) -> Any:
        """Remove a setting; return its value, or the default of the system."""
        keys, defaults = _SETTINGS.get(setting, (setting, (default,) * 3))
        values = [self.left.pop(key, None) for key in keys.split()]
        return next((value for value in values if value is not None), defaults[self.system])

    def refuse(self, what: str, value: Any) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(f"fidgpt has no equivalent of {what} {value!r:.80}.")

    def model(self) -> None:
        """Map the model, which is read if it is on this machine."""
        base = str(self.take("base"))
        if is_hub_directory(Path(base).expanduser()):
            self.directives.append(f"config:chat(base={base!r})")
        else:
            self.directives.append(f"config:{_named_config(base)}")
            self.note("the model", base, FROM_CHECKPOINT)

    def data(self) -> None:
        """Map the dataset, with what counts in the loss."""
        self.set("seq_len", int(self.take("seq_len")))
        for key in ("reward_model", "process_reward_model", "reward_funcs"):
            if self.take(key):
                self.refuse("the setting", key)
        kind, beta, loss = self.take("kind"), self.take("beta"), self.take("loss")
        if self.system == _TRL and (beta is not None or loss is not None):
            kind = self.trainer
        dataset = self.dataset()
        is_text = dataset.pop("is_text") or kind == "pt"
        file = dataset["path"].endswith((".json", ".jsonl", ".parquet"))
        options = {"path": dataset["path"]} if file else dataset
        packing = self.take("packing")
        if is_text:
            self.fiddle("use_text" if file else "use_hub_text", **options)
        elif kind in (None, "sft"):
            options |= {"train_on": self.counted(), **self.template()}
            self.fiddle("use_conversations" if file else "use_hub_conversations", **options)
            if not packing:
                self.note("packing", False, PACKED)
        else:
            loss = (loss or "sigmoid") if kind == "dpo" else kind
            if loss not in _LOSSES:
                self.refuse("the loss", loss)
            options |= {"beta": float(beta or 0.1), "loss": _LOSSES[loss], **self.template()}
            self.fiddle("use_preferences" if file else "use_hub_preferences", **options)
            return
        share = self.take("validation", 0)
        self.set("data.corpus.validation_fraction", share if share < 1 else 0)
        if not 0 < share < 1:
            self.directives.append("set:evaluators={}")

    def dataset(self) -> dict[str, Any]:
        """Remove the datasets; return the arguments of the first one, and whether it is text."""
        text = self.take("pretraining_dataset")
        datasets = text or self.take("datasets")
        if isinstance(datasets, dict):  # TRL's mixtures: a list, or fractions by name
            datasets = datasets.get("datasets") or [*datasets]
        if isinstance(datasets, str):
            datasets = datasets.split(",")
        listed: list[Any] = datasets or [{}]
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
        name = first.get("name") or first.get("config") or self.take("dataset_config")
        split = first.get("split") or self.take("dataset_train_split")
        others = {"name": name, "split": split if re.fullmatch(r"\w+", str(split)) else None}
        return {
            "path": str(path).strip(),
            **{key: value for key, value in others.items() if value},
            "is_text": bool(text) or str(first.get("type")) in ("completion", "pretrain"),
        }

    def counted(self) -> str:
        """Return which tokens count in the loss."""
        if self.system == _TRL:  # all, unless its file says otherwise
            return "assistant" if self.take("assistant_only_loss") else "all"
        if self.take("mask_history"):
            return "last"
        return "all" if self.take("all") else "assistant"

    def template(self) -> dict[str, str]:
        """Return the chat template, unless it is the tokenizer's own."""
        template = self.take("template")
        if template in ("chatml", "llama3"):
            return {"template": template}
        if template not in (None, "tokenizer_default"):
            why = "the tokenizer's own is taken: template=FILE takes another"
            self.note("the chat template", template, why)
        return {}

    def adapters(self) -> None:
        """Map adapters, and the weights that they adapt."""
        has_four_bits = self.take("load_in_4bit") or self.take("quantization_bit") == 4
        method, uses = self.take("method"), self.take("use_peft")
        rank, alpha = int(self.take("rank")), self.take("alpha")
        dropout, targets = float(self.take("dropout")), self.take("targets")
        if self.take("lora_target_linear"):
            targets = None
        if method in (None, "full") and not uses:
            return
        if method not in (None, "lora", "qlora"):
            self.refuse("the method", method)
        names = targets.split(",") if isinstance(targets, str) else targets or []
        options: dict[str, Any] = {"rank": rank, "alpha": float(alpha or 2 * rank)}
        options |= {"dropout": dropout} if dropout else {}
        if modules := [PROJECTIONS[name] for name in names if name in PROJECTIONS]:
            options["modules"] = modules
        for name in names:
            if name not in (*PROJECTIONS, "all", "all-linear"):
                self.note("adapted modules", name, "only those of attention and MLPs are")
        self.fiddle("use_qlora" if has_four_bits else "use_lora", **options)

    def run(self) -> None:
        """Map optimizer, schedule, length and memory."""
        name = str(self.take("optimizer"))
        if "adamw" not in name:
            self.refuse("the optimizer", name)
        if name not in _ADAMW:
            self.note("the optimizer", name, "replaced by AdamW")
        betas = self.take("adam_beta1", 0.9), self.take("adam_beta2", 0.999)
        eps, decay = self.take("adam_epsilon", 1e-8), self.take("weight_decay", 0.0)
        self.adamw(self.take("rate"), betas, eps, decay)
        shape = self.take("schedule")
        if shape not in _SHAPES:
            self.refuse("the schedule", shape)
        settings = self.take("lr_scheduler_kwargs", {})
        least = self.take("cosine_min_lr_ratio", settings.get("min_lr_rate", 0.0))
        ratio = {} if _SHAPES[shape] == "use_constant" else {"min_lr_ratio": float(least)}
        self.fiddle(_SHAPES[shape], **ratio)
        steps, share = self.take("warmup_steps"), self.take("warmup_ratio", 0)
        self.fiddle("set_warmup", warmup=int(steps) if steps else float(share) or 0)
        parts, limit = int(self.take("gradient_accumulation_steps", 1)), self.take("max_steps", 0)
        self.length(int(self.take("size")), parts, self.take("epochs"), max(0, int(limit)))
        self.set("seed", int(self.take("seed", 42)))
        self.set("max_grad_norm", float(self.take("max_grad_norm", 1.0)) or None)
        if self.take("fp16") or self.take("float16"):
            self.fiddle("use_float16")
        if self.take("gradient_checkpointing", self.system == _FACTORY):
            self.fiddle("use_recompute")
        if self.take("torch_compile") is True:
            self.fiddle("use_compile")
