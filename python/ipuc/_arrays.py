"""NumPy arrays as tensors, and tensors as NumPy arrays."""

import numpy

from ipuc._native import Tensor

#: Element types that NumPy has, by the names of ipuc.
_NUMPY = {
    "f32": numpy.float32,
    "f64": numpy.float64,
    "f16": numpy.float16,
    "u8": numpy.uint8,
    "i8": numpy.int8,
    "u16": numpy.uint16,
    "i16": numpy.int16,
    "u32": numpy.uint32,
    "i32": numpy.int32,
    "u64": numpy.uint64,
    "i64": numpy.int64,
    "bool": numpy.bool_,
    "c64": numpy.complex64,
    "c128": numpy.complex128,
}
#: Those that `ml_dtypes` has.
_ML_DTYPES = {
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0": "float8_e8m0fnu",
    "u4": "uint4",
    "i4": "int4",
    "u2": "uint2",
    "i2": "int2",
    "f4e2m1": "float4_e2m1fn",
    "f6e2m3": "float6_e2m3fn",
    "f6e3m2": "float6_e3m2fn",
}
#: Of signed integers of less than a byte, the bit of the sign; and all types of less than a byte.
_SIGNED = {"i4": 8, "i2": 2}
_PACKED = {"u4", "i4", "u2", "i2", "f4e2m1", "f6e2m3", "f6e3m2"}


def dtype_of(name: str) -> numpy.dtype:
    """The dtype of arrays for an element type of ipuc."""
    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"elements of {name} need the package ml_dtypes") from None
    return numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))


def to_tensor(value: object, dtype: str) -> Tensor:
    """A tensor of this element type; arrays must have it, numbers and lists are converted."""
    if dtype == "string":
        array = numpy.asarray(value, dtype=object)
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.reshape(-1)]
        return Tensor.of_strings(list(array.shape), texts)
    wanted = dtype_of(dtype)
    if not isinstance(value, numpy.ndarray) and hasattr(value, "__dlpack__"):
        value = numpy.from_dlpack(value)
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype != wanted:
            raise TypeError(f"an array of {wanted} is needed, not of {array.dtype}")
    else:
        array = numpy.asarray(value, dtype=wanted)
    shape = list(array.shape)
    # `ascontiguousarray` would make one axis of none.
    array = numpy.asarray(array, order="C")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype in _PACKED:
        codes = array.astype(numpy.int8).view(numpy.uint8) if dtype[0] in "ui" else array.view(numpy.uint8)
        return Tensor.of_codes(dtype, shape, codes.tobytes())
    if dtype == "bool":
        # Other bytes than 0 and 1 may come from views.
        array = array.view(numpy.uint8) != 0
    return Tensor.over(dtype, shape, array.reshape(-1).view(numpy.uint8))


def to_array(tensor: Tensor) -> numpy.ndarray:
    """An array over the bytes of a tensor."""
    shape, dtype = tensor.shape, tensor.dtype
    if dtype == "string":
        return numpy.array(tensor.strings(), dtype=object).reshape(shape)
    wanted = dtype_of(dtype)
    if dtype in _PACKED:
        codes = numpy.frombuffer(bytearray(tensor.codes()), dtype=numpy.uint8)
        if dtype in _SIGNED:
            sign = _SIGNED[dtype]
            codes = (codes.astype(numpy.int8) ^ sign) - sign
        array = codes.astype(wanted) if dtype[0] in "ui" else codes.view(wanted)
        return array.reshape(shape)
    return numpy.frombuffer(tensor, dtype=wanted).reshape(shape)
