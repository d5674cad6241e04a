//! One pass for several sessions: weights are read once for all of them.

use super::{Session, declared, make_room, sum};
use crate::bind::bind;
use crate::error::RunError;
use crate::execute::Execution;
use crate::execute::joint::{can_run_together, run_together};
use crate::memory::BoundMemory;
use crate::program::Program;
use crate::steps::{Contents, Progress};
use crate::stream::Need;
use crate::trace::Track;
use crate::working::PortBytes;
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::Type;
use ipuc_formats::model::EntryRecord;
use ipuc_formats::value::Value;
use std::sync::Arc;
use std::time::Instant;

/// What a session brings to a pass.
struct Part {
    bindings: Bindings,
    arguments: Vec<Contents>,
}

impl Session {
    /// Run an entry of one model for several sessions in one pass; gives the outputs of each as [`Session::run`] does. Weights
    /// are read once for all; the sessions' cancel tokens are not looked at.
    ///
    /// # Errors
    /// [`RunError`] as [`Session::run`], [`RunError::OtherModel`] where a session is of another model. The state of all
    /// sessions is then what it was before.
    pub fn run_together(
        sessions: &mut [&mut Session],
        entry: Option<&str>,
        inputs: Vec<Vec<(String, Value)>>,
    ) -> Result<Vec<Vec<(String, Value)>>, RunError> {
        let Some(first) = sessions.first() else { return Ok(Vec::new()) };
        let model = first.model.clone();
        let program = &*model.program;
        if inputs.len() != sessions.len()
            || sessions.iter().any(|session| !Arc::ptr_eq(&session.model.program, &model.program))
        {
            return Err(RunError::OtherModel);
        }
        if let [only] = sessions {
            return inputs.into_iter().map(|inputs| only.run(entry, inputs)).collect();
        }
        let entry = model.entry(entry)?;
        if !can_run_together(program, entry.block) {
            return one_by_one(sessions, entry, inputs);
        }
        let ports = declared(program, entry);
        let part = |(session, inputs): (&&mut Session, Vec<_>)| -> Result<Part, RunError> {
            let arguments = session.arguments(entry, inputs)?;
            let kinds: Vec<Type> = arguments.iter().map(Contents::kind).collect();
            Ok(Part { bindings: bind(&program.manifest, entry, &ports, &kinds)?, arguments })
        };
        let parts: Vec<Part> = sessions.iter().zip(inputs).map(part).collect::<Result<_, _>>()?;
        let _pass = program.streamed.as_ref().map(|streamed| streamed.pass());
        let results = loop {
            match attempt(sessions, program, entry, &parts) {
                Ok(results) => break results,
                Err(error) => match program.pool.take_refused_bytes() {
                    refused_bytes @ 1.. if program.streamed.is_some() => {
                        sessions[0].unplanned_bytes = sessions[0].unplanned_bytes.saturating_add(refused_bytes);
                    }
                    _ => return Err(error),
                },
            }
        };
        drop(parts);
        sessions.iter_mut().zip(results).map(|(session, results)| session.keep_states(entry, results)).collect()
    }
}

/// As many passes as there are sessions; where one fails, no state changes.
fn one_by_one(
    sessions: &mut [&mut Session],
    entry: &EntryRecord,
    inputs: Vec<Vec<(String, Value)>>,
) -> Result<Vec<Vec<(String, Value)>>, RunError> {
    let before = |session: &&mut Session| (session.states.lock().clone(), session.random_state);
    let before: Vec<_> = sessions.iter().map(before).collect();
    let pairs = sessions.iter_mut().zip(inputs);
    let outputs: Result<_, RunError> = pairs.map(|(session, inputs)| session.run(Some(&entry.name), inputs)).collect();
    if outputs.is_err() {
        for (session, (states, random_state)) in sessions.iter_mut().zip(before) {
            *session.states.lock() = states;
            session.random_state = random_state;
        }
    }
    outputs
}

/// One pass; gives all results of each session.
fn attempt(
    sessions: &mut [&mut Session],
    program: &Program,
    entry: &EntryRecord,
    parts: &[Part],
) -> Result<Vec<Vec<Contents>>, RunError> {
    let mut memories = Vec::with_capacity(parts.len());
    let (mut need, mut uncharged, mut results_bytes) = (Need { bytes: 0, growth_bytes: 0 }, 0u64, 0u64);
    let unplanned = sessions.iter().map(|session| session.unplanned_bytes).max().unwrap_or(0);
    for (session, part) in sessions.iter_mut().zip(parts) {
        let memory = session.memory.take();
        let memory = memory.and_then(|memory| memory.rebound(&program.manifest, entry.block, &part.bindings));
        let memory = memory.unwrap_or_else(|| {
            BoundMemory::new(&program.manifest, entry.block, part.bindings.clone(), program.pool.clone())
        });
        let ports = PortBytes::new(&program.manifest, entry, &part.bindings, &memory);
        let own = session.uncharged_bytes(entry, &part.arguments);
        session.working_bytes = sum(&[memory.arena_bytes(), ports.inputs, ports.state, ports.results, unplanned]);
        need.bytes = sum(&[need.bytes, memory.missing_bytes(), own, ports.results]);
        need.growth_bytes = need.growth_bytes.saturating_add(ports.growth);
        (uncharged, results_bytes) = (sum(&[uncharged, own]), sum(&[results_bytes, ports.results]));
        memories.push(memory);
    }
    need.bytes = need.bytes.saturating_add(unplanned);
    let working_bytes = sum(&sessions.iter().map(|session| session.working_bytes).collect::<Vec<_>>());
    let states: Vec<_> = sessions.iter().map(|session| &session.states).collect();
    make_room(program, &states, need, working_bytes)?;
    let no_room = |bytes| RunError::Memory { bytes };
    memories.iter_mut().try_for_each(BoundMemory::acquire).map_err(no_room)?;
    let _arguments = program.pool.charge(uncharged).map_err(|exceeded| no_room(exceeded.bytes))?;
    program.pool.begin_run();
    let trace = sessions[0].trace.clone();
    let execution = |(session, memory)| {
        let session: &&mut Session = session;
        let random_state = session.random_state;
        Execution { program, memory, random_state, trace: trace.as_deref(), cancel: None, observer: None }
    };
    let mut executions: Vec<Execution<'_, '_>> = sessions.iter().zip(&memories).map(execution).collect();
    let arguments = parts.iter().map(|part| part.arguments.clone()).collect();
    program.source.progress(Progress::PassBegins { block: entry.block });
    let begun = Instant::now();
    let team = sessions[0].threads.clone();
    let results = team.team().run(|| run_together(&mut executions, entry.block, arguments));
    if let Some(trace) = &trace {
        trace.add(Track::Runs, format!("run {} for {}", entry.name, parts.len()), begun, None);
    }
    program.source.progress(Progress::PassEnds);
    let random_states: Vec<u64> = executions.iter().map(|execution| execution.random_state).collect();
    drop(executions);
    for (session, memory) in sessions.iter_mut().zip(memories) {
        session.memory = Some(memory);
    }
    let results = results?;
    sessions.iter_mut().zip(random_states).for_each(|(session, state)| session.random_state = state);
    let sized = program.pool.run_bytes().saturating_sub(results_bytes);
    sessions[0].unplanned_bytes = sessions[0].unplanned_bytes.max(sized);
    Ok(results)
}
