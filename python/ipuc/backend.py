"""A backend for suites and tools that know `onnx.backend.base`: `import ipuc.backend as backend`."""

import os
import tempfile
from typing import Any

import numpy
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

import ipuc

__all__ = ["IpucBackend", "IpucBackendRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]


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
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        *,
        opset_version: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on its inputs, in order (without those that the node leaves out) or by their names.

        Types and shapes of the inputs are those of the arrays. The node is of `opset_version` of its domain, the newest one
        that the package `onnx` knows where it is `None`; further arguments are those of `prepare`.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        if isinstance(inputs, dict):
            named = {name: numpy.asarray(value) for name, value in inputs.items()}
        else:
            values = [inputs] if isinstance(inputs, numpy.ndarray) else list(inputs)
            given = [name for name in node.input if name]
            if len(values) != len(given):
                raise ValueError(f"the node has {len(given)} inputs, {len(values)} are given")
            named = {name: numpy.asarray(value) for name, value in zip(given, values)}
        if set(named) != set(names):
            raise ValueError(f"the node has the inputs {names}, given are {sorted(named)}")
        outputs = [name for name in node.output if name]
        model = _model_of_node(node, named, outputs, outputs_info, opset_version)
        return cls.prepare(model, device, **kwargs).run(named)


def _model_of_node(
    node: onnx.NodeProto,
    inputs: dict[str, numpy.ndarray],
    outputs: list[str],
    outputs_info: Any,
    opset_version: int | None,
) -> onnx.ModelProto:
    def typed(name: str, dtype: Any, shape: Any) -> onnx.ValueInfoProto:
        # Texts are objects or texts of NumPy.
        kind = numpy.dtype(dtype)
        is_text = kind.kind in "OUST"
        element = onnx.TensorProto.STRING if is_text else onnx.helper.np_dtype_to_tensor_dtype(kind)
        return onnx.helper.make_tensor_value_info(name, element, shape)

    given = [typed(name, value.dtype, value.shape) for name, value in inputs.items()]
    if outputs_info is None:
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
    else:
        results = [typed(name, dtype, shape) for name, (dtype, shape) in zip(outputs, outputs_info, strict=True)]
    graph = onnx.helper.make_graph([node], "node", given, results)
    version = onnx.defs.onnx_opset_version() if opset_version is None else opset_version
    if node.domain not in ("", "ai.onnx"):
        version = 1 if opset_version is None else opset_version
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])
    # What the node gives follows from what it is given.
    return onnx.shape_inference.infer_shapes(model) if outputs_info is None else model


is_compatible = IpucBackend.is_compatible
prepare = IpucBackend.prepare
run_model = IpucBackend.run_model
run_node = IpucBackend.run_node
supports_device = IpucBackend.supports_device
