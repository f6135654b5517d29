"""Renders PlantUML on a server that the user named, and on no other.

Through the ``plantuml`` package (extra ``plot``), whose own default is the public server: here the
address is always the user's, such as ``http://127.0.0.1:8080/plantuml``, which a jar gives with
``java -jar plantuml.jar -picoweb:8080:127.0.0.1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .render_error import RenderError

SECONDS = 30  # until a server that does not answer is given up


def render_by_server(server: str, paths: Sequence[Path], folder: Path) -> None:
    """Send each text in an address of its own, and keep the SVG that comes back.

    Raises:
        RenderError: the address is none, the package is missing, the server does not answer, or it
            refuses a diagram.
    """
    client = _client(svg_address(server))
    for path in paths:
        url = client.get_url(path.read_text(encoding="utf-8"))
        try:
            # Not ``client.processes``: it stumbles over its own error, and its reason is lost.
            response, content = client.http.request(url)
        except (OSError, client.HttpLib2Error) as error:
            raise RenderError(f"the PlantUML server {server} does not answer: {error}.") from error
        _check(server, path, response, content)
        (folder / f"{path.stem}.svg").write_bytes(content)


def svg_address(server: str) -> str:
    """Where a server takes texts that it is to draw as SVG.

    Raises:
        RenderError: it is no address of the web.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise RenderError(
            f"{server!r} is no address of a PlantUML server; "
            "it must be one such as http://127.0.0.1:8080/plantuml."
        )
    return f"{server.rstrip('/').removesuffix('/svg')}/svg/"


def _client(address: str) -> Any:
    """The package's client."""
    try:
        package: Any = import_module("plantuml")
    except ImportError as error:
        raise RenderError(
            "a PlantUML server needs the package `plantuml`: pip install 'minisched[plot]'."
        ) from error
    return package.PlantUML(url=address, http_opts={"timeout": SECONDS})


def _check(server: str, path: Path, response: Any, content: bytes) -> None:
    """A wrong diagram is answered with a picture of the error; the headers say what it is."""
    if what := response.get("x-plantuml-diagram-error"):
        line = response.get("x-plantuml-diagram-error-line", "")
        where = f" in line {line}" if line else ""
        raise RenderError(f"{path.name} is not a PlantUML diagram: {_short(what)}{where}.")
    if response.status != 200:
        raise RenderError(f"the PlantUML server {server} refused {path.name}: {response.status}.")
    if b"<svg" not in content[:1000]:
        raise RenderError(f"the PlantUML server {server} answered {path.name} with no SVG.")


def _short(what: str) -> str:
    return unescape(what.partition(" (")[0])
