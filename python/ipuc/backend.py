"""A backend for suites and tools that know `onnx.backend.base`: `import ipuc.backend as backend`."""

import os
import tempfile
from typing import Any

import numpy
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

import ipuc

__all__ = ["IpucBackend", "IpucBackendRep", "is_compatible", "prepare", "run_model", "supports_device"]


class IpucBackendRep(BackendRep):
    """A compiled model and a session on it; state of a model is an input and an output here."""

    def __init__(self, model: ipuc.Model, threads: int) -> None:
        self._session = model.session(threads=threads)
        self._inputs = [name for name, _ in model.inputs()]
        self._outputs = model.outputs()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on inputs in the order of the model, or by their names."""
        if kwargs:
            raise TypeError(f"unknown arguments: {', '.join(kwargs)}")
        if isinstance(inputs, dict):
            named = inputs
        else:
            values = [inputs] if isinstance(inputs, numpy.ndarray) else list(inputs)
            if len(values) > len(self._inputs):
                raise ValueError(f"the model has {len(self._inputs)} inputs, {len(values)} are given")
            named = dict(zip(self._inputs, values))
        outputs = self._session.run(named)
        return tuple(outputs[name] for name in self._outputs)


class IpucBackend(Backend):
    """Compiles into a temporary file and runs on the processor."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return Device(device).type == DeviceType.CPU

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model compiles."""
        if not cls.supports_device(device):
            return False
        try:
            cls.prepare(model, device, **kwargs)
        except ipuc.IpucError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", *, threads: int = 0, **kwargs: Any) -> IpucBackendRep:
        """Compile a model; other arguments are those of `ipuc.compile`."""
        if not cls.supports_device(device):
            raise ValueError(f"there is no device {device}")
        with tempfile.TemporaryDirectory(prefix="ipuc-") as folder:
            path = os.path.join(folder, "model.onnx")
            onnx.save(model, path)
            compiled = ipuc.compile(path, **kwargs)
            # Weights are read when the file is opened.
            return IpucBackendRep(ipuc.open(compiled), threads)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any) -> Any:
        """A node alone says nothing of its types: make a model of it."""
        raise NotImplementedError("ipuc runs models: give the node in one")


is_compatible = IpucBackend.is_compatible
prepare = IpucBackend.prepare
run_model = IpucBackend.run_model
supports_device = IpucBackend.supports_device
