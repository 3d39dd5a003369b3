"""What is said where a directive sets an entry that a list or dict lacks."""

import pytest

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigErrors


@pytest.mark.parametrize(
    ("directive", "remedy"),
    [
        ("set:trackers[2]=TensorBoard", "set:trackers+=[TensorBoard]"),
        ("use:trackers[7]=TensorBoard", "set:trackers+=[TensorBoard]"),
        ("set:evaluators.more=Validation", "set:evaluators+={'more':Validation}"),
        (
            "set:evaluators['a b']=Validation(every=2, data=HeldOut())",
            "set:evaluators+={'a b':...}",
        ),
        ("set:trackers[2]=TensorBord", None),  # which would not fit there either
        ("set:optimizer.betas[2]=0.9", None),
        ("set:trackers[2].x=3", None),
        ("set:model.blocks[1]=Block", None),  # of which the layers are told
        ("del:trackers[2]", None),
    ],
)
def test_an_entry_that_is_lacking_can_be_added(directive: str, remedy: str | None) -> None:
    with pytest.raises(ConfigErrors) as caught:
        compose([directive])
    last = str(caught.value).splitlines()[-1].strip()
    assert last == f"To add one, write {remedy}" if remedy else "To add one" not in last
