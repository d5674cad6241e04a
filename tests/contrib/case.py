"""What a case of tests/contrib.rs is: a model of one node with inputs, and the outputs that ONNX Runtime computes."""

import pathlib

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

FOLDER = pathlib.Path(__file__).parent
MICROSOFT = "com.microsoft"
MACHINE_LEARNING = "ai.onnx.ml"


def numbers(seed):
    """A generator, and what draws floats of a shape from it: cases with one of their own can be written alone."""
    random = np.random.default_rng(seed)
    return random, lambda *shape, dtype=np.float32: random.standard_normal(shape).astype(dtype)


random, floats = numbers(1)


def saturates():
    """Whether sums of products of u8 and i8 saturate in 16 bits, as ONNX Runtime has them on processors without instructions for
    such products: its results are wrong there, which those of cases must not be."""
    node = helper.make_node("MatMulInteger", ["A", "B"], ["Y"])
    port = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    inputs = [port("A", onnx.TensorProto.UINT8, [1, 8]), port("B", onnx.TensorProto.INT8, [8, 1])]
    graph = helper.make_graph([node], "sum", inputs, [port("Y", onnx.TensorProto.INT32, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    sums = run(model, {"A": np.full((1, 8), 255, np.uint8), "B": np.full((8, 1), 127, np.int8)}, ["Y"])["Y"]
    return int(sums.item()) != 8 * 255 * 127


def run(model, inputs, outputs):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(outputs, session.run(outputs, inputs)))


class Case:
    """A model of one node; its first set of inputs says which inputs there are, and their types."""

    def __init__(self, name, operator, operands, results, domain=MICROSOFT, weights=(), dims=None, version=21, **attributes):
        self.name, self.operator, self.domain = name, operator, domain
        self.operands, self.results, self.attributes = operands, results, attributes
        self.weights, self.dims, self.version, self.data = dict(weights), dims or {}, version, []

    def model(self, inputs):
        given = inputs.keys() | self.weights.keys()
        operands = [name if name in given else "" for name in self.operands]
        while not operands[-1]:
            operands.pop()
        node = helper.make_node(self.operator, operands, self.results, domain=self.domain, **self.attributes)
        port = lambda name, value: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), self.dims.get(name, value.shape)
        )
        graph = helper.make_graph(
            [node],
            self.name,
            [port(name, inputs[name]) for name in operands if name in inputs],
            # ONNX Runtime does not infer the type of `qk`.
            [
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
                if name == "qk"
                else helper.make_empty_tensor_value_info(name)
                for name in self.results
                if name
            ],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", self.version), helper.make_opsetid(MICROSOFT, 1)]
        if self.domain == MACHINE_LEARNING:
            opsets.append(helper.make_opsetid(MACHINE_LEARNING, 3))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def add(self, **inputs):
        model = self.model(inputs)
        outputs = self.compute(model, inputs)
        if not self.data:
            for port in model.graph.output:
                value = outputs[port.name]
                dims = self.dims.get(port.name, value.shape)
                port.CopyFrom(helper.make_tensor_value_info(port.name, helper.np_dtype_to_tensor_dtype(value.dtype), dims))
            onnx.save(model, FOLDER / f"{self.name}.onnx")
        prefix = len({tensor.name.split(".")[0] for tensor in self.data})
        if prefix > 0:
            inputs = {name: value for name, value in inputs.items() if not name.startswith("past_")}
        self.data += [numpy_helper.from_array(value, f"{prefix}.in.{name}") for name, value in inputs.items()]
        self.data += [numpy_helper.from_array(value, f"{prefix}.out.{name}") for name, value in outputs.items()]
        graph = helper.make_graph([], self.name, [], [], self.data)
        (FOLDER / f"{self.name}.data").write_bytes(graph.SerializeToString())
        return outputs

    def compute(self, model, inputs):
        return run(model, inputs, [name for name in self.results if name])


class Formula(Case):
    """An operator that ONNX Runtime does not have on processors: its outputs are those of a formula."""

    def __init__(self, name, operator, operands, results, formula, **more):
        super().__init__(name, operator, operands, results, **more)
        self.formula = formula

    def compute(self, model, inputs):
        given = {name: inputs.get(name, self.weights.get(name)) for name in self.operands}
        values = self.formula(*given.values())
        names = [name for name in self.results if name]
        return dict(zip(names, values if isinstance(values, tuple) else (values,)))


def one(name, operator, inputs, results=("Y",), **more):
    """A case of one set; inputs that begin with `w_` are stored in the model."""
    weights = {operand[2:]: value for operand, value in inputs.items() if operand.startswith("w_")}
    given = {operand: value for operand, value in inputs.items() if not operand.startswith("w_")}
    operands = [operand.removeprefix("w_") for operand in inputs]
    Case(name, operator, operands, list(results), weights=weights, **more).add(**given)
