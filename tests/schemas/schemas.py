"""Writes what tests/schemas/main.rs walks over: schemas of operators, and models that have them.

    IPUC_PYTHON=venv/bin/python cargo test --test all schemas

DIR/schemas.json holds the schemas of the package `onnx`, every version, and of ONNX Runtime those of its
domains DOMAINS and those that only it has in the default domain.
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
    "float[2,4] x = Affine <alpha = 2.0, beta = 0.5> (x)",
    "float[2,4] x = ScaledTanh <alpha = 2.0, beta = 0.5> (x)",
    "float[1,2,4,4] x = ImageScaler <bias = [1.0, 2.0], scale = 2.0> (x)",
    "float[2,1,3] x, float[2,12,3] w, float[2,12,4] r = GRU <hidden_size = 4, direction = \"bidirectional\"> (x, w, r)",
    "float[1,2,4,4] x, float[8] r, float[4] s = Resize <coordinate_transformation_mode = \"tf_crop_and_resize\"> (x, r, s)",
    "int64 n, bool c, float[2] x = Loop <body = b (int64 i, bool d, float[2] v) => (bool e, float[2] w) "
    "{ e = Identity (d) w = Add (v, v) }> (n, c, x)",
    "map(int64, float) x = ai.onnx.ml.CastMap <map_form = \"SPARSE\", max_map = 3> (x)",
    "map(int64, float) x = ai.onnx.ml.DictVectorizer <int64_vocabulary = [1, 2]> (x)",
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


# Texts that attributes may be, by operator and attribute, or by attribute.
TEXTS = {
    "activation": ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"],
    "CausalConvWithState activation": ["none", "silu", "swish"],
    "GatedRMSNorm activation": ["silu", "swish", "sigmoid"],
    "activation_type": ["identity", "relu", "gelu", "silu", "swiglu"],
    "aggregate_function": ["SUM", "AVERAGE", "MIN", "MAX"],
    "approximate": ["none", "tanh"],
    "auto_pad": ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"],
    "beta_activation": ["none", "sigmoid"],
    "case_change_action": ["NONE", "LOWER", "UPPER"],
    "cast_to": ["TO_FLOAT", "TO_STRING", "TO_INT64"],
    "coordinate_transformation_mode": ["half_pixel", "output_half_pixel"],
    "Resize coordinate_transformation_mode": ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                                              "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"],
    "default_string": ["other"],
    "delimiter": ["-"],
    "direction": ["forward", "reverse", "bidirectional"],
    "BitShift direction": ["LEFT", "RIGHT"],
    "gate_activation": ["none", "qwen"],
    "k_quant_type": ["NONE", "PER_TENSOR", "PER_CHANNEL"],
    "v_quant_type": ["NONE", "PER_TENSOR", "PER_CHANNEL"],
    "keep_aspect_ratio_policy": ["stretch", "not_larger", "not_smaller"],
    "kernel_type": ["LINEAR", "POLY", "RBF", "SIGMOID"],
    "map_form": ["DENSE", "SPARSE"],
    "metric": ["sqeuclidean", "euclidean"],
    "mode": ["constant", "reflect", "edge", "wrap"],
    "CropAndResize mode": ["bilinear", "nearest"],
    "DepthToSpace mode": ["DCR", "CRD"],
    "SpaceToDepth mode": ["DCR", "CRD"],
    "GridSample mode": ["linear", "nearest", "cubic", "bilinear", "bicubic"],
    "Momentum mode": ["standard", "nesterov"],
    "Resize mode": ["nearest", "linear", "cubic"],
    "RoiAlign mode": ["avg", "max"],
    "TensorScatter mode": ["linear", "circular"],
    "TfIdfVectorizer mode": ["TF", "IDF", "TFIDF"],
    "Upsample mode": ["nearest", "linear", "bilinear"],
    "nearest_mode": ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
    "norm": ["MAX", "L1", "L2"],
    "pad_value": ["#"],
    "padding_mode": ["zeros", "border", "reflection"],
    "pattern": ["[a-z]+"],
    "pixel_format": ["RGB", "BGR", "Grayscale"],
    "post_transform": ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"],
    "quant_type": ["int"],
    "reduction": ["none", "mean", "sum"],
    "ScatterElements reduction": ["none", "add", "mul", "max", "min"],
    "ScatterND reduction": ["none", "add", "mul", "max", "min"],
    "round_mode": ["up", "down", "nearest"],
    "to": ["DOUBLE", "INT32", "BOOL", "FLOAT16"],
    "tokenexp": ["[a-z]+"],
    "update_rule": ["linear", "gated", "delta", "gated_delta"],
}  # fmt: skip


def texts(operator, attribute):
    return TEXTS.get(f"{operator} {attribute}", TEXTS.get(attribute, []))


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
        "attributes": [
            {"name": a.name, "type": a.type.name, "required": a.required, "texts": texts(schema.name, a.name)}
            for a in schema.attributes.values()
        ],
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
            {"name": name, "type": a.type.name, "required": a.required, "texts": texts(schema.name, name)}
            for name, a in schema.attributes.items()
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


DOMAINS = ("com.microsoft", "com.microsoft.nchwc")


def main(target):
    warnings.simplefilter("ignore")
    schemas = [of_onnx(s) for s in onnx.defs.get_all_schemas_with_history() if not s.deprecated]
    known = {schema["name"] for schema in schemas if schema["domain"] == ""}
    own = [s for s in get_all_operator_schema() if s.domain in DOMAINS or (s.domain == "" and s.name not in known)]
    schemas += [of_runtime(s) for s in own if not s.deprecated]
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
