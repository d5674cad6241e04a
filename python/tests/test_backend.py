"""The backend against cases of ONNX's own suite."""

import unittest

import numpy
import onnx.backend.test
import onnx.helper
from onnx.backend.base import DeviceType

import ipuc.backend

# A cut through the suite: `tests/onnx_suite` of the repository has all of it.
_CASES = r"^test_(add|matmul_2d|conv_with_strides_padding|softmax_axis_1|lstm_defaults|gather_0|topk|einsum_sum|string_concat|identity_sequence|optional_get_element_tensor|resize_upsample_sizes_nearest|quantizelinear)_cpu$"

suite = onnx.backend.test.BackendTest(ipuc.backend, __name__)
suite.include(_CASES)
cases = suite.enable_report().test_cases
globals().update(cases)


class Cases(unittest.TestCase):
    def test_the_cut_is_not_empty(self):
        methods = [getattr(case, name) for case in cases.values() for name in dir(case) if name.startswith("test_")]
        chosen = [method for method in methods if not getattr(method, "__unittest_skip__", False)]
        self.assertGreaterEqual(len(chosen), 10)

    def test_a_node_runs_alone(self):
        x = numpy.array([[3.0, -1.0, 2.0]], numpy.float32)
        add = onnx.helper.make_node("Add", ["a", "b"], ["c"])
        (total,) = ipuc.backend.run_node(add, [x, x])
        numpy.testing.assert_array_equal(total, 2 * x)
        (total,) = ipuc.backend.run_node(add, {"b": x, "a": -x}, outputs_info=[(numpy.float32, (1, 3))])
        numpy.testing.assert_array_equal(total, 0 * x)
        # Two results, one of integers; of an older version.
        largest = onnx.helper.make_node("TopK", ["x", "k"], ["values", "places"])
        values, places = ipuc.backend.run_node(largest, [x, numpy.array([2])], opset_version=11)
        numpy.testing.assert_array_equal(values, [[3.0, 2.0]])
        numpy.testing.assert_array_equal(places, [[0, 2]])
        # An input that is left out, and one that stands twice.
        clip = onnx.helper.make_node("Clip", ["x", "", "most"], ["y"])
        (clipped,) = ipuc.backend.run_node(clip, [x, numpy.float32(2.5)])
        numpy.testing.assert_array_equal(clipped, [[2.5, -1.0, 2.0]])
        (square,) = ipuc.backend.run_node(onnx.helper.make_node("Mul", ["x", "x"], ["y"]), [x, x])
        numpy.testing.assert_array_equal(square, x * x)
        with self.assertRaises(ValueError):
            ipuc.backend.run_node(add, [x])
        with self.assertRaises(ValueError):
            ipuc.backend.run_node(add, {"a": x, "c": x})
        with self.assertRaises(ipuc.IpucError):
            ipuc.backend.run_node(onnx.helper.make_node("Nonsense", ["x"], ["y"]), [x])

    def test_devices(self):
        self.assertEqual(DeviceType.CPU, 0)
        self.assertTrue(ipuc.backend.supports_device("CPU"))
        self.assertFalse(ipuc.backend.supports_device("CUDA"))
