"""Files of Axolotl, LLaMA-Factory and TRL as commands: what they compose, and what is named."""

from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import data, interop, train
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.report import other_errors
from fidgpt.cost import count_parameters
from fidgpt.graph import ConfigError, bind, find
from fidgpt.graph.yaml import write_yaml
from fidgpt.interop.__main__ import main
from fidgpt.interop.recipes import model_directives
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


def test_axolotls_defaults_and_the_rest_of_a_dataset() -> None:
    text = {"path": "c4", "type": "completion", "field": "body", "split": "some[:1%]"}
    document = {key: AXOLOTL[key] for key in AXOLOTL if key != "warmup_ratio"}
    composition, unmapped = composed({**document, "datasets": [text]})
    assert composition.config.schedule.warmup == 0.03
    assert composed({**AXOLOTL, "warmup_steps": 0})[0].config.schedule.warmup == 0.1
    assert composed({**document, "warmup_steps": 0})[0].config.schedule.warmup == 0
    row = {"path": "talks.jsonl", "type": "alpaca", "message_field_training": "train"}
    unmapped += composed({**AXOLOTL, "datasets": [row]})[1]
    source = composition.config.data.corpus.source
    assert (source.text_field, source.split) == ("body", "some")
    assert {f"datasets.{n}" for n in ("split", "type", "message_field_training")} <= {*unmapped}


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
    odds, _ = composed({**TRL, "output_dir": "out/my-orpo"})
    assert fdl.get_callable(odds.config.step.preference) is train.ORPO
    assert odds.config.optimizer.lr == 1e-6  # the default of ORPOConfig; of SFTConfig it is 2e-5
    older = {"dataset_train_split": None, "dataset_splits": ["train_prefs", "test_prefs"]}
    pairs, _ = composed({**TRL, **older, "beta": 0.05})  # of the alignment handbook
    assert pairs.config.data.corpus.source.split == "train_prefs"
    plain, _ = composed({**TRL, "output_dir": "endpoint", "loss_type": "nll", "warmup_steps": 0.2})
    assert not isinstance(built(plain).step, train.PreferenceStep)
    assert plain.config.optimizer.lr == 2e-5
    assert plain.config.schedule.warmup == 0.2  # a share, as in transformers
    least = {"min_lr": 2e-6, "num_cycles": 2}  # a tenth of the rate
    mixed = {"dataset_name": None, "dataset_mixer": {"some/talks": 0.5, "others": 1.0}}
    part, rest = composed({**TRL, **mixed, "lr_scheduler_kwargs": least, "bf16": False})
    assert part.config.schedule.min_lr_ratio == pytest.approx(0.1)
    assert {"datasets.some/talks", "lr_scheduler_kwargs.num_cycles"} <= {*rest}
    assert fdl.get_callable(part.config.precision) is train.Float32
    narrow, _ = composed({**TRL, "use_peft": True})
    assert narrow.config.trainable.modules == ["query", "value"]  # peft's default for Llama


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({**AXOLOTL, "base_model": "some/unknown-7B"}, "no named config of some/unknown-7B"),
        ({**AXOLOTL, "rl": "kto"}, "no equivalent of the loss 'kto'"),
        ({**AXOLOTL, "reward_model": True}, "no equivalent of the setting 'reward_model'"),
        ({**AXOLOTL, "processor_type": "AutoProcessor"}, "no equivalent of .* 'processor_type'"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "parameters", "theta", "window"),
    [  # of the model's files and of its config.json on the hub
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384, 1e4, None),
        ("codellama/CodeLlama-7b-hf", 6_738_546_688, 1e6, None),
        ("codellama/CodeLlama-13b-hf", 13_016_028_160, 1e6, None),
        ("codellama/CodeLlama-34b-hf", 33_743_970_304, 1e6, None),
        ("01-ai/Yi-34B-Chat", 34_388_917_248, 5e6, None),
        ("mistralai/Mistral-7B-Instruct-v0.1", 7_241_732_096, 1e4, 4096),
        ("mistralai/Mistral-7B-Instruct-v0.2", 7_241_732_096, 1e6, None),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552, 1e6, None),
        ("mistralai/Devstral-Small-2507", 23_572_403_200, 1e9, None),
        ("Qwen/Qwen3-4B", 4_022_468_096, 1e6, None),
        ("Qwen/Qwen3-4B-Thinking-2507", 4_022_468_096, 5e6, None),
        ("Qwen/Qwen2.5-Math-7B-Instruct", 7_615_616_512, 1e4, None),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 7_615_616_512, 1e6, None),
        ("lora_llama3_3_70b", 70_553_706_496, 5e5, None),  # torchtune's
    ],
)
def test_a_model_of_the_hub_has_the_sizes_of_its_files(
    model: str, parameters: int, theta: float, window: int | None
) -> None:
    cfg = compose(model_directives(model), own_catalogue()).config
    with torch.device("meta"):
        whole: Any = fdl.build(bind(cfg).model)
    assert count_parameters(whole).total == parameters
    attention = whole.blocks[0].attention
    assert (attention.rope.theta, attention.window) == (theta, window)


@pytest.mark.parametrize(
    "model",
    [
        "microsoft/Phi-3-mini-128k-instruct",
        "HuggingFaceH4/zephyr-7b-gemma-v0.1",
        "Qwen/Qwen3-VL-4B",
    ],
)
def test_a_name_that_contains_the_name_of_another_architecture_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=f"no named config of {model}"):
        model_directives(model)


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
