"""How methods are run: device, precision, compilation, CUDA graphs and timing."""

from sodap.execution.cuda_graphs import CannotCaptureError, GraphedCallable
from sodap.execution.forward import EVALUATION_BATCH, ClassPredictions, Forward
from sodap.execution.runtime import Runtime
from sodap.execution.timing import DeviceTimer
from sodap.execution.train_step import StepResult, TrainStep

__all__ = [
    "EVALUATION_BATCH",
    "CannotCaptureError",
    "ClassPredictions",
    "DeviceTimer",
    "Forward",
    "GraphedCallable",
    "Runtime",
    "StepResult",
    "TrainStep",
]
