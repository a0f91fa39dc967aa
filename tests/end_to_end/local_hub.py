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
    """Repositories by name, each a mapping from a commit to its files. `gated` repositories want a
    token; of `broken` files half is sent. `asked` are the requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, Mapping[str, bytes]]] = {}
        self.gated: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, folder: Path) -> str:
        """Commit the files of a folder; the commit's name."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repositories.setdefault(name, {})[commit] = files
        return commit


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer `/api/models/OWNER/NAME`, `/api/models/OWNER/NAME/{revision,tree}/COMMIT` and
        `/OWNER/NAME/resolve/COMMIT/FILE`.
        """
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(f"{self.command} {path}")
        owner, repo, *asked = path.removeprefix("api/models/").split("/")
        name = f"{owner}/{repo}"
        commits = self.server.repositories.get(name)
        kind, commit, *file = asked or ["revision", *list(commits or ())[-1:], ""]
        if commits is None:
            self._refuse(404, "RepoNotFound", "Repository Not Found")
        elif name in self.server.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif commit not in commits:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {commit}")
        elif path.startswith("api/"):
            files = commits[commit].items()
            siblings = [{"rfilename": each} for each, _ in files]
            about: Any = {"id": name, "sha": commit, "private": False, "siblings": siblings}
            if kind == "tree":
                about = [
                    {"type": "file", "path": each, "size": len(data), "oid": _oid(data)}
                    for each, data in files
                ]
            self._send(json.dumps(about).encode(), {"Content-Type": "application/json"})
        else:
            self._file(commits[commit], commit, "/".join(file))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
        pass

    def _file(self, files: Mapping[str, bytes], commit: str, file: str) -> None:
        data = files.get(file)
        if data is None:
            self._refuse(404, "EntryNotFound", f"Entry Not Found: {file}")
            return
        about = {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"', "Accept-Ranges": "bytes"}
        self._send(data, about, broken=file in self.server.broken)

    def _send(self, data: bytes, headers: Mapping[str, str], *, broken: bool = False) -> None:
        """Send data from the byte on that the request wants, or only its first half."""
        wanted = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
        first = int(wanted or 0)
        self.send_response(206 if first else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first : len(data) // 2 if broken else None])
            self.close_connection = self.close_connection or broken

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
