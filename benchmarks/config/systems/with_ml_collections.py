"""ml_collections: a ConfigDict, its flag, its JSON; what is built is built by hand."""

import json
from typing import Any

import ml_collections  # pyright: ignore[reportMissingImports]
import parts
import recipe
from absl import flags
from ml_collections import config_flags  # pyright: ignore[reportMissingImports]
from ml_collections.config_flags import config_path  # pyright: ignore[reportMissingImports]


class System:
    """One `ConfigDict` inside another."""

    def config(self, num_blocks: int) -> Any:
        return recipe.config(num_blocks, lambda part, **values: ml_collections.ConfigDict(values))

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        return self.override(self.config(num_blocks), changes)

    def override(self, cfg: Any, changes: dict[str, Any]) -> Any:
        holder = flags.FlagValues()
        words = ["program", *(f"--config.{path}={value}" for path, value in changes.items())]
        flag = config_flags.DEFINE_config_dict("config", cfg, flag_values=holder, sys_argv=words)
        holder(words)
        return flag.value

    def assign(self, cfg: Any, changes: dict[str, Any]) -> Any:
        for path, value in changes.items():
            config_path.set_value(path, cfg, value)
        return cfg

    def build(self, cfg: Any) -> Any:
        model = cfg.model
        return parts.Trainer(
            **_but(cfg, "model", "optimizer", "schedule", "data", "checkpoints"),
            model=parts.Gpt(
                **_but(model, "embedding", "blocks", "final_norm", "unembedding"),
                embedding=parts.Embedding(**model.embedding),
                blocks=[_block(block) for block in model.blocks],
                final_norm=parts.Norm(**model.final_norm),
                unembedding=parts.Unembedding(**model.unembedding),
            ),
            optimizer=parts.Optimizer(**cfg.optimizer),
            schedule=parts.Schedule(**cfg.schedule),
            data=parts.Data(**cfg.data),
            checkpoints=parts.Checkpoints(**cfg.checkpoints),
        )

    def save(self, cfg: Any) -> str:
        return cfg.to_json()

    def load(self, text: str) -> Any:
        cfg = ml_collections.ConfigDict(json.loads(text))
        cfg.model.blocks = [ml_collections.ConfigDict(block) for block in cfg.model.blocks]
        return cfg  # it leaves what lies in a list as it is

    def diff(self, old: Any, new: Any) -> Any:
        return parts.differences(_tree(old), _tree(new))

    def show(self, cfg: Any) -> str:
        return str(cfg)


def _tree(cfg: Any) -> dict[str, Any]:
    tree = cfg.to_dict()
    tree["model"]["blocks"] = [block.to_dict() for block in cfg.model.blocks]
    return tree


def _block(cfg: Any) -> parts.Block:
    return parts.Block(
        **_but(cfg, "attention_norm", "attention", "mlp_norm", "mlp"),
        attention_norm=parts.Norm(**cfg.attention_norm),
        attention=parts.Attention(
            **_but(cfg.attention, "rope"), rope=parts.Rope(**cfg.attention.rope)
        ),
        mlp_norm=parts.Norm(**cfg.mlp_norm),
        mlp=parts.Mlp(**cfg.mlp),
    )


def _but(cfg: Any, *names: str) -> dict[str, Any]:
    return {name: value for name, value in cfg.items() if name not in names}
