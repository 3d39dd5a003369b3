"""What is said about the loads of processes that share experts."""

from functools import partial

import torch
from small_models import small_block, small_model

from fidgpt import model
from fidgpt.train.goodput import ExpertLoads


def mixture(*, hidden_dim: int) -> model.MoE:
    router = model.SoftmaxRouter(hidden_dim=hidden_dim, num_experts=4, top_k=1)
    experts = model.PlainExperts(hidden_dim=hidden_dim, num_experts=4)
    return model.MoE(num_experts=4, router=router, experts=experts)


def shared_model() -> tuple[torch.nn.Module, list[model.MoE]]:
    """A model with a dense layer and two mixtures, whose experts four processes share."""
    with torch.device("meta"):
        blocks = [partial(small_block, mlp=kind) for kind in (model.SwiGLU, mixture, mixture)]
        whole = small_model(*blocks, num_layers=3)
    mixtures = [one for one in whole.modules() if isinstance(one, model.MoE)]
    for one in mixtures:
        one.num_ranks = 2
    return whole, mixtures


def test_a_layer_is_named_once_where_a_process_gets_twice_its_share() -> None:
    whole, _ = shared_model()
    loads = ExpertLoads(whole)
    assert loads.summary() == []
    assert loads.add({"step": 1, "moe/rank_load/layers": [[1.0, 1.0], [0.0, 2.0]]}) == []
    (warning,) = loads.add({"step": 2, "moe/rank_load/layers": [[1.0, 1.0], [2.5, 0.0]]})
    assert "step 2: process 0 of the 2 that share the experts of blocks.2.mlp gets 2.5" in warning
    assert loads.add({"step": 3, "moe/rank_load/layers": [[1.0, 1.0], [2.4, 0.1]]}) == []
    assert loads.add({"step": 4}) == []  # skipped
    assert loads.summary() == [
        "Experts: at most 2.5 times an even share of tokens on one process (0, in blocks.2.mlp at "
        "step 2)."
    ]


def test_the_load_of_a_process_is_that_of_its_experts() -> None:
    _, (first, _) = shared_model()
    measured = first.settle(torch.tensor([1, 2, 4, 1]))
    assert measured["moe/load"].tolist() == [0.5, 1.0, 2.0, 0.5]
    assert measured["moe/rank_load"].tolist() == [0.75, 1.25]
    assert measured["moe/rank_load_max"] == 1.25
    first.num_ranks = 1
    assert "moe/rank_load" not in first.settle(torch.tensor([1, 2, 4, 1]))
