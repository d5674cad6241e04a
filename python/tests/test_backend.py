"""The backend against cases of ONNX's own suite."""

import unittest

import onnx.backend.test
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

    def test_devices(self):
        self.assertEqual(DeviceType.CPU, 0)
        self.assertTrue(ipuc.backend.supports_device("CPU"))
        self.assertFalse(ipuc.backend.supports_device("CUDA"))
