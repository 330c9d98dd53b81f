"""A hub on loopback with the part of the Hugging Face hub's interface that downloads and commits need."""

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

OTHERS = ("tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "README.md", "model.fp16.safetensors")
"""Other files of real repositories."""


def set_endpoint(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub ask the server at `url`."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


class Hub:
    """A hub with some models; `log` lists the requested files, and API calls as `api`."""

    def __init__(self) -> None:
        self.revisions: dict[str, dict[str, dict[str, bytes]]] = {}
        """Contents by model id, branch or tag, and file name."""
        self.refused: dict[str, tuple[int, str]] = {}
        """HTTP status and error code of the files of refused models."""
        self.private: set[str] = set()
        """Ids of private models."""
        self.commits: dict[str, list[tuple[str, str]]] = {}
        """Revision and message of the uploaded commits, by model id."""
        self.uploads: dict[str, bytes] = {}
        """Large files, by SHA-256."""
        self.log: list[str] = []
        self.silent = False
        """Accept requests, but answer none until the hub stops."""
        self._stopped = Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
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
        if plain := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            self.log.append("api")
            return self._api(plain[1], "revision", "main")
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

    def accept(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a request that uploads."""
        self.log.append("api")
        if method == "PUT":
            self.uploads[path.removeprefix("/upload/")] = body
            return 200, {}, b""
        if path == "/api/validate-yaml":
            return 200, {}, b"{}"
        values = [json.loads(line) for line in body.splitlines()]
        if path == "/api/repos/create":
            return self._create_repo(values[0])
        call = re.fullmatch(
            r"/(?:api/models/)?(.+?)(?:\.git/info/lfs/objects/(batch)|/(preupload|branch|commit)/(.+))", path
        )
        assert call, path
        if call[1] in self.refused:
            status, code = self.refused[call[1]]
            return status, {"X-Error-Code": code, "X-Error-Message": "refused"}, b"{}"
        revision = unquote(call[4] or "main")
        return {"preupload": self._preupload, "branch": self._branch, "commit": self._commit, None: self._batch}[
            call[3]
        ](call[1], revision, values)

    def _create_repo(self, values: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        repo = "/".join(filter(None, (values.get("organization"), values["name"])))
        if repo in self.refused:
            status, code = self.refused[repo]
            return status, {"X-Error-Code": code, "X-Error-Message": "refused"}, b"{}"
        url = json.dumps({"url": f"{self.url}/{repo}"}).encode()
        if repo in self.revisions:
            return 409, {}, url
        self.revisions[repo] = {"main": {}}
        if values.get("private") or values.get("visibility") == "private":
            self.private.add(repo)
        return 200, {}, url

    def _branch(self, repo: str, name: str, values: list[Any]) -> tuple[int, dict[str, str], bytes]:
        if name in self.revisions[repo]:
            return 409, {}, b"{}"
        self.revisions[repo][name] = dict(self.revisions[repo]["main"])
        return 200, {}, b"{}"

    def _preupload(self, repo: str, revision: str, values: list[Any]) -> tuple[int, dict[str, str], bytes]:
        files = [
            {"path": file["path"], "uploadMode": "lfs" if ".onnx" in file["path"] else "regular", "shouldIgnore": False}
            for file in values[0]["files"]
        ]
        return 200, {}, json.dumps({"files": files}).encode()

    def _batch(self, repo: str, revision: str, values: list[Any]) -> tuple[int, dict[str, str], bytes]:
        objects = [
            {**item, "actions": {"upload": {"href": f"{self.url}/upload/{item['oid']}"}}}
            for item in values[0]["objects"]
        ]
        return 200, {}, json.dumps({"transfer": "basic", "objects": objects}).encode()

    def _commit(self, repo: str, revision: str, values: list[Any]) -> tuple[int, dict[str, str], bytes]:
        files = self.revisions[repo][revision]
        for item in values:
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.uploads[value["oid"]]
            else:
                self.commits.setdefault(repo, []).append((revision, value["summary"]))
        commit = self.commit(repo, revision)
        return 200, {}, json.dumps({"commitUrl": f"{self.url}/{repo}/commit/{commit}", "commitOid": commit}).encode()

    def _files(self, repo: str, revision: str) -> dict[str, bytes]:
        found = self.revisions[repo]
        if revision in found:
            return found[revision]
        return next(found[name] for name in found if self.commit(repo, name) == revision)

    def _api(self, repo: str, call: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        if repo not in self.revisions:
            return 401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}'
        try:
            files = self._files(repo, revision)
        except StopIteration:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b'{"error": "Invalid rev id"}'
        if call == "revision":
            sha = revision if revision not in self.revisions[repo] else self.commit(repo, revision)
            return (
                200,
                {},
                json.dumps(
                    {
                        "id": repo,
                        "sha": sha,
                        "private": repo in self.private,
                        "siblings": [{"rfilename": f} for f in files],
                    }
                ).encode(),
            )
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in files.items()
        ]
        return 200, {}, json.dumps(tree).encode()


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on to a hub, and its answers back."""

    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        self._accept("POST")

    def do_PUT(self) -> None:
        self._accept("PUT")

    def _answer(self, *, body: bool) -> None:
        answer = self.hub.answer(urlsplit(self.path).path)
        if not self.hub.silent:
            self._send(*answer, body=body)

    def _accept(self, method: str) -> None:
        self._send(*self.hub.accept(method, urlsplit(self.path).path, self._request_body()), body=True)

    def _request_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, status: int, headers: dict[str, str], contents: bytes, *, body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(contents))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(contents)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
