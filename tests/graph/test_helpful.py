"""Which fiddlers are tried on the way to a graph, and which of them are taken."""

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from fidgpt import configs, tags
from fidgpt.graph.reproduce import repro

from .test_repro import BASES, compose


def test_what_only_hides_differences_saves_none() -> None:
    """A block in a wrapper is one part that differs, and all that it holds is to be said too."""
    tried = [f"fiddler:{name}" for name in ("share_blocks", "use_compile", "use_qk_norm")]
    tried += ["fiddler:use_rope", "fiddler:use_gqa", "fiddler:untie_embeddings"]
    first = "config:gpt2_124m"
    done = repro(configs.qwen3_8b(), {first: BASES[first]}, compose=compose, fiddlers=tried)
    assert done.is_same
    assert not {"fiddler:share_blocks", "fiddler:use_compile"} & set(done.directives)


def test_a_fiddler_that_changes_nothing_that_differs_is_tried_but_once() -> None:
    asked: list[Sequence[str]] = []

    def counted(said: Sequence[str]) -> Any:
        asked.append(tuple(said))
        return compose(said)

    cfg = compose(["config:base", "fiddler:use_layer_norm", "set:seed=3", "set:num_steps=7"])
    cfg.optimizer.betas = cfg.optimizer.betas[::-1]
    fdl.add_tag(cfg.optimizer, "betas", tags.WarmupSteps)  # which no directive says: it is sought
    tried = ["fiddler:use_layer_norm", "fiddler:use_gelu", "fiddler:use_packing"]
    repro(cfg, BASES, compose=counted, fiddlers=tried)
    assert len({said for said in asked if "fiddler:use_gelu" in said}) == 1
