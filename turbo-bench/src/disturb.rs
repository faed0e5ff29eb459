//! A neighbour: a process that takes a small share of a core which two compute threads also want.

use std::{
    io::Read,
    thread,
    time::{Duration, Instant},
};

/// The neighbour is busy for its share of each such period.
const PERIOD: Duration = Duration::from_millis(20);

/// Takes `share` of the core that it runs on until `input` ends, which happens when the parent process ends.
pub fn until_the_end_of(mut input: impl Read + Send + 'static, share: f64) {
    let reader = thread::spawn(move || std::io::copy(&mut input, &mut std::io::sink()));
    disturb(share, || !reader.is_finished());
}

/// Takes `share` of the core that it runs on until `goes_on`, called every 20 ms, returns `false`.
fn disturb(share: f64, mut goes_on: impl FnMut() -> bool) {
    let busy = PERIOD.mul_f64(share.clamp(0.0, 1.0));
    let mut next = Instant::now();
    while goes_on() {
        let begin = Instant::now();
        while begin.elapsed() < busy {
            std::hint::spin_loop();
        }
        next += PERIOD;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_its_input() {
        let (ended, end) = std::sync::mpsc::channel();
        thread::spawn(move || {
            until_the_end_of(std::io::empty(), 0.05);
            ended.send(())
        });
        assert!(end.recv_timeout(Duration::from_secs(60)).is_ok(), "it goes on without its input");
    }

    #[test]
    fn it_comes_and_goes() {
        let (begin, mut periods) = (Instant::now(), 0);
        disturb(0.05, || {
            periods += 1;
            periods <= 3
        });
        assert!(begin.elapsed() >= 2 * PERIOD);
    }
}
