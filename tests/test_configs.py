"""Every named config: what it sets, what it builds, and what follows when one quantity moves.

The golden of a config that is made from another one holds the difference from it, so that a default
that changes moves one line of one golden, and not of all.
"""

import copy
import importlib.util
import itertools
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fiddle as fdl
import psutil
import pytest
import torch
from fiddle import daglish, graphviz, printing
from fiddle.codegen.codegen import auto_config_codegen
from golden_text import GOLDENS, compare_with_golden
from torch import nn

from fidgpt import configs, fiddlers, graph
from fidgpt.compose.runs import build_trainer
from fidgpt.cost import shared_parameters
from fidgpt.graph import bind, fingerprint, parts
from fidgpt.graph.outlines import Row, rows
from fidgpt.graph.provenance import provenance_of

pytestmark = pytest.mark.slow

# The first of a family differs from base, its other sizes from the first.
FAMILIES = {
    "debug": (),
    "gpt2_124m": ("gpt2_355m", "gpt2_774m", "gpt2_1558m"),
    "llama2_7b": ("llama2_13b", "llama2_70b"),
    "llama3_2_1b": ("llama3_2_3b", "llama3_1_8b", "llama3_1_70b", "llama3_1_405b"),
    "llama3_8b": ("llama3_70b",),
    "mistral_7b": ("mistral_7b_v0_3", "mistral_nemo_12b", "mistral_small_24b"),
    "qwen2_5_0_5b": tuple(f"qwen2_5_{size}" for size in ("1_5b", "3b", "7b", "14b", "32b", "72b")),
    "qwen3_0_6b": tuple(f"qwen3_{size}" for size in ("1_7b", "4b", "8b", "14b", "32b")),
    "gemma2_2b": ("gemma2_9b", "gemma2_27b"),
    "gemma3_270m": tuple(f"gemma3_{size}" for size in ("1b", "4b", "12b", "27b")),
    "olmo2_1b": ("olmo2_7b", "olmo2_13b", "olmo2_32b"),
    "smollm_135m": ("smollm_360m", "smollm_1_7b"),
    "smollm2_135m": ("smollm2_360m", "smollm2_1_7b"),
    "smollm3_3b": (),
    "mixtral_8x7b": ("mixtral_8x22b",),
    "qwen3_30b_a3b": ("qwen3_235b_a22b",),
    "deepseek_v2_lite": (),
    "deepseek_v3": (),
    "gpt_oss_20b": ("gpt_oss_120b",),
    "phi3_3_8b": ("phi3_14b", "phi4_14b"),
    "gpt_neox_20b": (),
    "pythia_70m": tuple(
        f"pythia_{size}" for size in ("160m", "410m", "1b", "1_4b", "2_8b", "6_9b", "12b")
    ),
    "granite3_2b": ("granite3_8b",),
    "olmoe_1b_7b": (),
    "command_r": ("command_r_08_2024",),
    "falcon_7b": ("falcon_40b",),
}
PARENTS = dict.fromkeys(FAMILIES, "base") | {
    size: first for first, others in FAMILIES.items() for size in others
}

Lines = dict[str, str]
_BLOCK = re.compile(r"model\.(?:first_)?blocks\[\d+\]")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYERS = re.compile(r"(?<=\.)\d+(?:[.,]+\d+)*(?=\.)")


def golden_text(name: str) -> str:
    """What the golden of a config holds, as a text."""
    own, parent = lines_of(name), PARENTS.get(name)
    if parent is None:
        return "".join(f"{key}{text}\n" for key, text in own.items())
    other = lines_of(parent)
    gone = [f"- {key}\n" for key in other if key not in own]
    new = [f"{key}{text}\n" for key, text in own.items() if other.get(key) != text]
    return "".join([f"differs from {parent} in\n", *gone, *new])


@cache
def lines_of(name: str) -> Lines:
    """Every line of a config's graph and of its model's parameters, by what stands before it."""
    cfg = getattr(configs, name)()
    graph = {row.path or "the root": _text(row) for row in rows(cfg, defaults=True) if row.text}
    return _folded(graph) | _parameters(cfg)


def causes(name: str, changed: list[str]) -> list[str]:
    """Explain what set the values at the paths of the changed lines, as far as they are paths."""
    cfg = getattr(configs, name)()
    found = []
    for path in (line.split(" = ")[0] for line in changed if " = " in line):
        try:
            provenance = provenance_of(cfg, path)
        except ValueError:
            continue
        if provenance.default_of:
            found.append(f"{path}: a default of {provenance.default_of}")
        elif provenance.assignments:
            found.append(f"{path}: set by {provenance.assignments[0].set_by}")
    return list(dict.fromkeys(found))


def moved(read: Callable[[str], str]) -> list[str]:
    """The configs whose golden, as `read` gives it, is not what it would be now."""
    return [name for name in configs.__all__ if read(name) != golden_text(name)]


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
    found: Lines = {"parameters": f" = {sum(parameter.numel() for parameter in names):,}"}

    def add(group: str, label: str, text: str) -> None:
        layers = _LAYERS.search(label)
        within = f" in layers {layers[0]}" if layers else ""
        found[f"{group}: {_LAYERS.sub('*', label)}"] = f"{text}{within}"

    for group in trainer.optimizer(trainer.groups(model)).param_groups:
        found[f"{group['name']}:"] = f" lr={group['lr']} weight_decay={group['weight_decay']}"
        layers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for parameter in group["params"]:
            name = names[parameter]
            text = f" {list(parameter.shape)} {_start(model, name)}"
            layers[_LAYER.sub("*", name, count=1), text] += map(int, _LAYER.findall(name)[:1])
        for (name, text), numbers in layers.items():
            add(group["name"], name.replace("*", _ranges(numbers), 1), text)
    for name, others in shared_parameters(model).items():
        add("shared", f"{name} = {' = '.join(others)}", "")
    return found


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` as `0..2,5`."""
    runs = [[*run] for _, run in itertools.groupby(numbers, lambda x: x - numbers.index(x))]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _start(model: nn.Module, name: str) -> str:
    init = getattr(model.get_parameter(name), "init", None)
    if init is not None:
        return repr(init)
    return f"{type(model.get_submodule(name.rpartition('.')[0])).__name__}.reset_parameters"


def leaves(cfg: fdl.Config) -> dict[str, Any]:
    """Every argument of the bound graph that is no part, by path; what it calls as `path()`."""
    found: dict[str, Any] = {}
    for node in parts(bind(cfg)):
        found[f"{node.path}()"] = fdl.get_callable(node.value)
        for key, value in fdl.ordered_arguments(node.value).items():
            if not isinstance(value, fdl.Buildable | list | dict):  # pyright: ignore[reportArgumentType]
                found[f"{node.path}.{key}".removeprefix(".")] = value
    return found


def facts(trainer: Any) -> dict[str, Any]:
    """The parameters of a model, which of them are one, and the settings of the whole trainer."""
    named = list(trainer.model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in reversed(named)}
    found: dict[str, Any] = {name: (one.shape, one.dtype, first[id(one)]) for name, one in named}
    others = {name: one for name, one in vars(trainer).items() if name != "model"}
    for name, part in [*others.items(), ("", trainer), *trainer.model.named_modules()]:
        plain = (int, float, str, type(None))
        settings = {k: v for k, v in getattr(part, "__dict__", {}).items() if isinstance(v, plain)}
        found[f"{name}()"] = type(part), repr(settings)
    return found


@pytest.mark.parametrize("name", configs.__all__)
def test_fiddle_builds_a_config_as_the_graph_does(name: str) -> None:
    with torch.device("meta"):
        assert facts(fdl.build(getattr(configs, name)())) == facts(
            build_trainer(getattr(configs, name)())
        )


@pytest.mark.parametrize("name", ["base", "gpt2_124m", "gemma3_1b"])
def test_the_code_that_fiddle_writes_makes_an_equal_graph(name: str, tmp_path: Path) -> None:
    cfg = getattr(configs, name)()
    (tmp_path / "made.py").write_text(auto_config_codegen(cfg))
    spec = importlib.util.spec_from_file_location("made", tmp_path / "made.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert graph.equal(module.config_fixture.as_buildable(), cfg)


def test_the_root_of_a_config_is_a_config_like_others() -> None:
    cfg = configs.debug()
    copies = [copy.copy(cfg), copy.deepcopy(cfg), fdl.cast(fdl.Config, cfg), graph.clone(cfg)]
    copies.append(daglish.MemoizedTraversal.run(lambda one, state: state.map_children(one), cfg))
    copies.append(graph.load(graph.dump(cfg)))
    for one, other in itertools.pairwise([cfg, *copies]):
        assert graph.equal(one, other)
        assert not list(graph.diff(one, other))
        assert repr(one) == repr(other)
        assert printing.as_str_flattened(one) == printing.as_str_flattened(other)
        assert str(graphviz.render(one)) == str(graphviz.render(other))
    assert graph.find(cfg, type(fdl.build(cfg)))[0] is cfg


def test_fiddle_reports_what_is_wrong_with_a_config() -> None:
    cfg = configs.debug()
    cfg.model.num_layers = "many"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(graph.ConfigErrors, match="num_layers is 'many' .*Transformer takes int"):
        fdl.build(cfg)


@pytest.mark.parametrize("name", configs.__all__)
def test_config_is_its_golden(name: str, golden: Callable[..., None]) -> None:
    def explain(changed: list[str]) -> list[str]:
        names = moved(lambda one: (GOLDENS / "configs" / f"{one}.txt").read_text(encoding="utf-8"))
        how_many = "1 golden moves" if len(names) == 1 else f"{len(names)} goldens move"
        return [*causes(name, changed), f"{how_many}: {', '.join(names)}."]

    golden(f"configs/{name}", golden_text(name), explain)


@pytest.fixture
def fresh_lines() -> Iterator[None]:
    """Undo a test's changes of configs for other tests."""
    lines_of.cache_clear()
    yield
    lines_of.cache_clear()


@pytest.mark.usefixtures("fresh_lines")
def test_a_golden_that_moves_names_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    base = configs.base

    def other() -> fdl.Config:
        cfg = base()
        cfg.model.blocks[0].attention.rope.theta = 500_000.0
        return cfg

    golden = GOLDENS / "configs" / "base.txt"
    names = ["base", "debug", "gpt2_124m"]
    monkeypatch.setattr(configs, "__all__", names)
    monkeypatch.setattr(configs, "base", other)
    monkeypatch.setattr(sys.modules["fidgpt.configs.small"], "base", other)
    with pytest.raises(pytest.fail.Exception) as failed:
        text = golden_text("base")
        compare_with_golden(golden, text, update=False, explain=lambda new: causes("base", new))
    assert "+model.blocks[0].attention.rope.theta = 500000.0" in str(failed.value)
    assert "theta: set by tests/test_configs.py" in str(failed.value).replace(str(GOLDENS), "")
    read = {name: (golden.parent / f"{name}.txt").read_text(encoding="utf-8") for name in names}
    assert moved(lambda name: read[name]) == ["base"]
    with pytest.raises(pytest.fail.Exception, match="no golden none"):
        compare_with_golden(golden.with_name("none"), "", update=False)


def test_a_config_is_a_small_difference_from_its_parent() -> None:
    texts = {
        name: (GOLDENS / "configs" / f"{name}.txt").read_text(encoding="utf-8")
        for name in configs.__all__
    }
    lengths = {name: len(text.splitlines()) for name, text in texts.items()}
    assert {*PARENTS, "base"} == set(configs.__all__)
    for first, others in FAMILIES.items():
        assert lengths[first] < 1.5 * lengths["base"]
        assert all(lengths[name] < 50 for name in others)


def test_a_config_as_large_as_gpt2_xl_costs_no_time_and_no_memory() -> None:
    cfg = configs.base()
    fiddlers.make_xl(cfg)
    build_trainer(cfg)  # so that what is measured is not a first call
    memory, begin = psutil.Process().memory_info().rss, time.process_time()
    model = build_trainer(cfg).model
    assert time.process_time() - begin < 2.0
    assert psutil.Process().memory_info().rss - memory < 50e6
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) > 1_400_000_000


def test_the_width_moves_every_width_that_follows_it_and_nothing_else() -> None:
    before, wide = configs.base(), configs.base()
    wide.model.hidden_dim = 1024
    old, new = leaves(before), leaves(wide)
    assert old.keys() == new.keys()
    changed = {path: (old[path], new[path]) for path in old if old[path] != new[path]}
    following = [
        "model.hidden_dim",
        "model.embedding.weight.hidden_dim",
        "model.blocks[0].attention_norm.hidden_dim",
        "model.blocks[0].attention.hidden_dim",
        "model.blocks[0].mlp_norm.hidden_dim",
        "model.blocks[0].mlp.hidden_dim",
        "model.norm.hidden_dim",
    ]
    assert changed == dict.fromkeys(following, (256, 1024))
    model = build_trainer(wide).model
    assert all(1024 in parameter.shape for parameter in model.parameters())
    assert model.get_submodule("blocks.3.attention").num_heads == 1024 // 64
    wide.model.blocks[0].mlp.ffn_dim = 128  # an explicit width stays local
    assert leaves(wide).items() - new.items() == {("model.blocks[0].mlp.ffn_dim", 128)}


def test_a_number_and_a_fiddler_may_come_in_any_order() -> None:
    first, last = configs.base(), configs.base()
    first.model.hidden_dim = 1024
    fiddlers.use_gqa(first)
    fiddlers.use_gqa(last)
    last.model.hidden_dim = 1024
    assert fingerprint(first) == fingerprint(last) != fingerprint(configs.base())
