"""Static files, with a digest of the content in each name, so that browsers may keep them."""

from __future__ import annotations

import hashlib
from functools import cached_property
from importlib import resources

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_A_YEAR = "public, max-age=31536000, immutable"


class StaticFiles:
    """Files of `fairlead/web/static`, read once."""

    @cached_property
    def _files(self) -> dict[str, tuple[str, bytes]]:
        """Contents by hashed name, each with its plain name."""
        found = {}
        for file in resources.files("fairlead.web").joinpath("static").iterdir():
            stem, _, ending = file.name.rpartition(".")
            if ending in _TYPES:
                content = file.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:12]
                found[f"{stem}.{digest}.{ending}"] = (file.name, content)
        return found

    @cached_property
    def _hashed(self) -> dict[str, str]:
        return {name: hashed for hashed, (name, _) in self._files.items()}

    def hashed(self, name: str) -> str:
        """Return the name with the digest of the file's content. Raises KeyError if there is no
        such file."""
        return self._hashed[name]

    async def serve(self, request: Request) -> Response:
        """Return a file by its hashed name."""
        name = request.path_params["name"]
        if name not in self._files:
            return PlainTextResponse("no such file", 404)
        content = self._files[name][1]
        headers = {"Cache-Control": _A_YEAR}
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


FILES = StaticFiles()
