"""Pipelines: their schedules, how models are cut, and steps on four processes beside one."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fiddle as fdl
import pipelines
import pytest
import torch
from forked import Python

from fidgpt import fiddlers, graph
from fidgpt.graph import ConfigError, ConfigErrors
from fidgpt.model import Transformer
from fidgpt.parallel import ActionList, TorchSchedule, fitting
from fidgpt.parallel.pipeline import balanced
from fidgpt.parallel.pipeline_schedule import Schedule, most_kept, timeline
from fidgpt.plan import cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.train.estimates.facts import facts_of
from fidgpt.train.pipeline_step import StagePasses

SCHEDULES = [
    *("gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble"),
    *("zero_bubble_v", "dual_pipe_v"),
]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_both_sides_list_what_is_sent_in_one_order(name: str, num_ranks: int) -> None:
    schedule = TorchSchedule(name)
    number = fitting(schedule, num_ranks, 2 * num_ranks)
    line = timeline(schedule(num_ranks, number), [1.0] * schedule.num_stages(num_ranks))
    places = {action.stage: rank for rank, own in enumerate(line.actions) for action in own}
    for pair in itertools.permutations(range(num_ranks), 2):
        sent, received = [], []
        for action in line.actions[pair[0]]:
            to = action.stage + (1 if action.kind == "SEND_F" else -1)
            if action.kind.startswith("SEND") and places[to] == pair[1]:
                sent.append((to, action.kind[-1], action.micro_batch))
        for action in line.actions[pair[1]]:
            source = action.stage + (-1 if action.kind == "RECEIVE_F" else 1)
            if action.kind.startswith("RECEIVE") and places[source] == pair[0]:
                received.append((action.stage, action.kind[-1], action.micro_batch))
        assert sent == received
    cuts = sum(places[s] != places[s + 1] for s in range(schedule.num_stages(num_ranks) - 1))
    listed = [action.kind for own in line.actions for action in own]
    assert sum(kind.startswith("SEND") for kind in listed) == 2 * cuts * number


@pytest.mark.parametrize(
    ("stages_per_rank", "num_ranks", "number"), [(1, 4, 8), (2, 4, 8), (3, 2, 4)]
)
def test_the_bubble_is_that_of_the_paper(stages_per_rank: int, num_ranks: int, number: int) -> None:
    # Narayanan et al., 2021, arXiv:2104.04473, section 2.2: (p - 1) / (v m) of the ideal time.
    name = "1f1b" if stages_per_rank == 1 else "interleaved"
    schedule = TorchSchedule(name, stages_per_rank=stages_per_rank)
    actions = schedule(num_ranks, number)
    line = timeline(actions, [1.0] * num_ranks * stages_per_rank)
    ratio = (num_ranks - 1) / (stages_per_rank * number)
    assert line.bubble == pytest.approx(ratio / (1 + ratio))
    if stages_per_rank == 1:  # section 2.2.1: a stage keeps as many micro-batches as follow it
        kept = [most_kept(own) for own in actions]
        assert kept == [{rank: num_ranks - rank} for rank in range(num_ranks)]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (["0F0 0B0", "1B0 1F0"], "has BF for micro-batch 0 of stage 1"),
        (["0F0 0F1 0B0 0B1", "1F0 1B0"], "has no action for micro-batch 1 of stage 1"),
        (["0F0 1F0 0B0", "1B0"], "stage 1 must have all of its actions on one process"),
        (["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"], "waits for itself: 0B0, 1F1 cannot begin"),
    ],
)
def test_a_wrong_list_of_actions_is_refused(ranks: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        actions = ActionList(ranks)
        timeline(actions.ranks, [1.0] * actions.num_stages(len(ranks)))


@pytest.mark.parametrize(
    ("schedule", "number", "fits"),
    [
        (TorchSchedule("1f1b"), 4, 4),
        (TorchSchedule("interleaved"), 9, 10),  # a multiple of the rounds of about four
        (TorchSchedule("zero_bubble_v"), 1, 1),
        (ActionList(["0F0 0B0", "1F0 1B0", "2F0 2B0", "3F0 3B0"]), 1, 1),
    ],
)
def test_idle_micro_batches_fill_up_a_schedule(schedule: Schedule, number: int, fits: int) -> None:
    assert fitting(schedule, 4, number) == fits


def test_too_few_micro_batches_are_an_error() -> None:
    with pytest.raises(ValueError, match="num_micro_batches=3 .* 1f1b over 4 .* at least 4"):
        fitting(TorchSchedule("1f1b"), 4, 3)
    with pytest.raises(ValueError, match="num_micro_batches=7 .* dual_pipe_v over 4 .* at least 8"):
        fitting(TorchSchedule("dual_pipe_v"), 4, 7)


def test_stages_cost_as_little_as_possible() -> None:
    generator = torch.Generator().manual_seed(0)
    for num_stages in (2, 3, 4):
        layers = torch.randint(1, 9, (7,), generator=generator).double().tolist()
        counts = balanced(layers, first=2.0, last=11.0, num_stages=num_stages)

        def worst(counts: Any, layers: list[float] = layers) -> float:
            parts = iter(layers)
            costs = [sum(itertools.islice(parts, count)) for count in counts]
            return max(costs[0] + 2, *costs[1:-1], costs[-1] + 11)

        every = itertools.product(range(8), repeat=num_stages)
        cuts = [cut for cut in every if sum(cut) == 7 and all(cut[:-1])]
        assert worst(counts) == min(map(worst, cuts))
    assert balanced([1.0] * 26, first=0.0, last=11.0, num_stages=4) == [8, 9, 9, 0]


def piped(cfg: fdl.Config, **sizes: int) -> fdl.Config:
    cfg.micro_batch_size, cfg.batch_size = 1, 16
    fiddlers.use_mesh(cfg, **sizes)
    return cfg


@pytest.mark.parametrize(
    ("sizes", "stages", "message"),
    [
        ({"pipeline": 4}, None, "makes 4 stages, and 2 layers .* can fill at most 3"),
        ({"pipeline": 2}, [2, 1], r"stages=\[2, 1\] must list the layers of 2 stages"),
        ({"pipeline": 3}, [2, 0, 0], "only the first and the last stage may have none"),
        ({"pipeline": -1}, None, "mesh.pipeline=-1 needs a number of processes"),
    ],
)
def test_no_stage_is_empty(
    cfg: fdl.Config, sizes: dict[str, int], stages: list[int] | None, message: str
) -> None:
    piped(cfg, **sizes).step.stages = stages
    with pytest.raises((ConfigError, ConfigErrors), match=message):
        build_trainer(cfg)


def test_a_pipeline_needs_micro_batches_and_a_step(cfg: fdl.Config) -> None:
    cfg.batch_size = 4
    fiddlers.use_mesh(cfg, pipeline=2)
    with pytest.raises((ConfigError, ConfigErrors), match="num_micro_batches=1 .* at least 2"):
        build_trainer(cfg)
    cfg.micro_batch_size, cfg.step = 1, fdl.Config(pipelines.train.TrainStep)
    with pytest.raises((ConfigError, ConfigErrors), match="a step that passes micro-batches"):
        build_trainer(cfg)


def test_a_step_with_its_own_objective_is_refused(cfg: fdl.Config) -> None:
    cfg.step = fdl.Config(OwnStep)
    with pytest.raises(ConfigError, match="the step of this config is a OwnStep"):
        fiddlers.use_pipeline(cfg)


class OwnStep(pipelines.train.TrainStep):
    """A step of a user's."""


class Own(Transformer):
    """A model that computes its features in a way of its own."""

    def features(self, tokens: Any, ctx: Any = None) -> Any:
        return super().features(tokens, ctx)


def test_features_of_ones_own_cannot_be_cut(cfg: fdl.Config) -> None:
    cfg.model = graph.swapped(cfg.model, Own)
    with pytest.raises((ConfigError, ConfigErrors), match="Own computes its features in a way"):
        build_trainer(piped(cfg, pipeline=2))


def test_skips_cannot_be_cut(cfg: fdl.Config) -> None:
    fiddlers.use_backout(cfg)
    with pytest.raises((ConfigError, ConfigErrors), match="skips read the stream of earlier"):
        build_trainer(piped(cfg, pipeline=2))


def test_a_stream_of_another_format_is_refused() -> None:
    """Torch would receive the bytes of one format as those of another."""
    passes: Any = SimpleNamespace(
        _pipeline=SimpleNamespace(peer=lambda stage: 1),
        _empty=lambda stage, number: torch.empty(1, 4, 8),
    )
    sent = torch.zeros(1, 4, 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"in torch\.bfloat16, and the next one expects .*float32"):
        StagePasses._pass_on(passes, "F", 0, 1, 0, sent)


def test_a_stage_that_does_not_use_its_input_is_refused() -> None:
    """Torch would send zeros back, by which AdamW decays the weights before it."""
    x = torch.ones(1, 4, 8, requires_grad=True)
    kept, state = {(1, 0): (x, None, None)}, SimpleNamespace(scaling=None)
    passes: Any = SimpleNamespace(_kept=kept, _state=state, _left={1: 2})
    with pytest.raises(ValueError, match="stage 1 does not use what the stage before it sends"):
        StagePasses._backward(passes, 1, 0, defers=False)


class OwnLayers(Transformer):
    """A model that calls its layers in a way of its own."""

    def layers(self, x: Any, ctx: Any, begin: int, end: int) -> Any:
        return super().layers(x, ctx, begin, end)


def use_own_layers(cfg: fdl.Config) -> None:
    cfg.model = graph.swapped(cfg.model, OwnLayers)


@pytest.mark.parametrize("change", [fiddlers.use_mtp, use_own_layers])
def test_models_that_change_what_is_around_layers_are_planned(
    cfg: fdl.Config, change: Callable[[fdl.Config], None]
) -> None:
    change(cfg)
    cfg.model.num_layers = 4
    plan = facts_of(build_trainer(piped(cfg, pipeline=2)), cluster_named("h100x2")).plan
    ((begin, middle),), ((same, end),) = plan.layers
    assert (begin, end) == (0, 4) and middle == same
    if change is fiddlers.use_mtp:  # the prediction counts for the last stage
        assert middle > 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process leaves, and each of four."""
    folder = tmp_path_factory.mktemp("pipelines")
    script = Path(pipelines.__file__)
    process = Python(script, folder / "results.pt", output=folder / "output")
    assert process.end(seconds=900) == 0, process.output[-3000:]
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.slow(60)
@pytest.mark.xdist_group("pipelines")
@pytest.mark.parametrize("case", pipelines.CASES)
def test_a_pipeline_computes_as_one_process(results: list[dict[str, Any]], case: str) -> None:
    one, *ranks = (result[case] for result in results)
    for rank in ranks:
        for own, row in zip(one["rows"], rank["rows"], strict=True):
            assert row == pytest.approx(own, rel=1e-5)
        for name, weight in one["weights"].items():
            torch.testing.assert_close(rank["weights"][name], weight, rtol=1e-5, atol=2e-6)


@pytest.mark.slow(60)
@pytest.mark.xdist_group("pipelines")
def test_a_step_sends_what_its_schedule_says_and_nothing_else(
    results: list[dict[str, Any]],
) -> None:
    stream = (1, pipelines.SEQ_LEN, 64)
    for rank, left in enumerate(result["1f1b"] for result in results[1:]):
        neighbors = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < pipelines.NUM_RANKS]
        assert sorted(left["sent"]) == sorted(8 * [(peer, stream) for peer in neighbors])
        (counts,) = left["counts"].values()
        # The gradient of the table that two stages have, and all numbers of the step.
        assert counts == {"send": 8 * len(neighbors), "all-to-all": 1, "all-reduce": 1}


@pytest.mark.slow(60)
@pytest.mark.xdist_group("pipelines")
def test_nothing_is_sent_back_to_frozen_stages(results: list[dict[str, Any]]) -> None:
    counts = [len(result["frozen first stages"]["sent"]) for result in results[1:]]
    whole = [len(result["frozen middle"]["sent"]) for result in results[1:]]
    assert sum(counts) < sum(whole)
