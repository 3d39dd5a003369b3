"""The golden of a named config: what its graph and its model hold, or how they differ from another.

A config that is made from another one is held as its difference from it, so that a default that
changes moves one line of one golden, and not of all.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache

import fiddle as fdl
from torch import nn

from fidgpt import configs
from fidgpt.compose.runs import build_trainer
from fidgpt.cost import shared_parameters
from fidgpt.graph.outlines import Row, rows
from fidgpt.graph.provenance import provenance_of

# The first of a family differs from base, its other sizes from the first.
FAMILIES = {
    "debug": (),
    "gpt2_124m": ("gpt2_355m", "gpt2_774m", "gpt2_1558m"),
    "llama2_7b": ("llama2_13b", "llama2_70b"),
    "llama3_2_1b": ("llama3_2_3b", "llama3_1_8b", "llama3_1_70b", "llama3_1_405b"),
    "llama3_8b": ("llama3_70b",),
    "mistral_7b": ("mistral_7b_v0_3", "mistral_nemo_12b", "mistral_small_24b"),
    "qwen2_5_0_5b": tuple(f"qwen2_5_{size}" for size in ("1_5b", "3b", "7b", "14b", "32b", "72b")),
    "qwen3_0_6b": tuple(f"qwen3_{size}" for size in ("1_7b", "4b", "8b", "14b", "32b")),
    "gemma2_2b": ("gemma2_9b", "gemma2_27b"),
    "gemma3_270m": tuple(f"gemma3_{size}" for size in ("1b", "4b", "12b", "27b")),
    "olmo2_1b": ("olmo2_7b", "olmo2_13b", "olmo2_32b"),
    "smollm_135m": ("smollm_360m", "smollm_1_7b"),
    "smollm2_135m": ("smollm2_360m", "smollm2_1_7b"),
    "smollm3_3b": (),
    "mixtral_8x7b": ("mixtral_8x22b",),
    "qwen3_30b_a3b": ("qwen3_235b_a22b",),
    "deepseek_v2_lite": (),
    "deepseek_v3": (),
    "gpt_oss_20b": ("gpt_oss_120b",),
}
PARENTS = dict.fromkeys(FAMILIES, "base") | {
    size: first for first, others in FAMILIES.items() for size in others
}

Lines = dict[str, str]
_BLOCK = re.compile(r"model\.(?:first_)?blocks\[\d+\]")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYERS = re.compile(r"(?<=\.)\d+(?:[.,]+\d+)*(?=\.)")


def golden_text(name: str) -> str:
    """What the golden of a config holds, as a text."""
    own, parent = lines_of(name), PARENTS.get(name)
    if parent is None:
        return "".join(f"{key}{text}\n" for key, text in own.items())
    other = lines_of(parent)
    gone = [f"- {key}\n" for key in other if key not in own]
    new = [f"{key}{text}\n" for key, text in own.items() if other.get(key) != text]
    return "".join([f"differs from {parent} in\n", *gone, *new])


@cache
def lines_of(name: str) -> Lines:
    """Every line of a config's graph and of its model's parameters, by what stands before it."""
    cfg = getattr(configs, name)()
    graph = {row.path or "the root": _text(row) for row in rows(cfg, defaults=True) if row.text}
    return _folded(graph) | _parameters(cfg)


def causes(name: str, changed: list[str]) -> list[str]:
    """Explain what set the values at the paths of the changed lines, as far as they are paths."""
    cfg = getattr(configs, name)()
    found = []
    for path in (line.split(" = ")[0] for line in changed if " = " in line):
        try:
            provenance = provenance_of(cfg, path)
        except ValueError:
            continue
        if provenance.default_of:
            found.append(f"{path}: a default of {provenance.default_of}")
        elif provenance.assignments:
            found.append(f"{path}: set by {provenance.assignments[0].set_by}")
    return list(dict.fromkeys(found))


def moved(read: Callable[[str], str]) -> list[str]:
    """The configs whose golden, as `read` gives it, is not what it would be now."""
    return [name for name in configs.__all__ if read(name) != golden_text(name)]


def _folded(lines: Lines) -> Lines:
    """Show blocks of a pattern that are equal to an earlier one in one line each."""
    blocks: dict[str, Lines] = {}
    for key, text in lines.items():
        if block := _BLOCK.match(key):
            own = blocks.setdefault(block[0], {})
            own[key.removeprefix(block[0])] = text.replace(block[0], "itself")
    first = {
        name: next(other for other in blocks if blocks[other] == blocks[name]) for name in blocks
    }
    folded: Lines = {}
    for key, text in lines.items():
        block = _BLOCK.match(key)
        if block is None or first[block[0]] == block[0]:
            folded[key] = text
        else:
            folded[block[0]] = f" is like {first[block[0]]}"
    return folded


def _text(row: Row) -> str:
    """An inherited value is shown where it is set, so that its source is enough here."""
    value, _, source = row.text.partition("  <- ")
    if row.kind == "inherited" and source:
        return f" <- {source}"
    return f" = {value}" + ("  (default)" if row.kind == "default" else "")


def _parameters(cfg: fdl.Config) -> Lines:
    """Shape and initialisation of every parameter, by optimizer group, and which are shared."""
    trainer = build_trainer(cfg)
    model: nn.Module = trainer.model
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: Lines = {"parameters": f" = {sum(parameter.numel() for parameter in names):,}"}

    def add(group: str, label: str, text: str) -> None:
        layers = _LAYERS.search(label)
        within = f" in layers {layers[0]}" if layers else ""
        found[f"{group}: {_LAYERS.sub('*', label)}"] = f"{text}{within}"

    for group in trainer.optimizer(trainer.groups(model)).param_groups:
        found[f"{group['name']}:"] = f" lr={group['lr']} weight_decay={group['weight_decay']}"
        layers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for parameter in group["params"]:
            name = names[parameter]
            text = f" {list(parameter.shape)} {_start(model, name)}"
            layers[_LAYER.sub("*", name, count=1), text] += map(int, _LAYER.findall(name)[:1])
        for (name, text), numbers in layers.items():
            add(group["name"], name.replace("*", _ranges(numbers), 1), text)
    for name, others in shared_parameters(model).items():
        add("shared", f"{name} = {' = '.join(others)}", "")
    return found


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` as `0..2,5`."""
    runs = [[*run] for _, run in itertools.groupby(numbers, lambda x: x - numbers.index(x))]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _start(model: nn.Module, name: str) -> str:
    init = getattr(model.get_parameter(name), "init", None)
    if init is not None:
        return repr(init)
    return f"{type(model.get_submodule(name.rpartition('.')[0])).__name__}.reset_parameters"
