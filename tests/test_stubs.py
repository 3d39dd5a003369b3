"""Types for editors: which programs are right and wrong, and that stubs are current."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import PAGES, ROOT, steps_of

from fidgpt import stubs

WRONG = """\
import fiddle as fdl

from fidgpt import configs
from lab.ablations import narrow

cfg = configs.base()
cfg.model.hidden_dm = 3  # wrong
print(cfg.model.hidden_dm)  # wrong
cfg.model.hidden_dim = "wide"  # wrong
cfg.model.hidden_dim = 64.5  # wrong
cfg.num_step = 4  # wrong
cfg.model.norm = 5  # wrong
cfg.model.blocks[0].attention.windw = 3  # wrong
cfg.model.blocks[0].attention.window = "all"  # wrong
cfg.model.blocks[0].mlp.out_init.init.sd = 1.0  # wrong
cfg.model.blocks = 3  # wrong
cfg.optimizer.betas = "fast"  # wrong
cfg.evaluators["validation"].evry = 1  # wrong
cfg.data.corpus.tokenizer.vocab_sze = 3  # wrong
cfg.schedule.warmup_steps.rato = 0.1  # wrong
cfg.samples.prompts = 5  # wrong
for block in configs.deepseek_v3().model.blocks:
    block.mlp.num_experts = "many"  # wrong
    block.attention.window = "all"  # wrong
own = narrow(width=3)
own.model.hidden_dm = 3  # wrong
own.model.norm.siz = 3  # wrong
own.model.norm.size = "big"  # wrong
narrow(width="x")  # wrong
"""
RIGHT = """\
from typing import assert_type

import fiddle as fdl

from fidgpt import configs, fiddlers, graph
from fidgpt.graph import find, swapped
from fidgpt.model import GELU, Attention, RMSNorm, eager
from fidgpt.optim import WarmupCosine, adamw, fraction
from fidgpt.tags import HiddenDim, Window
from fidgpt.train import Console, TensorBoard, Trainer
from lab.ablations import HELPER, double, narrow
from torch.nn import LayerNorm

cfg = configs.base()
assert_type(cfg.model.hidden_dim, int)
cfg.model.hidden_dim = 64
cfg.model.hidden_dim *= 2
cfg.model.hidden_dim = HiddenDim.new(64)
cfg.model.num_layers = fdl.Config(max, 3, 4)
assert_type(cfg.model.blocks[0].attention.window, int)
cfg.model.blocks[0].attention.window = Window.new(16)
cfg.model.blocks[0].attention.window = None
cfg.model.blocks[0].attention.rope.theta = 10
cfg.model.blocks[0].attention.kernel = eager
cfg.model.blocks[0].attention = fdl.ArgFactory(Attention, hidden_dim=HiddenDim.new())
cfg.model.blocks[0].mlp = swapped(cfg.model.blocks[0].mlp, GELU)
cfg.model.blocks = [cfg.model.blocks[0]] * 2
cfg.model.blocks.append(fdl.Partial(GELU))
cfg.model.blocks[1:] = []
for block in cfg.model.blocks:
    block.dropout = 0.1
cfg.model.norm = fdl.Config(RMSNorm)
cfg.model.norm = fdl.Config(LayerNorm)
cfg.model.unembedding.weight = cfg.model.embedding.weight
cfg.optimizer = fdl.Partial(adamw, lr=1e-3)
cfg.optimizer.betas = (0.9, 0.99)
print(cfg.optimizer.betas[0] * 2)
cfg.schedule.warmup_steps = 3
cfg.schedule.warmup_steps = fdl.Config(fraction, ratio=0.1)
cfg.schedule = fdl.Config(WarmupCosine)
cfg.trackers.append(fdl.Config(TensorBoard))
cfg.trackers = [fdl.Config(Console), TensorBoard()]
cfg.evaluators["validation"].every = 5
cfg.evaluators["more"] = cfg.evaluators["validation"]
cfg.samples.prompts.append("x")
cfg.samples = None
cfg.samples.every = 3
cfg.micro_batch_size = 3
print(cfg.micro_batch_size * 2)
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
LAB = '''\
"""Configs of a project, with a component of its own."""

import fiddle as fdl
from torch import nn

from fidgpt import configs

HELPER = 3


class Scale(nn.Module):
    """A component."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.size = size


def double(number: int) -> int:
    """Not a config."""
    return 2 * number


def needs(width: int) -> fdl.Config:
    """A config that cannot be made without arguments."""
    return narrow(width)


def narrow(width: int = 16) -> fdl.Config:
    """A config."""
    cfg = configs.debug()
    cfg.model.hidden_dim = width
    cfg.model.norm = fdl.Config(Scale)
    return cfg
'''


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of a project, as `lab.ablations`."""
    file = tmp_path / "lab/ablations.py"
    file.parent.mkdir()
    file.write_text(LAB)
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]


@pytest.mark.slow
def test_own_stub_is_current(request: pytest.FixtureRequest) -> None:
    # In a process of its own: tests replace what is annotated by what checks it.
    flags = [] if request.config.getoption("--update-goldens") else ["--check"]
    command = [sys.executable, "-m", "fidgpt.stubs", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_stub_of_a_project_is_written_and_compared(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = lab.with_suffix(".pyi")
    assert stubs.main(["lab.ablations", "--check"]) == 1 and not stub.exists()
    assert "is missing or not current.\nWrite it with: python -m fidgpt.stubs lab.ablations" in (
        capsys.readouterr().err
    )
    assert stubs.main(["lab.ablations"]) == 0
    assert stubs.main(["lab.ablations", "--check"]) == 0
    text = stub.read_text()
    assert "def double(number: int) -> int:" in text and "class Scale(nn.Module):" in text
    assert "def needs(width: int) -> fdl.Config:" in text
    assert re.search(r"def narrow\(width: int=16\) -> _TrainerConfig\d+:", text)
    stub.write_text(text + "# more\n")
    assert stubs.main(["--check", "lab.ablations"]) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("lab.gone", "cannot be imported"), ("json", "has no config function")]
)
def test_a_module_without_configs(lab: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stubs.main([name])


@pytest.mark.slow(20)
def test_right_programs_are_right_and_wrong_lines_are_wrong(lab: Path, tmp_path: Path) -> None:
    assert stubs.main(["lab.ablations"]) == 0
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text(RIGHT)
    for page in PAGES:
        code = [one for one in steps_of(page.read_text()) if one.is_python]
        (tmp_path / f"page_{page.stem}.py").write_text("\n".join(one.text for one in code))
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = [one for one in json.loads(path.read_text())["cells"] if one["cell_type"] == "code"]
        (tmp_path / f"{path.stem}.py").write_text("\n".join("".join(c["source"]) for c in cells))
    settings = {
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src")],
        "include": ["*.py"],
        "reportOptionalSubscript": False,  # of the best of several results
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found: dict[str, set[int]] = {}
    messages = []
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            name, line = Path(one["file"]).name, one["range"]["start"]["line"]
            found.setdefault(name, set()).add(line)
            messages.append(f"{name}:{line + 1}: {one['message']}")
    lines = WRONG.splitlines()
    expected = {number for number, line in enumerate(lines) if line.endswith("# wrong")}
    assert len(expected) == 21
    assert found == {"wrong.py": expected}, "\n".join(messages)
