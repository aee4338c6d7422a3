"""The few questions to GitHub that ghstack does not answer."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Optional

from overlay.errors import OverlayError
from overlay.stack.config import Config

TIMEOUT = 30.0
"""Seconds to wait for an answer."""


class GitHubError(OverlayError):
    """GitHub does not answer, or with a refusal."""

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Repository:
    """The repository that the remote is."""

    branch: str
    """Its default branch."""
    is_fork: bool
    may_push: bool


@dataclass(frozen=True)
class Pull:
    """A pull request."""

    number: int
    url: str
    title: str
    body: str
    state: str
    """``open``, ``closed`` or ``merged``."""
    head: str
    """Its branch."""
    base: str
    """The branch that it would be merged into."""

    @property
    def is_open(self) -> bool:
        """Whether it waits for review."""
        return self.state == "open"

    def __str__(self) -> str:
        return f"#{self.number}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """To follow one would hand the token to whatever host it names."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


class GitHub:
    """A repository on GitHub, as the user of a configuration sees it."""

    def __init__(self, config: Config, name: str, timeout: float = TIMEOUT) -> None:
        self.name = name
        """Owner and repository."""
        self._config = config
        self._timeout = timeout
        host = config.host
        self._api = f"https://api.{host}" if host == "github.com" else f"https://{host}/api/v3"
        proxies = {"http": config.proxy, "https": config.proxy} if config.proxy else None
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), _NoRedirects
        )

    def url_of(self, number: int) -> str:
        """A pull request's address, as ghstack writes it."""
        return f"https://{self._config.host}/{self.name}/pull/{number}"

    def number_of(self, url: str) -> Optional[int]:
        """The number in such an address; None if it is another repository's."""
        found = re.fullmatch(re.escape(self.url_of(0)[:-1]) + r"(\d+)/?", url)
        return int(found[1]) if found else None

    def repository(self) -> Repository:
        """The repository itself."""
        value = self._ask("GET", "")
        may_push = value.get("permissions", {}).get("push", False)
        return Repository(value["default_branch"], value["fork"], may_push)

    def pull(self, number: int) -> Pull:
        """A pull request by its number."""
        return self._pull(self._ask("GET", f"/pulls/{number}"))

    def pulls_from(self, branch: str) -> list[Pull]:
        """The pull requests of a branch, whatever became of them."""
        owner = self.name.split("/")[0]
        query = urllib.parse.urlencode({"head": f"{owner}:{branch}", "state": "all"})
        return [self._pull(value) for value in self._ask("GET", f"/pulls?{query}")]

    def set_body(self, number: int, body: str) -> None:
        """Replace the text of a pull request."""
        self._ask("PATCH", f"/pulls/{number}", {"body": body})

    def _pull(self, value: dict[str, Any]) -> Pull:
        state = "merged" if value.get("merged_at") else value["state"]
        number = int(value["number"])
        return Pull(
            number,
            self.url_of(number),
            value["title"],
            (value["body"] or "").replace("\r\n", "\n"),
            state,
            value["head"]["ref"],
            value["base"]["ref"],
        )

    def _ask(self, method: str, path: str, value: Optional[dict[str, str]] = None) -> Any:
        request = urllib.request.Request(
            f"{self._api}/repos/{self.name}{path}",
            None if value is None else json.dumps(value).encode(),
            {
                "Authorization": f"token {self._config.token}",
                "Accept": "application/vnd.github.v3+json",
                "Content-Type": "application/json",
                "User-Agent": "torch-overlay",
            },
            method=method,
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise GitHubError(self._refusal(error), error.code) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            said = self._config.redact(text)
            raise GitHubError(
                f"{self._config.host} does not answer ({said}): try again later"
            ) from None
        except ValueError:
            raise GitHubError(
                f"{self._config.host} does not answer in JSON: is it GitHub? github_url in"
                f" {self._config.place} names it"
            ) from None

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        host, place = self._config.host, self._config.place
        try:
            said = str(json.load(error)["message"])
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            said = ""
        says = f"{host} says {error.code}" + (f" ({self._config.redact(said)})" if said else "")
        if error.code == 401:
            return (
                f"{says}: the token has ended or is wrong: make a new one at"
                f" https://{host}/settings/tokens and write it into {place}"
            )
        if error.code == 404:
            return (
                f"{says}: the token cannot see {self.name}: give it the right public_repo (repo"
                f" for a private one) at https://{host}/settings/tokens"
            )
        if error.code in (403, 429) and "rate limit" in said.lower():
            return f"{says}: try again later"
        if error.code == 403:
            return (
                f"{says}: the token may not do this: give it the right public_repo at"
                f" https://{host}/settings/tokens, and allow it for {self.name.split('/')[0]}"
            )
        if 300 <= error.code < 400:
            return f"{says}: {self.name} has moved: set the address of {self._config.remote} anew"
        if error.code >= 500:
            return f"{says}: GitHub has a problem of its own: try again later"
        return f"{says}: {error.url}"
