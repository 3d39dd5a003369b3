"""A Slurm cluster of one node, from what Debian's packages install: up for a while, then gone."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = (
    *("setpriv", "munged", "slurmctld", "slurmd"),
    *("sbatch", "squeue", "scancel", "scontrol", "srun"),
)
_PATIENCE = 20.0  # seconds
_FORGETTING = 2.5  # seconds, of which a node counts whole ones
_CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout=5
BatchStartTimeout=1
KillWait=5
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
PlugStackConfig=/dev/null
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class NoSlurmError(Exception):
    """No cluster can be brought up here; the message gives the reason."""


class SlurmHere:
    """A cluster whose daemons, keys and files are a folder's own; it runs as the user who is root.

    The node reports more cores than it has, so that some tasks fit side by side.

    Args:
      folder: where all of it lies; only root may write above it, or munge refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Starts everything.

        Raises:
          NoSlurmError: something is not installed, or does not come up.
        """
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise NoSlurmError(f"Slurm is not installed: there is no {missing[0]}")
        if os.geteuid() != 0:
            raise NoSlurmError("only root can bring up a Slurm cluster of its own")
        for name in ("munge", "keys", "state", "spool"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "keys").chmod(0o700)
        key = self.folder / "keys" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        ports = dict(zip(("controller_port", "node_port"), _free_ports(2), strict=True))
        host = socket.gethostname()
        self.conf.write_text(_CONF.format(host=host, folder=self.folder, **ports))
        munge = self.folder / "munge"
        names = {"socket": munge / "socket", "pid-file": munge / "pid", "log-file": munge / "log"}
        names |= {"key-file": key, "seed-file": munge / "seed", "num-threads": 10}
        options = [f"--{name}={value}" for name, value in names.items()]
        self.start("munged", "--foreground", "--force", *options)
        self._wait((munge / "socket").exists, "munged")
        self.start("slurmctld", "-D", "-f", str(self.conf))
        self.start_node()

    def start_node(self) -> None:
        """Starts the node, and waits until the controller has it."""
        self.start("slurmd", "-D", "-f", str(self.conf))
        self._wait(lambda: self.ask("sinfo", "-h", "-o%T") in ("idle", "mixed"), "slurmd")

    def kill_node(self) -> None:
        """Kills the node's daemon and all that it has started, as if it had lost its power."""
        self._daemons["slurmd"].kill()
        self._daemons.pop("slurmd").wait()
        self._kill_tasks()
        # What the controller finds out by itself, some time later.
        node = f"NodeName={socket.gethostname()}"
        self.ask("scontrol", "update", node, "State=DOWN", "Reason=killed")

    def start(self, name: str, *options: str) -> None:
        """Starts a daemon."""
        program = shutil.which(name)
        assert program is not None  # it was looked for
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", program, *options],  # never outlives the tests
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
                start_new_session=True,
            )

    def ask(self, *command: str) -> str:
        """Return the output of a command of Slurm."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip()

    def hurry(self, number: str) -> None:
        """Starts what is in the queue again, which Slurm would do after two minutes.

        Not at once: what starts in the second in which it was ended, a node takes for the old one.
        """
        time.sleep(_FORGETTING)
        self.ask("scontrol", "update", f"JobId={number}", "StartTime=now")

    def _wait(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > deadline or self._daemons[name].poll() is not None:
                lines = (self.folder / f"{name}.out").read_text(errors="replace").splitlines()
                errors = [line for line in lines if "rror" in line or "fatal" in line] or lines
                raise NoSlurmError(
                    f"{name} does not come up: {errors[-1] if errors else 'no output'}"
                )
            time.sleep(0.05)

    def down(self) -> None:
        """Ends everything, whatever state it is in."""
        self._kill_tasks()
        for name in ("slurmd", "slurmctld", "munged"):
            if (daemon := self._daemons.pop(name, None)) is not None:
                daemon.kill()
                daemon.wait()

    def _kill_tasks(self) -> None:
        """Kills all that was started for jobs; what is stopped first cannot report it."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in dict.fromkeys(self._tasks()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _tasks(self) -> list[int]:
        """All that knows of this cluster but the daemons, and Slurm's own parents of that."""
        mark = f"SLURM_CONF={self.conf}".encode()
        daemons = {daemon.pid for daemon in self._daemons.values()}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in {os.getpid(), *daemons}:
                continue
            try:
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                found.append(int(entry.name))
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
                    found.insert(0, parent)
            except OSError:  # it has ended, or belongs to another user
                continue
        return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
