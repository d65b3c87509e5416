"""Trains the toy under a launcher. Argument, as JSON: directory, config, kind; perhaps resume, tied, stop_at, pause."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from training_toys import ToyModel, ToyTask

from glassformer.training import Batch, TrainingConfig, train


@dataclass
class StoppingTask(ToyTask):
    """A task that takes ``pause`` seconds an update, and asks the last process to stop when ``stop_at`` begins."""

    stop_at: int = -1
    pause: float = 0.0

    def batch(self, step: int, size: int) -> Batch:
        time.sleep(self.pause)
        if step == self.stop_at and os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(step, size)


def pretend_to_have_gpus() -> None:
    """Let Accelerate shard weights over CPU processes.

    It takes its FSDP2 path only where it sees several GPUs, although fully_shard itself works on CPUs with gloo.
    """
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def main() -> None:
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    if arguments["kind"] == "sharded":
        pretend_to_have_gpus()
    model = ToyModel(tied=arguments.get("tied", False))
    config = TrainingConfig.from_json(json.dumps(arguments["config"]))
    train(
        model,
        StoppingTask(stop_at=arguments.get("stop_at", -1), pause=arguments.get("pause", 0.0)),
        config,
        Path(arguments["directory"]),
        resume=arguments.get("resume", False),
        progress=False,
    )
    assert int(os.environ.get("WORLD_SIZE", "1")) == {"one": 1, "ddp": 2, "sharded": 2}[arguments["kind"]]
    if arguments["kind"] == "sharded":
        assert all(isinstance(weight, DTensor) for weight in model.parameters())
    # Threads of gloo outlive DistributedDataParallel, and may abort an interpreter that shuts down (PyTorch 179291).
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
