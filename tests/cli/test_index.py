"""The index: what it holds, when it is true, and that nothing breaks where it cannot be kept."""

import os
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import fidgpt.compose.projects
from fidgpt import configs, fiddlers, tags
from fidgpt.compose import index as ask
from fidgpt.compose import index as projects
from fidgpt.compose import index as store
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.index_build import fitting, parts_on_offer, quantities_of
from fidgpt.compose.knobs import knobs_of
from fidgpt.compose.names import names, names_of_projects
from fidgpt.graph import find_parameter
from fidgpt.model import Attention

Index = dict[str, Any]


def knob(index: Index, path: str, config: str = "base") -> dict[str, Any]:
    (found,) = [one for one in index["knobs"][config] if one["path"] == path]
    return found


class TestNames:
    """Names are read from the sources without importing them."""

    def test_are_those_that_the_modules_list(self) -> None:
        found = names()
        assert list(found["configs"]) == [*configs.__all__, "from_hf"]
        assert list(found["fiddlers"]) == fiddlers.__all__
        kinds = [one for one in vars(tags).values() if isinstance(one, type)]
        assert set(found["tags"]) == {one.__name__ for one in kinds}

    def test_come_with_signature_doc_and_place(self) -> None:
        use_text = names()["fiddlers"]["use_text"]
        assert use_text["arguments"] == [
            {"name": "path", "type": "str"},
            {"name": "text_field", "type": "str", "default": "'text'"},
        ]
        assert use_text["doc"].startswith("Learns from files of your own")
        line = Path(use_text["file"]).read_text().splitlines()[use_text["line"] - 1]
        assert line.startswith("def use_text(")

    def test_of_tags_come_with_units(self) -> None:
        found = names()["tags"]
        assert found["HiddenDim"]["unit"] == "elements"
        assert found["LearningRate"]["unit"] == "per step"
        assert "unit" not in found["InitStd"]

    def test_are_the_same_in_the_whole_index(self, kept_index: Index) -> None:
        assert {kind: kept_index[kind] for kind in names()} == names()

    def test_of_installed_projects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lab = tmp_path / "lab_of_mine"
        (lab / "configs").mkdir(parents=True)
        (lab / "__init__.py").write_text("raise SystemExit('imported')")
        (lab / "configs" / "__init__.py").write_text(
            "from lab_of_mine.configs.wide import wide\n__all__ = ['wide']"
        )
        (lab / "configs" / "wide.py").write_text("def wide(width: int = 3):\n    '''Wide.'''")
        (lab / "fiddlers.py").write_text(
            "from fidgpt.fiddlers import unroll\n"
            "def use_paint(cfg, colour: str):\n    '''Paints.'''\n"
            "def _hidden(cfg): pass"
        )
        monkeypatch.syspath_prepend(tmp_path)
        points = [EntryPoint("lab", "lab_of_mine", projects.GROUP)]
        monkeypatch.setattr(projects, "entry_points", lambda group: points)
        found = names_of_projects()
        assert found["configs"]["lab_of_mine.configs.wide"] == {
            "doc": "Wide.",
            "file": str(lab / "configs" / "wide.py"),
            "line": 1,
            "arguments": [{"name": "width", "type": "int", "default": "3"}],
        }
        (fiddler,) = found["fiddlers"].items()
        assert fiddler[0] == "lab_of_mine.fiddlers.use_paint"
        assert fiddler[1]["arguments"] == [{"name": "colour", "type": "str"}]

    def test_of_the_group_that_commands_read(self) -> None:
        assert projects.GROUP == fidgpt.compose.projects.GROUP


class TestKnobs:
    """Each parameter of each config, with all that is known of it."""

    def test_every_path_leads_to_its_value(self, kept_index: Index) -> None:
        for name in configs.__all__:
            root = getattr(configs, name)()
            for one in kept_index["knobs"][name]:
                place = find_parameter(root, one["path"])
                assert ("unset" in one or "heard" in one) == (place.value is fdl.NO_VALUE)

    def test_what_somebody_said(self, kept_index: Index) -> None:
        assert knob(kept_index, "model.hidden_dim") == {
            "path": "model.hidden_dim",
            "type": "int",
            "value": "256",
            "tags": ["HiddenDim"],
            "doc": "width of the residual stream.",
        }

    def test_what_is_heard_and_from_where(self, kept_index: Index) -> None:
        one = knob(kept_index, "model.blocks[0].attention.rope.head_dim")
        assert (one["value"], one["heard"]) == ("64", "model.blocks[0].attention.head_dim")

    def test_what_nobody_said_has_its_default(self, kept_index: Index) -> None:
        one = knob(kept_index, "model.blocks[0].attention.bias")
        assert (one["value"], one["unset"], one["choices"]) == ("False", True, ["True", "False"])

    def test_a_shared_part_is_told_once(self, kept_index: Index) -> None:
        one = knob(kept_index, "model.unembedding.weight")
        assert (one["part"], one["same"]) == ("token_table", "model.embedding.weight")
        paths = [one["path"] for one in kept_index["knobs"]["base"]]
        assert len(paths) == len(set(paths))
        assert not [path for path in paths if path.startswith("model.unembedding.weight.")]

    def test_a_tag_describes_what_its_part_does_not(self) -> None:
        cfg = fdl.Config(dict, width=tags.HiddenDim.new(8))
        assert knobs_of(cfg)[0]["doc"] == names()["tags"]["HiddenDim"]["doc"]

    def test_quantities(self, kept_index: Index) -> None:
        seed = kept_index["quantities"]["base"]["Seed"]
        assert seed == {"says": ["seed"], "hears": ["data.seed"]}

    def test_a_deep_graph_needs_no_recursion(self) -> None:
        root = fdl.Config(list)
        for _ in range(2000):
            root = fdl.Config(_wrapped, inner=root, width=tags.HiddenDim.new(1))
        knobs = knobs_of(root)
        assert len(knobs) == 4000 + 1
        assert len(quantities_of(knobs)["HiddenDim"]["says"]) == 2000


def _wrapped(inner: object, width: int) -> object:
    return inner


class TestFits:
    """Which parts may stand where a type is asked."""

    def test_by_type(self, kept_index: Index) -> None:
        fits = kept_index["fits"]
        assert fits["Callable[..., Optimizer]"] == ["Adafactor", "Lion", "Muon", "adamw"]
        assert fits["Precision"] == ["BFloat16", "Float16", "Float32", "native_precision"]
        assert "Attention" in fits["Module"] and "adamw" not in fits["Module"]
        assert "bool" not in fits and "str" not in fits

    def test_a_protocol_asks_for_its_methods(self, kept_index: Index) -> None:
        schedules = sorted(kept_index["fits"]["Schedule"])
        assert schedules == ["Phases", "WarmupCosine", "WarmupStableDecay", "optim.Constant"]
        starts = {"DepthScaled", "FanIn", "MuP", "Normal", "TruncatedNormal", "model.Constant"}
        assert set(kept_index["fits"]["Init"]) == starts

    def test_a_torch_module_is_asked_for_its_forward(self, kept_index: Index) -> None:
        mixers = kept_index["fits"]["Mixer"]
        assert {"Attention", "LatentAttention"} <= {*mixers}
        assert not {"Linear", "Embedding", "Transformer", "MoE", "RMSNorm"} & {*mixers}

    def test_a_function_takes_as_many_arguments(self) -> None:
        kernel = Attention.__init__.__annotations__["kernel"]
        offered = parts_on_offer(own_catalogue().parts)
        assert sorted(fitting(kernel, offered)) == ["blockwise", "eager", "fastest", "flex", "sdpa"]

    def test_what_has_no_signature_is_not_offered(self) -> None:
        class Settings(dict[str, int]):
            pass

        assert [*parts_on_offer({"Settings": Settings, "Attention": Attention})] == ["Attention"]


class TestKept:
    """The file: true until something changes, and whole at every moment."""

    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "cache"))

    def index(self, *files: Path) -> Index:
        roots = [str(one) for one in files]
        return {"version": store.VERSION, "roots": roots, "stamps": store.stamps(roots)}

    def test_where_it_lies(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        own = store.index_path()
        assert own and own.parent == tmp_path / "cache"
        monkeypatch.delenv("FIDGPT_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", "/common")
        assert store.index_path() == Path("/common/fidgpt") / own.name
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/home/me")
        assert store.index_path() == Path("/home/me/.cache/fidgpt") / own.name

    def test_is_read_as_it_was_written(self) -> None:
        assert store.read() == (None, False)
        assert store.write(self.index())
        assert store.read() == (self.index(), True)

    def test_a_change_makes_it_untrue(self, tmp_path: Path) -> None:
        folder = tmp_path / "configs"
        folder.mkdir()
        (folder / "one.py").write_text("a = 1")
        index = self.index(folder, folder / "one.py")
        store.write(index)
        (folder / "__pycache__").mkdir()
        assert store.read()[1]
        (folder / "two.py").write_text("b = 2")
        assert store.read() == (index, False)
        (folder / "two.py").unlink()
        assert store.read()[1]
        (folder / "one.py").write_text("a = 10")
        assert not store.read()[1]
        (folder / "one.py").unlink()
        assert not store.read()[1]

    def test_decided_by_fidgpt_and_what_is_installed(self) -> None:
        index = {**self.index(), "roots": store.roots([])}
        stamps = store.stamps(index["roots"])
        assert str(store.PACKAGE / "configs" / "base.py") in stamps
        assert any(path.endswith("site-packages") for path in stamps)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"version": 0}', b"\xff"])
    def test_a_damaged_file_is_no_index(self, content: bytes) -> None:
        store.write(self.index())
        path = store.index_path()
        assert path
        path.write_bytes(content)
        assert store.read() == (None, False)
        assert "base" in ask.at_hand()["configs"]

    def test_nowhere_to_keep_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "file" / "inside"))
        assert not store.can_keep()
        assert not store.write(self.index())
        store.rebuild_in_background()
        assert "base" in ask.for_completion(with_knobs=True)["configs"]
        assert list(tmp_path.iterdir()) == [tmp_path / "file"]

    def test_one_build_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[Any] = []
        monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
        store.rebuild_in_background()
        store.rebuild_in_background()
        assert started == [
            [sys.executable, "-P", "-m", "fidgpt.compose.index_main", store.BACKGROUND]
        ]
        path = store.index_path()
        assert path
        marker, long_ago = path.with_suffix(".building"), time.time() - 1000
        os.utime(marker, (long_ago, long_ago))
        store.rebuild_in_background()  # the one before must have died
        store.end_rebuild()
        store.rebuild_in_background()
        assert len(started) == 3

    def test_an_untrue_one_tells_old_knobs_and_new_names(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ask, "rebuild_in_background", lambda: None)
        store.write(self.index() | {"stamps": {"x": []}, "knobs": {"old": []}, "configs": {}})
        index = ask.for_completion(with_knobs=True)
        assert index["knobs"] == {"old": []}
        assert "base" in index["configs"]
        assert any(flag["name"] == "config" for flag in index["flags"]["train"])

    def test_what_cannot_be_built_is_said(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        failing = [sys.executable, "-c", "raise SyntaxError('in base.py')"]
        monkeypatch.setattr(store, "BUILD", failing)
        assert "base" in ask.whole()["configs"]
        assert "not possible: SyntaxError: in base.py" in capsys.readouterr().err


def test_a_process_of_its_own_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    built = ask.whole()
    assert store.read()[0] == built
    assert str(store.PACKAGE / "tags.py") in built["stamps"]
