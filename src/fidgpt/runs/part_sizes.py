"""The parameters of each part of a config, by the modules that it becomes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from fidgpt.cost import bytes_of
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.graph.page import Size
from fidgpt.graph.walk import join, parts
from fidgpt.model.transformer import Transformer


def part_sizes(part: Any, module: nn.Module, *, path: str) -> dict[str, Size]:
    """Return how many parameters each part of a model has, by the path of the part.

    A part is found by the attribute of a module that has the name of its argument; those that
    are kept by another name, and those without parameters, are left out. A parameter that several
    parts share counts in each of them.

    Args:
      part: the node that `module` was built from, bound.
      module: may be on the meta device.
      path: of the node.
    """
    sizes: dict[str, Size] = {}
    objects: dict[int, list[Any]] = {id(part): [module]}
    for node in parts(part):
        made = [*dict.fromkeys(objects.get(id(node.value), ()))]
        held = {
            parameter
            for part in made
            for parameter in (part.parameters() if isinstance(part, nn.Module) else [part])
        }
        if held:
            count = sum(parameter.numel() for parameter in held)
            step = f".{node.path}" if node.path[:1] not in ("", "[") else node.path
            sizes[join(path, step)] = Size(len(made), count, bytes_of(held))
        arguments = raw_arguments(node.value)
        for name in arguments:
            for created in made:
                for item, results in _made_for(created, str(name), arguments):
                    known = (w for w in results if isinstance(w, nn.Module | nn.Parameter))
                    objects.setdefault(id(item), []).extend(known)
    return sizes


def _made_for(
    module: Any, name: str, arguments: Mapping[Any, Any]
) -> Iterable[tuple[Any, Sequence[Any]]]:
    """Return each item of an argument of a module, with the objects that it became."""
    argument, result = arguments[name], getattr(module, name, None)
    if isinstance(module, Transformer) and name in ("blocks", "first_blocks"):
        layers, first = list(module.blocks), len(arguments.get("first_blocks", ()))
        if name == "first_blocks":
            return zip(argument, ([layer] for layer in layers), strict=False)
        count = len(argument)
        return (
            (item, layers[first + (i - first) % count :: count]) for i, item in enumerate(argument)
        )
    if isinstance(argument, list | tuple) and isinstance(result, nn.ModuleList):
        return zip(argument, ([item] for item in result), strict=False)
    return [(argument, [result])]
