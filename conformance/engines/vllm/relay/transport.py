"""Messages between the stages of one tensor-parallel column.

The last stage sends the earlier ones what they missed, and each stage announces its activations to
the next. Messages use local sockets, so the kernel holds them as soon as they are sent; gloo's
thread would compete with vLLM's spinning processes for a core. A message that exceeds the socket's
buffer is passed as a memory file, so sending never blocks.

While the stages connect, any local process can connect too. A process of another user, or without
the secret shared by the group, is rejected, and loading continues.
"""

from __future__ import annotations

import fcntl
import hmac
import mmap
import os
import secrets
import socket
import struct
import termios
import time
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

#: Messages up to this size, in bytes, go through the socket. At most one message per step in flight
#: waits there, so its buffer (about 200 KiB) has room for all of them.
INLINE = 16 * 1024

#: Seconds to wait after a stage's announcement: the woken process would take the sender's core.
SENDING = 5e-5

_SIZE = struct.Struct("<Q")
#: The kernel's information on a peer: process, user, group.
_CREDENTIALS = struct.Struct("3i")
_SECRET_BYTES = 32

#: Seconds that a peer has to introduce itself; the stages do so immediately.
_INTRODUCTION = 2.0


class RankPipeline:
    """The stages that share one tensor-parallel rank.

    Every world rank must create it at the same point of loading, or ``new_group`` hangs.
    """

    def __init__(self, stage: int, column: int, stages: int, tensor_size: int) -> None:
        if dist.get_world_size() != stages * tensor_size:
            raise NotImplementedError(
                f"the relay knows pipeline x tensor parallelism only: {stages} x {tensor_size} "
                f"stages in a world of {dist.get_world_size()} ranks"
            )
        from vllm import envs

        timeout = timedelta(seconds=envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
        self.stage = stage
        for each in range(tensor_size):
            # World rank = stage × tensor size + column.
            ranks = list(range(each, stages * tensor_size, tensor_size))
            group = dist.new_group(ranks, backend="gloo", timeout=timeout)
            if each == column:
                self.ranks, self.group = ranks, group
        self._peers = self._connect(timeout.total_seconds())

    @property
    def unsent(self) -> int:
        """Bytes that were sent and not yet received, with the kernel's overhead."""
        waiting = [
            fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
            for peer in self._peers.values()
        ]
        return sum(struct.unpack("i", size)[0] for size in waiting)

    def send(self, stage: int, data: torch.Tensor) -> None:
        """Send ``data``, uint8 [bytes], to ``stage``. Returns at once."""
        peer, size = self._peers[stage], _SIZE.pack(data.numel())
        content = memoryview(cast(Any, data.numpy()))
        if data.numel() <= INLINE:
            peer.sendmsg([size, content])
            return
        file = os.memfd_create("relay")
        try:
            os.truncate(file, data.numel())
            with mmap.mmap(file, data.numel()) as memory:
                memory[:] = content
            socket.send_fds(peer, [size], [file])
        finally:
            os.close(file)

    def receive(self, stage: int) -> torch.Tensor:
        """Wait for the next message from ``stage``, uint8 [bytes]; EOFError if it has ended."""
        frame, files, _, _ = socket.recv_fds(self._peers[stage], _SIZE.size + INLINE, 1)
        if not frame:
            raise EOFError(f"stage {stage} has ended")
        try:
            (size,) = _SIZE.unpack_from(frame)
            held = os.fstat(files[0]).st_size if files else len(frame) - _SIZE.size
            if size != held:
                raise ValueError(f"stage {stage} sent {held} bytes and announced {size}")
            if files:
                return torch.frombuffer(mmap.mmap(files[0], size), dtype=torch.uint8)
        finally:
            for file in files:
                os.close(file)
        return torch.frombuffer(bytearray(frame[_SIZE.size :]), dtype=torch.uint8)

    def ring(self, stage: int, step: int) -> None:
        """Announce to the next stage that its activations of ``step`` are about to be sent."""
        self._peers[stage].sendmsg([_SIZE.pack(step)])

    def wait(self, stage: int, step: int) -> None:
        """Sleep until the previous stage has announced ``step``. vLLM itself waits for activations
        by spinning, perhaps on the core that computes them.
        """
        rung = 0
        while rung < step:
            frame = self._peers[stage].recv(_SIZE.size)
            if not frame:
                raise EOFError(f"stage {stage} has ended")
            (rung,) = _SIZE.unpack(frame)
        time.sleep(SENDING)

    def gather(self, obj: object) -> list[object]:
        """Return every stage's ``obj``, in stage order. For loading only: it blocks all stages."""
        gathered: list[object] = [None] * len(self.ranks)
        dist.all_gather_object(gathered, obj, group=self.group)
        return gathered

    def _connect(self, timeout: float) -> dict[int, socket.socket]:
        """Connect to the stages this one exchanges messages with: its neighbours and the last."""
        last, mine = len(self.ranks) - 1, self.stage
        earlier = [s for s in range(mine) if mine in (s + 1, last)]
        later = {s for s in (mine + 1, last) if mine < s <= last}
        name = f"\0relay-{os.getpid()}-{secrets.token_hex(8)}"
        secret = secrets.token_bytes(_SECRET_BYTES)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.settimeout(timeout)
            listener.bind(name)
            listener.listen(len(self.ranks))
            told = self.gather((os.uname().nodename, name, secret))
            places = cast(list[tuple[str, str, bytes]], told)
            hosts = {host for host, *_ in places}
            if len(hosts) > 1:
                raise NotImplementedError(f"the relay needs all stages on one host, not {hosts}")
            peers = {stage: _connected(*places[stage][1:], mine) for stage in earlier}
            peers |= _accepted(listener, secret, later)
        for peer in peers.values():
            peer.settimeout(timeout)
        return peers


def _connected(name: str, secret: bytes, stage: int) -> socket.socket:
    """Connect to the stage that listens at ``name``, and introduce this stage."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(name)
    if not _same_user(peer):
        raise PermissionError("another user's process listens for a stage of the relay")
    peer.sendmsg([_SIZE.pack(stage), secret])
    return peer


def _accepted(listener: socket.socket, secret: bytes, wanted: set[int]) -> dict[int, socket.socket]:
    """Return the sockets of the ``wanted`` stages; reject all other callers. Raises TimeoutError
    if a stage does not connect within the listener's timeout.
    """
    peers: dict[int, socket.socket] = {}
    until = time.monotonic() + (listener.gettimeout() or 0)
    while wanted - peers.keys():
        listener.settimeout(max(0.001, until - time.monotonic()))
        peer = listener.accept()[0]
        stage = _introduced(peer, secret)
        if stage in wanted - peers.keys():
            peers[stage] = peer
        else:
            peer.close()
    return peers


def _introduced(peer: socket.socket, secret: bytes) -> int:
    """Return the stage that connected, or -1 for any other peer. Reads at most one frame."""
    if not _same_user(peer):
        return -1
    peer.settimeout(_INTRODUCTION)
    try:
        frame = peer.recv(_SIZE.size + _SECRET_BYTES + 1)
    except OSError:
        return -1
    if not hmac.compare_digest(frame[_SIZE.size :], secret):
        return -1
    return int(_SIZE.unpack_from(frame)[0])


def _same_user(peer: socket.socket) -> bool:
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())
