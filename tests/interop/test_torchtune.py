"""Recipes of torchtune as commands: what they compose, and what is named as missing."""

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
from fidgpt.model import LoRALinear, QLoRALinear
from fidgpt.runs.building import build_trainer

RECIPE: dict[str, Any] = {
    "output_dir": "/tmp/out",
    "model": {
        "_component_": "torchtune.models.qwen2_5.lora_qwen2_5_0_5b",
        "lora_attn_modules": ["q_proj", "v_proj"],
        "apply_lora_to_mlp": True,
        "lora_rank": 16,
        "lora_alpha": 64,
        "lora_dropout": 0.1,
    },
    "tokenizer": {
        "_component_": "torchtune.models.qwen2_5.qwen2_5_tokenizer",
        "max_seq_len": 512,
    },
    "checkpointer": {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": "/nowhere/qwen",
    },
    "dataset": {
        "_component_": "torchtune.datasets.alpaca_cleaned_dataset",
        "packed": True,
        "split": "train[:95%]",
    },
    "seed": 7,
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-3},
    "lr_scheduler": {
        "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "num_warmup_steps": 10,
    },
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    "batch_size": 4,
    "gradient_accumulation_steps": 8,
    "epochs": 2,
    "max_steps_per_epoch": 100,
    "clip_grad_norm": 1.0,
    "dtype": "bf16",
    "enable_activation_checkpointing": True,
    "use_flex": True,
}


def composed(**changes: Any) -> tuple[Composition, list[str]]:
    mapped = interop.read_torchtune(write_yaml({**RECIPE, **changes}))
    composition = compose(mapped.directives, own_catalogue())
    assert other_errors(composition) == []
    return composition, mapped.unmapped


def test_a_lora_recipe_is_the_run_that_it_describes() -> None:
    composition, unmapped = composed()
    trainer = build_trainer(composition.resolved, composition.catalogue)
    assert (trainer.batch_size, trainer.micro_batch_size, trainer.num_steps) == (32, 4, 200)
    assert (trainer.seq_len, trainer.seed, trainer.max_grad_norm) == (512, 7, 1.0)
    group = trainer.optimizer(trainer.groups(trainer.model)).param_groups
    settings = {name: group[0][name] for name in ("lr", "betas", "eps", "weight_decay")}
    assert len(group) == 1
    assert settings == {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    assert [trainer.schedule(step) for step in (9, 199)] == pytest.approx([1.0, 0.0], abs=1e-3)
    adapters = [m for m in trainer.model.modules() if isinstance(m, LoRALinear)]
    assert {(len(m.lora_a), m.scale, m.dropout) for m in adapters} == {(16, 4.0, 0.1)}
    assert trainer.trainable is not None
    trained = {n for n, p in trainer.model.named_parameters() if trainer.trainable(n, p)}
    assert {name.split(".")[-2] for name in trained} == {"query", "value", "gate", "up", "down"}
    (rows,) = find(composition.config, data.Conversations)
    assert rows.train_on == "all"
    source = composition.config.data.corpus.source
    assert (source.path, source.split) == ("yahma/alpaca-cleaned", "train")
    assert composition.config.data.corpus.validation_fraction == 0.05
    assert [line.partition(":")[0] for line in unmapped] == [
        "checkpointer.checkpoint_dir",
        *("dataset", "batch_size", "use_flex"),
    ]


def test_preferences_and_a_teacher_are_steps() -> None:
    dpo, _ = composed(
        loss={"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.2, "label_smoothing": 0.1},
        dataset={"_component_": "torchtune.datasets.stack_exchange_paired_dataset"},
    )
    step = dpo.config.step
    assert fdl.get_callable(step) is train.PreferenceStep
    assert (step.preference.beta, step.preference.label_smoothing) == (0.2, 0.1)
    taught, _ = composed(
        teacher_model={"_component_": "torchtune.models.qwen2_5.qwen2_5_1_5b_instruct"},
        kd_loss={"_component_": "torchtune.modules.loss.ForwardKLWithChunkedOutputLoss"},
        kd_ratio=0.25,
    )
    step = taught.config.step
    assert fdl.get_callable(step) is train.DistillationStep
    assert (step.ratio, step.teacher.hidden_dim) == (0.25, 1536)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"_component_": "models.clip.clip_vision"}}, "config of clip_vision"),
        ({"loss": {"_component_": "torchtune.rlhf.loss.PPOLoss"}}, "no equivalent of the loss"),
        ({"dataset": {"_component_": "torchtune.datasets.x"}}, "no equivalent of the dataset"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        interop.read_torchtune(write_yaml({**RECIPE, **changes}))


def test_substitutes_are_named(tmp_path: Path) -> None:
    optimizer = {"_component_": "bitsandbytes.optim.PagedAdamW", "lr": 2e-5}
    component = "torchtune.models.qwen2_5.qlora_qwen2_5_0_5b"
    model = {"_component_": component, "lora_attn_modules": ["q_proj"], "lora_rank": 8}
    datasets = [{**RECIPE["dataset"], "max_rows": 7}, {"_component_": "torchtune.datasets.x"}]
    composition, unmapped = composed(optimizer=optimizer, model=model, dataset=datasets)
    assert "dataset.max_rows: 7 (fidgpt has no equivalent)" in unmapped
    assert "dataset: torchtune.datasets.x (one is read: write the others into its file)" in unmapped
    trainer = build_trainer(composition.resolved, composition.catalogue)
    assert any(isinstance(module, QLoRALinear) for module in trainer.model.modules())
    assert "optimizer: PagedAdamW (replaced by AdamW)" in unmapped
    assert any("not quantized again" in line for line in unmapped)
