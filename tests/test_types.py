"""Types: none is wrong in the checkout, and of programs that use it those that say so."""

import json
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from forked import Python, python_path
from test_docs import PAGES, ROOT, steps_of
from test_stubs import LAB

pytestmark = [pytest.mark.slow(50), pytest.mark.xdist_group("types")]
BASEDPYRIGHT = [
    str(Path(sys.executable).parent / "basedpyright"),
    "--pythonpath",
    sys.executable,
]
CHECKED = ["src", "configs", "fiddlers", "train.py", "sweep.py"]
WRONG = """\
import fiddle as fdl

from fidgpt import configs
from lab.ablations import narrow

cfg = configs.base()
cfg.model.hidden_dm = 3  # wrong
cfg.model.hidden_dim = "wide"  # wrong
cfg.model.hidden_dim = 64.5  # wrong
cfg.model.norm = 5  # wrong
cfg.model.blocks[0].attention.window = "all"  # wrong
cfg.optimizer.betas = "fast"  # wrong
cfg.evaluators["validation"].evry = 1  # wrong
cfg.schedule.warmup_steps.rato = 0.1  # wrong
for block in configs.deepseek_v3().model.blocks:
    block.mlp.num_experts = "many"  # wrong
own = narrow(width=3)
own.model.hidden_dm = 3  # wrong
own.model.norm.size = "big"  # wrong
narrow(width="x")  # wrong
"""
RIGHT = """\
from typing import assert_type

import fiddle as fdl

from fidgpt import configs, fiddlers, graph
from fidgpt.graph import find, swapped
from fidgpt.model import GELU, Attention, eager
from fidgpt.optim import WarmupCosine, adamw, fraction
from fidgpt.tags import HiddenDim, Window
from fidgpt.train import Console, TensorBoard, Trainer
from lab.ablations import HELPER, double, narrow
from torch.nn import LayerNorm

cfg = configs.base()
assert_type(cfg.model.hidden_dim, int)
cfg.model.hidden_dim *= 2
cfg.model.hidden_dim = HiddenDim.new(64)
assert_type(cfg.model.blocks[0].attention.window, int)
cfg.model.blocks[0].attention.window = Window.new(16)
cfg.model.blocks[0].attention.kernel = eager
cfg.model.blocks[0].attention = fdl.ArgFactory(Attention, hidden_dim=HiddenDim.new())
cfg.model.blocks[0].mlp = swapped(cfg.model.blocks[0].mlp, GELU)
cfg.model.blocks = [cfg.model.blocks[0]] * 2
for block in cfg.model.blocks:
    block.dropout = 0.1
cfg.model.norm = fdl.Config(LayerNorm)
cfg.model.unembedding.weight = cfg.model.embedding.weight
cfg.optimizer = fdl.Partial(adamw, lr=1e-3)
print(cfg.optimizer.betas[0] * 2)
cfg.schedule.warmup_steps = fdl.Config(fraction, ratio=0.1)
cfg.schedule = fdl.Config(WarmupCosine)
cfg.trackers = [fdl.Config(Console), TensorBoard()]
cfg.evaluators["validation"].every = 5
cfg.samples.prompts.append("x")
del cfg.seed
fiddlers.use_gqa(cfg, num_kv_heads=2)
find(cfg.model, Attention)[0].window = 3
graph.diff(cfg, configs.debug())


def of_a_trainer(root: fdl.Config[Trainer]) -> None:
    root.anything = 3


of_a_trainer(cfg)
trainer: Trainer = fdl.build(cfg)
own = narrow(width=16)
own.model.norm.size = 3
own.model.hidden_dim = double(HELPER)
"""


def write_programs(folder: Path) -> None:
    """Write a project with its stub, and programs that use it, fidgpt, or what documents show."""
    (folder / "lab").mkdir()
    (folder / "lab/ablations.py").write_text(LAB)
    variables = os.environ | {"PYTHONPATH": python_path(folder)}
    stub = Python(
        "-m", "fidgpt.stubs", "lab.ablations", output=folder / "out", environment=variables
    )
    assert stub.end(seconds=120) == 0, stub.output
    programs = {"wrong": WRONG, "right": RIGHT}
    for page in PAGES:
        code = [one.text for one in steps_of(page.read_text()) if one.is_python]
        programs[f"page_{page.stem}"] = "\n".join(code)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = [one for one in json.loads(path.read_text())["cells"] if one["cell_type"] == "code"]
        programs[path.stem] = "\n".join("".join(cell["source"]) for cell in cells)
    for name, text in programs.items():
        # Pages index the best of several results, which may be None.
        (folder / f"{name}.py").write_text(f"# pyright: reportOptionalSubscript=false\n{text}")


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, dict[int, str]]:
    """What is wrong in the checkout and in programs, by file and line; found together."""
    folder = tmp_path_factory.mktemp("programs").resolve()
    write_programs(folder)
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["basedpyright"]
    root = Path(os.path.relpath(ROOT, folder))
    settings["include"] = ["*.py", *(str(root / name) for name in CHECKED)]
    settings["exclude"] = [str(root / name) for name in settings["exclude"]]
    settings["stubPath"] = str(root / settings["stubPath"])
    settings["extraPaths"] = [str(root / "src")]
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [*BASEDPYRIGHT, "--outputjson"], cwd=folder, capture_output=True, text=True
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 300
    found: dict[Path, dict[int, str]] = defaultdict(dict)
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            found[Path(one["file"])][line] = f"{one['file']}:{line}: {one['message']}"
    return found


def test_the_checkout_has_no_problem(problems: dict[Path, dict[int, str]]) -> None:
    own = [text for path, lines in problems.items() for text in lines.values() if is_own(path)]
    assert not own, "\n".join(own)


def test_right_programs_are_right_and_wrong_lines_are_wrong(
    problems: dict[Path, dict[int, str]],
) -> None:
    found = {path.name: lines for path, lines in problems.items() if not is_own(path)}
    lines = enumerate(WRONG.splitlines(), start=2)  # after the comment
    expected = {number for number, line in lines if line.endswith("# wrong")}
    assert len(expected) == 12
    texts = "\n".join(text for lines in found.values() for text in lines.values())
    assert {name: {*lines} for name, lines in found.items()} == {"wrong.py": expected}, texts


def is_own(path: Path) -> bool:
    """Whether a file is in the checkout, rather than one of the programs."""
    return path.is_relative_to(ROOT)
