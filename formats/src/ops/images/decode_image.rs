//! Files of images: ONNX `ImageDecoder` (opset 20). The formats are those of the crates `image`, `libjpeg-turbo-rs` and
//! `hayro-jpeg2000`, which the feature `images` brings: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF, WebP.
//!
//! The standard of JPEG leaves roundings open: pixels are those of libjpeg-turbo, which most programs decode with.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Pixels of the image that is the file `x: u8 [n]`: `u8 [height, width, channels]`.
    pub struct DecodeImage revision 1 {
        /// What the channels are.
        1 since 1 => pixels: Pixels,
    }
}

/// Channels of a decoded image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Pixels {
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// Luminance, by the weights of ITU-R 601.
    Grayscale,
}
impl Keyword for Pixels {}

impl Pixels {
    fn channels(self) -> usize {
        match self {
            Pixels::Rgb | Pixels::Bgr => 3,
            Pixels::Grayscale => 1,
        }
    }

    fn of_rgb(self, mut pixels: Vec<u8>) -> Vec<u8> {
        match self {
            Pixels::Rgb => pixels,
            Pixels::Bgr => {
                pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| pixel.swap(0, 2));
                pixels
            }
            Pixels::Grayscale => {
                let gray = |pixel: &[u8; 3]| {
                    let [red, green, blue] = pixel.map(u32::from);
                    // Shares of 2^16, which add up to it.
                    ((red * 19_595 + green * 38_470 + blue * 7_471 + (1 << 15)) >> 16) as u8
                };
                pixels.as_chunks::<3>().0.iter().map(gray).collect()
            }
        }
    }
}

impl DecodeImage {
    /// Whether this build decodes images.
    pub const AVAILABLE: bool = cfg!(feature = "images");
}

/// Most bytes that the pixels of a file may take: those of 16,384 rows and columns.
#[cfg(feature = "images")]
const MOST_BYTES: u64 = 3 << 28;

/// Height, width, and red, green, blue of each pixel.
#[cfg(feature = "images")]
fn decoded(file: &[u8]) -> Result<([usize; 2], Vec<u8>), String> {
    use image::ImageReader;
    if is_jpeg_2000(file) {
        return decoded_jpeg_2000(file);
    }
    if file.starts_with(&[0xff, 0xd8, 0xff]) {
        return decoded_jpeg(file);
    }
    let mut reader =
        ImageReader::new(std::io::Cursor::new(file)).with_guessed_format().map_err(|error| error.to_string())?;
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits);
    let image = reader.decode().map_err(|error| error.to_string())?.into_rgb8();
    Ok(([image.height() as usize, image.width() as usize], image.into_raw()))
}

#[cfg(feature = "images")]
fn decoded_jpeg(file: &[u8]) -> Result<([usize; 2], Vec<u8>), String> {
    use libjpeg_turbo_rs::{DecodeLimits, Decoder, PixelFormat};
    let limits =
        DecodeLimits { max_pixels: MOST_BYTES / 3, max_memory: Some(4 * MOST_BYTES), ..DecodeLimits::default() };
    let mut decoder = Decoder::new_with_limits(file, limits).map_err(|error| error.to_string())?;
    decoder.set_output_format(PixelFormat::Rgb);
    let image = decoder.decode_image().map_err(|error| error.to_string())?;
    Ok(([image.height, image.width], image.data))
}

#[cfg(not(feature = "images"))]
fn decoded(_file: &[u8]) -> Result<([usize; 2], Vec<u8>), String> {
    Err("this program is built without the feature `images`".to_string())
}

/// A codestream, or the signature of a file that holds one.
#[cfg(feature = "images")]
fn is_jpeg_2000(file: &[u8]) -> bool {
    file.starts_with(&[0xff, 0x4f, 0xff, 0x51]) || file.get(4..12) == Some(b"jP  \r\n\x87\n")
}

#[cfg(feature = "images")]
fn decoded_jpeg_2000(file: &[u8]) -> Result<([usize; 2], Vec<u8>), String> {
    use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext, Image};
    let image = Image::new(file, &DecodeSettings::default()).map_err(|error| error.to_string())?;
    let (height, width) = (image.height(), image.width());
    if u64::from(height).saturating_mul(u64::from(width)).saturating_mul(4) > MOST_BYTES {
        return Err(format!("an image of {height} rows and {width} columns is too large"));
    }
    let colors = match image.color_space() {
        ColorSpace::Gray => 1,
        ColorSpace::RGB => 3,
        _ => return Err("its color space is neither RGB nor gray".to_string()),
    };
    let channels = colors + usize::from(image.has_alpha());
    let mut context = DecoderContext::default();
    let pixels = image.decode(&mut context).map_err(|error| error.to_string())?.data_u8();
    let rgb = pixels
        .chunks_exact(channels)
        .flat_map(|pixel| if colors == 1 { [pixel[0]; 3] } else { [pixel[0], pixel[1], pixel[2]] });
    Ok(([height as usize, width as usize], rgb.collect()))
}

impl Operator for DecodeImage {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (found, shape) = tensor_operand(inputs, 0)?;
        if found != DType::U8 {
            return Err(TypeError::ElementType { operand: 0, expected: "u8".to_string(), found });
        }
        if let Some(found) = shape.rank().filter(|&rank| rank != 1) {
            return Err(TypeError::Rank { operand: 0, expected: "1".to_string(), found });
        }
        let channels = Dim::known(self.pixels.channels() as i64);
        Ok(vec![Fact::tensor(DType::U8, vec![context.fresh("height"), context.fresh("width"), channels])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let refused = |reason: String| TypeError::Unsupported(format!("the file of an image ({reason})"));
        let ([height, width], pixels) = decoded(tensor(inputs, 0)?.elements::<u8>()?).map_err(refused)?;
        let shape = [height, width, self.pixels.channels()];
        Ok(vec![Tensor::from_elements(&shape, &self.pixels.of_rgb(pixels))?.into()])
    }
}

impl Serial for DecodeImage {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 16)])
    }
}

#[cfg(all(test, feature = "images"))]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    #[test]
    fn channels_are_those_that_are_asked_for() {
        let file = |bytes: &[u8]| Tensor::from_elements(&[bytes.len()], bytes).unwrap();
        let pixels = |pixels: Pixels| {
            let image = run(&DecodeImage { pixels }, &[file(b"P6 2 1 255\n\xff\x00\x00\x00\x80\x0a")]).unwrap();
            (image.shape().to_vec(), image.elements::<u8>().unwrap().to_vec())
        };
        assert_eq!(pixels(Pixels::Rgb), (vec![1, 2, 3], vec![255, 0, 0, 0, 128, 10]));
        assert_eq!(pixels(Pixels::Bgr), (vec![1, 2, 3], vec![0, 0, 255, 10, 128, 0]));
        assert_eq!(pixels(Pixels::Grayscale), (vec![1, 2, 1], vec![76, 76]));
        let error = |bytes: &[u8]| run(&DecodeImage { pixels: Pixels::Rgb }, &[file(bytes)]).unwrap_err().to_string();
        assert!(error(b"no image").starts_with("the file of an image ("), "{}", error(b"no image"));
        // A header that promises more than there may be.
        let large = error(b"P6 4000000000 4000000000 255\n\x00");
        assert!(large.starts_with("the file of an image ("), "{large}");
    }
}
