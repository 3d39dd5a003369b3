"""Every named config: what it sets, what it builds, and what follows when one quantity moves.

The golden of a config that is made from another one holds the difference from it, so that a default
that changes moves one line of one golden, and not of all.
"""

import copy
import importlib.util
import itertools
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fiddle as fdl
import psutil
import pytest
import torch
from fiddle import daglish, graphviz, printing
from fiddle.codegen.codegen import auto_config_codegen
from golden_text import GOLDENS
from small_models import cut

from fidgpt import configs, fiddlers, goldens, graph
from fidgpt.graph import bind, fingerprint, parts
from fidgpt.runs import building
from fidgpt.runs.building import build_trainer

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
        f"pythia_{size}"
        for size in ("14m", "31m", "160m", "410m", "1b", "1_4b", "2_8b", "6_9b", "12b")
    ),
    "granite3_2b": ("granite3_8b",),
    "olmoe_1b_7b": (),
    "command_r": ("command_r_08_2024",),
    "falcon_7b": ("falcon_40b",),
    "qwen3_next_80b_a3b": (),
    "granite4_h_micro": (),
    "granite4_h_tiny": ("granite4_h_small",),
    "lfm2_350m": ("lfm2_1_2b", "lfm2_700m"),
    "kimi_linear_48b_a3b": (),
    "minimax_01": (),
    "nanochat": (),
}
PARENTS = dict.fromkeys(FAMILIES, "base") | {
    size: first for first, others in FAMILIES.items() for size in others
}


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
def lines_of(name: str) -> dict[str, str]:
    """The lines of the golden of a named config, whose model is tried by a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "try_model", lambda _: None)
        return goldens.lines_of(getattr(configs, name)())


def moved(read: Callable[[str], str]) -> list[str]:
    """The configs whose golden, as `read` gives it, is not what it would be now."""
    return [name for name in configs.__all__ if read(name) != golden_text(name)]


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


# Two rounds of the patterns of some; in long tests whole models of all.
WHOLE = [
    *((name, False) for name in ("base", *FAMILIES)),
    *(pytest.param(name, True, marks=pytest.mark.long) for name in configs.__all__),
]


def config_of(name: str, is_whole: bool) -> fdl.Config:
    cfg = getattr(configs, name)()
    if not is_whole:
        cut(cfg)
    return cfg


@pytest.mark.parametrize(("name", "is_whole"), WHOLE)
def test_fiddle_builds_a_config_as_the_graph_does(name: str, is_whole: bool) -> None:
    one, other = config_of(name, is_whole), config_of(name, is_whole)
    with torch.device("meta"):
        assert facts(fdl.build(one)) == facts(graph.build(other))


@pytest.mark.parametrize(("name", "is_whole"), WHOLE)
def test_the_model_of_a_config_reads_a_sequence(name: str, is_whole: bool) -> None:
    model = build_trainer(config_of(name, is_whole)).model
    assert all(one.is_meta for one in model.parameters())


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


@pytest.mark.parametrize(
    "name",
    [
        # A family in one process, where the lines of its first are kept.
        pytest.param(name, marks=pytest.mark.xdist_group(name if name in FAMILIES else parent))
        for name, parent in {"base": "base", **PARENTS}.items()
    ],
)
def test_config_is_its_golden(name: str, golden: Callable[..., None]) -> None:
    def explain(changed: list[str]) -> list[str]:
        names = moved(lambda one: (GOLDENS / "configs" / f"{one}.txt").read_text(encoding="utf-8"))
        how_many = "1 golden moves" if len(names) == 1 else f"{len(names)} goldens move"
        return [
            *goldens.causes(getattr(configs, name)(), changed),
            f"{how_many}: {', '.join(names)}.",
        ]

    golden(f"configs/{name}", golden_text(name), explain)


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
