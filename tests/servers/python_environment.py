"""Python environments of servers that tests start, and of clients that tests ask with: made once by uv, each in a
folder of its own (installed.py).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.installed import installed

PACKAGES = {
    "pytriton": ("nvidia-pytriton==0.7.0",),
    "moto": ("moto[s3,server]==5.2.5",),
    "ray": ("ray[serve]==2.60.0",),
    "openai_clients": ("instructor==1.17.0", "litellm==1.110.2", "langchain-openai==1.7.4"),
    "schemathesis": ("schemathesis==4.32.5",),
    "kubernetes_validate": ("kubernetes-validate==1.37.0",),
    "guidellm": ("guidellm==0.8.1", "torch==2.15.0", "transformers==5.23.0"),
    "lm_eval": ("lm-eval[api]==0.4.13", "torch==2.15.0", "transformers==5.23.0", "accelerate==1.15.0"),
}
"""By the server's or client's name; the first one's version is the environment's."""


def environment_of(name: str) -> Path:
    """The Python of a server's environment, which is installed if it is not there."""
    packages = PACKAGES[name]

    def install(folder: Path) -> None:
        beside = Path(sys.executable).with_name("uv")
        uv = str(beside) if beside.is_file() else shutil.which("uv") or "uv"
        subprocess.run(
            [uv, "venv", "--quiet", "--allow-existing", "--relocatable", "--python", sys.executable, str(folder)],
            check=True,
        )
        command = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *packages]
        subprocess.run(command, check=True)

    return installed(name, packages[0].partition("==")[2], install) / "bin" / "python"
