//! Steps that lowerings often put together: constants, conversions, arithmetic, changes of shape.

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{
    Activation, ActivationFunction, Binary, BinaryFunction, Cast, Gather, Matmul, Range, Reshape, ShapeOf, Slice,
    Transpose, TypeError, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

impl Lowering<'_, '_> {
    /// A constant of i64: `[n]`.
    pub(crate) fn integers(&mut self, elements: &[i64]) -> Operand {
        self.constant(Tensor::vector_i64(elements))
    }

    /// The numbers from 0 up to `count`, one element: `[count]`.
    pub(crate) fn counted(&mut self, count: Operand) -> Result<Operand, LowerError> {
        let count = self.reshaped(count, &[])?;
        let [zero, one] = [0i64, 1].map(|number| self.constant(Tensor::scalar(number)));
        self.emit_one(Range {}, vec![zero, count, one])
    }

    /// A constant of shape `[]`.
    pub(crate) fn scalar(&mut self, dtype: DType, value: f64) -> Result<Operand, LowerError> {
        let tensor = from_scalars(dtype, &[], &[Scalar::Float(value)]);
        tensor.map(|tensor| self.constant(tensor)).map_err(|error| LowerError::Unsupported(error.to_string()))
    }

    /// As another type; an absent operand stays absent.
    pub(crate) fn cast(&mut self, operand: Operand, to: DType) -> Result<Operand, LowerError> {
        match operand {
            Operand::Absent => Ok(operand),
            operand if self.dtype(&operand)? == to => Ok(operand),
            operand => self.emit_one(Cast::to(to), vec![operand]),
        }
    }

    /// `left function right`.
    pub(crate) fn binary(
        &mut self,
        function: BinaryFunction,
        left: Operand,
        right: Operand,
    ) -> Result<Operand, LowerError> {
        self.emit_one(Binary { function }, vec![left, right])
    }

    /// `left + right`; `left` itself where there is nothing to add.
    pub(crate) fn plus(&mut self, left: Operand, right: Operand) -> Result<Operand, LowerError> {
        match right {
            Operand::Absent => Ok(left),
            right => self.binary(BinaryFunction::Add, left, right),
        }
    }

    /// `operand * factor`; the operand itself where the factor is 1.
    pub(crate) fn times(&mut self, operand: Operand, factor: f32) -> Result<Operand, LowerError> {
        if factor == 1.0 {
            return Ok(operand);
        }
        let dtype = self.dtype(&operand)?;
        let factor = self.scalar(dtype, factor.into())?;
        self.binary(BinaryFunction::Mul, operand, factor)
    }

    /// An activation without parameters.
    pub(crate) fn activated(&mut self, operand: Operand, function: ActivationFunction) -> Result<Operand, LowerError> {
        self.emit_one(Activation { function, alpha: None, beta: None }, vec![operand])
    }

    /// The product of matrices, the second transposed where `transpose` is set.
    pub(crate) fn product(&mut self, left: Operand, right: Operand, transpose: bool) -> Result<Operand, LowerError> {
        self.emit_one(Matmul::new(false, transpose), vec![left, right])
    }

    /// In another shape: 0 is the extent that the operand has, -1 what is left.
    pub(crate) fn reshaped(&mut self, operand: Operand, shape: &[i64]) -> Result<Operand, LowerError> {
        let shape = self.integers(shape);
        self.emit_one(Reshape { allow_zero: false }, vec![operand, shape])
    }

    /// In the shape of another operand.
    pub(crate) fn reshaped_like(&mut self, operand: Operand, like: Operand) -> Result<Operand, LowerError> {
        let shape = self.emit_one(ShapeOf { start: 0, end: None }, vec![like])?;
        self.emit_one(Reshape { allow_zero: true }, vec![operand, shape])
    }

    /// With axes in another order.
    pub(crate) fn transposed(&mut self, operand: Operand, permutation: Vec<i64>) -> Result<Operand, LowerError> {
        self.emit_one(Transpose { permutation }, vec![operand])
    }

    /// With axes of extent 1 at these places of the result; an absent operand stays absent.
    pub(crate) fn unsqueezed(&mut self, operand: Operand, axes: &[i64]) -> Result<Operand, LowerError> {
        if operand == Operand::Absent {
            return Ok(operand);
        }
        let axes = self.integers(axes);
        self.emit_one(Unsqueeze {}, vec![operand, axes])
    }

    /// Elements `start`, `start + step`, .. before `end` along an axis.
    pub(crate) fn sliced(
        &mut self,
        operand: Operand,
        axis: i64,
        [start, end, step]: [i64; 3],
    ) -> Result<Operand, LowerError> {
        let [start, end, axis, step] = [start, end, axis, step].map(|bound| self.integers(&[bound]));
        self.emit_one(Slice {}, vec![operand, start, end, axis, step])
    }

    /// The one slice at a place of an axis, without the axis.
    pub(crate) fn taken(&mut self, operand: Operand, axis: i64, place: i64) -> Result<Operand, LowerError> {
        let place = self.constant(Tensor::scalar(place));
        self.emit_one(Gather { axis }, vec![operand, place])
    }

    /// Extents of an operand, as far as its rank is known.
    pub(crate) fn dims(&self, operand: &Operand) -> Option<Vec<Dim>> {
        Some(self.fact(operand)?.dims()?.to_vec())
    }

    /// Number of axes of an operand, which must be known.
    ///
    /// # Errors
    /// [`LowerError`] where it is not.
    pub(crate) fn rank(&self, operand: &Operand) -> Result<usize, LowerError> {
        let rank = self.fact(operand).as_ref().and_then(Fact::rank);
        rank.ok_or_else(|| self.refuse("an operand of unknown rank"))
    }

    /// The extent of an axis, from the front or (where negative) from the back, which must be known.
    ///
    /// # Errors
    /// [`LowerError`] where it is not, or there is no such axis.
    pub(crate) fn extent(&self, operand: &Operand, axis: i64, what: &str) -> Result<i64, LowerError> {
        let dims = self.dims(operand).unwrap_or_default();
        let place = if axis < 0 { axis + dims.len() as i64 } else { axis };
        let known = usize::try_from(place).ok().and_then(|place| dims.get(place)?.as_known());
        known.ok_or_else(|| self.refuse(format!("{what} of unknown extent")))
    }

    /// Refuse inputs beyond the first `count`.
    ///
    /// # Errors
    /// [`TypeError::OperandCount`].
    pub(crate) fn at_most_inputs(&self, count: usize) -> Result<(), LowerError> {
        if self.input_count() <= count {
            return Ok(());
        }
        let expected = format!("at most {count}");
        Err(TypeError::OperandCount { expected, found: self.input_count() }.into())
    }

    /// Refuse inputs that would change the meaning and are not computed.
    ///
    /// # Errors
    /// [`LowerError::Unsupported`] that names the first which is there.
    pub(crate) fn refuse_inputs(&self, inputs: &[(usize, &str)]) -> Result<(), LowerError> {
        match inputs.iter().find(|(input, _)| self.input(*input) != Operand::Absent) {
            Some((_, name)) => Err(self.refuse(format!("input `{name}`"))),
            None => Ok(()),
        }
    }

    /// Refuse outputs that are not computed.
    ///
    /// # Errors
    /// [`LowerError::Unsupported`] that names the first which is used.
    pub(crate) fn refuse_outputs(&self, outputs: &[(usize, &str)]) -> Result<(), LowerError> {
        match outputs.iter().find(|(output, _)| self.output_used(*output)) {
            Some((_, name)) => Err(self.refuse(format!("output `{name}`"))),
            None => Ok(()),
        }
    }

    /// Refuse values of an attribute other than the one that changes nothing.
    ///
    /// # Errors
    /// [`LowerError`] where the attribute has another value or type.
    pub(crate) fn only_int(&mut self, name: &str, neutral: i64) -> Result<(), LowerError> {
        match self.int(name)? {
            Some(value) if value != neutral => Err(self.refuse(format!("attribute `{name}` = {value}"))),
            Some(_) | None => Ok(()),
        }
    }

    /// An integer attribute that must be there and positive.
    ///
    /// # Errors
    /// [`LowerError`] where it is not.
    pub(crate) fn positive(&mut self, name: &str) -> Result<i64, LowerError> {
        match self.int(name)? {
            Some(value) if value > 0 => Ok(value),
            Some(other) => Err(TypeError::Value {
                subject: format!("attribute `{name}`"),
                found: other.to_string(),
                expected: "1 or more".to_string(),
            }
            .into()),
            None => Err(LowerError::MissingAttribute(name.to_string())),
        }
    }

    /// The type that floats of the type of an operand are computed in: f32, or f64 for f64.
    ///
    /// # Errors
    /// [`TypeError::ElementType`] where it is no f16, bf16, f32 or f64.
    pub(crate) fn wide_type(&self, operand: usize) -> Result<DType, LowerError> {
        match self.dtype(&self.required(operand)?)? {
            DType::F32 | DType::F16 | DType::BF16 => Ok(DType::F32),
            DType::F64 => Ok(DType::F64),
            found => {
                Err(TypeError::ElementType { operand, expected: "f16, bf16, f32 or f64".to_string(), found }.into())
            }
        }
    }
}
