//! Lines of outputs of some panels: how many a block has is checked once, and whether windows are inside once for all blocks.

use std::marker::PhantomData;

use super::HALF;

/// Values of a line: those of a block of channels at a window.
type Line = [f32; HALF];

/// Lines of outputs of panels of 16 channels: of each panel those of its first and of its second block, one for each window.
pub(crate) struct PanelLines<'o, const PANELS: usize> {
    /// Where the lines of each begin; null where there is no such block.
    blocks: [[*mut Line; 2]; PANELS],
    windows: usize,
    outputs: PhantomData<&'o mut [Line]>,
}

impl<'o, const PANELS: usize> PanelLines<'o, PANELS> {
    /// Two blocks a panel, as far as there are some, with the lines of so many windows.
    ///
    /// # Panics
    /// If a block has fewer, or there are more blocks.
    #[inline(always)]
    pub(crate) fn new(blocks: &'o mut [&mut [f32]], windows: usize) -> Self {
        assert!(blocks.len() <= 2 * PANELS, "{} blocks of {PANELS} panels", blocks.len());
        let mut lines = Self { blocks: [[std::ptr::null_mut(); 2]; PANELS], windows, outputs: PhantomData };
        for (begin, block) in lines.blocks.as_flattened_mut().iter_mut().zip(blocks) {
            let block = block.as_chunks_mut().0;
            assert!(windows <= block.len(), "lines of {windows} windows");
            *begin = block.as_mut_ptr();
        }
        lines
    }

    /// Those of `ROWS` windows from `window` on, of both blocks of each panel.
    ///
    /// # Panics
    /// If there are no such windows.
    #[inline(always)]
    pub(crate) fn rows<const ROWS: usize>(&mut self, window: usize) -> [[Option<&mut [Line; ROWS]>; 2]; PANELS] {
        let is_inside = window.checked_add(ROWS).is_some_and(|end| end <= self.windows);
        assert!(is_inside, "{ROWS} windows from {window} on");
        let mut rows = [const { [None, None] }; PANELS];
        for panel in 0..PANELS {
            for block in 0..2 {
                let begin = self.blocks[panel][block];
                if !begin.is_null() {
                    // SAFETY: the windows are among those that the block was checked to have lines for. Blocks are slices of their own,
                    // which are borrowed for the lifetime of this, and their lines for that of the result.
                    rows[panel][block] = unsafe { begin.wrapping_add(window).cast::<[Line; ROWS]>().as_mut() };
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_two_blocks_but_the_last_one() {
        let mut outputs: Vec<f32> = (0..3 * 4 * 8u8).map(f32::from).collect();
        let mut blocks: Vec<&mut [f32]> = outputs.chunks_mut(4 * HALF).collect();
        let mut lines = PanelLines::<3>::new(&mut blocks, 4);
        let [[first, second], ..] = lines.rows::<2>(1);
        assert_eq!((first.unwrap()[0][0], second.unwrap()[1][7]), (8.0, 55.0));
        let [_, [first, second], [nowhere, _]] = lines.rows::<4>(0);
        first.unwrap()[3][7] = -1.0;
        assert!(second.is_none() && nowhere.is_none());
        assert_eq!(outputs[95], -1.0);
    }

    #[test]
    #[should_panic(expected = "3 windows from 2 on")]
    fn windows_are_those_of_all_blocks() {
        let mut outputs = [0.0; 5 * HALF];
        PanelLines::<1>::new(&mut [&mut outputs], 4).rows::<3>(2);
    }

    #[test]
    #[should_panic(expected = "3 blocks of 1 panels")]
    fn panels_have_no_third_block() {
        let _ = PanelLines::<1>::new(&mut [&mut [][..], &mut [], &mut []], 0);
    }

    #[test]
    #[should_panic(expected = "lines of 4 windows")]
    fn blocks_have_lines_of_all_windows() {
        let mut outputs = [0.0; 4 * HALF - 1];
        let _ = PanelLines::<1>::new(&mut [&mut outputs], 4);
    }
}
