"""Python processes that start with PyTorch imported: forks of a process that did nothing else.

Importing PyTorch takes over a second of processor time, and hundreds of tests' processes do.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# A request is JSON with four files: the code, stdout, stderr, and a pipe for the answer: the
# number of the process, and then its exit status. No more requests: who asked has ended.
SERVER = """
import gc, json, os, signal, site, socket, sys
import torch
gc.collect()
gc.freeze()  # else each fork's collector walks through all of PyTorch, and copies its pages

def serve():
    requests = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        text, files, _, _ = socket.recv_fds(requests, 1 << 18, 4)
        if not text:
            sys.exit()
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code, *outputs, answer = files
    if process := os.fork():
        os.write(answer, b"%d\\n" % process)
        os.write(answer, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(outputs, 1):
        os.dup2(file, number)
    source = open(code).read()
    os.closerange(3, max(files) + 1)
    return json.loads(text), source

request, source = serve()
os.environ.clear()
os.environ.update(request["environment"])
os.chdir(request["folder"])
sys.argv = ["-c", *request["arguments"]]
paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.path[:] = ["", *paths, *(path for path in sys.path if path and not path.endswith("-packages"))]
if request["site"]:
    site.main()
exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
"""


@functools.cache
def _server() -> socket.socket:
    """Starts the process that imports PyTorch, and returns the socket of its requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packages = [path for path in sys.path if path.endswith("-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    subprocess.Popen([sys.executable, "-S", "-c", SERVER], stdin=theirs, env=environment)
    return ours


def run(
    source: str,
    *arguments: str | Path,
    folder: Path | None = None,
    environment: dict[str, str],
    site: bool = True,
    check: bool = False,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Does what `subprocess.run([python, "-c", source, *arguments])` does; with -S if not `site`.

    The process has PyTorch imported, whatever its environment says of it.
    """
    request = {
        "folder": str(folder or Path.cwd()), "environment": environment, "site": site,
        "arguments": [str(argument) for argument in arguments],
    }  # fmt: skip
    with tempfile.TemporaryFile("w+") as code, tempfile.TemporaryFile("w+") as out, \
            tempfile.TemporaryFile("w+") as err:  # fmt: skip
        code.write(source)
        code.seek(0)
        reading, writing = os.pipe()
        files = [code.fileno(), out.fileno(), err.fileno(), writing]
        socket.send_fds(_server(), [json.dumps(request).encode()], files)
        os.close(writing)
        with open(reading) as answer:
            process = int(answer.readline())
            timer = threading.Timer(timeout, os.kill, (process, signal.SIGKILL))
            timer.start()
            status = int(answer.readline())
            timer.cancel()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    done = subprocess.CompletedProcess([sys.executable, "-c", source], status, *texts)
    if check:
        done.check_returncode()
    return done


def run_module(
    module: str, *arguments: str | Path, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Does what `subprocess.run([python, "-m", module, *arguments])` does."""
    source = f"import runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return run(source, *arguments, folder=folder, environment=environment)
