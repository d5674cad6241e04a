//! Gates that models write out step by step, as one link each: a function of its own takes fewer operations, and nothing is written in
//! between. Its bits are not those of the steps one by one, whose error is within the same bound (4e-7 of x); what follows from operands
//! of one element is computed step by step before chains are made.

use super::chains::Chain;
use super::feeds::MOST_FEEDS;
use super::links::{Link, LinkFunction};
use std::f32::consts::{FRAC_1_SQRT_2, SQRT_2};

/// How far a number of a gate is from the exact one at most, as a share of it: exporters round it in their own ways.
const NEAR: f32 = 2.0 * f32::EPSILON;

/// sqrt(2 / pi), the factor of the approximation of GELU by the hyperbolic tangent.
const TANH_FACTOR: f32 = 0.797_884_6;
/// The factor of the cube in that approximation.
const CUBE_FACTOR: f32 = 0.044_715;

impl Chain {
    /// Makes one link of the last ones and of the product of two slots, where together they are a gate and nothing else reads what is
    /// in between; tells whether it has. `number` is what a register has for all elements.
    pub(super) fn gate(
        &mut self,
        factors: [usize; 2],
        number: impl Fn(usize) -> Option<f32>,
        is_read_once: impl Fn(usize) -> bool,
    ) -> bool {
        let of_slot = |slot: usize| {
            let feed = self.feeds.get(slot).filter(|feed| feed.widened.is_none());
            feed.and_then(|feed| number(feed.register))
        };
        let formula = Formula { links: &self.links, number: of_slot };
        let Some(Gate { x, function, links }) = formula.swish(factors).or_else(|| formula.gelu(factors)) else {
            return false;
        };
        // It takes the place of the last links, and of no others.
        let first = links.trailing_zeros() as usize;
        let replaced = first..self.links.len();
        if links.count_ones() as usize != replaced.len()
            || !replaced.into_iter().all(|at| is_read_once(MOST_FEEDS + at))
        {
            return false;
        }
        self.shorten(first);
        // There is room: it replaces one link at least.
        let is_gated = self.link(Link::Change(x, function)).is_some();
        // Numbers that only the gate has read.
        while let Some(feed) = self.feeds.last() {
            let slot = self.feeds.len() - 1;
            let is_read = self.links.iter().any(|link| link.slots().0 == slot || link.slots().1 == Some(slot));
            if is_read || feed.widened.is_some() || number(feed.register).is_none() {
                break;
            }
            self.feeds.pop();
        }
        is_gated
    }
}

/// A function of a slot that several links compute.
struct Gate {
    x: usize,
    function: LinkFunction,
    /// A bit for each of them.
    links: u32,
}

/// What links compute together, whichever of them comes first.
struct Formula<'c, N> {
    links: &'c [Link],
    /// What a slot has for all elements.
    number: N,
}

impl<N: Fn(usize) -> Option<f32>> Formula<'_, N> {
    /// x * sigmoid(x), or x * sigmoid(alpha * x).
    fn swish(&self, factors: [usize; 2]) -> Option<Gate> {
        orders(factors).into_iter().find_map(|[x, gate]| {
            let (Link::Change(argument, LinkFunction::Sigmoid), links) = self.link(gate)? else { return None };
            if argument == x {
                return Some(Gate { x, function: LinkFunction::Swish { alpha: 1.0 }, links });
            }
            let (Link::Mul(left, right), product) = self.link(argument)? else { return None };
            let alpha = (self.number)(other([left, right], x)?)?;
            Some(Gate { x, function: LinkFunction::Swish { alpha }, links: links | product })
        })
    }

    /// x * (f + 1) * 1/2, multiplied in any order.
    fn gelu(&self, factors: [usize; 2]) -> Option<Gate> {
        orders(factors).into_iter().find_map(|[factor, product]| {
            let (Link::Mul(left, right), product) = self.link(product)? else { return None };
            let [a, b, c] = [factor, left, right];
            let orders = [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]];
            orders.into_iter().find_map(|[x, half, sum]| {
                if (self.number)(half) != Some(0.5) {
                    return None;
                }
                let (function, links) = self.plus_one(sum)?;
                let (function, inner) = match self.link(function)? {
                    (Link::Change(scaled, LinkFunction::Erf), own) => {
                        (LinkFunction::Gelu, own | self.over_root_of_two(scaled, x)?)
                    }
                    (Link::Change(scaled, LinkFunction::Tanh), own) => {
                        (LinkFunction::GeluTanh, own | self.tanh_argument(scaled, x)?)
                    }
                    (
                        Link::Change(..)
                        | Link::Add(..)
                        | Link::Sub(..)
                        | Link::Mul(..)
                        | Link::Div(..)
                        | Link::Clamp(..),
                        _,
                    ) => return None,
                };
                Some(Gate { x, function, links: product | links | inner })
            })
        })
    }

    /// The links of x / sqrt(2).
    fn over_root_of_two(&self, slot: usize, x: usize) -> Option<u32> {
        match self.link(slot)? {
            (Link::Div(of, by), link) if of == x && self.is_near(by, SQRT_2) => Some(link),
            (Link::Add(..) | Link::Sub(..) | Link::Mul(..) | Link::Div(..) | Link::Clamp(..) | Link::Change(..), _) => {
                self.times(slot, FRAC_1_SQRT_2).filter(|&(of, _)| of == x).map(|(_, link)| link)
            }
        }
    }

    /// The links of sqrt(2 / pi) * (x + 0.044715 * x^3).
    fn tanh_argument(&self, slot: usize, x: usize) -> Option<u32> {
        let (sum, factor) = self.times(slot, TANH_FACTOR)?;
        let (Link::Add(left, right), added) = self.link(sum)? else { return None };
        let (cube, scaled) = self.times(other([left, right], x)?, CUBE_FACTOR)?;
        let cubed = match self.link(cube)? {
            (Link::Change(of, LinkFunction::Cube), link) => (of == x).then_some(link),
            (Link::Mul(left, right), link) => {
                let (square, squared) = self.link(other([left, right], x)?)?;
                matches!(square, Link::Mul(one, two) if one == x && two == x).then_some(link | squared)
            }
            (Link::Change(..) | Link::Add(..) | Link::Sub(..) | Link::Div(..) | Link::Clamp(..), _) => None,
        };
        Some(factor | added | scaled | cubed?)
    }

    /// What a link multiplies by a number, and its bit.
    fn times(&self, slot: usize, value: f32) -> Option<(usize, u32)> {
        let (Link::Mul(left, right), link) = self.link(slot)? else { return None };
        let found = orders([left, right]).into_iter().find(|&[_, by]| self.is_near(by, value));
        found.map(|[of, _]| (of, link))
    }

    /// What a link adds one to, and its bit.
    fn plus_one(&self, slot: usize) -> Option<(usize, u32)> {
        let (Link::Add(left, right), link) = self.link(slot)? else { return None };
        let found = orders([left, right]).into_iter().find(|&[_, one]| (self.number)(one) == Some(1.0));
        found.map(|[of, _]| (of, link))
    }

    /// The link that gives a slot, and its bit.
    fn link(&self, slot: usize) -> Option<(Link, u32)> {
        let index = slot.checked_sub(MOST_FEEDS)?;
        Some((*self.links.get(index)?, 1 << index))
    }

    fn is_near(&self, slot: usize, value: f32) -> bool {
        (self.number)(slot).is_some_and(|number| (number / value - 1.0).abs() <= NEAR)
    }
}

/// Both orders of two slots.
fn orders([x, y]: [usize; 2]) -> [[usize; 2]; 2] {
    [[x, y], [y, x]]
}

/// The slot beside this one.
fn other([x, y]: [usize; 2], slot: usize) -> Option<usize> {
    match slot {
        _ if x == slot => Some(y),
        _ if y == slot => Some(x),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::feeds::Feed;
    use super::*;

    /// What registers have for all elements.
    fn number(register: usize) -> Option<f32> {
        let numbers = [SQRT_2, 1.0, 0.5, FRAC_1_SQRT_2, 1.702, TANH_FACTOR, CUBE_FACTOR];
        register.checked_sub(1).map(|register| numbers[register])
    }

    /// A chain of these links, which reads eight registers.
    fn chain(links: &[Link]) -> Chain {
        let mut chain = Chain::default();
        for register in 0..8 {
            chain.feed(Feed { register, widened: None }).unwrap();
        }
        links.iter().for_each(|link| chain.link(*link).unwrap());
        chain
    }

    /// The slot of a link before the gate, and of its first one.
    const EARLIER: usize = MOST_FEEDS;
    const FIRST: usize = MOST_FEEDS + 1;
    const ERROR: Link = Link::Change(FIRST, LinkFunction::Erf);

    #[test]
    fn gelu_is_one_link_however_it_is_written() {
        let inner_half =
            [Link::Sub(2, 0), Link::Div(EARLIER, 1), ERROR, Link::Add(FIRST + 1, 2), Link::Mul(3, FIRST + 2)];
        let outer_half =
            [Link::Sub(2, 0), Link::Mul(4, EARLIER), ERROR, Link::Add(2, FIRST + 1), Link::Mul(EARLIER, FIRST + 2)];
        let half_of_x = [Link::Sub(2, 0), Link::Div(EARLIER, 1), ERROR, Link::Add(FIRST + 1, 2), Link::Mul(3, EARLIER)];
        let factors = [[EARLIER, FIRST + 3], [FIRST + 3, 3], [FIRST + 2, FIRST + 3]];
        for (links, factors) in [inner_half, outer_half, half_of_x].into_iter().zip(factors) {
            let mut found = chain(&links);
            assert!(found.gate(factors, number, |_| true));
            assert!(matches!(found.links[..], [Link::Sub(2, 0), Link::Change(EARLIER, LinkFunction::Gelu)]));
            assert_eq!((found.result, found.feeds.len()), (FIRST, 3), "numbers of the gate are read no more");
            assert!(!chain(&links).gate(factors, number, |slot| slot != FIRST + 1), "the error function is read again");
        }
    }

    /// As GPT-2 has it, behind a link.
    const BY_TANH: [Link; 8] = [
        Link::Sub(2, 0),
        Link::Change(EARLIER, LinkFunction::Cube),
        Link::Mul(FIRST, 7),
        Link::Add(EARLIER, FIRST + 1),
        Link::Mul(FIRST + 2, 6),
        Link::Change(FIRST + 3, LinkFunction::Tanh),
        Link::Add(FIRST + 4, 2),
        Link::Mul(EARLIER, 3),
    ];

    #[test]
    fn gelu_by_tanh_is_one_link_however_it_is_written() {
        let mut inner_half = BY_TANH;
        inner_half[7] = Link::Mul(3, FIRST + 5);
        let by_products = [
            Link::Sub(2, 0),
            Link::Mul(EARLIER, 3),
            Link::Mul(EARLIER, EARLIER),
            Link::Mul(FIRST + 1, EARLIER),
            Link::Mul(7, FIRST + 2),
            Link::Add(FIRST + 3, EARLIER),
            Link::Mul(6, FIRST + 4),
            Link::Change(FIRST + 5, LinkFunction::Tanh),
            Link::Add(2, FIRST + 6),
        ];
        let forms: [(&[Link], [usize; 2]); 3] = [
            (&BY_TANH, [FIRST + 6, FIRST + 5]),
            (&inner_half, [EARLIER, FIRST + 6]),
            (&by_products, [FIRST, FIRST + 7]),
        ];
        for (links, factors) in forms {
            let mut found = chain(links);
            assert!(found.gate(factors, number, |_| true));
            assert!(matches!(found.links[..], [Link::Sub(2, 0), Link::Change(EARLIER, LinkFunction::GeluTanh)]));
            assert!(!chain(links).gate(factors, number, |slot| slot != FIRST + 1), "a part is read again");
        }
    }

    #[test]
    fn what_is_nearly_gelu_by_tanh_is_none() {
        for (at, other) in [
            (1, Link::Change(EARLIER, LinkFunction::Square)),
            (1, Link::Change(0, LinkFunction::Cube)),
            (2, Link::Mul(FIRST, 6)),
            (3, Link::Add(0, FIRST + 1)),
            (4, Link::Mul(FIRST + 2, 7)),
            (5, Link::Change(FIRST + 3, LinkFunction::Erf)),
            (6, Link::Add(FIRST + 4, 3)),
            (7, Link::Mul(EARLIER, 2)),
            (7, Link::Mul(0, 3)),
        ] {
            let mut links = BY_TANH;
            links[at] = other;
            assert!(!chain(&links).gate([FIRST + 6, FIRST + 5], number, |_| true), "another link {at}");
        }
        let mut apart = BY_TANH.to_vec();
        apart.insert(7, Link::Sub(EARLIER, 2));
        apart[8] = Link::Mul(EARLIER, 3);
        assert!(!chain(&apart).gate([FIRST + 7, FIRST + 5], number, |_| true), "another link in between");
    }

    #[test]
    fn what_is_nearly_gelu_is_none() {
        let gelu = [Link::Sub(2, 0), Link::Div(EARLIER, 1), ERROR, Link::Add(FIRST + 1, 2), Link::Mul(3, FIRST + 2)];
        for (at, other) in [
            (1, Link::Mul(EARLIER, 1)),
            (1, Link::Div(EARLIER, 4)),
            (1, Link::Div(1, EARLIER)),
            (2, Link::Change(FIRST, LinkFunction::Tanh)),
            (2, Link::Change(EARLIER, LinkFunction::Erf)),
            (3, Link::Sub(FIRST + 1, 2)),
            (3, Link::Add(FIRST + 1, 5)),
            (3, Link::Add(FIRST, 2)),
            (4, Link::Mul(5, FIRST + 2)),
            (4, Link::Mul(EARLIER, FIRST + 2)),
        ] {
            let mut links = gelu;
            links[at] = other;
            assert!(!chain(&links).gate([EARLIER, FIRST + 3], number, |_| true), "another link {at}");
        }
        assert!(!chain(&gelu).gate([5, FIRST + 3], number, |_| true), "a factor beside x");
        assert!(!chain(&gelu[2..]).gate([EARLIER, FIRST + 1], number, |_| true), "too few links");
    }

    #[test]
    fn a_scaled_sigmoid_has_its_factor() {
        let links = [Link::Add(0, 2), Link::Mul(5, EARLIER), Link::Change(FIRST, LinkFunction::Sigmoid)];
        let mut found = chain(&links);
        assert!(found.gate([EARLIER, FIRST + 1], number, |_| true));
        let &[Link::Add(0, 2), Link::Change(EARLIER, LinkFunction::Swish { alpha })] = found.links.as_slice() else {
            panic!("{} links", found.links.len());
        };
        assert_eq!(alpha, 1.702);
        assert!(!chain(&links).gate([0, FIRST + 1], number, |_| true), "of another operand");
        let squared = [Link::Add(0, 2), Link::Mul(EARLIER, EARLIER), Link::Change(FIRST, LinkFunction::Sigmoid)];
        assert!(!chain(&squared).gate([EARLIER, FIRST + 1], number, |_| true), "of a square");
    }

    #[test]
    fn a_product_of_a_sigmoid_and_its_operand_is_one_link() {
        let links = [Link::Add(0, 2), Link::Change(EARLIER, LinkFunction::Sigmoid)];
        let mut found = chain(&links);
        assert!(found.gate([FIRST, EARLIER], number, |_| true));
        assert!(matches!(
            found.links[..],
            [Link::Add(0, 2), Link::Change(EARLIER, LinkFunction::Swish { alpha: 1.0 })]
        ));
        assert_eq!(found.result, FIRST);
        assert!(!chain(&links).gate([FIRST, 0], number, |_| true), "of another operand");
        assert!(!chain(&links).gate([FIRST, EARLIER], number, |_| false), "the sigmoid is read again");
    }
}
