"""Arrow files and what Hugging Face's `save_to_disk` leaves, and datasets of the hub."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from fidgpt.data import DataError, HubDataset, TextFiles

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_arrow(path: Path, columns: dict[str, list[object]], *, form: str = "stream") -> None:
    table = pyarrow.table(columns)
    new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=400)


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_of_both_forms_is_read_row_by_row(tmp_path: Path, form: str) -> None:
    texts: list[object] = [f"text {n} é" for n in range(1000)]
    write_arrow(tmp_path / "a.arrow", {"id": list(range(1000)), "body": texts}, form=form)
    assert list(TextFiles(tmp_path / "a.arrow", text_field="body").documents()) == texts


def test_a_dataset_that_was_saved_to_disk_is_a_folder_of_arrow(tmp_path: Path) -> None:
    """Its metadata is not text, while other files of these names are."""
    write_arrow(tmp_path / "all" / "train" / "data-00000-of-00002.arrow", {"text": ["a", None]})
    write_arrow(tmp_path / "all" / "train" / "data-00001-of-00002.arrow", {"text": ["b"]})
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / "all" / "train" / name).write_text("{}")
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "all" / "states").mkdir()
    (tmp_path / "all" / "states" / "state.json").write_text("a text")
    assert list(TextFiles(tmp_path / "all").documents()) == ["a text", "a", "b"]


def test_of_several_splits_none_is_guessed_and_leftovers_of_maps_are_not_read(
    tmp_path: Path,
) -> None:
    for split in ("train", "test"):
        folder = tmp_path / split
        write_arrow(folder / "data-00000-of-00001.arrow", {"text": [split]})
        write_arrow(folder / "cache-0123456789abcdef.arrow", {"text": ["left"]})
        (folder / "dataset_info.json").write_text("{}")
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"the splits train, test(.|\n)*folder of one(.|\n)*/train"):
        list(TextFiles(tmp_path).documents())
    assert list(TextFiles(tmp_path / "test").documents()) == ["test"]


def test_arrow_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrow(tmp_path / "a.arrow", {"body": ["one"], "n": [1]})
    (tmp_path / "b.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[:50])
    for name, field, message in [
        ("a.arrow", "text", r"no column 'text'; it has body, n\."),
        ("a.arrow", "n", "has int in its column 'n'"),
        ("b.arrow", "text", "b.arrow is not a readable Arrow file(.|\n)*get it again"),
    ]:
        with pytest.raises(DataError, match=message):
            list(TextFiles(tmp_path / name, text_field=field).documents())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[parquet\]"'):
        list(TextFiles(tmp_path / "a.arrow").documents())


class Hub:
    """The two functions that are asked, without a network."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.resolved = 0

    def load_dataset(self, path: str, **options: Any) -> Iterator[dict[str, Any]]:
        self.asked.append((path, options))
        if path == "no/such":
            raise FileNotFoundError("no such dataset")
        return iter(self.rows)

    def dataset_info(self, path: str, *, revision: str) -> Any:
        self.resolved += 1
        if revision == "gone":
            raise ConnectionError("no network")
        return types.SimpleNamespace(sha=COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub([{"text": "one", "n": 1}, {"text": None, "n": 2}, {"text": "two", "n": 3}])
    datasets, client = types.ModuleType("datasets"), types.ModuleType("huggingface_hub")
    datasets.__dict__["load_dataset"] = hub.load_dataset
    client.__dict__["HfApi"] = lambda: hub
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    return hub


def test_a_dataset_of_the_hub_is_streamed_from_one_commit(hub: Hub) -> None:
    source = HubDataset("some/texts", name="en", split="train[:10]")
    assert list(source.documents()) == list(source.documents()) == ["one", "two"]
    path, options = hub.asked[0]
    assert path == "some/texts"
    assert options == {
        "name": "en",
        "split": "train[:10]",
        "revision": COMMIT,
        "streaming": True,
    }
    assert COMMIT in source.identity()
    assert hub.resolved == 1
    assert source.identity() != HubDataset("some/texts", split="train[:10]").identity()


def test_a_commit_is_not_asked_for(hub: Hub) -> None:
    source = HubDataset("some/texts", revision=COMMIT)
    assert COMMIT in source.identity()
    assert list(source.documents()) == ["one", "two"]
    assert hub.resolved == 0


def test_errors_of_the_hub_are_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for source, message in [
        (HubDataset("no/such", revision=COMMIT), "Cannot read the dataset no/such(.|\n)*names"),
        (HubDataset("some/texts", revision="gone"), "Cannot resolve 'gone'(.|\n)*revision="),
        (HubDataset("some/texts", text_field="body"), "no column 'body'; it has text, n"),
        (HubDataset("some/texts", text_field="n"), "has int in its column 'n'"),
    ]:
        with pytest.raises(DataError, match=message):
            list(source.documents())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[datasets\]"'):
        list(HubDataset("some/texts").documents())
