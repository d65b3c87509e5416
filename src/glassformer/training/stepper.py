"""Updates of the weights, on one process or many, with the same sums in every split."""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from types import FrameType

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin, broadcast, send_to_device
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from glassformer.errors import InputError
from glassformer.modes import evaluating
from glassformer.training.checkpoint import plain_model
from glassformer.training.config import TrainingConfig
from glassformer.training.optim import build_optimizers, learning_rate_factor, set_learning_rates
from glassformer.training.task import Batch, Task, mix_seed, shares


class DivergedError(RuntimeError):
    """The loss or the gradient of an update was NaN or infinite. The update was not made."""


class StopRequest:
    """Lets signals set ``requested`` instead of ending the process, within a ``with`` block.

    The signals are SIGINT (Ctrl-C), SIGTERM and SIGHUP.

    SIGHUP comes when a terminal closes; where it is ignored, as under nohup, it stays ignored.

    A second signal acts as it would have without this, so that a hung update can still be
    interrupted. Outside the main thread, where Python delivers no signals, this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            numbers = {signal.SIGINT, signal.SIGTERM}
            hangup = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has no SIGHUP
            if signal.getsignal(hangup) != signal.SIG_IGN:  # nohup ignores it
                numbers.add(hangup)
            for number in numbers:
                self._earlier[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            # None: the handler was not installed from Python, which cannot put it back.
            if handler is None:
                handler = signal.SIG_DFL
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._earlier.clear()


@dataclass(frozen=True)
class Update:
    """Numbers of one update."""

    loss: float
    """The mean loss over the global batch, before the update."""
    grad_norm: float
    """Euclidean norm of the gradient of all weights together, before clipping."""
    learning_rate_factor: float
    """The learning rate as a fraction of its peak."""
    count: int
    """Units (tokens, say) in the global batch."""
    stop: bool
    """True if a process has a request to stop."""


def open_accelerator(precision: str) -> Accelerator:
    """Return the Accelerate engine for this process, as its launcher configured it."""
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        # Accelerate allows one precision per process; successive runs may have different ones.
        AcceleratorState._reset_state()
    # With the plugin, the launcher's settings cannot divide the loss a second time.
    plugin = GradientAccumulationPlugin(num_steps=1)
    # Without a GPU, Accelerate joins processes only with cpu=True; else each would train alone.
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    cpu = several and not torch.accelerator.is_available()
    try:
        accelerator = Accelerator(
            cpu=cpu, mixed_precision=precision, gradient_accumulation_plugin=plugin
        )
        supported = precision == "no" or accelerator.native_amp
    except ValueError:
        supported = False
    if not supported:
        raise InputError(
            got=f'precision = "{precision}"',
            expected="a precision that this device computes in",
            fix='Use precision="no", or "bf16", which CPUs and recent GPUs have.',
        )
    sharding = getattr(accelerator.state, "fsdp_plugin", None)
    if sharding is not None:
        # Efficient loading moves weights through the meta device, where tied ones become separate.
        # Each process has all weights anyway.
        sharding.cpu_ram_efficient_loading = False
    return accelerator


class Stepper:
    """Makes updates with the model and optimisers that Accelerate prepared.

    The loss of the global batch is L = sum_i c_i L_i / sum_i c_i over all shares i of all
    processes. c_i counts the units, such as tokens, of the mean L_i. The gradient is that of L for
    every split.
    """

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, task: Task, config: TrainingConfig
    ) -> None:
        self._accelerator = accelerator
        self._task = task
        self._config = config
        optimizers = build_optimizers(plain_model(model), config)
        model.zero_grad()  # gradients of the caller, or of an interrupted update
        self.model, *self.optimizers = accelerator.prepare(model, *optimizers)
        self._weights = list(self.model.parameters())

    def update(self, step: int, stop: StopRequest | None = None) -> Update:
        """Make update ``step`` (from 0), which decides batch, learning rate and random numbers.

        ``stop`` is the request to this process; the result reports the requests to all processes.
        """
        seed = mix_seed(self._config.seed, step, self._accelerator.process_index, purpose="update")
        # torch.manual_seed would seed every kind of device, which takes longer than the bookkeeping
        # of a small update.
        torch.default_generator.manual_seed(seed)
        if self._accelerator.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        factor = learning_rate_factor(step, self._config)
        set_learning_rates(self.optimizers, factor)
        batch = self._task.batch(step, self._config.batch_size)
        count = self._count(batch)
        loss = self._accumulate_gradients(batch, count)
        max_norm = math.inf if self._config.clip_norm is None else self._config.clip_norm
        norm = self._accelerator.clip_grad_norm_(self._weights, max_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        stop_request = loss.new_tensor(float(stop is not None and stop.requested))
        sums = self._accelerator.reduce(torch.stack((loss, stop_request)), reduction="sum")
        # One read for the three numbers: on a GPU every read waits for the update.
        total, stops, grad_norm = torch.cat((sums, norm.to(sums).reshape(1))).tolist()
        # The scaler of float16 skips updates whose gradient overflowed, and lowers its scale.
        overflow_is_handled = self._config.precision == "fp16"
        if not math.isfinite(total) or not (math.isfinite(grad_norm) or overflow_is_handled):
            raise DivergedError(
                f"step {step + 1}: loss = {total}, gradient norm = {grad_norm}. The update was not "
                "made. Lower the learning rate, lengthen the warm-up, set clip_norm, or check the "
                "data of this step."
            )
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return Update(total, grad_norm, factor, count, stops > 0)

    def evaluate(self) -> dict[str, float]:
        """Return the task's metrics, the same on every process."""
        with evaluating(self.model), torch.no_grad():
            metrics = self._task.evaluate(self.model)
        if self._task.metric not in metrics:
            raise InputError(
                got=f"an evaluation with {sorted(metrics)}",
                expected=f"the task's metric {self._task.metric!r} among them",
                fix="Let evaluate() return it.",
            )
        numbers = torch.tensor([float(value) for value in metrics.values()], dtype=torch.float64)
        if self._accelerator.num_processes > 1:
            # The first process's numbers, so that all processes make the same decisions.
            numbers = broadcast(numbers.to(self._accelerator.device), from_process=0)
        return dict(zip(metrics, numbers.tolist(), strict=True))

    def _accumulate_gradients(self, batch: Batch, count: int) -> Float[Tensor, ""]:
        """Backpropagate this process's shares of ``batch``; return their part of the loss."""
        processes = self._accelerator.num_processes
        micro_batches = self._config.accumulation
        first = self._accelerator.process_index * micro_batches
        process_shares = shares(batch, processes * micro_batches)[first : first + micro_batches]
        total = torch.zeros((), device=self._accelerator.device)
        for index, share in enumerate(process_shares):
            if share is None:
                # A process without a share still takes part in the gradients' exchange: with one
                # example of weight 0.
                share = {name: tensor[:1] for name, tensor in batch.items()}
                weight = 0.0
            else:
                weight = self._count(share) / count
            is_last = index == micro_batches - 1
            with nullcontext() if is_last else self._accelerator.no_sync(self.model):
                examples = send_to_device(share, self._accelerator.device)
                loss = self._task.loss(self.model, examples)
                # Accelerate averages gradients over processes; the sum is needed.
                self._accelerator.backward(loss * (weight * processes))
            total += loss.detach() * weight
        return total

    def _count(self, batch: Batch) -> int:
        count = self._task.count(batch)
        if count < 1:
            raise InputError(
                got=f"a batch with count {count}",
                expected="at least 1",
                fix="Let every example hold something to learn from.",
            )
        return count
