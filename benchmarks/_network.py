"""Processes and ports of a training, and a Ray cluster of two network namespaces."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_WORKER = b"ray::RayTrainWorker"
# Namespaces, with the name and the address of the end of the cable that is in each.
_ENDS = (("simrec-a", "simrec-va", "10.213.7.1"), ("simrec-b", "simrec-vb", "10.213.7.2"))
_PORT = 6399


def train_workers(pid: int) -> list[int]:
    """Return the workers of a training, in the order in which they were started."""
    return sorted(p for p in _descendants(pid) if _command(p).startswith(_WORKER))


def listening(pids: Iterable[int]) -> set[int]:
    """Return the TCP ports at which processes listen."""
    ports = set()
    for pid in pids:
        with suppress(OSError):
            inodes = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
            tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
            for line in (line for table in tables for line in table.splitlines()[1:]):
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                    ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def connect_to_all(ports: Iterable[int], stack: ExitStack, silent: bool) -> None:
    """Say `GET /` to each port, and hold a silent connection to it if asked to."""
    for port in ports:
        with suppress(OSError):
            if silent:
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2))
            with socket.create_connection(("127.0.0.1", port), timeout=2) as one:
                one.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


@dataclass(frozen=True)
class TwoMachines:
    """A Ray cluster with a node in each of two network namespaces."""

    address: str
    prefix: tuple[str, ...]
    environment: dict[str, str]

    def cut(self) -> None:
        """Pull the cable; nothing tells either end."""
        _ip("-n", _ENDS[1][0], "link", "set", _ENDS[1][1], "down")


@contextmanager
def cluster_of_two() -> Iterator[TwoMachines]:
    """Start a Ray cluster of two namespaces with a cable between them."""
    nodes: list[subprocess.Popen[bytes]] = []
    # A token for this cluster alone; that of other clusters is none of its business.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **token}
    try:
        for space, *_ in _ENDS:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        cable = ("veth", "peer", "name", _ENDS[1][1], "netns", _ENDS[1][0])
        _ip("link", "add", _ENDS[0][1], "netns", _ENDS[0][0], "type", *cable)
        for space, end, address in _ENDS:
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", space, "link", "set", end, "up")
        head = f"{_ENDS[0][2]}:{_PORT}"
        options = ("--head", f"--port={_PORT}", "--include-dashboard=false")
        nodes.append(_node(0, environment, *options))
        _wait_until_it_listens(nodes[0])
        nodes.append(_node(1, environment, f"--address={head}"))
        time.sleep(10)
        yield TwoMachines(head, ("ip", "netns", "exec", _ENDS[0][0]), environment)
    finally:
        for node in nodes:
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            with suppress(subprocess.TimeoutExpired):
                node.wait(timeout=30)
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
        for space, *_ in _ENDS:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", space)


def _node(number: int, environment: dict[str, str], *options: str) -> "subprocess.Popen[bytes]":
    space, _, address = _ENDS[number]
    ray = str(Path(sys.executable).parent / "ray")
    command = ["ip", "netns", "exec", space, ray, "start", "--block", "--num-cpus=1"]
    command += [f"--node-ip-address={address}", f"--object-store-memory={100 << 20}", *options]
    sink = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdout=sink, stderr=sink, env=environment, start_new_session=True
    )


def _wait_until_it_listens(node: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if _PORT in listening([node.pid, *_descendants(node.pid)]):
            return
        time.sleep(0.1)
    raise SystemExit("the head of the Ray cluster does not start")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task").glob("*/children")
        for child in (int(c) for file in children for c in file.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
