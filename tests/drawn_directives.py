"""Random directives for a config of any family: fiddlers, their arguments, values and tags."""

import inspect
import random
from collections.abc import Iterable
from typing import Any

import fiddle as fdl
from small_models import ARGUMENTS, FAMILIES, OF_MIXTURES

from fidgpt import configs, fiddlers, graph
from fidgpt.graph.fiddle import argument_tags
from fidgpt.graph.walk import join, step_to
from fidgpt.model import MoE

ALL_FAMILIES = ("base", *FAMILIES, "mistral_7b", "qwen2_5_0_5b")
_OTHERS = (
    "untie:model.unembedding.weight",
    "untie:model.blocks[0].mlp.init",
    "tie:model.unembedding.weight=model.embedding.weight",
    "use:model.norm=RMSNorm(eps=1e-3)",
    "use:**.mlp.router=SigmoidRouter",
    "use:schedule=Constant(warmup_steps=5)",
    "set:trackers+=[TensorBoard]",
    "set:**.mlp.ffn_dim=64",
    "del:max_grad_norm",
    "del:model.blocks[0].attention.rope",
)


def called(name: str, **arguments: Any) -> str:
    """The directive that calls a fiddler, with the arguments that it needs and these."""
    given = ARGUMENTS.get(name, {}) | arguments
    return f"fiddler:{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def changed(value: Any) -> Any:
    """Another value of the same type; None for one that has no other."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.5 + 0.001
        case str():
            return f"{value}x"
    return None


def draw_directives(draw: random.Random, cfg: fdl.Config, count: int) -> list[str]:
    """Different directives at random: most are fiddlers, some with another argument."""
    parameters = _parameters(cfg)
    tags = sorted({one.__name__ for node in graph.parts(cfg) for one in _number_tags(node.value)})
    found: dict[str, None] = {}
    while len(found) < count:
        match draw.choices(("fiddler", "argument", "set", "tag", "other"), (5, 2, 3, 1, 1))[0]:
            case "fiddler":
                found[called(draw.choice(fiddlers.__all__))] = None
            case "argument":
                found[_with_another_argument(draw, draw.choice(fiddlers.__all__))] = None
            case "set":
                path = draw.choice([*parameters])
                found[f"set:{path}={changed(parameters[path])!r}"] = None
            case "tag":
                found[f"tag:{draw.choice(tags)}={draw.choice((2, 3, 0.5))}"] = None
            case _:
                found[draw.choice(_OTHERS)] = None
    return [*found]


def is_mixture(directives: Iterable[str]) -> bool:
    """Whether one of some directives changes mixtures of experts."""
    return any(f"fiddler:{name}(" in one for one in directives for name in OF_MIXTURES)


def start_for(family: str, directives: list[str]) -> fdl.Config:
    """The config of a family; a mixture, if one of the directives changes mixtures."""
    cfg = getattr(configs, family)()
    has_mixture = any(fdl.get_callable(node.value) is MoE for node in graph.parts(cfg))
    if is_mixture(directives) and not has_mixture:
        fiddlers.use_moe(cfg)
    return cfg


def _with_another_argument(draw: random.Random, name: str) -> str:
    parameters = [*inspect.signature(getattr(fiddlers, name)).parameters.values()][1:]
    others = {
        one.name: other
        for one in parameters
        if one.default is not one.empty and (other := changed(one.default)) is not None
    }
    key = draw.choice([*others]) if others else None
    return called(name, **({key: others[key]} if key else {}))


def _parameters(cfg: fdl.Config) -> dict[str, Any]:
    """The paths of plain values that a graph sets, and the values."""
    return {
        join(node.path, step_to(key)): value
        for node in graph.parts(cfg)
        for key, value in fdl.ordered_arguments(node.value).items()
        if isinstance(key, str) and changed(value) is not None
    }


def _number_tags(part: fdl.Buildable) -> set[Any]:
    """The tags of the numbers that a node sets."""
    known = fdl.ordered_arguments(part)
    return {
        tag
        for key, tags in argument_tags(part).items()
        if isinstance(known.get(str(key)), int | float)
        for tag in tags
    }
