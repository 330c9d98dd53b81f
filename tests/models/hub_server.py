"""A hub on loopback with the part of the Hugging Face hub's file interface that downloads need."""

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.parse import unquote, urlsplit

OTHERS = ("tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "README.md", "model.fp16.safetensors")
"""Other files of real repositories."""


class Hub:
    """A hub with some models; `log` lists the requested files, and API calls as `api`."""

    def __init__(self) -> None:
        self.revisions: dict[str, dict[str, dict[str, bytes]]] = {}
        """Contents by model id, branch or tag, and file name."""
        self.refused: dict[str, tuple[int, str]] = {}
        """HTTP status and error code of the files of refused models."""
        self.log: list[str] = []
        self.silent = False
        """Accept requests, but answer none until the hub stops."""
        self._stopped = Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def add(self, repo: str, folder: Path, revision: str = "main") -> None:
        """Add the files of a checkpoint, and `OTHERS`, to the hub."""
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        self.revisions.setdefault(repo, {})[revision] = {**dict.fromkeys(OTHERS, b"not needed"), **files}

    def commit(self, repo: str, revision: str = "main") -> str:
        """Return the commit of a branch or tag."""
        return hashlib.sha1(f"{repo} {revision}".encode()).hexdigest()

    def requested_files(self) -> set[str]:
        """Return the files requested since the last call, without API calls."""
        files = {name for name in self.log if name != "api"}
        self.log.clear()
        return files

    def stop(self) -> None:
        """Stop the server; connections are refused afterwards."""
        self._stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a request."""
        if self.silent:
            self._stopped.wait()
        api = re.fullmatch(r"/api/models/(.+?)/(revision|tree)/([^/]+)/?", path)
        if api:
            self.log.append("api")
            return self._api(unquote(api[1]), api[2], unquote(api[3]))
        file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        if not file:
            return 404, {}, b""
        repo, revision, name = file[1], unquote(file[2]), unquote(file[3])
        self.log.append(name)
        if repo in self.refused:
            status, code = self.refused[repo]
            return status, {"X-Error-Code": code, "X-Error-Message": "refused"}, b""
        contents = self._files(repo, revision)[name]
        etag = hashlib.sha256(contents).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": revision}, contents

    def _files(self, repo: str, revision: str) -> dict[str, bytes]:
        found = self.revisions[repo]
        return found.get(revision) or next(found[name] for name in found if self.commit(repo, name) == revision)

    def _api(self, repo: str, call: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        if repo not in self.revisions:
            return 401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}'
        try:
            files = self._files(repo, revision)
        except StopIteration:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b'{"error": "Invalid rev id"}'
        if call == "revision":
            sha = revision if revision not in self.revisions[repo] else self.commit(repo, revision)
            return 200, {}, json.dumps({"id": repo, "sha": sha, "siblings": [{"rfilename": f} for f in files]}).encode()
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in files.items()
        ]
        return 200, {}, json.dumps(tree).encode()

    def _handler(hub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._reply(body=False)

            def do_GET(self) -> None:
                self._reply(body=True)

            def _reply(self, *, body: bool) -> None:
                status, headers, contents = hub.answer(urlsplit(self.path).path)
                if hub.silent:
                    return
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(contents))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if body:
                    self.wfile.write(contents)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        return Handler
