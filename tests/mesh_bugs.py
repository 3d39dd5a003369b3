"""Steps on meshes with errors in them, which the check of meshes must find: a script and its cases.

Each error is one that runs of others had with a right loss: a sum over processes that is missing,
or made twice.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import fiddle as fdl
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fidgpt import configs, fiddlers, graph, model, tags
from fidgpt.parallel import Mesh, experts
from fidgpt.parallel.context import SplitContext
from fidgpt.parallel.pipeline import PipelinedModel
from fidgpt.parallel.places import Places
from fidgpt.placement import Split, held, holders_of, shards_of
from fidgpt.processes import Processes, collectives
from fidgpt.processes.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.runs.shrinking import shrink
from fidgpt.train import DPO, DistillationStep, PreferenceStep, Trainer, gradients
from fidgpt.train.gradients import GradientNorms
from fidgpt.train.mesh_check import Comparison, take_step
from fidgpt.train.micro_batches import BatchShares, PassShare
from fidgpt.train.pipeline_step import StagePasses

STEP = "fidgpt.train.train_step"
Fiddler = Callable[[fdl.Config], object]
Error = Callable[[], AbstractContextManager[object]]


def without_sums_of_wholes() -> AbstractContextManager[object]:
    """Leave summands of the gradients of whole parameters, as of norms of keys."""
    return patch(f"{STEP}.reduce_gradients", lambda parameters, places: None)


def loss_scaled_twice() -> AbstractContextManager[object]:
    """Scale the loss by the number of processes, which sums do already."""
    once = PassShare.of_targets.fget
    assert once is not None
    twice = property(lambda self: once(self) * self.num_processes)
    return patch.object(PassShare, "of_targets", twice)


class _OwnPart(torch.autograd.Function):
    """Gather, but give back only this process's own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Processes, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        return collectives.all_gather(x, axis, dim)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return collectives.own_part(outer[0], ctx.axis, ctx.dim), None, None


def keys_not_summed() -> AbstractContextManager[object]:
    """Leave out what queries of other processes add to the gradients of keys and values."""
    return patch("fidgpt.parallel.context.gathered", _OwnPart.apply)


def positions_of_parts() -> AbstractContextManager[object]:
    """Count positions from 0 on each process."""
    split = SplitContext.of.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def of(kind: Any, *arguments: Any) -> SplitContext:
        ctx = split(kind, *arguments)
        ctx.positions.copy_(torch.arange(len(ctx)).expand_as(ctx.positions))
        return ctx

    return patch.object(SplitContext, "of", classmethod(of))


def copies_of_experts_not_summed() -> AbstractContextManager[object]:
    """Leave the gradients of experts as each of the processes with copies of them has them."""

    def processes_to_sum_over(self: Places, parameter: object) -> Processes | None:
        return Processes() if shards_of(parameter) else None

    return patch.object(Places, "processes_to_sum_over", processes_to_sum_over)


def balanced_by_one_process() -> AbstractContextManager[object]:
    """Balance by the loads of each process alone, as if others had the same."""
    totals = BatchShares.totals

    def alone(self: BatchShares, fixed: Any, counted: Any, *, num_rows: int) -> Any:
        sums, _ = totals(self, fixed, counted, num_rows=num_rows)
        return sums, [count * self.parallel.tokens.size for count in counted]

    return patch.object(BatchShares, "totals", alone)


def use_heavy_balancing(cfg: fdl.Config) -> None:
    for loss in graph.find(cfg.model, model.LoadBalancingLoss):
        loss.weight = 30.0


class OwnExperts(model.Experts):
    """Experts of a user's: a stack of matrices, a module for each, and a vector for all of them."""

    PER_EXPERT = ("matrix", "each")

    def __init__(self, *, hidden_dim: int, num_experts: int) -> None:
        super().__init__(num_experts=num_experts)
        self.matrix = nn.Parameter(torch.empty(num_experts, hidden_dim, hidden_dim))
        self.each = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(num_experts))
        self.shared = nn.Parameter(torch.empty(hidden_dim))
        self.first_expert = 0

    def reset_parameters(self) -> None:
        nn.init.ones_(self.shared)
        nn.init.normal_(self.matrix)

    def parameters_per_expert(self) -> int:
        return self.matrix[0].numel() + sum(p.numel() for p in self.each[0].parameters())

    def forward(self, rows: Tensor, groups: model.Groups) -> Tensor:
        outputs = [
            self.each[self.first_expert + number](part @ self.matrix[number]) * self.shared
            for number, part in enumerate(rows.split(groups.sizes()))
        ]
        return torch.cat(outputs)


def use_own_experts(cfg: fdl.Config) -> None:
    for moe in graph.find(cfg.model, model.MoE):
        moe.experts = fdl.ArgFactory(
            OwnExperts, hidden_dim=tags.HiddenDim.new(), num_experts=tags.NumExperts.new()
        )


def tied_table_of_one_stage() -> AbstractContextManager[object]:
    """Leave the gradient of a table as each stage has it."""
    return patch.object(gradients, "_sum_over_holders", lambda parameters: None)


def tied_table_twice() -> AbstractContextManager[object]:
    """Count the gradient of a table that two stages have on both of them."""
    right = gradients._sum_over_holders

    def wrong(parameters: Sequence[nn.Parameter]) -> None:
        right(parameters)
        for parameter in parameters:
            if any(len(holders.ranks) > 1 for holders in holders_of(parameter)):
                held(parameter.grad).mul_(2)

    return patch.object(gradients, "_sum_over_holders", wrong)


def weighed_by_rows() -> AbstractContextManager[object]:
    """Weigh each micro-batch by its rows, whatever number of its targets count."""

    def of_rows(share: PassShare) -> float:
        return len(share._micro_batch.batch.tokens) / share._batch._own["rows"]

    return patch.object(PassShare, "of_targets", property(of_rows))


@contextlib.contextmanager
def norms_of_stages() -> Iterator[None]:
    """Let each stage take the norm of its own gradients."""

    def own(parameters: Iterable[nn.Parameter], *others: object) -> GradientNorms:
        return GradientNorms(parameters)

    with (
        patch(f"{STEP}.GradientNorms", own),
        patch("fidgpt.train.gradients.norms_of_wholes", lambda norms, parameters: norms),
    ):
        yield


def masks_of_another_micro_batch() -> AbstractContextManager[object]:
    """Let every micro-batch of a stage have the documents of the first one."""
    right, first = PipelinedModel.context_of, []

    def wrong(model: PipelinedModel, tokens: Tensor, **masks: Any) -> Any:
        first.append(tokens)
        return right(model, first[0][: len(tokens)], **masks)

    return patch.object(PipelinedModel, "context_of", wrong)


def results_of_other_tokens() -> AbstractContextManager[object]:
    """Return the results of experts to the token after the one that they are of."""
    right = experts._Exchange.leave

    def wrong(exchange: Any, module: nn.Module, args: object, out: Tensor) -> Tensor:
        return right(exchange, module, args, out).roll(1, 0)

    return patch.object(experts._Exchange, "leave", wrong)


def tokens_without_gradients() -> AbstractContextManager[object]:
    """Send tokens to experts, and no gradients back."""
    right = experts._Exchange.enter

    def wrong(exchange: Any, module: nn.Module, args: tuple[Tensor, model.Groups]) -> Any:
        return right(exchange, module, (args[0].detach(), args[1]))

    return patch.object(experts._Exchange, "enter", wrong)


def gradients_of_an_older_micro_batch() -> AbstractContextManager[object]:
    """Give a stage the gradient of the first micro-batch for every one."""
    right, first = StagePasses._arrived, {}

    def wrong(passes: StagePasses, kind: str, stage: int, number: int) -> Tensor:
        x = right(passes, kind, stage, number)
        return first.setdefault(stage, x)[: len(x)] if kind == "B" else x

    return patch.object(StagePasses, "_arrived", wrong)


class Shifted(model.SwiGLU):
    """An MLP of a user's, whose bias is added on every process before what leaves is summed."""

    def __init__(self, *, hidden_dim: int, ffn_dim: int) -> None:
        super().__init__(hidden_dim=hidden_dim, ffn_dim=ffn_dim)
        self.shift = nn.Parameter(torch.empty(hidden_dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift

    def own_split(self) -> Split:
        return super().own_split()  # without {"shift": Once()}


def use_shifted(cfg: fdl.Config) -> None:
    graph.swap_all(cfg.model, model.SwiGLU, by=Shifted)


def unchanged(cfg: fdl.Config) -> None:
    """Change nothing."""


class Bug(NamedTuple):
    """An error, and how the check must find it.

    Attributes:
      config: a named config.
      mesh: sizes of its axes.
      error: makes the error while a step is computed.
      change: of the config.
      wrong: pattern of the paths that differ, all of which match.
      meaning: what is printed about the first of them.
      first: path of the first output that differs, if the forward pass does.
    """

    config: str
    mesh: dict[str, int]
    error: Error
    wrong: str
    meaning: str
    first: str | None = None
    change: Fiddler = unchanged


def use_documents(cfg: fdl.Config) -> None:
    """Pack documents, which do not see each other."""
    fiddlers.use_packing(cfg)
    fiddlers.use_document_mask(cfg)


ALL = ".*"
NOT_A_MULTIPLE = "not a multiple"
BUGS: dict[str, Bug] = {
    "norms of keys are not summed": Bug(
        "qwen3_8b",
        {"tensor": 2},
        without_sums_of_wholes,
        r"blocks\.\d\.attention\.(query|key)_norm\.weight",
        NOT_A_MULTIPLE,
    ),
    "bias is added on every process": Bug(
        "qwen3_8b", {"tensor": 2}, nullcontext, ALL, NOT_A_MULTIPLE, "blocks.0.mlp", use_shifted
    ),
    "keys are not summed over context": Bug(
        "qwen3_8b",
        {"context": 2},
        keys_not_summed,
        r"blocks\.1\.attention\.(key|value)\.weight|blocks\.1\.attention\.key_norm\.weight|"
        r"blocks\.1\.attention_norm\.weight|blocks\.0\..*|embedding\.weight",
        NOT_A_MULTIPLE,
    ),
    "positions begin at 0 on every process": Bug(
        "qwen3_8b", {"context": 2}, positions_of_parts, ALL, NOT_A_MULTIPLE, "blocks.0.attention"
    ),
    "loss is scaled twice": Bug(
        "qwen3_8b", {"shard": 2}, loss_scaled_twice, ALL, "2: summed twice over shard"
    ),
    "copies of experts are not summed": Bug(
        "qwen3_30b_a3b",
        {"replicate": 2, "context": 2, "expert": 2},
        copies_of_experts_not_summed,
        r"blocks\.\d\.mlp\.experts\..*",
        NOT_A_MULTIPLE,
    ),
    "loads of one process balance": Bug(
        "mixtral_8x7b",
        {"shard": 2, "expert": 2},
        balanced_by_one_process,
        ALL,
        NOT_A_MULTIPLE,
        change=use_heavy_balancing,
    ),
    "experts return results to other tokens": Bug(
        "qwen3_30b_a3b",
        {"shard": 2, "expert": 2},
        results_of_other_tokens,
        ALL,
        NOT_A_MULTIPLE,
        "blocks.0.mlp",
    ),
    "experts return no gradients": Bug(
        "qwen3_30b_a3b",
        {"shard": 2, "expert": 2},
        tokens_without_gradients,
        r"blocks\.0\..*|blocks\.1\.(attention|mlp_norm).*|embedding\.weight",
        NOT_A_MULTIPLE,
    ),
    "a stage gets gradients of an older micro-batch": Bug(
        "llama3_1_8b",
        {"pipeline": 2},
        gradients_of_an_older_micro_batch,
        r"embedding\.weight|blocks\.0\..*",
        NOT_A_MULTIPLE,
    ),
    "tied table has the gradient of one stage": Bug(
        "gemma3_1b",
        {"pipeline": 2},
        tied_table_of_one_stage,
        r"embedding\.weight",
        NOT_A_MULTIPLE,
    ),
    "tied table is counted twice": Bug(
        "gemma3_1b", {"pipeline": 2}, tied_table_twice, r"embedding\.weight", "2: summed twice over"
    ),
    "a micro-batch is weighed by its rows": Bug(
        "llama3_2_1b", {"pipeline": 2}, weighed_by_rows, ALL, NOT_A_MULTIPLE
    ),
    "a stage has a norm of its own": Bug(
        "llama3_2_1b",
        {"pipeline": 2},
        norms_of_stages,
        "norm of all gradients",
        "a multiple of no axis",
    ),
    "masks are of another micro-batch": Bug(
        "llama3_2_1b",
        {"pipeline": 2},
        masks_of_another_micro_batch,
        ALL,
        NOT_A_MULTIPLE,
        "blocks.0.attention",
        use_documents,
    ),
}
# Without an error; collectives of these are kept.
GOOD: dict[int, list[tuple[str, dict[str, int], Fiddler]]] = {
    2: [
        ("qwen3_8b", {"tensor": 2}, unchanged),
        ("qwen3_8b", {"tensor": 2}, fiddlers.use_sequence_parallel),
        ("qwen3_8b", {"context": 2}, unchanged),
        ("qwen3_8b", {"context": 2}, fiddlers.use_ulysses),
        ("qwen3_8b", {"shard": 2}, unchanged),
        ("mixtral_8x7b", {"replicate": 2}, unchanged),
        ("qwen3_30b_a3b", {"shard": 2, "expert": 2}, unchanged),
        ("mixtral_8x7b", {"context": 2, "expert": 2}, use_own_experts),
        ("mixtral_8x7b", {"shard": 2, "expert": 2}, use_own_experts),
        ("gemma3_1b", {"tensor": 2}, unchanged),
        ("gemma3_1b", {"pipeline": 2}, unchanged),
    ],
    4: [
        ("mixtral_8x7b", {"shard": 2, "tensor": 2}, unchanged),
        ("deepseek_v3", {"shard": 4, "expert": 2}, unchanged),
        ("gpt_oss_20b", {"shard": 2, "tensor": 2, "expert": 2}, unchanged),
        ("gemma3_1b", {"shard": 2, "context": 2}, unchanged),
        ("deepseek_v3", {"replicate": 2, "shard": 2}, unchanged),
        ("deepseek_v3", {"pipeline": 2, "shard": 2}, fiddlers.use_mtp),
    ],
}


def name_of(config: str, sizes: dict[str, int], change: Fiddler) -> str:
    """Return the name of a case of `GOOD`."""
    names = [f"{name}={size}" for name, size in sizes.items()]
    changed = [] if change is unchanged else [getattr(change, "__name__", "")]
    return " ".join([config, *names, *changed])


class Pair(NamedTuple):
    """A small run, built for one process and for its mesh."""

    alone: Trainer
    shared: Trainer
    mesh: Mesh


def built(config: str, sizes: dict[str, int], change: Fiddler) -> Pair:
    mesh = Mesh(**sizes)
    small = small_copy(config, mesh, change)
    return Pair(build_trainer(small), build_trainer(small), mesh)


@functools.cache
def small_copy(config: str, mesh: Mesh, change: Fiddler) -> fdl.Config:
    cfg = getattr(configs, config)()
    fiddlers.use_mesh(cfg, **mesh.sizes)
    change(cfg)
    small, left = shrink(cfg, mesh=mesh, build=build_trainer)
    assert not left, left
    return small


def idle() -> Pair:
    """Five rows over two processes that gather weights, one at a time: one computes a row less."""
    cfg = configs.debug()
    for fiddler in (fiddlers.use_float32, fiddlers.use_fsdp, fiddlers.use_moe):
        fiddler(cfg)
    cfg.batch_size, cfg.micro_batch_size = 5, 1
    return Pair(build_trainer(cfg), build_trainer(cfg), Mesh(shard=2))


def use_dpo(cfg: fdl.Config) -> None:
    """Train on pairs, beside a copy of the model as reference."""
    cfg.step = fdl.Config(PreferenceStep, preference=fdl.Config(DPO), model=cfg.model)


def use_dpo_of_adapters(cfg: fdl.Config) -> None:
    """The same, beside the model without its adapters."""
    fiddlers.use_lora(cfg)
    use_dpo(cfg)


def use_teacher(cfg: fdl.Config) -> None:
    """Train on what a model of other sizes says, too."""
    teacher = graph.clone(graph.bind(configs.debug()).model)
    cfg.step = fdl.Config(DistillationStep, teacher=teacher, weights=missing, top_k=5)


def missing(model: nn.Module) -> None:
    """Weights of the teacher, which a check of meshes leaves out."""
    raise AssertionError


# Steps with a second model: what is divided is the first one alone.
STEPS = {
    f"{change.__name__} {axis}": (change, {axis: 2})
    for change, axes in {
        use_dpo: ("shard", "tensor", "replicate"),
        use_dpo_of_adapters: ("shard", "tensor"),
        use_teacher: ("shard", "tensor", "context"),
    }.items()
    for axis in axes
}


def compared(pair: Pair, error: Error) -> Comparison | None:
    one = take_step(pair.alone, joins=False) if dist.get_rank() == 0 else None
    with error():
        other = take_step(pair.shared, joins=True)
    return None if one is None else Comparison.of(pair.mesh, one, other)


def main(path: Path) -> None:
    """Leave the comparisons of all cases, by name, in a file."""
    results: dict[str, Comparison | None] = {}
    for number, cases in GOOD.items():
        pairs: dict[str, tuple[Pair, Error]] = {}
        pairs |= {name_of(*case): (built(*case), nullcontext) for case in cases}
        if number == 2:
            pairs["idle"] = idle(), nullcontext
            for name, (change, mesh) in STEPS.items():
                pairs[name] = built("debug", mesh, change), nullcontext
        for name, bug in BUGS.items():  # one group of processes for all errors of a size
            if Mesh(**bug.mesh).size == number:
                pairs[name] = (built(bug.config, bug.mesh, bug.change), bug.error)

        def steps(pairs: Any = pairs) -> dict[str, Comparison | None]:
            return {name: compared(*pair) for name, pair in pairs.items()}

        results |= run_ranks(number, steps)[0]
    torch.save(results, path / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
