//! The channel to the worker: jobs of requests, and what else it is told.

use std::sync::{
    Arc,
    mpsc::{self, Receiver, Sender},
};

use super::job::Job;
use crate::engine::{
    EngineError,
    admit::waiting::{ByClass, Waiting},
};

/// What the worker is told.
pub(super) enum Message {
    Submit(Vec<Job>, ByClass),
    /// Stop when all earlier jobs are answered.
    Stop,
    /// Check whether the waiting jobs are still to be computed.
    Wake,
    /// New requests are no longer accepted: do not wait for them.
    Hurry,
}

/// The sending half. Unbounded as a channel; the slots of admitted inputs bound it.
#[derive(Clone)]
pub(in crate::engine) struct Inbox {
    sender: Sender<Message>,
    waiting: Arc<Waiting>,
}

impl Inbox {
    /// Sends the jobs of one request together, so that they can share a batch. They fail if the worker has ended.
    pub(in crate::engine) fn submit(&self, jobs: Vec<Job>) {
        let inputs = self.waiting.sends(&jobs);
        if let Err(refused) = self.sender.send(Message::Submit(jobs, inputs))
            && let Message::Submit(jobs, inputs) = refused.0
        {
            self.waiting.takes_back(inputs);
            let error = EngineError::Backend("the worker has ended".into());
            jobs.iter().for_each(|job| job.ticket.fail(error.clone()));
        }
    }

    /// Tells the worker to stop when all earlier jobs are answered.
    pub(in crate::engine) fn stop(&self) {
        // Fails only if the worker has ended already.
        drop(self.sender.send(Message::Stop));
    }

    /// Tells the worker not to hold waiting jobs back for new requests.
    pub(in crate::engine) fn hurry(&self) {
        // Fails only if the worker has ended already.
        drop(self.sender.send(Message::Hurry));
    }

    /// Wakes the worker, if it sleeps, to check the waiting jobs.
    pub(in crate::engine) fn wake(&self) {
        // Fails only if the worker has ended already.
        drop(self.sender.send(Message::Wake));
    }
}

/// The channel to a worker; `waiting` counts the inputs in it.
pub(in crate::engine) fn channel(waiting: Arc<Waiting>) -> (Inbox, Arrivals) {
    let (sender, receiver) = mpsc::channel();
    (Inbox { sender, waiting: Arc::clone(&waiting) }, Arrivals { receiver, waiting })
}

/// The receiving half.
pub(in crate::engine) struct Arrivals {
    pub(super) receiver: Receiver<Message>,
    pub(super) waiting: Arc<Waiting>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::compute::job::tests::{forecast, job};

    #[test]
    fn who_comes_after_the_worker_has_ended_is_told() {
        let (inbox, arrivals) = channel(Arc::new(Waiting::new(None)));
        drop(arrivals);
        let forecast = forecast();
        let ((one, client), (other, another)) = (job(&forecast), job(&forecast));
        inbox.submit(vec![one, other]);
        for client in [client, another] {
            assert!(matches!(client.blocking_recv().unwrap(), Err(EngineError::Backend(_))));
        }
    }
}
