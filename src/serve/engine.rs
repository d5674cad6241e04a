//! One thread that generates for all requests: those that run at a time share each reading of the weights.

use super::ServeError;
use super::request::{Refusal, Wanted, refusal};
use crate::generate::{Batch, Ended, GeneratorOptions, TextModel, Token, Usage};
use ipuc_runtime::CancelToken;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Where requests wait to be generated.
pub(super) struct Engine {
    requests: Mutex<Sender<Request>>,
}

/// A text that a client waits for.
struct Request {
    wanted: Arc<Wanted>,
    listener: Listener,
}

/// Who waits.
struct Listener {
    events: Sender<Event>,
    cancel: CancelToken,
}

/// What comes of a request.
pub(super) enum Event {
    /// Its turn has come.
    Begun,
    /// A token, or the end without one, and what it took so far.
    Further(Option<Token>, Option<Ended>, Usage),
    /// It cannot be generated.
    Refused(Refusal),
}

impl Engine {
    /// Generate up to `size` texts at a time.
    ///
    /// # Errors
    /// [`ServeError`] where threads cannot be started.
    pub(super) fn start(model: &TextModel, options: &GeneratorOptions, size: usize) -> Result<Engine, ServeError> {
        let (requests, waiting) = channel();
        let mut turns = Turns { batch: Batch::new(model, options, size)?, waiting, running: BTreeMap::new() };
        std::thread::Builder::new()
            .name("generate".to_string())
            .spawn(move || while turns.turn() {})
            .map_err(|error| ServeError::Thread { error })?;
        Ok(Engine { requests: Mutex::new(requests) })
    }

    /// Have a text generated, until it ends or is cancelled.
    pub(super) fn begin(&self, wanted: Arc<Wanted>, cancel: CancelToken) -> Receiver<Event> {
        let (events, received) = channel();
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        // Without the thread the events end at once.
        let _ = requests.send(Request { wanted, listener: Listener { events, cancel } });
        received
    }
}

/// The state of the thread.
struct Turns {
    batch: Batch,
    waiting: Receiver<Request>,
    running: BTreeMap<u64, Listener>,
}

impl Turns {
    /// Let requests begin, and take those that run a pass further; whether there may be more of them.
    fn turn(&mut self) -> bool {
        while self.batch.has_room() {
            let next = match self.batch.is_busy() {
                true => self.waiting.try_recv(),
                false => self.waiting.recv().map_err(|_| TryRecvError::Disconnected),
            };
            match next {
                Ok(request) => self.admit(request),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if self.batch.is_busy() => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        for (&text, _) in self.running.iter().filter(|(_, listener)| listener.cancel.is_cancelled()) {
            self.batch.cancel(text);
        }
        match self.batch.pass() {
            Ok(all) => {
                for progress in all {
                    if let Some(listener) = self.running.get(&progress.text) {
                        // Who does not listen any more has cancelled.
                        let _ = listener.events.send(Event::Further(progress.token, progress.ended, progress.usage));
                    }
                    if progress.ended.is_some() {
                        self.running.remove(&progress.text);
                    }
                }
            }
            Err(error) => {
                let (status, reason) = refusal(error);
                for listener in std::mem::take(&mut self.running).into_values() {
                    let _ = listener.events.send(Event::Refused((status, reason.clone())));
                }
            }
        }
        true
    }

    fn admit(&mut self, Request { wanted, listener }: Request) {
        if listener.cancel.is_cancelled() {
            return;
        }
        let refused = match self.batch.begin(&wanted.prompt, &wanted.sampling, &wanted.limits) {
            Ok(Some(text)) => {
                let _ = listener.events.send(Event::Begun);
                self.running.insert(text, listener);
                return;
            }
            Ok(None) => (503, "all generators are busy; try again later".to_string()),
            Err(error) => refusal(error),
        };
        let _ = listener.events.send(Event::Refused(refused));
    }
}
