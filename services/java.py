"""Java 17, which Kafka, ZooKeeper and Cassandra run on."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess

from services import MissingProgram

VERSION = 17
INSTALL = "apt-get install openjdk-17-jre-headless maven"


def java_program(title: str) -> str:
    """Return the path of Java: from JAVA_HOME or PATH, else Debian's.

    `title` names the program that needs Java, for the error. Raise MissingProgram.
    """
    home = os.environ.get("JAVA_HOME")
    found = [f"{home}/bin/java"] if home else []
    found += [program] if (program := shutil.which("java")) else []
    found += glob.glob(f"/usr/lib/jvm/java-{VERSION}-*/bin/java")
    for program in found:
        with contextlib.suppress(OSError):
            output = subprocess.run(
                [program, "-version"], capture_output=True, text=True, check=False
            ).stderr
            version = re.search(r'version "(\d+)', output)
            if version is not None and int(version[1]) == VERSION:
                return program
    raise MissingProgram(f"Java {VERSION}, which {title} runs on, is missing: {INSTALL}")
