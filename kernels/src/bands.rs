//! Rows of planes cut into bands, so that threads read again what they have written.
//!
//! Convolutions of all channels give threads neighbouring windows of an image. What computes each channel by itself gives them
//! neighbouring rows of all channels: were it channels, half of what a thread reads would have been written by another, in whose
//! caches it lies.

use crate::{team, threads};

/// Planes of outputs, `[images, planes, rows, columns..]`.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    /// All images.
    pub images: usize,
    /// Of all images.
    pub planes: usize,
    /// Planes that are computed together.
    pub together: usize,
    pub rows: usize,
    /// Windows of a row.
    pub columns: usize,
    /// Values of a row.
    pub row_length: usize,
    /// Windows from which on a plane is cut. Of fewer than some hundred, convolutions give threads channels; and a part of a plane
    /// must not cost much more than its share.
    pub fewest_windows: usize,
}

/// Some neighbouring rows of some planes.
pub(crate) struct Band<'b, 'a> {
    pub first_row: usize,
    /// Of all images.
    pub first_plane: usize,
    /// The rows of each plane.
    pub out: &'b mut [&'a mut [f32]],
}

impl Planes {
    /// How outputs are cut into about as many bands as there are parts: rows of a band, and planes.
    fn cut(&self, parts: usize) -> (usize, usize) {
        let Planes { images, planes, together, rows, columns, fewest_windows, .. } = *self;
        let units = planes.div_ceil(together).max(1);
        let is_cut = images == 1 && parts > 1 && rows * columns >= fewest_windows;
        let threads = if is_cut { team::count() } else { 1 };
        let bands = parts.div_ceil(units).next_multiple_of(threads).min(rows.max(1));
        let rows_each = rows.div_ceil(bands).max(1);
        let bands = rows.div_ceil(rows_each);
        (rows_each, units.div_ceil((parts / bands.max(1)).max(1)) * together)
    }

    /// Runs each of about as many bands as there are parts once, those of the first rows first.
    fn each_of(&self, parts: usize, out: &mut [f32], run: impl Fn(&mut Band<'_, '_>) + Sync) {
        let (rows_each, planes_each) = self.cut(parts);
        let of_band = (rows_each * self.row_length).max(1);
        let mut planes: Vec<&mut [f32]> = out.chunks_mut((self.rows * self.row_length).max(1)).collect();
        let mut outputs: Vec<&mut [f32]> = Vec::new();
        // So that nothing moves while they are listed.
        let _ = outputs.try_reserve(planes.len() * self.rows.div_ceil(rows_each));
        let first_rows = (0..self.rows).step_by(rows_each);
        for _ in first_rows.clone() {
            for plane in &mut planes {
                let rows = plane.split_off_mut(..plane.len().min(of_band));
                outputs.push(rows.unwrap_or_default());
            }
        }
        let bands = first_rows.zip(outputs.chunks_mut(planes.len().max(1))).flat_map(|(first_row, out)| {
            let groups = out.chunks_mut(planes_each).enumerate();
            groups.map(move |(group, out)| Band { first_row, first_plane: group * planes_each, out })
        });
        threads::each_mut(bands.collect(), run);
    }

    /// Runs each band once, side by side where `operations` are enough.
    pub(crate) fn each(&self, operations: usize, out: &mut [f32], run: impl Fn(&mut Band<'_, '_>) + Sync) {
        self.each_of(threads::parts(operations, usize::MAX), out, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::Team;
    use proptest::prelude::*;
    use std::sync::Mutex;

    /// First row, first plane, and rows of each plane of each band.
    fn bands(planes: Planes, parts: usize) -> Vec<(usize, usize, Vec<usize>)> {
        let mut out = vec![0.0; planes.planes * planes.rows * planes.row_length];
        let bands = Mutex::new(Vec::new());
        Team::new(2).unwrap().run(|| {
            // In order.
            threads::serially(|| {
                planes.each_of(parts, &mut out, |band| {
                    let lengths = band.out.iter().map(|out| out.len() / planes.row_length).collect();
                    bands.lock().unwrap().push((band.first_row, band.first_plane, lengths));
                });
            });
        });
        bands.into_inner().unwrap()
    }

    #[test]
    fn threads_have_rows_of_all_planes_of_an_image_and_planes_of_several() {
        let planes =
            Planes { images: 1, planes: 5, together: 2, rows: 10, columns: 10, row_length: 3, fewest_windows: 100 };
        assert_eq!(
            bands(planes, 4),
            [(0, 0, vec![5; 4]), (0, 4, vec![5]), (5, 0, vec![5; 4]), (5, 4, vec![5])],
            "two threads, each with the planes in two parts"
        );
        assert_eq!(bands(planes, 1), [(0, 0, vec![10; 5])]);
        let images = Planes { images: 5, ..planes };
        assert_eq!(bands(images, 2), [(0, 0, vec![10; 4]), (0, 4, vec![10])]);
        let few = Planes { columns: 9, ..planes };
        assert_eq!(bands(few, 2), [(0, 0, vec![10; 4]), (0, 4, vec![10])], "90 windows");
        let one = Planes { planes: 1, ..planes };
        assert_eq!(bands(one, 3), [0, 3, 6, 9].map(|first| (first, 0, vec![3.min(10 - first)])));
    }

    proptest! {
        #[test]
        fn each_row_of_each_plane_is_in_one_band(
            (planes, images, together, rows, columns, parts) in (0usize..20, 1usize..3, 1usize..3, 1usize..30, 1usize..20, 1usize..9),
        ) {
            let mut seen = vec![0; planes * rows];
            let planes = Planes { images, planes, together, rows, columns, row_length: columns, fewest_windows: 50 };
            for (first_row, first_plane, bands) in bands(planes, parts) {
                prop_assert_eq!(first_plane % together, 0);
                for (plane, rows_of_plane) in bands.into_iter().enumerate() {
                    for row in first_row..first_row + rows_of_plane {
                        seen[(first_plane + plane) * rows + row] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().all(|&count| count == 1), "{:?}", seen);
        }
    }
}
