"""Models on meshes compute what one process does: gradients, first weights and checkpoints."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
import meshes
import pytest
import torch
from forked import Python
from torch import Tensor

from fidgpt import configs, fiddlers
from fidgpt.graph import ConfigErrors
from fidgpt.parallel import MeshParallel, UlyssesContext
from fidgpt.parallel.context import TokenSplit
from fidgpt.plan import cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.train.estimates.facts import facts_of
from fidgpt.train.estimates.summary_text import COLLECTIVES
from fidgpt.train.mesh_check import KINDS

pytestmark = pytest.mark.slow
SCRIPT = Path(meshes.__file__)
BOUND = 1e-5  # of a gradient's largest element, in float32
# Muon works in bfloat16, where the last bit of a gradient shows.
BOUNDS = {"muon": 1e-4, "nanochat": 1e-4, "narrow": 1e-2, "narrow_experts": 1e-2}

# Every family in the form that divides most, and each other mesh on what is hardest for it.
PRODUCTS = ["llama", "qwen3", "gemma3", "gpt2", "deepseek_v3", "gpt_oss", "mixtral", "olmo2"]
SEQUENCES = ["qwen3", "gemma3", "gpt2", "deepseek_v3", "gpt_oss"]
CHANGED = ["lora", "mtp", "packing", "everything"]
SHARDED = [
    *("llama", "balanced", "classic", "lora", "mixture", "mtp", "narrow"),
    *("adafactor", "muon", "schedule_free"),
]
EXPERTS = ["qwen3_moe", "deepseek_v3", "gpt_oss", "lopsided", "experts", "recomputed_experts"]
SEPARATE = ["separate", "lopsided_separate"]
MIXTURES = [
    *(*EXPERTS, *SEPARATE, "mixtral", "mixture", "balanced", "muon", "deepseek_mtp"),
    *("adafactor_experts", "compiled_experts"),
]
USUAL = {
    2: [
        *(f"{family}/expert" for family in [*EXPERTS, *SEPARATE, "balanced", "narrow_experts"]),
        *("mixture/context_expert", "adafactor_experts/expert"),
        *(f"{family}/sequence" for family in [*PRODUCTS, *CHANGED, "muon", "adafactor"]),
        *(
            f"{family}/{mesh}"
            for family in [*SEQUENCES, *CHANGED, "narrow", "mixture", "prefix"]
            for mesh in ("context", "ulysses")
        ),
        *(f"recurrent/{mesh}" for mesh in ("tensor", "sequence", "context", "ulysses", "shard")),
        *(f"indexer/{mesh}" for mesh in ("tensor", "sequence", "context", "shard")),
        *("mtp/tensor", "everything/tensor", "deepseek_v3/tensor", "branch_dropout/tensor"),
        *("qwen3/chunked", "everything/chunked_sequence", "gpt2/traced"),
        *("separate/chunked", "indexer_warmup/shard", "indexer_warmup/tensor"),
        *("mixtral/shard", "mixtral/replicate", "packing/replicate"),
        *(f"{family}/shard" for family in SHARDED),
        *("llama/pipeline", "deepseek_mtp/pipeline", "narrow/pipeline", "muon/pipeline"),
        *("gemma3+4/zero_bubble_v", "lora+4/zero_bubble", "mixture+3/interleaved"),
        *("llama/zero2", "lora/zero2"),
        *("nanochat/shard", "nanochat/sequence", "nanochat/ulysses"),
        *("packing+4/dual_pipe_v", "packing+4/breadth_first", "classic+4/gpipe"),
    ],
    4: [
        *("deepseek_v3/context_expert", "gpt_oss/tensor_expert", "separate/shard_expert"),
        *("muon/replicate_expert", "balanced/sequence_expert"),
        "recurrent/context_tensor",
        *("everything/shard_tensor", "muon/shard_tensor", "gemma3/shard_context"),
        *("mixture/replicate_ulysses", "llama/replicate_shard"),
        *("gemma3+4/pipeline", "deepseek_mtp+4/pipeline_shard", "lora+4/pipeline_tensor"),
        *("gpt_oss+4/pipeline_context", "deepseek_mtp+4/pipeline_context"),
        "mixture+4/pipeline_expert_zero2",
    ],
    8: ["deepseek_v3+4/pipeline_shard_tensor", "gemma3+4/pipeline_context_tensor"],
}
EVERYWHERE = ["llama", "gemma3", "deepseek_v3", "qwen3_moe", "gpt_oss", "lora"]  # on 16 processes
ALL = {
    number: [
        f"{family}{'+4' if mesh in meshes.PIPELINES else ''}/{mesh}"
        for family in meshes.FAMILIES
        if family not in ("dropout", "branch_dropout", "narrow", "narrow_experts", "capacity")
        for mesh in meshes.MESHES[number]
        if "expert" not in mesh or family in MIXTURES
        if number < 16 or family in EVERYWHERE
        # These take many times as long.
        if mesh != "traced" or family in [*PRODUCTS, "everything"]
        if family != "compiled" or number == 2
    ]
    for number in meshes.MESHES
}


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=False)


def on_ranks(number: int, cases: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """What each of so many processes computes."""
    process = Python(SCRIPT, folder, str(number), *cases, output=folder / "output")
    assert process.end(seconds=2.5 * meshes.patience(len(cases))) == 0, process.output[-3000:]
    assert "Warning" not in process.output, process.output
    return [load(folder / f"rank{rank}.pt") for rank in range(number)]


def check(number: int, cases: Sequence[str], folder: Path) -> None:
    """Compare all cases on so many processes with one process."""
    ranks, one = on_ranks(number, cases, folder), load(folder / "alone.pt")
    wrong = [
        line
        for case in cases
        for line in differences(case, one[case.split("/")[0]], [rank[case] for rank in ranks])
    ]
    assert not wrong, "\n".join(wrong)


def differences(case: str, one: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for everything of a case that is not as on one process."""
    family = case.split("/")[0].partition("+")[0]
    wrong, bound = [], BOUNDS.get(family, BOUND)
    noise = 1e-8 * one["rows"][0]["grad_norm"]  # of gradients that are zero but for rounding
    for rank in ranks:
        if rank["rows"] != ranks[0]["rows"]:
            wrong.append(f"{case}: ranks measure different metrics")
        for index, (own, row) in enumerate(zip(one["rows"], rank["rows"], strict=True)):
            # AdamW's first update is the sign of a gradient, also of one as small as rounding.
            near = bound if index == 0 else 5 * bound
            # In bfloat16, rounding decides between experts with about the same score.
            known = own if "narrow" not in family else {n: v for n, v in own.items() if _is_sum(v)}
            for name, value in known.items():
                if row[name] != (pytest.approx(value, rel=near) if _is_sum(value) else value):
                    wrong.append(f"{case}: {name} is {row[name]} instead of {value}")
        if rank["start"].keys() != one["start"].keys():
            wrong.append(f"{case}: other weights are tied")
        if case.endswith("/shard") and rank["elements"] > 0.52 * one["elements"]:
            wrong.append(f"{case}: holds {rank['elements']} of {one['elements']} elements")
        if differ := [n for n, value in one["start"].items() if not _same(rank["start"], n, value)]:
            wrong.append(f"{case}: starts with other weights: {differ}")
        for name, gradient in one["gradients"].items() if "narrow" not in family else ():
            found = rank["gradients"].get(name)
            error = torch.inf if found is None else (found - gradient).abs().max().item()
            if error > BOUND * gradient.abs().max().item() + noise:
                ratio = torch.nan if found is None else found.norm() / gradient.norm()
                wrong.append(f"{case}: the gradient of {name} is off by {error}, ratio {ratio}")
    return wrong


def _is_sum(value: object) -> bool:
    return isinstance(value, float)  # vectors are counts of tokens


def _same(found: Mapping[str, Tensor], name: str, value: Tensor) -> bool:
    return name in found and torch.equal(found[name], value)


@pytest.mark.slow(40)
@pytest.mark.parametrize("number", USUAL)
def test_every_gradient_is_that_of_one_process(number: int, tmp_path: Path) -> None:
    check(number, USUAL[number], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", ALL)
def test_every_gradient_of_every_family_on_every_mesh(number: int, tmp_path: Path) -> None:
    check(number, ALL[number], tmp_path)


def test_processes_drop_other_elements_evaluate_and_write_alike_and_stay_alike(
    tmp_path: Path,
) -> None:
    dropping = ["dropout/tensor", "dropout/sequence"]
    evaluated = [
        *("evaluated/context", "evaluated/ulysses", "evaluated/shard", "evaluated/expert"),
        *("evaluated/pipeline", "evaluated/zero_bubble_v"),
    ]
    rounded = "rounded/zero_bubble_v"  # one process has no table, nor a copy of it
    first, second = on_ranks(2, [*dropping, *evaluated, rounded], tmp_path)
    alone = load(tmp_path / "alone.pt")
    for case in dropping:
        assert first[case]["rows"] == second[case]["rows"] != alone["dropout"]["rows"]
        for name, weight in first[case]["end"].items():
            assert torch.equal(second[case]["end"][name], weight), name
    numbers, texts = alone["evaluated"]
    assert len({*texts}) == 2
    for case in evaluated:
        assert first[case] == second[case] == (pytest.approx(numbers, rel=1e-6), texts)
    numbers, texts = alone["rounded"]
    assert first[rounded] == second[rounded] == (pytest.approx(numbers, rel=1e-6), texts)


def test_experts_get_what_changes_processes_and_no_more(tmp_path: Path) -> None:
    cases = ["sent/expert", "sent/context_expert", "capacity/shard", "capacity/expert"]
    ranks = on_ranks(2, cases, tmp_path)
    for case in cases[:2]:
        counted, needed = (
            sum(rank[case][name] for rank in ranks) for name in ("counted", "needed")
        )
        assert counted == needed > 0
    # Each process drops what exceeds the capacity of its own tokens, whoever has the experts.
    for rank in ranks:
        one, other = rank["capacity/shard"], rank["capacity/expert"]
        assert one["rows"][0]["moe/dropped"] > 0.05
        assert not differences("capacity/expert", one, [other])


COUNTED = {
    2: ["qwen3_moe/expert", "llama/zero2", "llama/replicate", "qwen3/sequence", "classic/expert"],
    4: [
        *("qwen3_moe+4/pipeline_expert", "qwen3_moe+4/pipeline_expert_zero2"),
        *("llama+4/pipeline_shard", "llama/replicate_shard"),
    ],
}


@pytest.mark.parametrize("number", COUNTED)
def test_a_step_sends_what_the_summary_shows(number: int, tmp_path: Path) -> None:
    ranks = on_ranks(number, [f"counted {case}" for case in COUNTED[number]], tmp_path)
    for case in COUNTED[number]:
        family, name = case.split("/")
        trainer = meshes.built(family, meshes.MESHES[number][name])
        facts = facts_of(trainer, cluster_named(f"h100x{number}"))
        many = number // len(facts.collectives)
        for place, planned in enumerate(facts.collectives):
            own = [rank[f"counted {case}"] for rank in ranks[place * many : (place + 1) * many]]
            for kind in KINDS:
                of_kind = {one: n for one, n in planned.items() if COLLECTIVES[one.kind] == kind}
                size = sum(n * one.bytes for one, n in of_kind.items())
                # Besides, all processes add up the numbers of a step.
                is_sum, mean = kind == "all-reduce", sum(sizes[kind] for _, sizes in own) / many
                assert 0 <= own[0][0][kind] - sum(of_kind.values()) <= 3 * is_sum, (case, kind)
                assert mean == pytest.approx(size, rel=0.01, abs=2000 * is_sum), (case, kind)


def test_tokens_are_counted_in_the_layers_of_predictions_too() -> None:
    facts = facts_of(meshes.built("mixture", meshes.mesh(context=2)), cluster_named("h100x2"))
    gathers = sum(n for one, n in facts.collectives[0].items() if one.kind == "gather")
    # Of the keys of two layers and a prediction, in four micro-batches, which are recomputed.
    assert gathers == (2 + 1) * 4 * (1 + 1 + 1)


def test_a_missing_sum_is_found() -> None:
    one = meshes.trained(meshes.built("qwen3"))
    name = "blocks.0.attention.query_norm.weight"
    half = {**one, "gradients": {**one["gradients"], name: one["gradients"][name] / 2}}
    (line,) = differences("qwen3/tensor", one, [half])
    assert f"the gradient of {name}" in line and "ratio 0.5" in line
    assert not differences("qwen3/tensor", one, [one])


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("normuon", "next"),  # which steps some parameters as AdamW does
        *(pytest.param(kind, "each", marks=pytest.mark.long) for kind in meshes.OPTIMIZERS),
    ],
)
def test_a_checkpoint_of_any_mesh_is_restored_on_any_other(
    kind: str, how: str, tmp_path: Path
) -> None:
    optimizer = meshes.OPTIMIZERS[kind]
    torch.save(meshes.Run(optimizer).save(tmp_path / "alone"), tmp_path / "alone.pt")
    ranks = [left["saved"] for left in on_ranks(4, [kind, how], tmp_path)]
    num_saved = len(meshes.SAVED) + 1
    for left in ranks:
        assert len(left["differ"]) == num_saved * (1 if how == "next" else len(meshes.SAVED))
        assert not any(left["differ"].values()), left["differ"]
    for name, state in ranks[0]["states"].items():
        restored = meshes.Run(optimizer).restore(tmp_path / name)
        assert restored.keys() == state.keys()
        assert all(torch.equal(restored[one], state[one]) for one in state), name


@pytest.mark.long
def test_losses_are_alike_on_many_meshes() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "meshes.py"
    command = [sys.executable, script, "--steps=4", "--processes", "2", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 35, done.stdout


def test_sequences_and_heads_that_cannot_be_split_are_refused(cfg: fdl.Config) -> None:
    fiddlers.use_mesh(cfg, context=3)
    fiddlers.use_ulysses(cfg)
    cfg.seq_len = 32
    with pytest.raises(ConfigErrors, match="seq_len=32 must be a multiple of the context=3"):
        build_trainer(cfg)
    cfg.seq_len = 33
    with pytest.raises(ConfigErrors, match=r"num_heads=2 of blocks\.0\.attention must be a"):
        build_trainer(cfg)
    fiddlers.use_mesh(cfg, context=2)  # Ulysses stays
    cfg.seq_len = 32
    parallel = build_trainer(cfg).parallel
    assert isinstance(parallel, MeshParallel)
    assert isinstance(parallel.parts["context"], UlyssesContext)
    fiddlers.use_preferences(cfg, "pairs.jsonl")
    with pytest.raises(ConfigErrors, match="need whole sequences, which context=2 processes"):
        build_trainer(cfg)


def test_a_zigzag_gives_all_processes_the_same_pairs_of_query_and_key() -> None:
    def pairs(split: TokenSplit) -> list[int]:
        return [sum(c + 1 for one in ranges for c in range(*one)) for ranges in split.ranges]

    assert len({*pairs(TokenSplit.in_zigzag(64, 4))}) == 1
    assert max(pairs(TokenSplit.in_order(64, 4))) > 6 * min(pairs(TokenSplit.in_order(64, 4)))


@pytest.fixture
def cfg() -> fdl.Config:
    return configs.debug()
