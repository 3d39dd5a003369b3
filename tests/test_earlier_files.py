"""Files that an earlier version wrote keep working: configs, patches, runs, sweeps and searches.

`benchmarks/make_earlier_files.py` wrote them, with `recorded.json`: what that version reported.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from forked import Python

from fidgpt import graph
from fidgpt.compose.composition import compose
from fidgpt.model.moe import MoE
from fidgpt.parallel import FullyShardedDataParallel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EARLIER = Path(__file__).parent / "fixtures" / "earlier"
RECORDED = json.loads((EARLIER / "recorded.json").read_text(encoding="utf-8"))
RUNS, CONFIGS, PATCHES = RECORDED["runs"], RECORDED["configs"], RECORDED["patches"]


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy of the files, which commands may change."""
    return Path(shutil.copytree(EARLIER, tmp_path / "earlier"))


def run(directory: Path, *arguments: str) -> str:
    """Run `python ARGUMENTS` in a directory and return what it printed."""
    if arguments[0].endswith(".py"):
        arguments = (str(ROOT / arguments[0]), *arguments[1:])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = directory.parent / "output.txt"
    python = Python(*arguments, output=output, directory=directory, environment=environment)
    status = python.end(seconds=120)
    assert status == 0, python.output
    return python.output


# Wrappers of blocks and streams stood around them, so that these fingerprints changed since.
WRAPPED = {"llama", "gpt_oss", "qwen", "texts", "other_parts", "experts"}


def is_same_run(cfg: Any, recorded: dict[str, Any], name: str = "") -> bool:
    """Whether a graph is the one that was recorded."""
    if "fiddler:use_loss_free_balancing" in (recorded.get("directives") or ()):
        # What it removed left no place.
        cfg = graph.clone(cfg)
        for moe in graph.find(cfg.model, MoE):
            moe.balancing.insert(0, None)
    if name in WRAPPED:
        made: Any = compose(recorded["directives"]).config
        if "fiddler:use_fsdp" in recorded["directives"]:  # which gives a mesh since
            assert fdl.get_callable(cfg.parallel) is FullyShardedDataParallel
            made.parallel = graph.clone(cfg.parallel)
        return graph.equal(cfg, made)
    return graph.fingerprint(cfg) == recorded["fingerprint"]


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_all_kinds_of_files_are_there() -> None:
    assert {file.stem for file in EARLIER.glob("configs/*.json")} == set(CONFIGS)
    assert {file.stem for file in EARLIER.glob("configs/*.yaml")} == set(CONFIGS)
    assert {file.stem for file in EARLIER.glob("patches/*.patch")} == set(PATCHES)
    assert {folder.name for folder in EARLIER.glob("runs/*")} == set(RUNS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_file_loads_in_both_forms_and_builds(name: str) -> None:
    files = [EARLIER / "configs" / f"{name}.{form}" for form in ("json", "yaml")]
    cfg, same = (graph.load(file.read_text(encoding="utf-8")) for file in files)
    assert graph.equal(cfg, same)
    assert is_same_run(cfg, CONFIGS[name], name)
    with torch.device("meta"):
        trainer: Any = graph.build(cfg)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    assert parameters == CONFIGS[name]["parameters"]


def test_patches_apply(earlier: Path) -> None:
    for name, recorded in PATCHES.items():
        flags = ("--config=config:debug", f"--config=patch:patches/{name}.patch", "--print=json")
        assert is_same_run(graph.load(run(earlier, "train.py", *flags)), recorded)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes_where_it_stopped(name: str, earlier: Path) -> None:
    recorded = RUNS[name]
    folder = earlier / "runs" / name
    cfg = graph.load((folder / "config.json").read_text(encoding="utf-8"))
    assert is_same_run(cfg, recorded, name)
    before = rows(folder / "metrics.jsonl")
    assert len(before) == recorded["stopped_after"]
    output = run(earlier, "train.py", f"--resume=runs/{name}")
    after = rows(folder / "metrics.jsonl")
    assert after[: len(before)] == before
    assert [row["step"] for row in after] == [*range(1, recorded["num_steps"] + 1)], output


def test_a_run_still_knows_where_its_values_came_from(earlier: Path) -> None:
    flags = ("--config=config_file:runs/dense/config.json", "--why=model.hidden_dim")
    assert "directive 2: set:model.hidden_dim=8" in run(earlier, "train.py", *flags)


def test_an_average_is_evaluated(earlier: Path) -> None:
    output = run(earlier, "-m", "fidgpt.evaluate", "runs/muon", "--averaged")
    assert "bits_per_byte" in output


@pytest.mark.parametrize("name", ["grid", "search"])
def test_a_sweep_is_reported(name: str, earlier: Path) -> None:
    output = run(earlier, "-m", "fidgpt.sweep", "report", f"sweeps/{name}", "--nopage")
    assert RECORDED[name]["best"] in output.splitlines()[0]
    assert (earlier / "sweeps" / name / "report.csv").exists()


def test_a_sweep_finds_its_points_finished(earlier: Path) -> None:
    folder, recorded = earlier / "sweeps" / "grid", RECORDED["grid"]
    before = metrics_of(folder)
    output = run(earlier, "sweep.py", *recorded["command"], "--run_dir=sweeps/grid")
    assert metrics_of(folder) == before
    expected = [(point["name"], "finished") for point in recorded["points"]]
    assert statuses(folder) == expected, output


def test_a_search_continues_its_study(earlier: Path) -> None:
    folder, recorded = earlier / "sweeps" / "search", RECORDED["search"]
    before = metrics_of(folder)
    more = f"--search=tpe:{len(recorded['points']) + 1}"
    command = [more if flag.startswith("--search=") else flag for flag in recorded["command"]]
    output = run(earlier, "sweep.py", *command, "--run_dir=sweeps/search")
    after = metrics_of(folder)
    assert len(after) == len(before) + 1, output
    assert after | before == after
    expected = [(point["name"], "finished") for point in recorded["points"]]
    assert statuses(folder)[:-1] == expected
    assert statuses(folder)[-1][1] == "finished"


def metrics_of(folder: Path) -> dict[str, str]:
    """The metrics of each point of a sweep."""
    files = folder.glob("*/metrics.jsonl")
    return {file.parent.name: file.read_text(encoding="utf-8") for file in files}


def statuses(folder: Path) -> list[tuple[str, str]]:
    """The name and status of each point of a sweep."""
    return [(row["name"], row["status"]) for row in rows(folder / "table.jsonl")]


def gpt_oss(*, first: dict[str, Any] | None, second: dict[str, Any] | None) -> str:
    """A file of an alternating pattern, with wrappers of former versions around its blocks."""
    document = json.loads((EARLIER / "configs" / "gpt_oss.json").read_text(encoding="utf-8"))
    del document["fingerprint"]
    entries = document["parts"]
    entries["model.blocks[1].block"] = entries["model.blocks[1]"]  # only the other one had one
    for i, around in enumerate((first, second)):
        path = f"model.blocks[{i}]"
        block = {"part": f"{path}.block"}
        if around is None:
            del entries[path]
            entries["model"]["set"]["blocks"][i] = block
        else:
            entries[path] = around | {"set": {"block": block} | around["set"]}
    return json.dumps(document)


def wrapper(name: str, **values: Any) -> dict[str, Any]:
    return {"Config": f"fidgpt.model:{name}", "set": values}


@pytest.mark.parametrize(
    ("first", "second", "every"),
    [
        (wrapper("Recompute"), wrapper("Recompute"), 1),
        (wrapper("Recompute"), None, 2),
        (wrapper("Compile", mode="default"), wrapper("Compile", mode="default"), None),
    ],
)
def test_wrappers_that_can_stand_beside_their_blocks_do(first, second, every) -> None:
    model = graph.load(gpt_oss(first=first, second=second)).model
    kept = model.compile if every is None else model.recompute
    assert every is None or kept.every == every
    assert every is not None or kept.mode == "default"
    assert [fdl.get_callable(block).__name__ for block in model.blocks] == ["Block", "Block"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (None, wrapper("Recompute"), r"recompute was around model.blocks\[1\] only, of the items "),
        (wrapper("Compile"), None, r"compile was around model.blocks\[0\] only, of the items of "),
        (wrapper("Float8"), None, r"float8 was around model.blocks\[0\] only, of the items of "),
        (
            wrapper("Compile", mode="default"),
            wrapper("Compile", mode="reduce-overhead"),
            r"compile of model differed between model.blocks\[0\], model.blocks\[1\]; today it is ",
        ),
        (
            wrapper("Recompute", keep={"name": "fidgpt.model:keep_products"}),
            wrapper("Recompute"),
            "recompute of model differed between ",
        ),
    ],
)
def test_wrappers_that_cannot_are_refused_by_their_places(first, second, message) -> None:
    with pytest.raises(graph.ConfigError, match=message):
        graph.load(gpt_oss(first=first, second=second))


def test_wrappers_where_there_can_be_none_today_are_refused() -> None:
    document = json.loads(gpt_oss(first=None, second=None))
    entries = document["parts"]
    place = "model.blocks[0].block"
    entries[place]["set"]["mlp"] = {"part": "model.wrapped"}
    entries["model.wrapped"] = wrapper("Recompute", block={"part": f"{place}.mlp"})
    with pytest.raises(graph.ConfigError, match=r"mlp was inside of Recompute, which only "):
        graph.load(json.dumps(document))
    entries["model"]["set"]["first_blocks"] = [{"part": "model.more"}]  # which has no wrapper
    entries["model.more"] = {"Partial": "fidgpt.model:Block", "set": {}}
    del entries["model.wrapped"]
    entries[place]["set"]["mlp"] = {"part": f"{place}.mlp"}
    entries["model.blocks[0]"] = wrapper("Recompute", block={"part": place})
    entries["model"]["set"]["blocks"][0] = {"part": "model.blocks[0]"}
    with pytest.raises(graph.ConfigError, match="only, of the items of model.(.*first_blocks)"):
        graph.load(json.dumps(document))
