"""`HttpOperator`: one HTTP request as a task."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from onceflow.authoring.forms import idempotency_key
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.errors import AuthoringError, OnceflowError

MOST_SHOWN = 500


class HttpFailed(OnceflowError):
    """The server answered with an error, or not at all."""


class HttpOperator(BaseOperator):
    """Sends one request. The output is the answer: read as JSON where the server says it is, else its text.

    `data`: a dict or list is sent as JSON, a text as it is. Every try sends the same `Idempotency-Key`, so that the server can drop repetitions:
    a remote effect happens at least once. Answers from 400 on raise HttpFailed, and are tried again as the task's retries say.
    `request_timeout_s` limits each wait for the network.

    >>> HttpOperator(task_id="rates", url="https://rates.example/{{ ds }}.json")   # doctest: +SKIP
    """

    template_fields = ("url", "data", "headers")

    def __init__(
        self,
        task_id: str,
        *,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: dict[str, str] | None = None,
        request_timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        super().__init__(task_id, **options)
        self.url, self.method, self.data, self.headers, self.request_timeout_s = url, method.upper(), data, headers or {}, request_timeout_s
        self.follow_fields()

    def execute(self, context: dict[str, Any]) -> Any:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise AuthoringError(f"task {self.task_id}: url must begin with http:// or https://, not {self.url!r}")
        headers = {"Idempotency-Key": idempotency_key(), **self.headers}
        body = self.data.encode() if isinstance(self.data, str) else self.data
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.url, data=body, headers=headers, method=self.method)
        try:
            with urllib.request.urlopen(request, timeout=self.request_timeout_s) as answer:
                text = answer.read().decode(answer.headers.get_content_charset() or "utf-8", errors="replace")
                return json.loads(text) if answer.headers.get_content_type().endswith("json") and text else text
        except urllib.error.HTTPError as error:
            raise HttpFailed(f"{self.method} {self.url} answered {error.code} {error.reason}: {error.read(MOST_SHOWN).decode(errors='replace')}") from error
        except urllib.error.URLError as error:
            raise HttpFailed(f"{self.method} {self.url}: {error.reason}") from error
