"""Workers that are processes, on one machine or several, connected in a ring.

An array is summed in as many pieces as there are workers. Each piece goes once round the ring and
is added to, then goes round once more as the sum: every worker sends about twice the array,
whatever the number of workers, and all get the same bits.

Connections are opened by `multiprocessing` with a key that only the workers know; what goes through
them are the bytes of arrays, never pickles.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener

import numpy as np

from simrec.model.run.workers import ONE_WORKER, Workers

_GONE = (
    "another worker of the training is gone or no longer answers. Start the training again; with "
    "a checkpoint, resume goes on from there."
)
# Seconds until a worker that was started is there.
_PATIENCE = 120.0


def connect(
    rank: int, size: int, host: str, key: bytes, exchange: Callable[[str], list[str]]
) -> Workers:
    """Connect the workers; each calls this with its own rank.

    Parameters
    ----------
    rank, size : int
        Which worker this is, of how many.
    host : str
        Name or address under which the others find this machine.
    key : bytes
        A secret that all workers share.
    exchange : callable
        Called once with the address of this worker; returns those of all, in their order.
    """
    if size == 1:
        return ONE_WORKER
    with Listener((host, 0), backlog=2, authkey=key) as listener:
        addresses = exchange(f"{host}:{listener.address[1]}")
        accepted: queue.Queue[Connection | BaseException] = queue.Queue()

        def accept() -> None:
            try:
                accepted.put(listener.accept())
            except BaseException as error:
                accepted.put(error)

        threading.Thread(target=accept, daemon=True).start()
        after, _, port = addresses[(rank + 1) % size].rpartition(":")
        try:
            to_next = Client((after, int(port)), authkey=key)
            from_last = accepted.get(timeout=_PATIENCE)
        except (OSError, EOFError, queue.Empty) as error:
            raise RuntimeError(f"a worker of the training cannot be reached: {error}") from error
        if isinstance(from_last, BaseException):
            raise RuntimeError(f"a worker of the training cannot be reached: {from_last}")
    return RingWorkers(rank, size, to_next, from_last)


class RingWorkers(Workers):
    """Workers in a ring: each sends to the next one and receives from the last one."""

    def __init__(self, rank: int, size: int, to_next: Connection, from_last: Connection) -> None:
        self.rank, self.size = rank, size
        self._from_last = _socket(from_last)
        # Sent by a thread of its own: all send at once, and none may wait for the other to read.
        self._outbox: queue.Queue[bytes] = queue.Queue()
        self._broken: BaseException | None = None
        threading.Thread(target=self._send, args=(_socket(to_next),), daemon=True).start()

    def _send(self, to_next: socket.socket) -> None:
        while True:
            message = self._outbox.get()
            try:
                if self._broken is None:
                    to_next.sendall(message)
            except OSError as error:
                self._broken = error
                with suppress(OSError):
                    self._from_last.shutdown(socket.SHUT_RDWR)
            self._outbox.task_done()

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Add up the arrays of all workers."""
        started = time.perf_counter()
        out = np.array(array, order="C")
        flat = out.reshape(-1)
        edges = np.linspace(0, len(flat), self.size + 1).astype(np.int64)
        inbox = np.empty(int(np.diff(edges).max(initial=0)), flat.dtype)

        def piece(number: int) -> np.ndarray:
            number %= self.size
            return flat[edges[number] : edges[number + 1]]

        try:
            for step in range(self.size - 1):
                # A copy goes out: a piece is added to before all of it may be on its way.
                self._outbox.put(piece(self.rank - step).tobytes())
                mine = piece(self.rank - step - 1)
                mine += self._received(inbox[: len(mine)])
            for step in range(self.size - 1):
                self._outbox.put(piece(self.rank + 1 - step).tobytes())
                self._received(piece(self.rank - step))
        except OSError as error:
            raise RuntimeError(f"{_GONE} ({self._broken or error})") from error
        self._outbox.join()  # a worker that ends now leaves nothing unsent
        self.sums, self.bytes_summed = self.sums + 1, self.bytes_summed + out.nbytes
        self.seconds_in_sums += time.perf_counter() - started
        return out

    def _received(self, piece: np.ndarray) -> np.ndarray:
        left = piece.view(np.uint8).data if len(piece) else memoryview(b"")
        while len(left):
            n = self._from_last.recv_into(left)
            if not n:
                raise ConnectionResetError("the connection was closed")
            left = left[n:]
        return piece


def _socket(connection: Connection) -> socket.socket:
    """Return the socket of a connection, once both ends have shown that they know the key."""
    made = socket.socket(fileno=os.dup(connection.fileno()))
    connection.close()
    made.setblocking(True)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
