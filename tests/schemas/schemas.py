"""Writes what tests/schemas/main.rs walks over: schemas of operators, and models that have them.

    IPUC_PYTHON=venv/bin/python cargo test --test schemas

DIR/schemas.json holds the schemas of the package `onnx`, every version, and of the domain `com.microsoft` of ONNX Runtime.
DIR/models holds the cases of the ONNX backend suite that are one node, the smallest of each operator.
"""

import collections
import json
import pathlib
import sys
import warnings

import onnx
import onnx.parser
from onnx.backend.test.loader import load_model_tests
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

MODELS = 8

# Operators and versions that no case of the suite has: inputs, then the node. Versions are set by the walk.
FURTHER = [
    *(f"float[2,3,4] x = {name} <axes = [1]> (x)" for name in "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean "
      "ReduceSum ReduceSumSquare".split()),
    "float[2,1,4] x = Squeeze <axes = [1]> (x)",
    "float[2,4] x = Unsqueeze <axes = [1]> (x)",
    "float[2,4] x = Slice <starts = [1], ends = [3], axes = [1]> (x)",
    "float[2,4] x, float t, float a = Tile (x, t, a)",
    "float[2,4] x = TopK <k = 2> (x)",
    "float[1,2,4,4] x = Upsample <height_scale = 2.0, width_scale = 2.0> (x)",
    "float[1,2,4,4] x = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (x)",
    "float[2,4] x = Pad <paddings = [0, 1, 1, 0]> (x)",
    "float[2,4] x = Pad <pads = [0, 1, 1, 0]> (x)",
    "float[2,4] x = Reshape <shape = [4, 2]> (x)",
    "float[1,2,4,4] x, float[4] s = Resize (x, s)",
    "float[2,4] x = Cast <to = \"DOUBLE\"> (x)",
    "float[1,4,2,2] x = DepthToSpace <blocksize = 2> (x)",
    "float[1,2,4,4] x = GlobalLpPool (x)",
    "float[1,2,4,4] x = LpPool <kernel_shape = [2, 2]> (x)",
    "float[1,2,4,4] x, float[3,5] r = MaxRoiPool <pooled_shape = [2, 2]> (x, r)",
    "float[2,4] x = Multinomial <sample_size = 3> (x)",
    "float[2,4] x, float[4] s = PRelu (x, s)",
    "float[1,2,4,4] x, float[3,4] r, int64[3] b = RoiAlign (x, r, b)",
    "float[2,4] x = RandomNormal <shape = [2, 3]> ()",
    "float[2,4] x = RandomUniform <shape = [2, 3]> ()",
    "float[2,4] x = RandomNormalLike (x)",
    "float[2,4] x = RandomUniformLike (x)",
    "float[2,4] x = SequenceConstruct (x, x)",
    "float[2,4] x = SequenceEmpty ()",
    "seq(float[2,4]) s = SequenceLength (s)",
    "seq(float[2,4]) s, int64 i = SequenceAt (s, i)",
    "seq(float[2,4]) s, int64 i = SequenceErase (s, i)",
    "seq(float[2,4]) s = ConcatFromSequence <axis = 0> (s)",
    "float[2,4] x = Optional (x)",
    "int64[3] x = ai.onnx.ml.CategoryMapper <cats_int64s = [1, 2], cats_strings = [\"a\", \"b\"]> (x)",
    "int64[3] x = ai.onnx.ml.LabelEncoder <classes_strings = [\"a\", \"b\"]> (x)",
    "int64[3] x = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2], values_floats = [1.0, 2.0]> (x)",
    "int64[3] x = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2], values_strings = [\"a\", \"b\"]> (x)",
    "float[2,2] x = ai.onnx.ml.LinearClassifier <classlabels_ints = [1, 2], coefficients = [1.0, 2.0, 3.0, 4.0], "
    "intercepts = [0.5, 0.25]> (x)",
    "float[2,2] x = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0]> (x)",
    "float[2,2] x = ai.onnx.ml.Normalizer (x)",
    "float[2,2] x = ai.onnx.ml.Scaler <offset = [1.0, 2.0], scale = [2.0, 0.5]> (x)",
    "float[2,2] x = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2]> (x)",
    "float[2,2] x = ai.onnx.ml.TreeEnsembleRegressor <nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], "
    "nodes_featureids = [0, 0, 0], nodes_modes = [\"BRANCH_LEQ\", \"LEAF\", \"LEAF\"], nodes_values = [0.5, 0.0, 0.0], "
    "nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0], target_nodeids = [1, 2], "
    "target_ids = [0, 0], target_weights = [1.0, 2.0], n_targets = 1> (x)",
    "float[2,32] x, uint8[4,1,16] w, float[4] s = com.microsoft.MatMulNBits <K = 32, N = 4, block_size = 32> (x, w, s)",
    "uint8[4,16] w, int64[2] i, float[4,1] s = com.microsoft.GatherBlockQuantized <block_size = 32> (w, i, s)",
    "uint8[2,3] a, float s, uint8 z, uint8[3,4] b, float t, uint8 y = com.microsoft.QGemm (a, s, z, b, t, y)",
    *(f"uint8[2,3] a, float s, uint8 z, uint8[3] b, float t, uint8 y, float u, uint8 v = com.microsoft.{name} "
      "(a, s, z, b, t, y, u, v)" for name in ["QLinearAdd", "QLinearMul"]),
]  # fmt: skip


def tensor_types(constraints, kind):
    return constraints.get(kind, [kind])


def of_onnx(schema):
    constraints = {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints}
    port = lambda port: {
        "name": port.name,
        "option": port.option.name,
        "variable": port.type_str,
        "types": tensor_types(constraints, port.type_str),
    }
    return {
        "domain": schema.domain,
        "name": schema.name,
        "since": schema.since_version,
        "attributes": [{"name": a.name, "type": a.type.name, "required": a.required} for a in schema.attributes.values()],
        "inputs": [port(one) for one in schema.inputs],
        "outputs": [port(one) for one in schema.outputs],
    }


def of_runtime(schema):
    constraints = {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints}
    port = lambda port: {
        "name": port.name,
        "option": port.option.name,
        "variable": port.typeStr,
        "types": tensor_types(constraints, port.typeStr),
    }
    return {
        "domain": schema.domain,
        "name": schema.name,
        "since": schema.since_version,
        "attributes": [
            {"name": name, "type": a.type.name, "required": a.required} for name, a in schema.attributes.items()
        ],
        "inputs": [port(one) for one in schema.inputs],
        "outputs": [port(one) for one in schema.outputs],
    }


def further(text):
    """A model of one node from a line of FURTHER."""
    inputs, call = text.split(" = ", 1)
    opsets = '"" : 21, "ai.onnx.ml" : 1, "com.microsoft" : 1'
    header = f'<ir_version: 8, opset_import: [{opsets}]> g ({inputs}) => (y)'
    return onnx.parser.parse_model(f"{header} {{ y = {call} }}")


def main(target):
    warnings.simplefilter("ignore")
    schemas = [of_onnx(s) for s in onnx.defs.get_all_schemas_with_history() if not s.deprecated]
    schemas += [of_runtime(s) for s in get_all_operator_schema() if s.domain == "com.microsoft" and not s.deprecated]
    schemas.sort(key=lambda schema: (schema["domain"], schema["name"], schema["since"]))
    (target / "schemas.json").write_text(json.dumps(schemas))
    models = collections.defaultdict(list)
    for case in load_model_tests(kind="node"):
        if case.model is not None and len(case.model.graph.node) == 1:
            node = case.model.graph.node[0]
            models[node.domain, node.op_type].append(case.model.SerializeToString())
    for model in map(further, FURTHER):
        node = model.graph.node[0]
        models[node.domain, node.op_type].append(model.SerializeToString())
    (target / "models").mkdir()
    for number, (_, found) in enumerate(sorted(models.items())):
        # The smallest, and those with the most attributes and operands.
        count = lambda model: len(node_of(model).attribute) + len(node_of(model).input) + len(node_of(model).output)
        chosen = sorted(found, key=len)[: MODELS // 2] + sorted(found, key=count)[-MODELS // 2 :] + found[-MODELS // 2 :]
        for index, model in enumerate(dict.fromkeys(chosen)):
            (target / "models" / f"{number}.{index}.onnx").write_bytes(model)


def node_of(model):
    return onnx.load_model_from_string(model).graph.node[0]


main(pathlib.Path(sys.argv[1]))
