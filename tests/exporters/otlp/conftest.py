"""The servers of this folder: real ones, one of each for all tests, and one that obeys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exporters.otlp.certificates import Certificates, make_certificates
from tests.exporters.otlp.server import OtlpServer
from tests.exporters.otlp.servers import phoenix, rotel

__all__ = ["phoenix", "rotel"]


@pytest.fixture
def server() -> Iterator[OtlpServer]:
    with OtlpServer() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))
