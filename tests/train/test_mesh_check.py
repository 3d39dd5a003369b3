"""`--check_parallel` passes on meshes that are right, and finds errors by their paths."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import mesh_bugs
import pytest
import torch
from forked import Python
from mesh_bugs import BUGS, GOOD, STEPS, name_of

from fidgpt import configs, fiddlers, graph, model
from fidgpt.parallel import Mesh, TensorParallel
from fidgpt.placement import Columns, Rows, Split
from fidgpt.runs.building import build_trainer
from fidgpt.runs.shrinking import mesh_of, shrink, shrink_mesh
from fidgpt.train.mesh_check import Comparison, Difference, counts_lines

SCRIPT = Path(mesh_bugs.__file__)
NORM = "norm of all gradients"
CASES = [name_of(*case) for cases in GOOD.values() for case in cases]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Comparison]:
    """The comparisons of all cases, good and bad, of two groups of processes."""
    folder = tmp_path_factory.mktemp("mesh_check")
    process = Python(SCRIPT, folder, output=folder / "output")
    assert process.end(seconds=300) == 0, process.output
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.slow
@pytest.mark.xdist_group("mesh_check")
@pytest.mark.parametrize("case", CASES)
def test_good_meshes_pass(compared: dict[str, Comparison], case: str) -> None:
    assert not compared[case].bad
    assert compared[case].first is None
    assert len(compared[case].differences) > 20
    assert 0 < max(one.error for one in compared[case].differences) < 1e-5


@pytest.mark.slow
@pytest.mark.xdist_group("mesh_check")
@pytest.mark.parametrize("name", STEPS)
def test_pairs_and_teachers_pass(compared: dict[str, Comparison], name: str) -> None:
    assert not compared[name].bad
    assert len(compared[name].differences) > 10


@pytest.mark.slow
@pytest.mark.xdist_group("mesh_check")
def test_processes_with_a_row_less_take_part_in_every_pass(compared: dict[str, Comparison]) -> None:
    assert not compared["idle"].bad
    assert len(compared["idle"].differences) > 20


@pytest.mark.slow
@pytest.mark.xdist_group("mesh_check")
@pytest.mark.parametrize("name", BUGS)
def test_errors_are_found(compared: dict[str, Comparison], name: str) -> None:
    bug, comparison = BUGS[name], compared[name]
    wrong = [one.path for one in comparison.bad]
    assert wrong
    if bug.wrong != NORM:  # which follows from gradients
        wrong = [path for path in wrong if path != NORM]
    assert {path for path in wrong if re.fullmatch(bug.wrong, path)} == {*wrong}
    right = [one.path for one in comparison.differences if not one.is_bad]
    assert not [path for path in right if bug.wrong != ".*" and re.fullmatch(bug.wrong, path)]
    (worst, *_) = [one for one in comparison.bad if one.path == wrong[0]]
    assert worst.error > 0.1  # far from rounding
    assert worst.meaning(comparison.mesh.sizes).startswith(bug.meaning)
    assert comparison.first == bug.first


@pytest.mark.slow
@pytest.mark.xdist_group("mesh_check")
def test_collectives_are_counted(
    compared: dict[str, Comparison], golden: Callable[..., None]
) -> None:
    texts = [f"{case}\n" + "\n".join(counts_lines(compared[case].counts)) for case in CASES]
    golden("collectives", "\n\n".join(texts))


SIZES = {"shard": 2, "tensor": 4, "context": 1}


@pytest.mark.parametrize(
    ("ratio", "cosine", "meaning"),
    [
        (4.0, 1.0, "4: summed twice over tensor"),
        (8.0, 1.0, "8: summed twice over shard x tensor"),
        (0.25, 1.0, "1/4: a sum over tensor is missing"),
        (3.0, 1.0, "a multiple of no axis"),
        (2.0, 0.5, "not a multiple"),
        (0.0, 0.0, "no gradient on the mesh"),
        (float("inf"), 0.0, "a gradient on the mesh only"),
        (float("nan"), 0.0, "not finite"),
    ],
)
def test_ratios_name_the_axis(ratio: float, cosine: float, meaning: str) -> None:
    error = abs(ratio - 1.0)
    assert Difference("path", error, ratio, cosine).meaning(SIZES).startswith(meaning)
    assert not Difference("path", 1e-6, 1.0, 1.0).meaning(SIZES)


def small(name: str, *changes: Callable[[fdl.Config], object], **sizes: int) -> Any:
    cfg = getattr(configs, name)()
    fiddlers.use_mesh(cfg, **sizes)
    for change in changes:
        change(cfg)
    made, left = shrink(cfg, mesh=Mesh(**sizes), build=build_trainer)
    assert not left
    return made


def test_small_copies_keep_the_structure() -> None:
    before = configs.gemma3_1b()
    cfg = small("gemma3_1b", shard=2, context=2)
    assert (cfg.model.hidden_dim, cfg.batch_size, cfg.seq_len) == (64, 7, 32)
    assert cfg.model.embedding.weight is cfg.model.unembedding.weight
    assert cfg.model.num_layers == len(before.model.blocks) + 1 == 7
    windows = [block.attention.window for block in cfg.model.blocks]
    assert windows == [None if b.attention.window is None else 8 for b in before.model.blocks]
    assert cfg.model.blocks[0].attention.num_kv_heads == 1 < cfg.model.blocks[0].attention.num_heads
    assert [fdl.get_callable(b) for b in cfg.model.blocks] == [
        fdl.get_callable(b) for b in before.model.blocks
    ]


def test_small_copies_keep_what_sizes_mean() -> None:
    cfg = small("deepseek_v3", tensor=2)
    trainer = build_trainer(cfg)
    experts = next(m for n, m in trainer.model.named_modules() if n.endswith("mlp.experts"))
    assert cfg.model.num_layers == len(cfg.model.first_blocks) + 2
    assert experts.num_experts == 4
    assert sum(p.numel() for p in trainer.model.parameters()) < 1_000_000
    assert small("gpt2_124m", tensor=2).vocab_size % 2 == 1  # as 50,257 is
    assert small("llama3_1_405b", tensor=8).model.hidden_dim == 8 * 16


def use_dropout(cfg: fdl.Config) -> None:
    cfg.model.dropout, cfg.micro_batch_size = 0.1, 4


def test_small_copies_compute_exactly() -> None:
    cfg = small("base", use_dropout, fiddlers.use_ema, fiddlers.use_packing, replicate=2)
    trainer = build_trainer(cfg)
    assert trainer.average is None
    assert trainer.micro_batch_size == 2
    assert {node.value.dropout for node in graph.parts(cfg) if hasattr(node.value, "dropout")} == {
        0.0
    }


def test_large_meshes_stand_for_themselves_by_twos() -> None:
    assert shrink_mesh(Mesh(shard=4, tensor=2)) == Mesh(shard=4, tensor=2)
    assert shrink_mesh(Mesh(replicate=3, shard=32, tensor=8)) == Mesh(
        replicate=2, shard=2, tensor=2
    )
    cfg = configs.debug()
    cfg.batch_size = 4
    assert mesh_of(build_trainer(cfg).parallel) == Mesh(replicate=2)
    fiddlers.use_fsdp(cfg)
    assert mesh_of(build_trainer(cfg).parallel) == Mesh(shard=2)
    fiddlers.use_hsdp(cfg, num_shards=4)
    assert mesh_of(build_trainer(cfg).parallel) == Mesh(replicate=2, shard=4)
    fiddlers.use_mesh(cfg, replicate=1, shard=-1, tensor=2)
    assert mesh_of(build_trainer(cfg).parallel) == Mesh(shard=2, tensor=2)


def checked(
    folder: Path, *directives: str, allow: str = "fidgpt", **variables: str
) -> tuple[int, str]:
    """Return the status and the output of `--check_parallel`."""
    process = Python(
        Path(__file__).parents[2] / "train.py",
        *(f"--config={directive}" for directive in ("config:debug", *directives)),
        f"--allow={allow}",
        "--check_parallel",
        output=folder / "output",
        environment=os.environ | variables,
    )
    return process.end(seconds=100), process.output


@pytest.mark.slow
def test_the_command_ends_with_1_where_gradients_differ(tmp_path: Path) -> None:
    mixture = ("fiddler:use_moe", "fiddler:use_expert_capacity")  # each process drops its own
    status, output = checked(tmp_path, *mixture, "fiddler:use_mesh(shard=16)", "set:batch_size=16")
    assert status == 1, output
    assert "with shard=2, in 2 processes.\nThey stand for shard=16: more than 8 are" in output
    assert "blocks.1.mlp.experts.up " in output
    assert "differs first in the output of blocks.0.mlp: gradients follow" in output


@pytest.mark.slow
def test_what_cannot_be_compared_is_an_error(tmp_path: Path) -> None:
    status, output = checked(tmp_path, "fiddler:use_mesh")
    assert (status, output.count("\n")) == (2, 1)
    assert output.startswith("error: --check_parallel compares a mesh with one process, and this")
    status, output = checked(tmp_path, RANK="0", WORLD_SIZE="2")
    assert (status, output.count("\n")) == (2, 1)
    assert "--check_parallel starts its own processes: run it without torchrun." in output


class Declared(model.SwiGLU):
    """An MLP that declares what it is given."""

    def __init__(self, declared: Any) -> None:
        super().__init__(hidden_dim=8, ffn_dim=16)
        self.declared = declared

    def own_split(self) -> Any:
        return self.declared


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Split({"upp": Columns(16), "down": Rows(16)}), "names 'upp', which it does not have"),
        (Split({"down": Rows(16)}, returns="out"), "names 'out', which it does not have"),
        (Split({"down.weigth": Rows(16)}), "names 'down.weigth', which it does not have"),
        ({"down": Rows(16)}, r"returns {'down': Rows\(.*: return a Split"),
    ],
)
def test_declarations_of_what_a_module_lacks_are_refused(declared: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"own_split\(\) of Declared {message}"):
        TensorParallel().check(Declared(declared), mesh=Mesh(tensor=2).over(2), seq_len=8)


SPLIT_WRONGLY = """
import torch
from fidgpt import model
from fidgpt.placement import Columns, Rows, Split

class Swapped(model.SwiGLU):
    def own_split(self):
        deep = Rows(self.ffn_dim)
        return Split({"gate": deep, "up": deep, "down": Columns(self.ffn_dim)})

class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, outer):
        raise ValueError("no derivative\\nof this")

class WithoutDerivative(model.SwiGLU):
    def forward(self, x):
        return super().forward(Identity.apply(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Swapped", "the mesh cannot compute the step that one process computes: RuntimeError: "),
        (
            "WithoutDerivative",
            "one process cannot compute the step, on any mesh: ValueError: no derivative\nof this",
        ),
    ],
)
def test_what_fails_on_a_mesh_is_answered_without_a_traceback(
    name: str, message: str, tmp_path: Path
) -> None:
    package = tmp_path / "split_wrongly"
    package.mkdir()
    (package / "__init__.py").write_text(SPLIT_WRONGLY)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    use = f"use:model.blocks[0].mlp=split_wrongly.{name}"
    directives = (use, "fiddler:use_mesh(tensor=2)")
    status, output = checked(tmp_path, *directives, allow="split_wrongly", PYTHONPATH=paths)
    assert status == 2 and "Traceback" not in output, output
    assert message in output and f"{os.sep}torch{os.sep}" not in output.partition("error: ")[2]
