"""The fiddlers of data: what they set, on a command line, and a run with all of them."""

import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers, graph, train
from fidgpt.compose.composition import compose
from fidgpt.data import FillInTheMiddle, Mixture, Prefetch, TokenStream
from fidgpt.runs.building import build_trainer
from fidgpt.train.trackers.trackers import read_rows


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """Two folders of short documents."""
    found = {}
    for name, word in (("prose", "a word or two, "), ("code", "x = x + 1\n")):
        lines = [json.dumps({"body": f"{n} " + word * (1 + n % 9)}) for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        found[name] = str(tmp_path / f"{name}.jsonl")
    return found


def small(texts: dict[str, str]) -> fdl.Config[train.Trainer]:
    """The config `debug` on one of the texts."""
    cfg = configs.debug()
    fiddlers.smoke_test(cfg, num_steps=6)
    fiddlers.use_text(cfg, texts["code"], text_field="body")
    cfg.data.corpus.validation_fraction = 0.3
    return cfg


def all_of_it(cfg: fdl.Config[train.Trainer], texts: dict[str, str]) -> None:
    fiddlers.use_mixture(
        cfg,
        {"prose": texts["prose"]},
        weights={"own": 0.75, "prose": 0.25},
        stages={0.5: {"prose": 1}},
        text_field="body",
    )
    fiddlers.use_packing(cfg)
    fiddlers.use_document_mask(cfg)
    fiddlers.use_fim(cfg, rate=0.9)
    fiddlers.use_prefetch(cfg)


def test_a_mixture_fits_a_command_line(texts: dict[str, str]) -> None:
    texts_argument = f"{{'prose': '{texts['prose']}'}}"
    fiddler = (
        f"use_mixture({texts_argument}, weights={{'own': 3, 'prose': 1}}, "
        "stages={0.5: {'prose': 1}, 400: {'own': 1}}, text_field=body)"
    )
    others = ["fiddler:use_packing", "fiddler:use_prefetch(depth=3)", "set:num_steps=100"]
    directives = ["config:debug", f"fiddler:{fiddler}", *others, "set:batch_size=4"]
    data: Any = build_trainer(compose(directives).config).stream
    assert isinstance(data, Prefetch) and data.depth == 3
    mixture: Any = data.stream
    assert isinstance(mixture, Mixture) and mixture.batch_size == 4
    assert [stage.begin for stage in mixture.stages] == [0, 50, 400]
    assert float(mixture.shares(0)["own"]) == 0.75
    streams: dict[str, Any] = dict(mixture.streams)
    assert isinstance(streams["own"], TokenStream)
    assert streams["own"].packing is streams["prose"].packing


@pytest.mark.slow
def test_a_run_resumes_exactly_with_the_same_shares(texts: dict[str, str], tmp_path: Path) -> None:
    cfg = small(texts)
    all_of_it(cfg, texts)
    cfg.checkpoints.every = 3

    def losses(**options: Any) -> list[float]:
        run = train.RunDirectory(tmp_path / "run", texts={"config.json": graph.dump(cfg)})
        build_trainer(cfg).train(run, **options)
        return [float(row["loss"]) for row in read_rows(tmp_path / "run" / "metrics.jsonl")]

    whole = losses()
    assert len(whole) == 6
    assert losses(resume=True, resume_step=3) == whole
    cfg.data.weights = {"own": 0.5, "prose": 0.5}
    match = r"other proportions: .* from step 0 \(own 3, prose 1\) on, .* one from step 0 \(own 1"
    with pytest.raises(train.RunError, match=match):
        losses(resume=True)


def test_bytes_have_room_for_the_tokens_of_fill_in_the_middle(texts: dict[str, str]) -> None:
    first, second = small(texts), configs.base()
    fiddlers.use_fim(first)
    assert first.vocab_size == 260
    fiddlers.use_fim(second)
    fiddlers.use_bytes(second)
    assert second.vocab_size == 260
    assert second.data.corpus.tokenizer.special_tokens[1] == "<|fim_suffix|>"
    (transform,) = build_trainer(first).data.transforms  # type: ignore[attr-defined]
    assert isinstance(transform, FillInTheMiddle)


def test_weights_of_nothing_and_stages_between_steps_are_refused(texts: dict[str, str]) -> None:
    for name, error in {
        "prse": "no text 'prse'; the .* prose, code",
        "prose": "'code' has no",
    }.items():
        with pytest.raises(graph.ConfigError, match=error):
            fiddlers.use_mixture(small(texts), texts, weights={name: 1})
    with pytest.raises(graph.ConfigError, match="at a step or, below 1, at a fraction: 2.5"):
        fiddlers.use_mixture(small(texts), texts, stages={2.5: {"own": 1}})
