"""Open an exported program as a stranger would, and write down what comes out.

    python reopen.py MODEL.pt2 INPUTS.safetensors OUTPUTS.safetensors

Run by path in a fresh process. It knows torch and safetensors, neither slimformer nor transformers. Tensors are named
`trial/position`: the position of an argument or of a result.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def main(program: str, inputs: str, outputs: str) -> None:
    """Run the program on every trial."""
    trials: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for name, tensor in load_file(inputs).items():
        trial, position = name.split("/")
        trials[trial][int(position)] = tensor
    call = torch.export.load(program).module()
    tensors = {}
    with torch.no_grad():
        for trial, given in trials.items():
            for i, tensor in enumerate(call(*(given[j] for j in sorted(given)))):
                tensors[f"{trial}/{i}"] = tensor.contiguous()
    save_file(tensors, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
