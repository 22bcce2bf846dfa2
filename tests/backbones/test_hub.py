"""Downloads of pretrained weights, from a small hub on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import safetensors.torch
import timm
from huggingface_hub import constants

from sodap.backbones import build_backbone, fetch_weights
from sodap.errors import SodapError
from sodap.formats import format_bytes

FILE = "/timm/test_vit.r160_in1k/resolve/main/model.safetensors"


class Hub(ThreadingHTTPServer):
    """A hub with the files in `files`; without any, every request ends in an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_weights_are_announced_and_downloaded_once(hub: Hub) -> None:
    weights = timm.create_model("test_vit", num_classes=0).state_dict()
    hub.files[FILE] = safetensors.torch.save(weights)
    said: list[str] = []
    fetch_weights("test_vit", "pretrained", said.append)
    assert len(said) == 1
    assert "test_vit" in said[0]
    assert f"{hub.url}/timm/test_vit.r160_in1k" in said[0]
    assert format_bytes(len(hub.files[FILE])) in said[0]
    asked = len(hub.requests)
    fetch_weights("test_vit", "pretrained", said.append)
    backbone = build_backbone("test_vit")
    assert len(hub.requests) == asked, "it is in the cache"
    assert len(said) == 1
    own = backbone.vit.state_dict()
    assert all(own[name].equal(weights[name]) for name in own)


def test_a_hub_that_does_not_answer_is_asked_once(hub: Hub) -> None:
    with pytest.raises(SodapError, match="weights=FILE") as error:
        build_backbone("test_vit")
    assert f"{hub.url}/timm/test_vit.r160_in1k" in str(error.value)
    # The hub's library may ask for other things as well.
    assert [request for request in hub.requests if FILE in request] == [f"HEAD {FILE}"]


def test_nothing_is_downloaded_for_embedded_random_or_given_weights(hub: Hub) -> None:
    fetch_weights("micro", "pretrained")
    fetch_weights("test_vit", "random")
    fetch_weights("test_vit", "my.safetensors")
    build_backbone("micro")
    assert hub.requests == []
