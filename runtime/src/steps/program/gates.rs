//! Gates that models write out step by step, as one link each: a function of its own takes fewer operations, and nothing is written in
//! between. Its bits are not those of the steps one by one, whose error is within the same bound (4e-7 of x); what follows from operands
//! of one element is computed step by step before chains are made.

use super::chains::Chain;
use super::feeds::MOST_FEEDS;
use super::links::{Link, LinkFunction};
use std::f32::consts::{FRAC_1_SQRT_2, SQRT_2};

/// How far a root of a gate is from the exact one at most, as a share of it: exporters round it in their own ways.
const NEAR: f32 = 2.0 * f32::EPSILON;

/// The last links of a chain and a product behind them, as one function.
struct Gate {
    /// The slot of its operand.
    x: usize,
    function: LinkFunction,
    /// How many links it replaces.
    links: usize,
}

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
        let gate = swish(&self.links, factors).or_else(|| gelu(&self.links, factors, of_slot));
        let Some(Gate { x, function, links }) = gate else { return false };
        let first = self.links.len() - links;
        if !(first..self.links.len()).all(|link| is_read_once(MOST_FEEDS + link)) {
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

/// x * sigmoid(x).
fn swish(links: &[Link], factors: [usize; 2]) -> Option<Gate> {
    let &Link::Change(x, LinkFunction::Sigmoid) = links.last()? else { return None };
    let gate = MOST_FEEDS + links.len() - 1;
    (other(factors, gate) == Some(x)).then_some(Gate { x, function: LinkFunction::Swish { alpha: 1.0 }, links: 1 })
}

/// x * (erf(x / sqrt(2)) + 1) * 1/2, where the sum is a factor of the first product.
fn gelu(links: &[Link], factors: [usize; 2], number: impl Fn(usize) -> Option<f32>) -> Option<Gate> {
    let (earlier, &[scaled, error, sum, product]) = links.split_last_chunk()?;
    let slot = |link: usize| MOST_FEEDS + earlier.len() + link;
    let is = |slot: usize, value: f32| number(slot) == Some(value);
    let is_near = |slot: usize, value: f32| number(slot).is_some_and(|number| (number / value - 1.0).abs() <= NEAR);
    let (Link::Change(argument, LinkFunction::Erf), Link::Add(sum_x, sum_y), Link::Mul(product_x, product_y)) =
        (error, sum, product)
    else {
        return None;
    };
    let x = match scaled {
        Link::Div(x, by) if is_near(by, SQRT_2) => x,
        Link::Mul(x, by) | Link::Mul(by, x) if is_near(by, FRAC_1_SQRT_2) => x,
        Link::Div(..) | Link::Mul(..) | Link::Add(..) | Link::Sub(..) | Link::Clamp(..) | Link::Change(..) => {
            return None;
        }
    };
    let one = other([sum_x, sum_y], slot(1))?;
    let (inner, outer) = (other([product_x, product_y], slot(2))?, other(factors, slot(3))?);
    let are_factors = inner == x && is(outer, 0.5) || outer == x && is(inner, 0.5);
    (argument == slot(0) && is(one, 1.0) && are_factors).then_some(Gate { x, function: LinkFunction::Gelu, links: 4 })
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
        [None, Some(SQRT_2), Some(1.0), Some(0.5), Some(FRAC_1_SQRT_2), Some(2.0)][register]
    }

    /// A chain of these links, which reads six registers.
    fn chain(links: &[Link]) -> Chain {
        let mut chain = Chain::default();
        for register in 0..6 {
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
        for (links, factors) in [(inner_half, [EARLIER, FIRST + 3]), (outer_half, [FIRST + 3, 3])] {
            let mut found = chain(&links);
            assert!(found.gate(factors, number, |_| true));
            assert!(matches!(found.links[..], [Link::Sub(2, 0), Link::Change(EARLIER, LinkFunction::Gelu)]));
            assert_eq!((found.result, found.feeds.len()), (FIRST, 3), "numbers of the gate are read no more");
            assert!(!chain(&links).gate(factors, number, |slot| slot != FIRST + 1), "the error function is read again");
        }
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
