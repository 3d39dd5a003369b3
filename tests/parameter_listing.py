"""The parameters of a trainer's model as text, in which equal layers are one line."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from torch import nn

from fidgpt.cost import shared_parameters
from fidgpt.train import Trainer

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def list_parameters(trainer: Trainer) -> str:
    """Shape and initialisation of every parameter, by optimizer group, and which are shared."""
    model = trainer.model
    names = {parameter: name for name, parameter in model.named_parameters()}
    lines = [f"{sum(parameter.numel() for parameter in names):,} parameters"]
    for group in trainer.optimizer(trainer.groups(model)).param_groups:
        rows = [(names[p], f"{list(p.shape)} {_start(model, names[p])}") for p in group["params"]]
        lines += [
            f"{group['name']}: lr={group['lr']} weight_decay={group['weight_decay']}",
            *(f"  {name}: {text}" for name, text in compress(rows)),
        ]
    shared = [(name, " = ".join(others)) for name, others in shared_parameters(model).items()]
    lines += ["shared", *(f"  {name} = {others}" for name, others in shared)]
    return "\n".join(lines) + "\n"


def compress(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Makes one row of those that differ in the number of a layer alone: `blocks.0..47.norm`."""
    numbers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for name, text in rows:
        layer = _LAYER.search(name)
        numbers[_LAYER.sub("*", name, count=1), text] += [int(layer[0])] if layer else []
    return [
        (name.replace("*", _ranges(layers), 1), text) for (name, text), layers in numbers.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0..2,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _start(model: nn.Module, name: str) -> str:
    init = getattr(model.get_parameter(name), "init", None)
    if init is not None:
        return repr(init)
    return f"{type(model.get_submodule(name.rpartition('.')[0])).__name__}.reset_parameters"
