"""Custom components that would silently ruin a run are named before it; right ones pass."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import custom_modules as custom
import fiddle as fdl
import pytest
import torch
from custom_modules import check, with_attention, with_callable, with_mixer, with_part
from torch import nn

from fidgpt import configs, data, fiddlers, model, train
from fidgpt.parallel import Mesh
from fidgpt.parallel.places import single_process_places
from fidgpt.processes import Processes
from fidgpt.runs.building import build_trainer
from fidgpt.testing import check_component
from fidgpt.train.checks import preflight

WRONG_MODULES = {
    custom.Future: "reads the future: its output at token 0 changes with token 1",
    custom.BeyondMask: "reads the future: its output at token 0 changes with token 4",
    custom.Documents: "reads other documents",
    custom.Padding: "reads padding",
    custom.Spreading: "NaN or inf in a row with padding, which spreads",
    custom.Transposed: r"returns torch\.float32 \[1, 1, 32\] for an input of",
    custom.Random: "draw random numbers only if self.training",
    custom.AcrossRows: "mixes the rows of a batch",
    custom.HalfFilled: "leaves rate without values",
    custom.Unused: r"has parameters that get no gradient: spare\.weight\. ",
    custom.ShiftingMLP: "reads other tokens",
}


@pytest.mark.parametrize("kind", WRONG_MODULES)
def test_what_is_wrong_with_a_module_is_said(kind: Any) -> None:
    with pytest.raises(train.ComponentError, match=f"^{kind.__name__} .*{WRONG_MODULES[kind]}"):
        check_component(kind(hidden_dim=32), hidden_dim=32)


RIGHT_MODULES = (
    custom.Uniform, custom.Encoder, custom.PrefixMixer, custom.WindowMixer, custom.Recurrent,
    custom.TrainOnly, custom.GatedUnit, custom.TokenShift, custom.OwnBlock,
)  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT_MODULES)
def test_a_right_module_passes(kind: Any) -> None:
    check_component(kind(hidden_dim=32), hidden_dim=32)


@pytest.mark.parametrize("kind", [custom.Recurrent, custom.TokenShift])
def test_what_looks_at_tokens_of_other_processes_is_refused(kind: Any) -> None:
    with pytest.raises(train.ComponentError, match="reads tokens of other processes: its output"):
        check_component(kind(hidden_dim=32), hidden_dim=32, context=2)
    for right in (custom.Uniform, custom.WindowMixer, custom.OwnBlock, custom.GatedUnit):
        check_component(right(hidden_dim=32), hidden_dim=32, context=2)


@pytest.mark.parametrize(
    ("place", "make"),
    [
        (r"blocks\.0\.attention \(Future", partial(with_mixer, custom.Future)),
        (
            r"blocks\.0\.attention \(Attention with leaky_kernel",
            partial(with_attention, "kernel", custom.leaky_kernel),
        ),
        (r"blocks\.0 \(LeakyBlock", partial(with_callable, "model.blocks.0", custom.LeakyBlock)),
        (
            r"embedding \(LeakyEmbedding",
            partial(with_callable, "model.embedding", custom.LeakyEmbedding),
        ),
        (r"model \(LeakyModel", partial(with_callable, "model", custom.LeakyModel)),
    ],
)
def test_a_wrong_module_is_named_with_its_file_and_line(place: str, make: Any) -> None:
    where = rf"^{place}, tests/custom_modules\.py:\d+\) reads the future"
    with pytest.raises(train.ComponentError, match=where) as caught:
        check(make())
    assert len(str(caught.value).splitlines()) == 1  # of two layers


@pytest.mark.parametrize(
    "make",
    [
        partial(with_part, "mlp", fdl.ArgFactory(custom.GatedUnit, hidden_dim=32)),
        partial(with_attention, "mask", custom.own_mask),
        partial(with_attention, "mask", fdl.Config(model.Prefix, 3)),
    ],
)
def test_right_modules_of_a_run_pass_in_silence(make: Any, capfd: Any) -> None:
    check(make())
    assert capfd.readouterr().err == ""


def test_modules_of_a_run_are_tried_as_its_mesh_shares_rows() -> None:
    cfg = with_mixer(custom.Recurrent)
    fiddlers.use_mesh(cfg, context=2)
    with pytest.raises(train.ComponentError, match="reads tokens of other processes"):
        check(cfg)


def test_a_tensor_without_memory_is_an_error() -> None:
    with pytest.raises(train.ComponentError, match="OutsideTensor, .* fails on a small batch"):
        check(with_mixer(custom.OutsideTensor))


def test_a_parameter_without_a_gradient_is_named(capfd: Any) -> None:
    check(with_mixer(custom.Unused))
    line = capfd.readouterr().err
    assert re.match(r"warning: blocks\.0\.attention \(Unused, .* no gradient: spare\.weight", line)
    assert line.count("\n") == 1  # though two layers have it
    check(with_mixer(custom.Unused), trainable=lambda name, parameter: "spare" not in name)
    assert capfd.readouterr().err == ""
    trainer = build_trainer(with_mixer(custom.Unused))
    trainer.parallel.places = replace(single_process_places(Mesh()), world=Processes(2))
    with pytest.raises(train.ComponentError, match="DistributedDataParallel needs a gradient"):
        preflight.check_components(trainer)


@pytest.mark.parametrize(
    ("part", "place"),
    [
        (fdl.ArgFactory(nn.Softmax, dim=1), "mlp"),
        (fdl.ArgFactory(nn.LayerNorm, [32, 32]), "attention_norm"),
    ],
    ids=str,
)
def test_a_module_of_torch_that_mixes_tokens_is_no_mlp_and_no_norm(part: Any, place: str) -> None:
    with pytest.raises(train.ComponentError, match="reads other tokens"):
        check(with_part(place, part))


def test_modules_of_torch_may_compute_on_each_token(capfd: Any) -> None:
    check(with_part("mlp", fdl.ArgFactory(nn.Linear, 32, 32)))
    check(with_part("mlp_norm", fdl.ArgFactory(nn.LayerNorm, 32)))
    assert capfd.readouterr().err == ""


class OwnModel(model.LanguageModel):
    READS = ("padding", "documents")

    def __init__(self, *, vocab_size: int, width: int, has_spare: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.layers = nn.GRU(width, width, batch_first=True)
        self.unembedding = nn.Linear(width, vocab_size)
        self.spare = nn.Linear(width, 1) if has_spare else None

    def features(self, tokens: Any, ctx: Any = None) -> Any:
        return self.layers(self.table(tokens))[0]


def test_a_model_of_ones_own_is_tried_with_its_unembedding(capfd: Any) -> None:
    cfg = configs.debug()
    own_model: Any = fdl.Config(OwnModel, vocab_size=257, width=8)
    cfg.model = own_model
    check(cfg)
    assert capfd.readouterr().err == ""
    own_model.has_spare = True
    check(cfg)
    assert "get no gradient: spare.weight, spare.bias. " in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_is_as_without_the_check(train: Any, monkeypatch: Any) -> None:
    cfg = with_mixer(custom.TrainOnly)
    checked = [row["loss"] for row in train(cfg, "checked")]
    monkeypatch.setattr(preflight, "check_components", lambda run: None)
    monkeypatch.setattr(preflight, "check_stream", lambda run: None)
    assert [row["loss"] for row in train(cfg, "unchecked")] == checked


def some_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Forget the norms."""
    return [{"params": [p for name, p in model.named_parameters() if "norm" not in name]}]


def test_groups_that_leave_out_trained_parameters_are_named() -> None:
    cfg = configs.debug()
    cfg.groups = some_groups
    message = (
        r"^groups \(some_groups, tests/.*:\d+\): 5 trained parameters must be listed exactly once; "
        r"blocks\.0\.attention_norm\.weight is listed 0 times\."
    )
    with pytest.raises(train.ComponentError, match=message):
        check(cfg)
    check(cfg, trainable=lambda name, parameter: "norm" not in name)


class Counted(data.TrainingStream):
    """Tokens that count up, as a stream of a user's."""

    def __init__(self, *, batch_size: int = 4, seq_len: int = 32) -> None:
        self.batch_size, self.seq_len = batch_size, seq_len

    def prepare(self, *, show_progress: bool = True) -> None:
        """Do nothing."""

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        rows = self.batch_size // world_size
        count = torch.arange(rows * (self.seq_len + 1)).view(rows, -1)
        return data.Batch((count + step + rank) % 100)

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    @property
    def checksum(self) -> str:
        return "counted"


class Short(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).map(lambda rows: rows[:, :-1])


class Drawing(Counted):
    """Goes on where it was at the last call."""

    count = 0

    def batch(self, step: int, **options: Any) -> Any:
        self.count += 1
        return super().batch(self.count, **options)


class SameRows(Counted):
    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        return super().batch(step, world_size=world_size)


def with_stream(stream: Any, **changes: Any) -> train.Trainer:
    trainer = build_trainer(configs.debug())
    for name, value in {"stream": stream, "batch_size": 4, "seq_len": 32, **changes}.items():
        setattr(trainer, name, value)
    return trainer


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Short, r"returns a batch of torch\.int64 \[4, 32\], and the run needs .* \[4, 33\]"),
        (Drawing, "returns two batches for one step"),
    ],
)
def test_a_wrong_stream_is_named(kind: Any, message: str) -> None:
    where = rf"^data \({kind.__name__}, tests/train/test_preflight\.py:\d+\) "
    with pytest.raises(train.ComponentError, match=where + message):
        preflight.check_stream(with_stream(kind()))


def test_rows_are_those_of_the_process() -> None:
    trainer = with_stream(SameRows())
    trainer.parallel.places = single_process_places(Mesh(replicate=2))
    with pytest.raises(train.ComponentError, match="returns the same rows to two processes"):
        preflight.check_stream(trainer)
    trainer.stream = Counted()
    preflight.check_stream(trainer)


def test_right_streams_pass() -> None:
    for stream in (Counted(), data.Prefetch(Counted())):
        preflight.check_stream(with_stream(stream))


def test_the_attention_of_the_documentation_is_right() -> None:
    page, names = Path(__file__).parents[2] / "docs" / "models.md", dict[str, Any](__name__="docs")
    (source,) = re.findall(r"```python\n(# lab/mixing.py\n.*?)```", page.read_text(), re.DOTALL)
    exec(source, names)
    check_component(names["MovingAverage"](hidden_dim=32), hidden_dim=32)
