"""How tensors lie in files: forms that are read and written by one definition, and shards."""

import json
import weakref

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from fidgpt.configs.hub import Form, Interleaved, Joined, Paired, Same, Stacked, Transposed
from fidgpt.graph import ConfigError
from fidgpt.graph.storage.codec import find_name
from fidgpt.interop import load_hf, save_hf
from fidgpt.interop.hugging_face.files import TensorFiles

FORMS: dict[str, tuple[Form, tuple[int, ...]]] = {
    "same": (Same("a"), (4, 6)),
    "transposed": (Transposed("a"), (4, 6)),
    "transposed, a vector": (Transposed("a"), (4,)),
    "stacked": (Stacked("a.{expert}.b"), (3, 4, 6)),
    "joined": (Joined("a", 1, of=3), (4, 6)),
    "joined rows": (Joined("a", 1, of=3, dim=0), (4, 6)),
    "joined and transposed": (Transposed(Joined("a", 2, of=3)), (4, 6)),
    "interleaved and transposed": (Transposed(Interleaved("a", 1, of=2)), (3, 4, 6)),
    "paired": (Paired("a", still=2, turning=4), (12, 5)),
    "all paired": (Paired("a", still=0, turning=4), (8,)),
}


def written(form: Form, ours: Tensor) -> dict[str, Tensor]:
    """The tensors of a file; what belongs to others is 0."""
    found: dict[str, Tensor] = {}
    for piece in form.pieces(ours):
        tensor = found.setdefault(piece.name, torch.zeros(piece.shape))
        piece.theirs(tensor).copy_(piece.ours)
    return found


@pytest.mark.parametrize(("form", "shape"), FORMS.values(), ids=FORMS)
def test_what_is_written_is_read(form: Form, shape: tuple[int, ...]):
    ours = torch.randn(shape)
    files, read = written(form, ours), torch.zeros(shape)
    assert sum(tensor.count_nonzero() for tensor in files.values()) == ours.numel()
    for piece in form.pieces(read):
        piece.ours.copy_(piece.theirs(files[piece.name]))
    assert torch.equal(read, ours)


def test_shares_of_a_tensor_lie_side_by_side():
    parts = (torch.ones(2, 3), 2 * torch.ones(2, 3))
    joined, mixed = torch.zeros(3, 4), torch.zeros(2, 6)
    for index, part in enumerate(parts):
        joined += written(Transposed(Joined("a", index, of=2)), part)["a"]
        mixed += written(Interleaved("a", index, of=2), part)["a"]
    assert torch.equal(joined, torch.tensor([[1.0, 1, 2, 2]] * 3))
    assert torch.equal(mixed, torch.tensor([[1.0, 2, 1, 2, 1, 2]] * 2))


def test_pairs_of_neighbours_become_halves():
    rows = torch.arange(1.0, 13.0)  # two heads: 2 rows that stay, 4 that turn
    theirs = written(Paired("a", still=2, turning=4), rows)["a"]
    assert theirs.tolist() == [1, 2, 3, 5, 4, 6, 7, 8, 9, 11, 10, 12]


def test_shards_hold_no_more_than_they_may(directory, load, tmp_path):
    model = load(directory)
    save_hf(model, tmp_path, seq_len=24, max_shard_size=60_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(tmp_path.glob("model-*-of-*.safetensors"))
    assert len(files) > 2
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    for path in files:
        with safe_open(path, "pt") as file:
            sizes = [file.get_tensor(name).nbytes for name in file.keys()]  # noqa: SIM118
            assert sum(sizes) <= 60_000 or len(sizes) == 1
            assert all(index["weight_map"][name] == path.name for name in file.keys())  # noqa: SIM118
    assert all(map(torch.equal, load(tmp_path).parameters(), model.parameters()))


@pytest.mark.parametrize("sizes", [(60_000, 10**9), (10**9, 60_000), (30_000, 60_000)])
def test_what_was_there_before_is_not_read_any_more(directory, load, tmp_path, sizes):
    out = tmp_path / "out"
    before, now = load(directory), load(directory)
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.add_(1)
    for model, size in zip((before, now), sizes, strict=True):
        save_hf(model, out, seq_len=24, max_shard_size=size)
    assert all(map(torch.equal, load(out).parameters(), now.parameters()))
    index = out / "model.safetensors.index.json"
    named = {"model.safetensors"}
    if index.exists():
        named = {index.name, *json.loads(index.read_text())["weight_map"].values()}
    assert {path.name for path in out.iterdir()} == {"config.json", *named}


def test_a_config_of_something_else_is_not_lost(directory, load, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"format": "fidgpt.config"}')
    with pytest.raises(ConfigError, match="would be lost"):
        save_hf(load(directory), run, seq_len=24)
    assert [path.name for path in run.iterdir()] == ["config.json"]
    assert (run / "config.json").read_text() == '{"format": "fidgpt.config"}'


def test_one_tensor_is_in_memory_at_a_time(directory, load, monkeypatch):
    model, alive, most = load(directory), [], 0
    each = TensorFiles.each

    def watched(self: TensorFiles, names: list[str]):
        nonlocal most
        for name, tensor in each(self, names):
            alive.append(weakref.ref(tensor))
            most = max(most, sum(one() is not None for one in alive))
            yield name, tensor
            del tensor

    monkeypatch.setattr(TensorFiles, "each", watched)
    load_hf(model, directory)
    assert len(alive) > 30
    assert most <= 2


def test_no_file_may_ask_for_what_writes():
    assert find_name("fidgpt.interop:load_hf") is load_hf
    for name in ("hugging_face.save:save_hf", "targets_out:write_targets", "hugging_face:from_hf"):
        with pytest.raises(ConfigError, match="refused"):
            find_name(f"fidgpt.interop.{name}")
