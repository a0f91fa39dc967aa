"""A server on this machine that speaks what huggingface_hub asks of a hub."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """Repositories by name, each a mapping from a commit to its files. `branches` names commits;
    `gated` repositories want a token; of `broken` files half is sent. `asked` are the requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, Mapping[str, bytes]]] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.gated: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, folder: Path, branch: str = "main") -> str:
        """Commit the files of a folder to a branch; the commit's name."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repositories.setdefault(name, {})[commit] = files
        self.branches[name, branch] = commit
        return commit

    def commit(self, name: str, revision: str) -> str | None:
        found = self.branches.get((name, revision), revision)
        return found if found in self.repositories.get(name, {}) else None


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
        pass

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(f"{self.command} {path}")
        words = path.split("/")
        if words[:2] == ["api", "models"]:
            name, rest = "/".join(words[2:4]), words[4:]
        else:
            name, rest = "/".join(words[:2]), words[2:]
        commit = self.server.commit(name, rest[1] if len(rest) > 1 else "main")
        if name not in self.server.repositories:
            self._refuse(404, "RepoNotFound", "Repository Not Found")
        elif name in self.server.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        elif words[0] == "api":
            self._describe(name, commit, rest)
        else:
            self._file(name, commit, "/".join(rest[2:]), body=body)

    def _describe(self, name: str, commit: str, rest: list[str]) -> None:
        files = self.server.repositories[name][commit]
        answer: Any = {
            "id": name,
            "sha": commit,
            "private": False,
            "siblings": [{"rfilename": file} for file in files],
        }
        if rest[:1] == ["tree"]:
            answer = [
                {"type": "file", "path": file, "size": len(data), "oid": _oid(data)}
                for file, data in files.items()
            ]
        self._send(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, commit: str, file: str, *, body: bool) -> None:
        data = self.server.repositories[name][commit].get(file)
        if data is None:
            self._refuse(404, "EntryNotFound", f"Entry Not Found: {file}")
            return
        about = {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"', "Accept-Ranges": "bytes"}
        broken = body and file in self.server.broken
        self._send(data, about, body=body, sent=data[: len(data) // 2] if broken else data)

    def _send(
        self,
        data: bytes,
        headers: Mapping[str, str],
        *,
        body: bool = True,
        sent: bytes | None = None,
    ) -> None:
        sent = data if sent is None else sent
        first = 0
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            first = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if first else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.wfile.write(sent[first:])
            if len(sent) < len(data):
                self.close_connection = True

    def _refuse(self, status: int, code: str, words: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", words)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
