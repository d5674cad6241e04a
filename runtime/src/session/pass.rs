//! The block of an entry, run for one session or for several at once: room is made, steps run, and results come out.

use super::{Session, declared};
use crate::bind::bind;
use crate::error::RunError;
use crate::execute::Execution;
use crate::execute::joint::run_together;
use crate::memory::{BoundMemory, Pool};
use crate::observe::Observer;
use crate::program::Program;
use crate::state::{SessionStates, read_back_bytes};
use crate::steps::{Contents, Progress};
use crate::stream::Need;
use crate::trace::Track;
use crate::working::PortBytes;
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::Type;
use ipuc_formats::model::EntryRecord;
use ipuc_formats::value::Value;
use ipuc_kernels::product::Skipped;
use std::time::Instant;

/// What a session brings to a pass.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) bindings: Bindings,
    pub(super) arguments: Vec<Contents>,
}

impl Session {
    /// Run an entry, and show every value that a step computes to an observer.
    pub(super) fn run_shown(
        &mut self,
        entry: Option<&str>,
        inputs: Vec<(String, Value)>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<(String, Value)>, RunError> {
        let model = self.model.clone();
        let entry = model.entry(entry)?;
        let part = self.part(entry, inputs)?;
        // Passes over streamed weights come one after another, whatever session they are of.
        let _pass = model.program.streamed.as_ref().map(|streamed| streamed.pass());
        if let Some(observer) = &mut observer {
            observer.begin();
        }
        let results = pass(&mut [&mut *self], entry, vec![part], observer)?;
        self.keep_states(entry, results.into_iter().flatten().collect())
    }

    /// What this session brings to a pass with these inputs.
    pub(super) fn part(&self, entry: &EntryRecord, inputs: Vec<(String, Value)>) -> Result<Part, RunError> {
        let program = &*self.model.program;
        let arguments = self.arguments(entry, inputs)?;
        let kinds: Vec<Type> = arguments.iter().map(Contents::kind).collect();
        Ok(Part { bindings: bind(&program.manifest, entry, &declared(program, entry), &kinds)?, arguments })
    }
}

/// A pass for sessions of one model, of which there is one at least; gives all results of each. An observer sees the only
/// session, whose cancel token ends the pass.
///
/// # Errors
/// [`RunError`] where there is no room, or a step fails; no state has changed then.
pub(super) fn pass(
    sessions: &mut [&mut Session],
    entry: &EntryRecord,
    parts: Vec<Part>,
    mut observer: Option<&mut dyn Observer>,
) -> Result<Vec<Vec<Contents>>, RunError> {
    let program = sessions[0].model.program.clone();
    if program.streamed.is_none() {
        return attempt(sessions, entry, parts, observer);
    }
    loop {
        let shown: Option<&mut dyn Observer> = match &mut observer {
            Some(observer) => Some(&mut **observer),
            None => None,
        };
        match attempt(sessions, entry, parts.clone(), shown) {
            Ok(results) => return Ok(results),
            Err(error) => match program.pool.take_refused_bytes() {
                0 => return Err(error),
                // What is sized while running was more than was kept free for it: the pass begins anew with more.
                refused_bytes => {
                    sessions[0].unplanned_bytes = sessions[0].unplanned_bytes.saturating_add(refused_bytes);
                }
            },
        }
        if let Some(observer) = &mut observer {
            observer.restart();
        }
    }
}

/// One pass; gives all results of each session.
fn attempt(
    sessions: &mut [&mut Session],
    entry: &EntryRecord,
    parts: Vec<Part>,
    observer: Option<&mut dyn Observer>,
) -> Result<Vec<Vec<Contents>>, RunError> {
    let program = sessions[0].model.program.clone();
    let (mut memories, mut arguments) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    let (mut need, mut uncharged, mut results_bytes) =
        (Need { bytes: 0, growth_bytes: 0, growth_ahead_bytes: 0 }, 0u64, 0u64);
    let unplanned = sessions.iter().map(|session| session.unplanned_bytes).max().unwrap_or(0);
    for (session, part) in sessions.iter_mut().zip(parts) {
        // Old arenas go before new ones come.
        let memory = session.memory.take();
        let memory = memory.and_then(|memory| memory.rebound(entry.block, &part.bindings));
        let memory = memory.unwrap_or_else(|| {
            let Program { manifest, streamed, pool, .. } = &*program;
            BoundMemory::new(manifest, streamed.is_some(), entry.block, part.bindings.clone(), pool.clone())
        });
        let ports = PortBytes::new(&program.manifest, entry, &part.bindings, &memory);
        let own = session.uncharged_bytes(entry, &part.arguments);
        let state = ports.state.saturating_sub(forgotten_bytes(&part.arguments));
        session.working_bytes = sum(&[memory.arena_bytes(), ports.inputs, state, ports.results, unplanned]);
        need.bytes = sum(&[need.bytes, memory.missing_bytes(), own, ports.results]);
        need.growth_bytes = need.growth_bytes.saturating_add(ports.growth);
        need.growth_ahead_bytes = need.growth_ahead_bytes.saturating_add(ports.growth_ahead);
        (uncharged, results_bytes) = (sum(&[uncharged, own]), sum(&[results_bytes, ports.results]));
        memories.push(memory);
        arguments.push(part.arguments);
    }
    need.bytes = need.bytes.saturating_add(unplanned);
    let working_bytes = sum(&sessions.iter().map(|session| session.working_bytes).collect::<Vec<_>>());
    let states: Vec<_> = sessions.iter().map(|session| &session.states).collect();
    make_room(&program, &states, need, working_bytes)?;
    let no_room = |bytes| RunError::Memory { bytes };
    memories.iter_mut().try_for_each(BoundMemory::acquire).map_err(no_room)?;
    let _arguments = program.pool.charge(uncharged).map_err(|exceeded| no_room(exceeded.bytes))?;
    program.pool.begin_run();
    let alone = sessions.len() == 1;
    let (trace, threads) = (sessions[0].trace.clone(), sessions[0].threads.clone());
    let cancel = sessions[0].cancel.clone().filter(|_| alone);
    let counter = sessions[0].counter.clone().filter(|_| alone);
    if let Some(counter) = &counter {
        counter.begin(program.manifest.blocks[entry.block as usize].steps.len());
    }
    let mut observer = observer.filter(|_| alone);
    let execution = |(session, memory)| {
        let session: &&mut Session = session;
        let (random_state, trace, cancel) = (session.random_state, trace.as_deref(), cancel.as_ref());
        let (skipped, observer) = (Skipped::default(), observer.take());
        let counter = counter.as_ref().map(|counter| (counter, entry.block));
        Execution { program: &program, memory, random_state, skipped, trace, cancel, counter, observer }
    };
    let mut executions: Vec<Execution<'_, '_>> = sessions.iter().zip(&memories).map(execution).collect();
    program.source.progress(Progress::PassBegins { block: entry.block });
    let begun = Instant::now();
    let results = threads.team().run(|| match &mut executions[..] {
        [only] => arguments.into_iter().map(|arguments| only.run_block(entry.block, arguments)).collect(),
        several => run_together(several, entry.block, arguments),
    });
    if let Some(trace) = &trace {
        let name =
            if alone { format!("run {}", entry.name) } else { format!("run {} for {}", entry.name, sessions.len()) };
        trace.add(Track::Runs, name, begun, None);
    }
    program.source.progress(Progress::PassEnds);
    let random_states: Vec<u64> = executions.iter().map(|execution| execution.random_state).collect();
    let skipped: Vec<Skipped> = executions.iter().map(|execution| execution.skipped).collect();
    drop(executions);
    for (session, memory) in sessions.iter_mut().zip(memories) {
        session.memory = Some(memory);
    }
    let results = results?;
    sessions.iter_mut().zip(random_states).for_each(|(session, state)| session.random_state = state);
    sessions.iter_mut().zip(skipped).for_each(|(session, skipped)| session.skipped = skipped);
    let sized = program.pool.run_bytes().saturating_sub(results_bytes);
    sessions[0].unplanned_bytes = sessions[0].unplanned_bytes.max(sized);
    Ok(results)
}

/// Bytes of pages of state that are forgotten, as they would be charged.
fn forgotten_bytes(arguments: &[Contents]) -> u64 {
    let bytes = |contents: &Contents| match contents {
        Contents::Version(version) => {
            (Pool::capacity(version.page_bytes()) as u64).saturating_mul(version.forgotten_pages() as u64)
        }
        Contents::Value(_) => 0,
    };
    sum(&arguments.iter().map(bytes).collect::<Vec<_>>())
}

/// Has weights leave where the budget has no room for a run of these sessions, then pages of state.
///
/// # Errors
/// [`RunError::Budget`] where nothing is left to leave; the run needs `working_bytes` besides weights.
fn make_room(program: &Program, running: &[&SessionStates], need: Need, working_bytes: u64) -> Result<(), RunError> {
    let Some(streamed) = &program.streamed else { return Ok(()) };
    let budget_bytes = program.budget.limit_bytes();
    loop {
        let read_back_bytes = running.iter().map(|states| read_back_bytes(&states.lock())).max().unwrap_or(0);
        let bytes = need.bytes.saturating_add(read_back_bytes).saturating_sub(program.pool.free_bytes());
        let Err(needed_bytes) = streamed.make_room(Need { bytes, ..need }) else {
            return Ok(());
        };
        let short = needed_bytes.saturating_sub(budget_bytes);
        let moved = program.states.spill(running, short.max(1), &program.spill);
        let moved = moved.map_err(|error| RunError::Spill { error })?;
        if moved == 0 {
            return Err(RunError::Budget { needed_bytes, budget_bytes, working_bytes });
        }
        program.pool.trim();
    }
}

/// As much as there is, where the sum is more.
fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}
