"""Certificates for a test: an authority, a server, a client, and what is wrong with others."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Certificates", "make_certificates"]

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
_LEAF = """subjectAltName=DNS:localhost,IP:127.0.0.1
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The folder of one authority; ``<name>.pem`` is a certificate and ``<name>.key`` its key."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def server_context(self, *, asks: bool = False) -> ssl.SSLContext:
        """What the server shows, and whether it asks the client for a certificate too."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
        context.load_cert_chain(self.certificate("server"), self.key("server"))
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        return context


def make_certificates(folder: Path) -> Certificates:
    """An authority, what it signed for ``server`` and ``client``, and a locked copy of a key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (folder / "leaf.ext").write_text(_LEAF)
    new = ("req", *_KEY, "-nodes")
    usage = "keyUsage=critical,keyCertSign,cRLSign"
    name = ("-subj", f"/CN=authority of {folder.name}")
    _openssl(folder, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", *name, "-addext", usage)
    for leaf in ("server", "client"):
        files = ("-keyout", f"{leaf}.key", "-out", f"{leaf}.csr")
        _openssl(folder, *new, *files, "-subj", f"/CN={leaf}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "leaf.ext")
        _openssl(folder, "x509", "-req", "-in", f"{leaf}.csr", "-out", f"{leaf}.pem", *signer)
    locked = ("-aes256", "-passout", "pass:secret", "-out", "locked.key")
    _openssl(folder, "ec", "-in", "client.key", *locked)
    return Certificates(folder)


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
