"""A hub on this machine: what huggingface_hub asks of the real one to commit to a repository, and to read from one."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "stands4nobody" * 2


@dataclass
class Hub:
    """What it was given. Files ending in `large` are asked for as large files, apart from the commit."""

    url: str = ""
    large: tuple[str, ...] = (".safetensors",)
    repositories: dict[str, bool] = field(default_factory=dict)  # name → private
    files: dict[str, bytes] = field(default_factory=dict)  # in the last commit
    objects: dict[str, bytes] = field(default_factory=dict)  # large files by SHA-256
    commits: int = 0
    asked: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)  # to read: "name@revision" → files


@contextmanager
def standing_in(**known: Any) -> Iterator[Hub]:
    """A hub that answers as long as the block lasts."""
    hub = Hub(**known)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _answering(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _answering(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

        def _read(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _say(self, found: Any, status: int = 200) -> None:
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _give(self, commit: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def _answer(self) -> None:
            path, body = self.path.split("?")[0], self._read()
            hub.asked.append(f"{self.command} {path}")
            stored = path.startswith("/store/")  # addresses of large files carry their own permission
            if not stored and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._say({"error": f"not {self.headers.get('Authorization')}"}, 401)
            if "/resolve/" in path:
                name, _, rest = path[1:].partition("/resolve/")
                commit, _, file = rest.partition("/")
                content = _files_at(hub, name, commit).get(file)
                return self._say({"error": "not found"}, 404) if content is None else self._give(commit, content)
            found = answer(hub, self.command, path, body)
            return self._say({"error": "not found"}, 404) if found is None else self._say(*found)

        do_GET = do_HEAD = do_POST = do_PUT = _answer

    return Answer


def answer(hub: Hub, command: str, path: str, body: bytes) -> tuple[Any, int] | None:
    """What a path is answered with, and the status."""
    if path == "/api/whoami-v2":
        return {"name": "someone", "type": "user", "orgs": []}, 200
    if path == "/api/repos/create":
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        new = name not in hub.repositories
        hub.repositories.setdefault(name, asked.get("visibility") == "private" or bool(asked.get("private")))
        return {"url": f"{hub.url}/{name}", "name": name, "id": name}, 200 if new else 409
    if path == "/api/validate-yaml":
        hub.cards.append(json.loads(body)["content"])
        return {"errors": [], "warnings": []}, 200
    if path.startswith("/store/") and command == "PUT":
        hub.objects[path.removeprefix("/store/")] = body
        return {}, 200
    if path.startswith("/store/"):
        return {}, 200
    return _of_model(hub, path) or _of_repository(hub, path, body)


def commit_of(key: str) -> str:
    """The commit a revision of a model is at."""
    return hashlib.sha1(key.encode()).hexdigest()


def _files_at(hub: Hub, name: str, commit: str) -> dict[str, bytes]:
    return next((files for key, files in hub.models.items() if key.startswith(name) and commit_of(key) == commit), {})


def _of_model(hub: Hub, path: str) -> tuple[Any, int] | None:
    """What is said of models that can be read."""
    for key in hub.models:
        name, _, revision = key.partition("@")
        if path == f"/api/models/{name}/revision/{revision}":
            return {"id": name, "private": False, "sha": commit_of(key), "siblings": [], "tags": []}, 200
        if path == f"/api/models/{name}/tree/{commit_of(key)}":
            files = hub.models[key].items()
            return [
                {"type": "file", "path": p, "size": len(c), "oid": hashlib.sha1(c).hexdigest()} for p, c in files
            ], 200
    return None


def _of_repository(hub: Hub, path: str, body: bytes) -> tuple[Any, int] | None:
    for name, private in hub.repositories.items():
        if path == f"/api/models/{name}":
            return {"id": name, "private": private, "sha": "0" * 40, "siblings": [], "tags": []}, 200
        if path == f"/api/models/{name}/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {each: "lfs" if each.endswith(hub.large) else "regular" for each in names}
            return {"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]}, 200
        if path == f"/{name}.git/info/lfs/objects/batch":
            return {"transfer": "basic", "objects": [_place(hub, each) for each in json.loads(body)["objects"]]}, 200
        if path == f"/api/models/{name}/commit/main":
            _commit(hub, body)
            return {"commitUrl": f"{hub.url}/{name}/commit/{'1' * 40}", "commitOid": "1" * 40, "success": True}, 200
    return None


def _place(hub: Hub, wanted: dict[str, Any]) -> dict[str, Any]:
    place = {"href": f"{hub.url}/store/{wanted['oid']}", "header": {}}
    return {**wanted, "authenticated": True, "actions": {"upload": place, "verify": place}}


def _commit(hub: Hub, body: bytes) -> None:
    hub.files, hub.commits = {}, hub.commits + 1
    for line in body.decode().splitlines():
        entry = json.loads(line)
        if entry["key"] == "file":
            hub.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        elif entry["key"] == "lfsFile":
            content = hub.objects[entry["value"]["oid"]]
            assert hashlib.sha256(content).hexdigest() == entry["value"]["oid"]
            hub.files[entry["value"]["path"]] = content
