"""What is trained: low-rank adapters alone, or all but some components."""

import re
from collections.abc import Iterator, Sequence

import fiddle as fdl

from fidgpt.graph import ConfigError, find, find_parameters, parts, swapped
from fidgpt.graph.fiddle import parameter_names
from fidgpt.model import AdaptersOf, LoRALinear, QLoRALinear, StackedLoRA, is_adapter
from fidgpt.optim import AllBut
from fidgpt.tags import Rank
from fidgpt.train import Trainer

__all__ = ["freeze", "use_lora", "use_qlora"]


def use_lora(
    cfg: fdl.Config[Trainer],
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    modules: Sequence[str] | None = None,
) -> None:
    """Train only low-rank adapters of attention, MLPs and experts.

    Each expert has adapters of its own; routers have none.

    Args:
      cfg: the graph to change.
      rank: rank of the adapters.
      alpha: scale of the adapters times `rank`; defaults to `rank`.
      dropout: probability of dropping an input of the adapters in training.
      modules: train the adapters of these alone, such as `query` and `value`; defaults to all.
    """
    options = {"rank": Rank.new(rank), "alpha": alpha, **({"dropout": dropout} if dropout else {})}
    trained = is_adapter if modules is None else fdl.Config(AdaptersOf, list(modules))
    for node in parts(cfg.model):
        for name, maker in (("linear", LoRALinear), ("adapter", StackedLoRA)):
            if name in parameter_names(node.value):
                setattr(node.value, name, fdl.Partial(maker, **options))
    frozen = find(cfg.trainable, AllBut) if isinstance(cfg.trainable, fdl.Buildable) else []
    if frozen:
        frozen[0].among = trained
    else:
        cfg.trainable = trained


def use_qlora(
    cfg: fdl.Config[Trainer],
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    modules: Sequence[str] | None = None,
) -> None:
    """Train low-rank adapters as `use_lora` does, on weights that are held in four bits.

    Linear layers of attention and MLPs hold their weights in NF4, at 4.5 bits each. Embeddings,
    routers, stacked experts and norms keep theirs. Each process of a mesh holds all of them.

    Args:
      cfg: the graph to change.
      rank: as in `use_lora`.
      alpha: as in `use_lora`.
      dropout: as in `use_lora`.
      modules: as in `use_lora`; the weights of the others are in four bits too.
    """
    use_lora(cfg, rank, alpha, dropout, modules)
    for node in parts(cfg.model):
        linear = getattr(node.value, "linear", None)
        if isinstance(linear, fdl.Buildable) and fdl.get_callable(linear) is LoRALinear:
            node.value.linear = swapped(linear, QLoRALinear)


def freeze(cfg: fdl.Config[Trainer], path: str) -> None:
    """Do not train the parameters of a component of the model, such as `model.embedding`.

    A path or selector may match several: `model.blocks[*].mlp`. What shares a frozen parameter, as
    tied embeddings do, has it frozen too.

    Args:
      cfg: the graph to change.
      path: of the component, or a selector of several.
    """
    modules = [module for ref in find_parameters(cfg, path) for module in _modules(cfg, ref.path)]
    now = cfg.trainable
    if isinstance(now, fdl.Buildable) and fdl.get_callable(now) is AllBut:
        now.modules = list(dict.fromkeys([*now.modules, *modules]))
    else:
        cfg.trainable = fdl.Config(AllBut, modules=list(dict.fromkeys(modules)), among=now)


def _modules(cfg: fdl.Config[Trainer], path: str) -> Iterator[str]:
    """Yield the built model's names of the modules at a path: blocks repeat over its layers."""
    if not path.startswith("model."):
        raise ConfigError(f"{path} is not in the model: give a path such as model.embedding.")
    name = path.removeprefix("model.")
    block = re.match(r"(first_blocks|blocks)(?:\[(\d+)\])?(?=[.]|$)", name)
    if block is None:
        yield name
        return
    num_first, num_blocks = len(cfg.model.first_blocks or ()), len(cfg.model.blocks)
    is_first, rest = block[1] == "first_blocks", name[block.end() :]
    every = range(num_first if is_first else num_blocks)
    for index in every if block[2] is None else [int(block[2])]:
        layers = str(index) if is_first else f"{num_first + index}::{num_blocks}"
        yield f"blocks[{layers}]{rest}"
