"""What a feature costs in lines: `python run.py`.

Every variant that is counted is built too, and runs forward and backward.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import fiddle as fdl
import torch
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the folder is no package

import composed  # noqa: E402
from counting import Count, Tree, changed_lines, new_lines, write  # noqa: E402

from fidgpt.compose.catalogue import own_catalogue  # noqa: E402
from fidgpt.compose.composition import compose  # noqa: E402
from fidgpt.graph import parts  # noqa: E402
from fidgpt.model import materialize  # noqa: E402
from fidgpt.runs.building import build_trainer  # noqa: E402
from fidgpt.train.loss import NextToken  # noqa: E402

SIZES = [(1, 1), (5, 2), (10, 5), (20, 10)]


def count_composed(feature: composed.Feature, models: int, attentions: int) -> Count:
    """Of a project that uses fidgpt; every model runs with the feature."""
    before = composed.project(models=models, attentions=attentions)
    after = composed.project(models=models, attentions=attentions, feature=feature)
    with _Importable(after, "lab"):
        for index in range(models):
            _run_composed(composed.directives(index, attentions, feature), feature)
    return Count(
        changed=changed_lines(before, after),
        written=1,
        new=new_lines(before, after),
    )


def undivided(feature: composed.Feature, models: int, attentions: int) -> list[str]:
    """What two processes of `tensor` compute whole in a project whose models have a feature."""
    tree = composed.project(models=models, attentions=attentions, feature=feature)
    found: list[str] = []
    with _Importable(tree, "lab"):
        for index in range(models):
            directives = composed.directives(index, attentions, feature)
            cfg = compose(
                [*directives, "fiddler:use_mesh(tensor=2)"], own_catalogue(("lab",))
            ).config
            trainer = build_trainer(cfg)
            found += trainer.parallel.undivided(trainer.model)
    return found


class _Importable:
    """The files of a tree, as modules for so long."""

    def __init__(self, tree: Tree, *names: str) -> None:
        self._tree, self._names = tree, names

    def __enter__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        write(self._tree, Path(self._folder.name))
        sys.path.insert(0, self._folder.name)
        importlib.invalidate_caches()

    def __exit__(self, *_: object) -> None:
        sys.path.remove(self._folder.name)
        for name in [*sys.modules]:
            if name.partition(".")[0] in self._names:
                del sys.modules[name]
        self._folder.cleanup()


def _run_composed(directives: list[str], feature: composed.Feature) -> None:
    """Composes, builds, and runs forward and backward; every model has to hold the feature."""
    cfg = compose(directives, own_catalogue(("lab",))).config
    held = {_name(fdl.get_callable(node.value)) for node in parts(cfg)}
    assert feature.shows in held, f"{directives} holds no {feature.shows}"
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    NextToken(trainer.model, trainer.loss)(torch.arange(26).view(2, 13)).backward()
    lost = [n for n, p in trainer.model.named_parameters() if p.grad is None]
    assert not lost, f"{directives}: no gradient reaches {lost}"


def _name(part: object) -> str:
    return f"{getattr(part, '__module__', '')}.{getattr(part, '__name__', '')}"


def main() -> None:
    """Prints a row for each feature."""
    table = Table(box=None, title="lines changed in files that existed, at (models, attentions)")
    for column in ("feature", *map(str, SIZES), "written", "new", "declared"):
        table.add_column(column, justify="right" if column != "feature" else "left")
    for feature in composed.FEATURES:
        counts = [count_composed(feature, *size) for size in SIZES]
        written, new = counts[0].written, counts[0].new
        numbers = [*(count.changed for count in counts), written, new, composed.declared(feature)]
        table.add_row(feature.name, *map(str, numbers))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
