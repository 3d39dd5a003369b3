"""How tests are assigned to the processes that run them."""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Groups(LoadGroupScheduling):
    """As `--dist=loadgroup`, but what is done is not counted again whenever a test ends.

    That took a millisecond a test, of ten thousand, in a process that shares the cores with them.
    """

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Notes that a test ended, and deals its process more; forgets groups that are done."""
        group = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][group].values()):
            del self.assigned_work[node][group]
