"""Fiddlers of losses and of what is measured: what they leave in the graph, together too."""

from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.data import HeldOut, Mixture, TextFiles
from fidgpt.fiddlers import (
    use_domain_validation,
    use_fused_loss,
    use_label_smoothing,
    use_mixture,
    use_prefetch,
    use_tasks,
    use_validation,
    use_z_loss,
)
from fidgpt.graph import ConfigError
from fidgpt.train import CrossEntropy, DomainValidation, FusedCrossEntropy, Trainer, Validation


@pytest.fixture
def cfg() -> fdl.Config[Trainer]:
    return debug()


def built(cfg: fdl.Config[Trainer]) -> Any:
    """The trainer, whose parts are of other kinds than it asks for."""
    return build_trainer(cfg)


def test_terms_stand_side_by_side_and_the_loss_stays_what_it_is(cfg):
    cfg.loss.chunk_size = 7
    use_label_smoothing(cfg, amount=0.2)
    use_fused_loss(cfg)
    use_z_loss(cfg, weight=0.01)
    loss = built(cfg).loss
    assert type(loss) is FusedCrossEntropy and loss.chunk_size == 7
    terms: dict[str, Any] = dict(loss.terms)
    assert {*terms} == {"label_smoothing", "z_loss"}
    assert terms["label_smoothing"].amount == 0.2
    assert terms["z_loss"].weight == 0.01


def test_nothing_is_smoothed_by_default(cfg):
    loss = built(cfg).loss
    assert type(loss) is CrossEntropy and not loss.terms


def test_a_loss_of_ones_own_is_refused(cfg):
    cfg.loss = fdl.Config(dict)
    with pytest.raises(ConfigError, match="dict, no CrossEntropy"):
        use_label_smoothing(cfg)


def test_each_text_of_a_mixture_is_a_domain(cfg):
    use_mixture(cfg, {"here": __file__, "there": __file__})
    use_prefetch(cfg)
    before = cfg.evaluators["validation"]
    use_domain_validation(cfg)
    part = built(cfg).evaluators["validation"]
    assert isinstance(part, DomainValidation)
    domains: dict[str, Any] = dict(part.domains)
    assert list(domains) == ["here", "own", "there"]
    assert part.every == before.every
    for stream in domains.values():
        assert stream.max_batches == before.data.num_batches
    assert cfg.evaluators["validation"].domains["own"].corpus is before.data.corpus


def test_a_file_of_which_all_is_held_out_is_validated_on_by_its_name(cfg, tmp_path):
    cfg.data.corpus.source = fdl.Config(TextFiles, __file__)
    cfg.data.corpus.cache_dir = str(tmp_path)
    before = cfg.evaluators["validation"]
    use_validation(cfg, {"here": __file__})
    cfg.evaluators["here"].data.corpus.cache_dir = str(tmp_path)
    parts = built(cfg).evaluators
    assert sorted(parts) == ["here", "validation"]
    here = parts["here"]
    assert isinstance(here, Validation)
    assert isinstance(here.data, HeldOut)
    assert (here.every, here.data.max_batches) == (before.every, before.data.num_batches)
    prepared = here.data.corpus.prepare(show_progress=False)
    assert (prepared.train.num_tokens, prepared.validation.num_documents) == (0, 1)
    own = cfg.evaluators["here"]
    use_domain_validation(cfg)  # which is about what is trained on
    assert cfg.evaluators["here"] is own
    use_validation(cfg, {"validation": __file__})
    assert cfg.evaluators["validation"].data.corpus.validation_fraction == 1.0


def test_a_mixture_in_a_mixture_is_named_by_both(cfg):
    use_mixture(cfg, {"here": __file__})
    cfg.data = fdl.Config(Mixture, {"inner": cfg.data}, batch_size=4, weights={"inner": 1.0})
    use_domain_validation(cfg)
    assert [*cfg.evaluators["validation"].domains] == ["inner/here", "inner/own"]


def test_what_has_no_domains_is_refused(cfg):
    cfg.evaluators = {}
    with pytest.raises(ConfigError, match="no evaluator"):
        use_domain_validation(cfg)


def test_tasks_inherit_the_length_and_share_the_text(cfg):
    use_tasks(cfg, ("one", "two"), limit=3, include_path=str(Path(__file__).parent))
    part = built(cfg).evaluators["tasks"]
    assert part.tasks == ["one", "two"] and part.limit == 3
    assert part.seq_len == cfg.seq_len
    assert cfg.evaluators["tasks"].corpus is cfg.data.corpus
