"""Trains the toy under a launcher. Argument, as JSON: directory, config, kind; perhaps resume,
tied, stop_at, pause.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from training_toys import InterruptedTask, ToyModel

from glassformer.training import TrainingConfig, train


def pretend_to_have_gpus() -> None:
    """Let Accelerate shard weights over CPU processes.

    It takes its FSDP2 path only where it sees several GPUs, although fully_shard itself works on
    CPUs with gloo.
    """
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def main() -> None:
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    if arguments["kind"] == "sharded":
        pretend_to_have_gpus()
    model = ToyModel(tied=arguments.get("tied", False))
    stop_at = arguments.get("stop_at", -1)  # only the last process is asked to stop
    is_last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
    config = TrainingConfig.from_json(json.dumps(arguments["config"]))
    train(
        model,
        InterruptedTask(
            at=stop_at if is_last else -1, number=signal.SIGTERM, pause=arguments.get("pause", 0.0)
        ),
        config,
        Path(arguments["directory"]),
        resume=arguments.get("resume", False),
        progress=False,
    )
    assert (
        int(os.environ.get("WORLD_SIZE", "1"))
        == {"one": 1, "ddp": 2, "sharded": 2}[arguments["kind"]]
    )
    if arguments["kind"] == "sharded":
        assert all(isinstance(weight, DTensor) for weight in model.parameters())
    # Threads of gloo outlive DistributedDataParallel, and may abort an interpreter that shuts down
    # (PyTorch 179291).
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
