//! One pass for several sessions: weights are read once for all of them.

use super::Session;
use super::pass::pass;
use crate::error::RunError;
use crate::execute::joint::can_run_together;
use ipuc_formats::model::EntryRecord;
use ipuc_formats::value::Value;
use std::sync::Arc;

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
        let parts = sessions.iter().zip(inputs).map(|(session, inputs)| session.part(entry, inputs));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let _pass = program.streamed.as_ref().map(|streamed| streamed.pass());
        let results = pass(sessions, entry, parts, None)?;
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
