"""Tests are assigned to processes: each once, groups whole, and finished ones are forgotten."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from scheduling import Groups


class Node:
    """A process that notes what it is given."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="here")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_each_test_is_assigned_once_and_forgotten_when_its_group_is_done() -> None:
    names = [f"test_a[{number}]" for number in range(20)]
    grouped = ["test_b@slow", "test_c@slow", "test_d@slow"]
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen", "popen"], option=SimpleNamespace(loadscopereorder=True)
    )
    groups, nodes = Groups(config), [cast(Any, Node()), cast(Any, Node())]
    for node in nodes:
        groups.add_node(node)
    for node in nodes:
        groups.add_node_collection(node, names[:10] + grouped + names[10:])
    groups.schedule()
    done = {id(node): 0 for node in nodes}
    while turn := [node for node in nodes if done[id(node)] < len(node.given)]:
        for node in turn:
            groups.mark_test_complete(node, node.given[done[id(node)]])
            done[id(node)] += 1
            assert sum(map(len, groups.assigned_work[node].values())) <= 6, "what is done, too"
    assert sorted(nodes[0].given + nodes[1].given) == [*range(23)]
    assert any({10, 11, 12} <= {*node.given} for node in nodes)
    assert groups.tests_finished and not any(groups.assigned_work.values())
    assert all(node.shutting_down for node in nodes)


def test_groups_are_what_a_run_in_several_processes_uses(pytestconfig: pytest.Config) -> None:
    option = SimpleNamespace(getvalue=lambda _: ["popen"], getoption=lambda _: "loadgroup")
    made = pytestconfig.pluginmanager.hook.pytest_xdist_make_scheduler(config=option, log=None)
    assert isinstance(made, Groups)
