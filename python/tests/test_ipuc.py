"""What a program in Python does with a model."""

import os
import tempfile
import threading
import unittest

import ml_dtypes
import numpy
import onnx
from onnx import TensorProto, helper

import ipuc


def port(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(folder, nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = os.path.join(folder, "model.onnx")
    onnx.save(model, path)
    return path


class Models(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def linear(self, **options):
        weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1, 2, 3, 4, 5, 6])
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        inputs, outputs = [port("x", 1, ["n", 3])], [port("y", 1, ["n", 2])]
        return ipuc.compile(save(self.folder, nodes, inputs, outputs, [weight]), **options)

    def unary(self, operator, dtype, **attributes):
        nodes = [helper.make_node(operator, ["x"], ["y"], **attributes)]
        path = save(self.folder, nodes, [port("x", dtype, ["n"])], [port("y", dtype, ["n"])])
        return ipuc.open(ipuc.compile(path)).session()

    def test_a_model_is_compiled_opened_and_run(self):
        path = self.linear()
        self.assertEqual(path, os.path.join(self.folder, "model.ipu"))
        model = ipuc.open(path)
        self.assertEqual(model.entries(), ["main"])
        self.assertEqual(model.inputs(), [("x", "f32[n, 3]")])
        self.assertEqual(model.outputs(), ["y"])
        outputs = model.session(threads=1).run({"x": numpy.ones((2, 3), numpy.float32)})
        numpy.testing.assert_array_equal(outputs["y"], [[9, 12], [9, 12]])
        self.assertEqual(outputs["y"].dtype, numpy.float32)

    def test_weights_are_streamed_within_a_budget(self):
        model = ipuc.open(self.linear(), memory=32 << 20)
        numpy.testing.assert_array_equal(model.session().run({"x": [[1, 1, 1]]})["y"], [[9, 12]])

    def test_inputs_of_any_layout_are_taken(self):
        session = ipuc.open(self.linear()).session()
        x = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
        expected = x.T[:, :3] @ numpy.array([[1, 2], [3, 4], [5, 6]], numpy.float32)
        numpy.testing.assert_array_equal(session.run({"x": x.T[:, :3]})["y"], expected)
        numpy.testing.assert_array_equal(session.run({"x": x.T[:, :3].astype(">f4").astype("<f4")})["y"], expected)
        unaligned = numpy.frombuffer(b"\0" + numpy.ones(3, numpy.float32).tobytes(), numpy.uint8)[1:].view(numpy.float32)
        numpy.testing.assert_array_equal(session.run({"x": unaligned.reshape(1, 3)})["y"], [[9, 12]])

        class Exported:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        numpy.testing.assert_array_equal(session.run({"x": Exported(numpy.ones((1, 3), numpy.float32))})["y"], [[9, 12]])

    def test_outputs_are_the_callers_own(self):
        session = ipuc.open(self.linear()).session()
        first = session.run({"x": [[1, 1, 1]]})["y"]
        self.assertTrue(first.flags.writeable)
        first[:] = 0
        numpy.testing.assert_array_equal(session.run({"x": [[1, 1, 1]]})["y"], [[9, 12]])
        numpy.testing.assert_array_equal(first, [[0, 0]])
        identity = self.unary("Identity", TensorProto.FLOAT)
        x = numpy.ones(64, numpy.float32)
        y = identity.run({"x": x})["y"]
        x[:] = 5
        numpy.testing.assert_array_equal(y, numpy.ones(64))

    def test_state_is_kept_apart_from_arrays(self):
        nodes = [helper.make_node("Neg", ["past"], ["y"]), helper.make_node("Identity", ["x"], ["present"])]
        inputs, outputs = [port("x", 1, [16]), port("past", 1, [16])], [port("y", 1, [16]), port("present", 1, [16])]
        model = ipuc.open(ipuc.compile(save(self.folder, nodes, inputs, outputs), states=["past=present"]))
        (name,) = model.states()
        session = model.session()
        x = numpy.full(16, 3, numpy.float32)
        session.run({"x": x})
        x[:] = 7
        numpy.testing.assert_array_equal(session.state(name), numpy.full(16, 3))
        fork, saved = session.fork(), session.save()
        numpy.testing.assert_array_equal(session.run({"x": x})["y"], numpy.full(16, -3))
        numpy.testing.assert_array_equal(session.run({"x": x})["y"], numpy.full(16, -7))
        numpy.testing.assert_array_equal(fork.run({"x": x})["y"], numpy.full(16, -3))
        session.restore(saved)
        numpy.testing.assert_array_equal(session.run({"x": x})["y"], numpy.full(16, -3))
        session.set_state(name, x * 2)
        numpy.testing.assert_array_equal(session.run({"x": x})["y"], numpy.full(16, -14))
        session.reset()
        self.assertIsNone(session.state(name))

    def test_elements_of_every_type_come_back(self):
        numbers = [0, 1, 1, 0, 1]
        signed = [0, 1, -2, -1, 1]
        cases = {
            "float32": signed, "uint8": numbers, "int8": signed, "uint16": numbers, "int16": signed, "int32": signed,
            "int64": signed, "bool": numbers, "float16": signed, "float64": signed, "uint32": numbers,
            "uint64": numbers, "complex64": signed, "complex128": signed, "bfloat16": signed,
            "float8_e4m3fn": signed, "float8_e5m2": signed, "uint4": numbers, "int4": signed, "float4_e2m1fn": signed,
        }  # fmt: skip
        for name, elements in cases.items():
            with self.subTest(name):
                dtype = numpy.dtype(getattr(ml_dtypes, name, None) or name)
                x = numpy.array(elements, numpy.float32).astype(dtype)
                onnx_type = helper.np_dtype_to_tensor_dtype(dtype)
                # Reversed by a gather: nothing is handed through.
                index = helper.make_tensor("index", TensorProto.INT64, [5], [4, 3, 2, 1, 0])
                nodes = [helper.make_node("Gather", ["x", "index"], ["y"])]
                path = save(self.folder, nodes, [port("x", onnx_type, [5])], [port("y", onnx_type, [5])], [index])
                y = ipuc.open(ipuc.compile(path)).session().run({"x": x})["y"]
                self.assertEqual(y.dtype, dtype)
                numpy.testing.assert_array_equal(y.astype(numpy.complex128), x[::-1].astype(numpy.complex128))

    def test_texts_sequences_and_optionals(self):
        session = self.unary("Identity", TensorProto.STRING)
        y = session.run({"x": ["a", "größe"]})["y"]
        self.assertEqual(list(y), ["a", "größe"])
        sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, ["n"])
        nodes = [helper.make_node("SequenceLength", ["x"], ["length"]), helper.make_node("Identity", ["x"], ["y"])]
        result = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, ["n"])
        path = save(self.folder, nodes, [sequence], [port("length", TensorProto.INT64, []), result])
        outputs = ipuc.open(ipuc.compile(path)).session().run({"x": [numpy.float32([1, 2]), numpy.float32([3])]})
        self.assertEqual(outputs["length"].shape, ())
        self.assertEqual(int(outputs["length"]), 2)
        self.assertEqual([list(item) for item in outputs["y"]], [[1, 2], [3]])

    def test_errors_say_what_is_wrong(self):
        with self.assertRaisesRegex(OSError, "nowhere.ipu"):
            ipuc.open(os.path.join(self.folder, "nowhere.ipu"))
        session = ipuc.open(self.linear()).session()
        with self.assertRaisesRegex(ipuc.IpucError, "there is no input `z`; inputs are `x`"):
            session.run({"z": [[1, 1, 1]]})
        with self.assertRaisesRegex(ipuc.IpucError, "`x` axis 1 must be 3, found 2"):
            session.run({"x": [[1, 1]]})
        with self.assertRaisesRegex(TypeError, "an array of float32 is needed, not of float64"):
            session.run({"x": numpy.ones((1, 3))})
        with self.assertRaisesRegex(ValueError, "activations is `keep` or `i8`, not `i7`"):
            self.linear(activations="i7")
        with self.assertRaisesRegex(ipuc.IpucError, "Frobnicate"):
            self.unary("Frobnicate", TensorProto.FLOAT)

    def test_sessions_run_in_threads(self):
        model = ipuc.open(self.linear())
        found = [None] * 4

        def run(number):
            session = model.session(threads=1)
            found[number] = [session.run({"x": [[number, 0, 0]]})["y"][0, 0] for _ in range(50)]

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [[float(number)] * 50 for number in range(4)])


class Tour(unittest.TestCase):
    def test_the_tour_runs(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with open(os.path.join(root, "docs/tour.md"), encoding="utf-8") as page:
            blocks = page.read().split("```python\n")[1:]
        self.assertEqual(len(blocks), 1)
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(root)
        with tempfile.TemporaryDirectory() as folder:
            exec(blocks[0].split("```")[0], {"output": os.path.join(folder, "speech.ipu")})


class Text(unittest.TestCase):
    def test_a_language_model_continues_a_text(self):
        case = os.environ.get("IPUC_LANGUAGE_MODEL")
        if case is None:
            self.skipTest("IPUC_LANGUAGE_MODEL names no compiled language model")
        pieces = []
        text = ipuc.generate(case, "The", max_tokens=4, temperature=0, show=pieces.append)
        self.assertEqual("".join(pieces), text)
        self.assertEqual(ipuc.generate(ipuc.open(case), "The", max_tokens=4, temperature=0), text)


if __name__ == "__main__":
    unittest.main()
