"""Which tokens get to their experts where there is little room."""

import torch
from torch import Tensor, nn

from fidgpt.model.moe import Capacity, GatedExperts, MoE, SeparateExperts, SoftmaxRouter
from fidgpt.model.reports import collecting

HIDDEN, EXPERTS, TOP_K = 16, 8, 2


def mixture() -> MoE:
    """A mixture whose choices are far apart."""
    moe = MoE(
        num_experts=EXPERTS,
        router=SoftmaxRouter(hidden_dim=HIDDEN, num_experts=EXPERTS, top_k=TOP_K),
        experts=GatedExperts(hidden_dim=HIDDEN, num_experts=EXPERTS, ffn_dim=24),
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in moe.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return moe


def tokens() -> Tensor:
    return torch.randn(2, 11, HIDDEN, generator=torch.Generator().manual_seed(1))


def test_with_room_enough_nothing_is_dropped():
    moe, x = mixture(), tokens().requires_grad_()
    results = []
    for dispatch in (moe.dispatch, Capacity(factor=EXPERTS / TOP_K)):
        moe.dispatch = dispatch
        with collecting() as reports:
            out = moe(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *moe.parameters()])])
    assert reports.metrics["moe/dropped"] == 0
    for dropless, roomy in zip(*results, strict=True):
        assert (roomy - dropless).norm() <= 1e-5 * dropless.norm()


def test_no_expert_has_room_for_more_than_all_tokens():
    moe, x = mixture(), tokens()
    expected = moe(x)
    moe.dispatch = Capacity(factor=1e12)
    torch.testing.assert_close(moe(x), expected)


def test_outside_of_training_there_is_room_for_all():
    moe, x = mixture(), tokens()
    expected = moe(x)
    moe.dispatch = Capacity(factor=0.5)
    assert not torch.allclose(moe.train()(x), expected)
    with collecting() as reports:
        assert torch.equal(moe.eval()(x), expected)
    assert not reports.metrics


def test_late_tokens_and_second_choices_are_dropped_first():
    experts = SeparateExperts(num_experts=2, expert=nn.Identity)
    x, weights = torch.ones(4, 1), torch.tensor([[1.0, 10.0]]).expand(4, 2)
    chosen = torch.tensor([[0, 1], [0, 1], [0, 1], [1, 0]])
    with collecting() as reports:
        out = Capacity(factor=0.5)(x, chosen, weights, experts)  # room for two tokens each
    assert out.flatten().tolist() == [11.0, 1.0, 0.0, 1.0]
    assert reports.metrics["moe/dropped"] == 0.5
