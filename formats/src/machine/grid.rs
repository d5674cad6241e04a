//! Links between neighbouring tiles of a square grid, and what the busiest of them carries.
//!
//! Tiles are numbered row by row, and values lie in the first of them. Packets go along their row to the column of where they
//! end, then along it: every packet whose ends lie on two sides of a line between rows crosses it once, by one of the links
//! there, and the same holds of columns. What crosses a line is dealt evenly to its links, in either direction apart.

use super::target::Target;
use super::units::Bytes;

/// Bytes from the first `sources` tiles to the first `destinations`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Route {
    pub(super) sources: f64,
    pub(super) destinations: f64,
    pub(super) bytes: Bytes,
    /// Each packet goes to many tiles at once: it crosses every line that some of them are behind.
    pub(super) many: bool,
}

/// Lines between rows or columns that are looked at: of more, some that are equally far apart, and the last.
const MOST_LINES: f64 = 32.0;

/// Bytes over the busiest link; 0 where the machine tells nothing of its links.
pub(super) fn busiest_link(target: &Target, route: Route) -> Bytes {
    if target.exchange.link.is_none() || route.bytes.0 <= 0.0 {
        return Bytes(0.0);
    }
    let count = f64::from(target.tiles.count.get());
    let columns = count.sqrt().ceil();
    let rows = (count / columns).ceil();
    // On a ring packets go either way round.
    let ways = if target.exchange.ring { 2.0 } else { 1.0 };
    // Shares of so many tiles that lie before a line between rows or columns.
    let above = |tiles: f64, line: f64| (line * columns / tiles.max(1.0)).min(1.0);
    let left = |tiles: f64, line: f64| (line / tiles.clamp(1.0, columns)).min(1.0);
    let cut = |before: &dyn Fn(f64, f64) -> f64, line: f64, links: f64| {
        let (from, to) = (before(route.sources, line), before(route.destinations, line));
        let (ahead, back) = match route.many {
            true => (if to < 1.0 { from } else { 0.0 }, if to > 0.0 { 1.0 - from } else { 0.0 }),
            false => (from * (1.0 - to), (1.0 - from) * to),
        };
        ahead.max(back) / (links * ways)
    };
    let lines = |count: f64| {
        let step = ((count / MOST_LINES).ceil()).max(1.0);
        let apart = (0..).map(move |index| 1.0 + f64::from(index) * step).take_while(move |line| *line < count - 1.0);
        apart.chain((count > 1.0).then_some(count - 1.0))
    };
    // Columns of where they end, rows of where they begin.
    let (used_columns, used_rows) = (route.destinations.clamp(1.0, columns), (route.sources / columns).ceil().max(1.0));
    let across_rows = lines(rows).map(|line| cut(&above, line, used_columns)).fold(0.0, f64::max);
    let across_columns = lines(columns).map(|line| cut(&left, line, used_rows)).fold(0.0, f64::max);
    route.bytes * across_rows.max(across_columns)
}

/// Hops from a tile to another one, on average over all of so many.
pub(super) fn mean_hops(target: &Target, tiles: f64) -> f64 {
    let side = tiles.max(1.0).sqrt();
    // A third of the side in either direction; a quarter where the ends are joined.
    if target.exchange.ring { side / 2.0 } else { side * 2.0 / 3.0 }
}

#[cfg(test)]
mod tests {
    use super::super::units::BytesPerCycle;
    use super::*;
    use crate::machine::built_in;

    fn load(ring: bool, sources: f64, destinations: f64, many: bool) -> f64 {
        let mut target = built_in("tenstorrent-n150", &[]).unwrap().unwrap();
        (target.exchange.link, target.exchange.ring) = (Some(BytesPerCycle(30.0)), ring);
        busiest_link(&target, Route { sources, destinations, bytes: Bytes(6400.0), many }).0
    }

    #[test]
    fn the_busiest_link_carries_its_share_of_what_crosses_the_fullest_line() {
        // All to all: a quarter of everything crosses the middle each way, over eight links.
        assert_eq!(load(false, 64.0, 64.0, false), 6400.0 / 4.0 / 8.0);
        assert_eq!(load(true, 64.0, 64.0, false), 6400.0 / 4.0 / 16.0);
        // To many at once: each half sends to the other all that it has.
        assert_eq!(load(false, 64.0, 64.0, true), 6400.0 * 7.0 / 8.0 / 8.0);
        // From one tile along its row: seven eighths of the tiles are in other columns.
        assert_eq!(load(false, 1.0, 64.0, false), 6400.0 * 7.0 / 8.0);
        // From the first row, and within it: half of its tiles lie on either side, with one link between them.
        assert_eq!(load(false, 8.0, 64.0, false), 6400.0 / 4.0);
        assert_eq!(load(false, 8.0, 8.0, false), 6400.0 / 4.0);
        // Half of the tiles send to the other half's rows as well: what crosses a line below them goes one way.
        assert_eq!(load(false, 32.0, 64.0, false), 6400.0 / 2.0 / 8.0);
    }
}
