"""Writes the cases of the ONNX backend suite for tests/onnx_suite.rs.

    python3 -m venv venv && venv/bin/pip install onnx==1.23.2 numpy
    IPUC_PYTHON=venv/bin/python cargo test --test all onnx_suite

A case is a folder DIR/KIND.NAME with `model.onnx` (the large ones are only named, in `path`), `tolerances` (relative, then
absolute) and folders `test_data_set_N` of `input_K.pb` and `output_K.pb`. Node cases are computed by the package, those of
the other kinds lie in it.
"""

import pathlib
import shutil
import sys
import warnings

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

VERSION = "1.23.2"
KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator", "real"]


def serialized(value, port):
    """A value as the protobuf message that its type asks for."""
    if isinstance(value, TensorProto):
        return value.SerializeToString()
    writers = {
        "map_type": numpy_helper.from_dict,
        "sequence_type": numpy_helper.from_list,
        "optional_type": numpy_helper.from_optional,
        "tensor_type": numpy_helper.from_array,
    }
    return writers[port.type.WhichOneof("value")](value, port.name).SerializeToString()


def write_set(folder, number, roles):
    folder = folder / f"test_data_set_{number}"
    folder.mkdir(parents=True)
    for role, values, ports in roles:
        for index, (value, port) in enumerate(zip(values, ports)):
            (folder / f"{role}_{index}.pb").write_bytes(serialized(value, port))


def write_light(folder, path):
    """A model of known layers without trained weights: its input is a ramp from 0 to 1, its output lies beside it."""
    (folder / "path").write_text(str(path))
    graph = onnx.load(path).graph
    stored = {tensor.name for tensor in graph.initializer}
    (port,) = [port for port in graph.input if port.name not in stored]
    shape = [dim.dim_value or 1 for dim in port.type.tensor_type.shape.dim]
    count = np.prod(shape)
    ramp = (np.arange(count).reshape(shape) / count).astype(np.float32)
    output = onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))
    write_set(folder, 0, [("input", [ramp], [port]), ("output", [output], graph.output)])


def main(target):
    if onnx.__version__ != VERSION:
        sys.exit(f"onnx {VERSION} is needed, this is {onnx.__version__}")
    warnings.simplefilter("ignore")
    package = pathlib.Path(onnx.__file__).parent
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            folder = target / f"{kind}.{case.name}"
            folder.mkdir()
            (folder / "tolerances").write_text(f"{case.rtol} {case.atol}")
            if case.model is not None:
                onnx.save(case.model, folder / "model.onnx")
                graph = case.model.graph
                for number, (inputs, outputs) in enumerate(case.data_sets):
                    roles = [("input", inputs, graph.input), ("output", outputs, graph.output)]
                    write_set(folder, number, roles)
            elif case.model_dir is not None:
                shutil.copytree(case.model_dir, folder, dirs_exist_ok=True)
            else:
                write_light(folder, package.parent / case.url)


main(pathlib.Path(sys.argv[1]))
