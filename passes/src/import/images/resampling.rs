//! Resampling of images and regions: `Resize` (opsets 10 to 19), `Upsample` (1, 7, 9), `GridSample` (16 to 22), `AffineGrid`
//! (20), `RoiAlign` (10 to 22), `MaxRoiPool` (1, 22), `ImageDecoder` (20).
//!
//! `Upsample`, and `Resize` of opset 10, do not say how positions map; they do as implementations do: asymmetric, and
//! `nearest` takes the lower element, or the upper where an axis shrinks.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::ops::{
    AffineGrid, DecodeImage, GridPadding, GridSample, MaxRoiPool, Pixels, Resize, ResizeCoordinates, ResizeMode,
    ResizeNearest, ResizePolicy, RoiAlign, RoiFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Resampling of images.
pub const ROWS: &[Row] = &[
    row("Resize", 10, resize_10),
    row("Resize", 11, resize_11),
    row("Resize", 13, resize),
    row("Resize", 18, resize),
    row("Resize", 19, resize),
    row("Upsample", 1, first_upsample),
    row("Upsample", 7, upsample_7),
    row("Upsample", 9, resize_10),
    row("GridSample", 16, grid_sample),
    row("GridSample", 20, grid_sample),
    row("GridSample", 22, grid_sample),
    row("AffineGrid", 20, affine_grid),
    row("RoiAlign", 10, roi_align_10),
    row("RoiAlign", 16, roi_align_16),
    row("RoiAlign", 22, roi_align_16),
    row("MaxRoiPool", 1, max_roi_pool),
    row("MaxRoiPool", 22, max_roi_pool),
    row("ImageDecoder", 20, image_decoder),
];

/// Coefficient of the cubic kernel where nothing is said.
const CUBIC_COEFFICIENT: f32 = -0.75;

fn upsampling(node: &mut Lowering<'_, '_>) -> Result<Resize, LowerError> {
    let mode = match node.text("mode")?.as_deref() {
        None | Some("nearest") => ResizeMode::Nearest,
        // "linear (including bilinear, trilinear, etc)"
        Some("linear" | "bilinear" | "trilinear") => ResizeMode::Linear,
        Some(other) => return Err(node.refuse(format!("attribute `mode` = \"{other}\""))),
    };
    Ok(Resize {
        mode,
        coordinates: ResizeCoordinates::Asymmetric,
        nearest: ResizeNearest::FloorCeilDown,
        cubic_coefficient: CUBIC_COEFFICIENT,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        axes: Vec::new(),
        policy: ResizePolicy::Stretch,
    })
}

/// Scales of height and width of an image `x: [n, c, h, w]`.
fn first_upsample(node: &mut Lowering<'_, '_>) -> Lowered {
    let operator = upsampling(node)?;
    let mut scales = vec![1.0, 1.0];
    for name in ["height_scale", "width_scale"] {
        scales.push(node.float(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))?);
    }
    let scales = node.constant(Tensor::from_elements(&[4], &scales)?);
    let x = node.required(0)?;
    node.emit(operator, vec![x, Operand::Absent, scales])
}

fn upsample_7(node: &mut Lowering<'_, '_>) -> Lowered {
    let operator = upsampling(node)?;
    let scales = node.floats("scales")?.ok_or_else(|| LowerError::MissingAttribute("scales".to_string()))?;
    let scales = Tensor::from_elements(&[scales.len()], &scales)?;
    let scales = node.constant(scales);
    let x = node.required(0)?;
    node.emit(operator, vec![x, Operand::Absent, scales])
}

fn resize_10(node: &mut Lowering<'_, '_>) -> Lowered {
    let operator = upsampling(node)?;
    let (x, scales) = (node.required(0)?, node.required(1)?);
    node.emit(operator, vec![x, Operand::Absent, scales])
}

fn resize_11(node: &mut Lowering<'_, '_>) -> Lowered {
    resize_from(node, true)
}

fn resize(node: &mut Lowering<'_, '_>) -> Lowered {
    resize_from(node, false)
}

fn resize_from(node: &mut Lowering<'_, '_>, knows_half_pixel_for_nn: bool) -> Lowered {
    let coordinates = node.keyword("coordinate_transformation_mode")?.unwrap_or(ResizeCoordinates::HalfPixel);
    if coordinates == ResizeCoordinates::TfHalfPixelForNn && !knows_half_pixel_for_nn {
        return Err(node.refuse("attribute `coordinate_transformation_mode` = \"tf_half_pixel_for_nn\" after opset 11"));
    }
    let nearest = node.keyword("nearest_mode")?.unwrap_or(ResizeNearest::RoundPreferFloor);
    if nearest == ResizeNearest::FloorCeilDown {
        return Err(node.refuse("attribute `nearest_mode` = \"floor_ceil_down\""));
    }
    let operator = Resize {
        mode: node.keyword("mode")?.unwrap_or(ResizeMode::Nearest),
        coordinates,
        nearest,
        cubic_coefficient: node.float("cubic_coeff_a")?.unwrap_or(CUBIC_COEFFICIENT),
        exclude_outside: node.flag("exclude_outside", false)?,
        extrapolation: node.float("extrapolation_value")?.unwrap_or(0.0),
        antialias: node.flag("antialias", false)?,
        axes: node.ints("axes")?.unwrap_or_default(),
        policy: node.keyword("keep_aspect_ratio_policy")?.unwrap_or(ResizePolicy::Stretch),
    };
    let x = node.required(0)?;
    // A region without the mode that shows one changes nothing: whatever it is, it is not read.
    node.ignore_input(1);
    let roi = match coordinates {
        ResizeCoordinates::TfCropAndResize => node.required(1)?,
        ResizeCoordinates::HalfPixel
        | ResizeCoordinates::HalfPixelSymmetric
        | ResizeCoordinates::PytorchHalfPixel
        | ResizeCoordinates::AlignCorners
        | ResizeCoordinates::Asymmetric
        | ResizeCoordinates::TfHalfPixelForNn => Operand::Absent,
    };
    let mut operands = vec![x, roi, node.input(2)];
    if !matches!(node.input(3), Operand::Absent) {
        operands.push(node.input(3));
    }
    node.emit(operator, operands)
}

fn grid_sample(node: &mut Lowering<'_, '_>) -> Lowered {
    let mode = match node.text("mode")?.as_deref() {
        None | Some("linear" | "bilinear") => ResizeMode::Linear,
        Some("nearest") => ResizeMode::Nearest,
        Some("cubic" | "bicubic") => ResizeMode::Cubic,
        Some(other) => return Err(node.refuse(format!("attribute `mode` = \"{other}\""))),
    };
    let padding = node.keyword("padding_mode")?.unwrap_or(GridPadding::Zeros);
    let align_corners = node.flag("align_corners", false)?;
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(GridSample { mode, padding, align_corners }, operands)
}

fn affine_grid(node: &mut Lowering<'_, '_>) -> Lowered {
    let align_corners = node.flag("align_corners", false)?;
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(AffineGrid { align_corners }, operands)
}

fn roi_align_10(node: &mut Lowering<'_, '_>) -> Lowered {
    roi_align(node, false)
}

fn roi_align_16(node: &mut Lowering<'_, '_>) -> Lowered {
    let half_pixel = match node.text("coordinate_transformation_mode")?.as_deref() {
        None | Some("half_pixel") => true,
        Some("output_half_pixel") => false,
        Some(other) => {
            return Err(node.refuse(format!("attribute `coordinate_transformation_mode` = \"{other}\"")));
        }
    };
    roi_align(node, half_pixel)
}

fn roi_align(node: &mut Lowering<'_, '_>, half_pixel: bool) -> Lowered {
    let function = match node.text("mode")?.as_deref() {
        None | Some("avg") => RoiFunction::Average,
        Some("max") => RoiFunction::Max,
        Some(other) => return Err(node.refuse(format!("attribute `mode` = \"{other}\""))),
    };
    let operator = RoiAlign {
        function,
        half_pixel,
        output_height: node.int("output_height")?.unwrap_or(1),
        output_width: node.int("output_width")?.unwrap_or(1),
        sampling_ratio: node.int("sampling_ratio")?.unwrap_or(0),
        spatial_scale: node.float("spatial_scale")?.unwrap_or(1.0),
    };
    let operands = vec![node.required(0)?, node.required(1)?, node.required(2)?];
    node.emit(operator, operands)
}

fn max_roi_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let shape = node.ints("pooled_shape")?.ok_or_else(|| LowerError::MissingAttribute("pooled_shape".to_string()))?;
    let &[output_height, output_width] = shape.as_slice() else {
        return Err(node.refuse(format!("attribute `pooled_shape` = {shape:?}, which is not of two numbers")));
    };
    let spatial_scale = node.float("spatial_scale")?.unwrap_or(1.0);
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(MaxRoiPool { output_height, output_width, spatial_scale }, operands)
}

fn image_decoder(node: &mut Lowering<'_, '_>) -> Lowered {
    if !DecodeImage::AVAILABLE {
        return Err(node.refuse("a decoder of images, without the feature `images` of this program,"));
    }
    let pixels = node.keyword("pixel_format")?.unwrap_or(Pixels::Rgb);
    let file = node.required(0)?;
    node.emit(DecodeImage { pixels }, vec![file])
}
