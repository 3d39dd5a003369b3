"""Programs that a model wrote, run in processes of their own."""

import secrets
import subprocess
import sys
import tempfile

_SECONDS = 5
_BYTES = 512 * 2**20
# What the process does before the program: it takes a namespace without a network if the system
# lends one, bounds, and a hook that cannot be removed. The sign at the end tells a program that
# came to its end from one that left.
_GUARD = """
import ctypes, os, resource, sys
libc = ctypes.CDLL(None)
getattr(libc, "unshare", lambda flags: None)(0x50000000)
for name, most in {bounds!r}.items():
    resource.setrlimit(getattr(resource, name), (most, most))
here = os.path.realpath(os.getcwd()) + os.sep
refused = ("socket.", "subprocess.", "ctypes.", "pty.", "os.exec", "os.fork", "os.kill",
           "os.posix_spawn", "os.spawn", "os.system", "os.putenv", "signal.", "urllib.")
changes = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
           "os.symlink", "os.truncate", "shutil.")
def hook(event, values):
    if event.startswith(refused):
        raise PermissionError(event)
    is_written = event == "open" and (
        set(str(values[1] or "")) & set("wax+") or (values[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if is_written or event.startswith(changes):
        paths = [one for one in values if isinstance(one, (str, bytes))]
        if not paths or not (os.path.realpath(os.fsdecode(paths[0])) + os.sep).startswith(here):
            raise PermissionError(event)
sys.addaudithook(hook)
del ctypes, libc, resource, hook
exec(compile({program!r}, "program", "exec"), {{"__name__": "__main__"}})
print({sign!r})
"""
_LIMITS = {
    "RLIMIT_AS": _BYTES,
    "RLIMIT_CPU": _SECONDS,
    "RLIMIT_FSIZE": 2**20,
    "RLIMIT_NPROC": 0,
    "RLIMIT_CORE": 0,
}


def runs_without_error(program: str) -> bool:
    """Return whether a Python program comes to its end within bounds of time and memory.

    It runs in a fresh interpreter without environment and input, in a folder that is deleted
    afterwards, without other processes, network and other files to write. This keeps accidents of
    a model in, and is no wall against a program that wants to harm.
    """
    sign = secrets.token_hex()
    text = _GUARD.format(bounds=_LIMITS, program=program, sign=sign)
    # To a file, as the size of a file can be limited.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                [sys.executable, "-I", "-c", text],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=2 * _SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        output.seek(0)
        return output.read().endswith(f"{sign}\n".encode())
