//! Numbers and tensors that look random and are the same in each run.

use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;

/// A small generator (xorshift).
pub struct Random(u64);

impl Random {
    /// A generator of its own sequence for each seed.
    pub fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 up to `limit`, which is not among them.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// True half of the times.
    pub fn flag(&mut self) -> bool {
        self.once_in(2)
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Extents of a small tensor, now and then with a 0.
    pub fn shape(&mut self, ranks: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        let rank = ranks.start() + self.below(ranks.end() - ranks.start() + 1);
        (0..rank).map(|_| self.extent()).collect()
    }

    /// A small extent.
    pub fn extent(&mut self) -> usize {
        self.one_of(&[0, 1, 1, 2, 2, 3, 3, 4, 5])
    }

    /// An axis of that rank, from the front or from the back.
    pub fn axis(&mut self, rank: usize) -> i64 {
        if rank == 0 { 0 } else { self.between(-(rank as i64), rank as i64 - 1) }
    }

    /// Some different axes of that rank.
    pub fn axes(&mut self, rank: usize) -> Vec<i64> {
        let mut axes: Vec<i64> = (0..rank as i64).collect();
        for at in (1..rank).rev() {
            axes.swap(at, self.below(at + 1));
        }
        axes.truncate(self.below(rank + 1));
        axes.iter().map(|&axis| if self.flag() { axis } else { axis - rank as i64 }).collect()
    }

    /// A tensor of small integers: i64 mostly, so that contents are followed.
    pub fn data(&mut self, shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        let elements: Vec<i64> = (0..count).map(|_| self.between(-3, 9)).collect();
        match self.below(8) {
            0 => Tensor::from_elements(shape, &elements.iter().map(|&element| element as f32).collect::<Vec<_>>()),
            1 => Tensor::from_strings(shape, elements.iter().map(i64::to_string).collect()),
            2 => Tensor::from_codes(
                DType::U4,
                shape,
                &elements.iter().map(|&element| element as u8 & 15).collect::<Vec<_>>(),
            ),
            3 => Tensor::from_elements(shape, &elements.iter().map(|&element| element as i32).collect::<Vec<_>>()),
            _ => Tensor::from_elements(shape, &elements),
        }
        .unwrap()
    }

    /// A tensor of numbers that can be computed with.
    pub fn numbers(&mut self, shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        let elements: Vec<i64> = (0..count).map(|_| self.between(-3, 9)).collect();
        if self.flag() {
            return Tensor::from_elements(shape, &elements).unwrap();
        }
        Tensor::from_elements(shape, &elements.iter().map(|&element| element as f32).collect::<Vec<_>>()).unwrap()
    }

    /// A tensor of any type, with numbers that no memory can hold.
    pub fn anything(&mut self) -> Tensor {
        let shape = self.shape(0..=3);
        let extreme = [0, 1, 2, -1, 3, 1 << 50, i64::MAX, i64::MIN, i64::MIN + 1];
        let elements: Vec<i64> = (0..shape.iter().product()).map(|_| self.one_of(&extreme)).collect();
        match self.below(6) {
            0 => self.data(&shape),
            1 => {
                Tensor::from_elements(&shape, &elements.iter().map(|&at| at as f32 / 2.0).collect::<Vec<_>>()).unwrap()
            }
            2 => Tensor::from_bools(&shape, &elements.iter().map(|&at| at > 0).collect::<Vec<_>>()).unwrap(),
            _ => Tensor::from_elements(&shape, &elements).unwrap(),
        }
    }

    /// A tensor like another one in its element type.
    pub fn like(&mut self, other: &Tensor, shape: &[usize]) -> Tensor {
        loop {
            let tensor = self.data(shape);
            if tensor.dtype() == other.dtype() {
                return tensor;
            }
        }
    }

    /// i64 indices into an axis of that extent.
    pub fn indices(&mut self, shape: &[usize], extent: usize) -> Tensor {
        let count = shape.iter().product::<usize>();
        let extent = extent as i64;
        let elements: Vec<i64> =
            (0..count).map(|_| if extent == 0 { 0 } else { self.between(-extent, extent - 1) }).collect();
        Tensor::from_elements(shape, &elements).unwrap()
    }
}
