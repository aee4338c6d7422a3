"""ghstack's own fake of GitHub behind HTTPS, so that ghstack itself runs against it unchanged."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import ssl
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, Optional

import ghstack.github_fake
import ghstack.shell
import trustme

TOKEN = "ghp_0123456789abcdefSECRET"
Answer = tuple[int, Any]


def _call(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Newer ghstacks answer asynchronously; the others want a loop of the thread's own."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        value = function(*arguments, **more)
        return loop.run_until_complete(value) if inspect.isawaitable(value) else value
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class FakeGitHub:
    """One repository, ``pytorch/pytorch``, on a host of its own, with a bare git repository."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        self.certificates = folder / "certificates.pem"
        authority.cert_pem.write_to_path(str(self.certificates))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self._server = ThreadingHTTPServer(("localhost", 0), _Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.fake = self  # type: ignore[attr-defined]
        self.host = f"localhost:{self._server.server_port}"
        self.repository = folder / self.host / "pytorch" / "pytorch.git"
        self.repository.mkdir(parents=True)
        shell = ghstack.shell.Shell(cwd=str(self.repository), testing=True)
        self._endpoint = _call(ghstack.github_fake.FakeGitHubEndpoint, shell)
        if hasattr(self.state, "initialize"):
            _call(self.state.initialize)
        self.state.repository("pytorch", "pytorch").defaultBranchRef.name = "main"
        self.git("symbolic-ref", "HEAD", "refs/heads/main")
        self.may_push = True
        self.is_fork = False
        #: Called before each request; an answer of its own takes the place of the fake's.
        self.before: Callable[[str, str], Optional[Answer]] = lambda method, path: None
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        #: What pull requests were asked for.
        self.opened: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @property
    def state(self) -> Any:
        return self._endpoint.state

    @property
    def pulls(self) -> list[Any]:
        return sorted(self.state.pull_requests.values(), key=lambda pull: pull.number)

    def pull(self, number: int) -> Any:
        return next(pull for pull in self.pulls if pull.number == number)

    @contextmanager
    def running(self) -> Iterator[FakeGitHub]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.socket.close()

    def git(self, *arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.repository, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def answer(self, method: str, path: str, value: dict[str, Any]) -> Answer:
        with self._lock:
            path, _, query = path.partition("?")
            self.asked.append(f"{method} {path}")
            own = self.before(method, path)
            if own is not None:
                return own
            if method == "POST" and path.endswith("/pulls"):
                self.opened.append(value)
            if path == "/api/graphql":
                try:
                    return 200, _call(self._endpoint.graphql, value["query"], **value["variables"])
                except RuntimeError as error:
                    return 200, {"errors": [{"message": str(error)}]}
            return self._rest(method, path[len("/api/v3/") :], query, value)

    def _rest(self, method: str, path: str, query: str, value: dict[str, Any]) -> Answer:
        repository = "repos/pytorch/pytorch"
        if method == "GET" and path == repository:
            permissions = {"push": self.may_push}
            return 200, {
                "default_branch": "main",
                "fork": self.is_fork,
                "permissions": permissions,
            }
        if method == "GET" and path == f"{repository}/pulls":
            head = urllib.parse.parse_qs(query)["head"][0].partition(":")[2]
            return 200, [self._shown(pull) for pull in self.pulls if pull.headRefName == head]
        number = re.fullmatch(rf"{repository}/pulls/(\d+)", path)
        if method == "GET" and number:
            found = [pull for pull in self.pulls if pull.number == int(number[1])]
            return (200, self._shown(found[0])) if found else (404, {"message": "Not Found"})
        call = getattr(self._endpoint, "arest", None) or self._endpoint.rest
        return 200, _call(call, method.lower(), path, **value)

    def _shown(self, pull: Any) -> dict[str, Any]:
        return {
            "number": pull.number,
            "state": "closed" if pull.closed else "open",
            "merged_at": "2026-12-01" if getattr(pull, "merged", False) else None,
            "title": pull.title,
            "body": pull.body,
            "head": {"ref": pull.headRefName},
            "base": {"ref": pull.baseRefName},
        }

    def shown(self, bodies: bool = False) -> str:
        """The pull requests, as a reader of GitHub sees them."""
        out = []
        for pull in self.pulls:
            state = "closed" if pull.closed else "open"
            out.append(f"#{pull.number} {state} {pull.title} ({pull.headRefName})")
            refs = self.git("for-each-ref", "--format=%(refname:lstrip=2)").split()
            if pull.headRefName not in refs:
                out.append("  its branches are deleted")
                continue
            versions = self.git(
                "rev-list", "--count", "--first-parent", pull.headRefName, f"^{pull.baseRefName}"
            )
            diff = self.git("diff", "--shortstat", pull.baseRefName, pull.headRefName)
            out.append(f"  version {versions}: {diff}")
            out += [f"  asked for a review: {', '.join(pull.reviewers)}"] if pull.reviewers else []
            out += [f"  labels: {', '.join(pull.labels)}"] if pull.labels else []
            if bodies:
                body = re.sub(r"ghstack/tree/[\d.]+", "ghstack/tree/VERSION", pull.body)
                out += [f"  | {line}".rstrip() for line in body.replace("\r", "").split("\n")]
        return "\n".join(out) + "\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        fake: FakeGitHub = self.server.fake  # type: ignore[attr-defined]
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        authorization = self.headers.get("Authorization", "")
        fake.tokens.add(authorization.split(" ")[-1])
        try:
            status, value = fake.answer(self.command, self.path, json.loads(text or b"{}"))
        except Exception as error:
            status, value = 500, {"message": f"the fake fails: {error!r}"}
        if status == 0:
            self.close_connection = True
            return
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = _handle

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
