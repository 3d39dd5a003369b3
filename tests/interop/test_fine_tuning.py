"""Files of Axolotl, LLaMA-Factory and TRL as commands: what they compose, and what is named."""

from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import data, interop, train
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.report import other_errors
from fidgpt.graph import ConfigError, find
from fidgpt.graph.yaml import write_yaml
from fidgpt.interop.__main__ import main
from fidgpt.model import LoRALinear, QLoRALinear
from fidgpt.runs.building import build_trainer
from fidgpt.train import Trainer

AXOLOTL: dict[str, Any] = {
    "base_model": "Qwen/Qwen2.5-0.5B-Instruct",
    "load_in_4bit": True,
    "adapter": "qlora",
    "datasets": [
        {"path": "talks.jsonl", "type": "chat_template"},
        {"path": "more", "type": "alpaca"},
    ],
    "val_set_size": 0.1,
    "sequence_len": 1024,
    "sample_packing": True,
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "down_proj", "c_fc"],
    "gradient_accumulation_steps": 4,
    "micro_batch_size": 2,
    "max_steps": 70,
    "optimizer": "paged_adamw_8bit",
    "lr_scheduler": "cosine",
    "learning_rate": 0.0002,
    "adam_beta2": 0.95,
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "bf16": "auto",
    "gradient_checkpointing": True,
    "wandb_project": "mine",
    "saves_per_epoch": 1,
    "loss_watchdog_threshold": 5.0,
}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Llama-3.2-1B-Instruct",
    "stage": "dpo",
    "finetuning_type": "lora",
    "lora_rank": 8,
    "lora_target": "all",
    "pref_beta": 0.2,
    "pref_loss": "orpo",
    "dataset": "pairs",
    "template": "llama3",
    "cutoff_len": 512,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "learning_rate": 5e-6,
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 20,
    "bf16": True,
    "plot_loss": True,
}
TRL: dict[str, Any] = {
    "model_name_or_path": "HuggingFaceTB/SmolLM2-135M",
    "dataset_name": "some/talks",
    "dataset_config": "all",
    "dataset_train_split": "train_sft",
    "chat_template": "{{ messages }}",
    "assistant_only_loss": True,
    "max_length": 256,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "max_grad_norm": 0.2,
    "seed": 7,
    "report_to": ["wandb"],
}


def composed(document: dict[str, Any]) -> tuple[Composition, list[str]]:
    mapped = interop.read_fine_tuning(write_yaml(document))
    composition = compose(mapped.directives, own_catalogue())
    assert other_errors(composition) == []
    return composition, [line.partition(":")[0] for line in mapped.unmapped]


def built(composition: Composition) -> Trainer:
    return build_trainer(composition.resolved, composition.catalogue)


@pytest.mark.slow(3)
def test_a_file_of_axolotl_is_the_run_that_it_describes() -> None:
    composition, unmapped = composed(AXOLOTL)
    trainer = built(composition)
    assert (trainer.batch_size, trainer.micro_batch_size, trainer.num_steps) == (8, 2, 70)
    assert (trainer.seq_len, trainer.seed, trainer.max_grad_norm) == (1024, 42, 1.0)
    assert trainer.model.get_parameter("embedding.weight").shape == (151936, 896)
    group = trainer.optimizer(trainer.groups(trainer.model)).param_groups[0]
    settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    assert settings == {"lr": 2e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
    assert [trainer.schedule(step) for step in (6, 69)] == pytest.approx([1.0, 0.0], abs=2e-3)
    adapters = [one for one in trainer.model.modules() if isinstance(one, QLoRALinear)]
    assert {(len(one.lora_a), one.scale, one.dropout) for one in adapters} == {(32, 0.5, 0.05)}
    assert trainer.trainable is not None
    trained = {n for n, p in trainer.model.named_parameters() if trainer.trainable(n, p)}
    assert {name.split(".")[-2] for name in trained} == {"query", "down"}
    (rows,) = find(composition.config, data.Conversations)
    assert rows.train_on == "assistant"
    assert composition.config.data.corpus.source.path == "talks.jsonl"
    assert composition.config.data.corpus.validation_fraction == 0.1
    assert unmapped == [
        *("the model", "datasets", "adapted modules", "the optimizer", "batch_size"),
        "loss_watchdog_threshold",
    ]


@pytest.mark.slow(3)
def test_a_file_of_llama_factory_is_the_run_that_it_describes() -> None:
    composition, unmapped = composed(FACTORY)
    trainer = built(composition)
    assert isinstance(trainer.step, train.PreferenceStep)
    assert fdl.get_callable(composition.config.step.preference) is train.ORPO
    assert composition.config.step.preference.beta == 0.2
    adapters = [one for one in trainer.model.modules() if isinstance(one, LoRALinear)]
    assert {(len(one.lora_a), one.scale) for one in adapters} == {(8, 2.0)}  # alpha: twice the rank
    assert [trainer.schedule(step) for step in (9, 100)] == pytest.approx([0.5, 1.0], abs=0.03)
    assert composition.config.data.corpus.tokenizer.template == "llama3"
    assert unmapped == ["the model", "dataset", "batch_size", "epochs"]


@pytest.mark.slow(3)
def test_a_file_of_trl_is_the_run_that_it_describes() -> None:
    composition, unmapped = composed(TRL)
    trainer = built(composition)
    assert not any(isinstance(one, LoRALinear) for one in trainer.model.modules())
    assert (trainer.seed, trainer.max_grad_norm) == (7, 0.2)
    assert trainer.schedule(trainer.num_steps - 1) == pytest.approx(0.1, abs=1e-3)
    source = composition.config.data.corpus.source
    assert (source.path, source.name, source.split) == ("some/talks", "all", "train_sft")
    assert source.rows.train_on == "assistant"
    assert unmapped == ["the model", "the chat template", "packing", "batch_size", "epochs"]
    plain, _ = composed({key: TRL[key] for key in TRL if key != "assistant_only_loss"})
    assert plain.config.data.corpus.source.rows.train_on == "all"  # as TRL does by default
    pairs, _ = composed({**TRL, "beta": 0.05})
    assert fdl.get_callable(pairs.config.step.preference) is train.DPO
    odds, _ = composed({**TRL, "beta": 0.05, "output_dir": "out/my-orpo"})
    assert fdl.get_callable(odds.config.step.preference) is train.ORPO


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({**AXOLOTL, "base_model": "some/unknown-7B"}, "no named config of some/unknown-7B"),
        ({**AXOLOTL, "rl": "kto"}, "no equivalent of the loss 'kto'"),
        ({**AXOLOTL, "reward_model": True}, "no equivalent of the setting 'reward_model'"),
        ({**AXOLOTL, "optimizer": "rmsprop"}, "no equivalent of the optimizer 'rmsprop'"),
        ({**AXOLOTL, "lr_scheduler": "rex"}, "no equivalent of the schedule 'rex'"),
        ({**FACTORY, "finetuning_type": "oft"}, "no equivalent of the method 'oft'"),
        ({**FACTORY, "dataset": None}, "it names no dataset"),
        ({"trainer": {}}, "no file of Axolotl, LLaMA-Factory or TRL"),
    ],
)
def test_what_is_missing_is_named(document: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        interop.read_fine_tuning(write_yaml(document))


def test_the_command_prints_the_directives_and_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "qlora.yml"
    path.write_text(write_yaml({**AXOLOTL, "pretraining_dataset": [{"path": "c4", "name": "en"}]}))
    assert main([str(path)]) == 0
    command, *rest = capsys.readouterr().out.split("\n# ")
    assert "'--config=fiddler:use_hub_text(path='" in command and "use_qlora(rank=32" in command
    assert "loss_watchdog_threshold: 5.0 (fidgpt has no equivalent)" in [
        one.strip() for one in rest
    ]
