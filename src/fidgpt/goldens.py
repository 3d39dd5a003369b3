"""Golden texts of the configs of a project: `python -m fidgpt.goldens lab.ablations`.

A golden holds what a config sets, inherits and leaves at its default, and the parameters of its
model. The files stand in the folder `goldens` beside the module; `--check` compares with them.
"""

import difflib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt.compose.catalogue import graphs_of, imported, module_with_configs
from fidgpt.cost import shared_parameters
from fidgpt.errors import at, run_command
from fidgpt.graph import ConfigError, find_parameter
from fidgpt.graph.difference.changes import ranges
from fidgpt.graph.outlines import Row, rows
from fidgpt.graph.provenance import assignments_at, definition
from fidgpt.runs.building import build_trainer
from fidgpt.train import Trainer

__all__ = ["causes", "check", "difference", "golden_of", "lines_of"]

Lines = dict[str, str]
_BLOCK = re.compile(r"model\.(?:first_)?blocks\[\d+\]")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYERS = re.compile(r"(?<=\.)\d+(?:[.,]+\d+)*(?=\.)")


def golden_of(cfg: fdl.Config) -> str:
    """Return the golden text of a config."""
    return "".join(f"{key}{text}\n" for key, text in lines_of(cfg).items())


def lines_of(cfg: fdl.Config) -> Lines:
    """Return the lines of a golden by what stands before the value in each.

    They describe the graph, and the parameters if it makes a trainer.

    Raises:
      ConfigError: the config cannot be built.
    """
    graph = {row.path or "the root": _text(row) for row in rows(cfg, defaults=True) if row.text}
    makes_trainer = fdl.get_callable(cfg) is Trainer
    return _folded(graph) | (_parameters(cfg) if makes_trainer else {})


def causes(cfg: fdl.Config, changed: list[str]) -> list[str]:
    """Return a sentence on what set each value in changed lines of a golden."""
    reasons = []
    for path in (line.split(" = ")[0] for line in changed if " = " in line):
        try:
            ref = find_parameter(cfg, path)
        except ValueError:  # the line is about a parameter of the model
            continue
        if ref.value is fdl.NO_VALUE:
            reasons.append(f"{path}: a default of {definition(ref.container)}")
        elif assignments := assignments_at(ref):
            reasons.append(f"{path}: set by {assignments[0].set_by}")
    return list(dict.fromkeys(reasons))


def difference(golden: str, text: str, name: str) -> tuple[str, list[str]]:
    """Return how a text differs from its golden, and the lines that are new in it."""
    old, new = golden.splitlines(), text.splitlines()
    lines = difflib.unified_diff(old, new, name, "now", lineterm="")
    known = set(old)
    return "\n".join(lines), [line for line in new if line not in known]


def check(name: str) -> None:
    """Compare the configs of a module, or of the module `configs` of a package, with their goldens.

    Raises:
      AssertionError: some differ; the message shows how, and what set the new values.
      ConfigError: there is no such module, or a config in it is wrong.
    """
    if wrong := [*_differences(name)]:
        raise AssertionError("\n\n".join([*wrong, f"Accept them: {_command(name)}"]))


def _command(name: str) -> str:
    return f"python -m fidgpt.goldens {name}"


def _differences(name: str) -> Iterator[str]:
    folder, graphs = _goldens_of(name)
    for config, cfg in graphs.items():
        path = folder / f"{config}.txt"
        if not path.exists():
            yield f"{path} is missing."
            continue
        golden = path.read_text(encoding="utf-8")
        with at(config):
            text = golden_of(cfg)
        if golden != text:
            lines, new = difference(golden, text, str(path))
            yield "\n".join([lines, *causes(cfg, new)])
    yield from (f"{path} is the golden of no config." for path in _others(folder, graphs))


def _goldens_of(name: str) -> tuple[Path, dict[str, fdl.Config]]:
    """Return the folder of a module's goldens, and its graphs by the names of their functions."""
    module = imported(module_with_configs(name), "goldens")
    graphs = {config: cfg for config, (_, cfg) in graphs_of(module).items()}
    if not graphs or not module.__file__:
        raise ConfigError(
            f"{name} has no config function: one that needs no arguments and is annotated to "
            "return a fdl.Config."
        )
    file = Path(module.__file__)
    file = file.parent if file.stem == "__init__" else file
    return file.parent / "goldens" / file.stem, graphs


def _others(folder: Path, graphs: Mapping[str, Any]) -> list[Path]:
    return [path for path in sorted(folder.glob("*.txt")) if path.stem not in graphs]


def _write(name: str) -> None:
    folder, graphs = _goldens_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    for config, cfg in graphs.items():
        path = folder / f"{config}.txt"
        with at(config):
            path.write_text(golden_of(cfg), encoding="utf-8")
        print(f"wrote {path}")
    for path in _others(folder, graphs):
        path.unlink()
        print(f"removed {path}")


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
    """Shape and initialization of every parameter, by optimizer group, and which are shared."""
    trainer = build_trainer(cfg)
    model: nn.Module = trainer.model
    names = {parameter: name for name, parameter in model.named_parameters()}
    lines: Lines = {"parameters": f" = {sum(parameter.numel() for parameter in names):,}"}

    def add(group: str, label: str, text: str) -> None:
        layers = _LAYERS.search(label)
        within = f" in layers {layers[0]}" if layers else ""
        lines[f"{group}: {_LAYERS.sub('*', label)}"] = f"{text}{within}"

    for group in trainer.optimizer(trainer.groups(model)).param_groups:
        lines[f"{group['name']}:"] = f" lr={group['lr']} weight_decay={group['weight_decay']}"
        layers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for parameter in group["params"]:
            name = names[parameter]
            text = f" {list(parameter.shape)} {_start(model, name)}"
            layers[_LAYER.sub("*", name, count=1), text] += map(int, _LAYER.findall(name)[:1])
        for (name, text), numbers in layers.items():
            add(group["name"], name.replace("*", _ranges(numbers), 1), text)
    for name, others in shared_parameters(model).items():
        add("shared", f"{name} = {' = '.join(others)}", "")
    return lines


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` as `0..2,5`."""
    return ranges(numbers).replace("-", "..").replace(", ", ",")


def _start(model: nn.Module, name: str) -> str:
    init = getattr(model.get_parameter(name), "init", None)
    if init is not None:
        return repr(init)
    return f"{type(model.get_submodule(name.rpartition('.')[0])).__name__}.reset_parameters"


def main(arguments: list[str]) -> int:
    """Write goldens, or compare with those that are there; return the exit status."""
    names = [argument for argument in arguments if argument != "--check"]
    if not names:
        raise ConfigError(f"name a module with configs: {_command('lab.ablations')}")
    if "--check" not in arguments:
        for name in names:
            _write(name)
        return 0
    wrong = [text for name in names for text in _differences(name)]
    if wrong:
        print(*wrong, f"Accept them: {_command(' '.join(names))}", sep="\n", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    run_command(main)
