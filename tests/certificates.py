"""Certificates made for a test: an authority, a server on the loopback address, and a client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

LOOPBACK = "DNS:localhost,IP:127.0.0.1,IP:::1"
ADDRESS_ONLY = "IP:127.0.0.1"
"""Names of a certificate that is not valid for `localhost`."""


def make_certificates(folder: Path, names: str = LOOPBACK) -> None:
    """Make ca.crt, a certificate server.crt with these names, and client.crt, each with its key.
    Skip the test if openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: apt-get install openssl")
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")

    def openssl(*arguments: str) -> None:
        run_tool(folder, "openssl", *arguments)

    openssl(*new, "-x509", "-subj", "/CN=Authority", "-keyout", "ca.key", "-out", "ca.crt")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    for name, subject in (("server", "server.example"), ("client", "app")):
        openssl(*new, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        more = ("-extfile", "names") if name == "server" else ()
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, *more, "-out", f"{name}.crt")
        (folder / f"{name}.key").chmod(0o600)


def make_stores(folder: Path, password: str) -> None:
    """Make keystore.p12 and truststore.p12 for a server on Java, from `make_certificates`."""
    pair = ("-in", "server.crt", "-inkey", "server.key", "-name", "server")
    run_tool(
        folder,
        *("openssl", "pkcs12", "-export", *pair),
        *("-out", "keystore.p12", "-passout", f"pass:{password}"),
    )
    run_tool(
        folder,
        *("keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", "ca.crt"),
        *("-keystore", "truststore.p12", "-storetype", "PKCS12", "-storepass", password),
    )


def run_tool(folder: Path, *command: str) -> None:
    """Run a command there; its output explains a failure."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
