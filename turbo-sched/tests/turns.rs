//! Turns on a shared device: what fairness promises, in a simulation where every turn takes as long as it likes.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use turbo_sched::{Member, Sharers, Turns};

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Gives the next member its turn, and ends it after this long.
fn turn(turns: &mut Turns, took: u64) -> Option<Member> {
    let next = turns.next()?;
    turns.begin(next);
    turns.done(next, ms(took));
    Some(next)
}

#[test]
fn who_has_used_least_goes_next_and_of_equals_who_asked_first() {
    let mut turns = Turns::default();
    let [a, b] = [turns.join(), turns.join()];
    assert_eq!(turns.next(), None, "nobody asks");
    turns.ask(b);
    turns.ask(a);
    turns.ask(b); // once is enough
    assert_eq!(turn(&mut turns, 10), Some(b));
    assert_eq!(turn(&mut turns, 3), Some(a));
    assert_eq!(turns.next(), None, "both were served");
    for expected in [a, a, a, b] {
        turns.ask(a);
        turns.ask(b);
        assert_eq!(turn(&mut turns, 3), Some(expected));
    }
}

#[test]
fn more_time_than_there_is_stays_the_most() {
    let mut turns = Turns::default();
    let member = turns.join();
    for _ in 0..2 {
        turns.ask(member);
        turns.begin(member);
        turns.done(member, Duration::MAX);
    }
    assert_eq!(turns.used(member), Duration::MAX);
}

#[test]
fn nobody_saves_up_turns_while_it_wants_none() {
    let mut turns = Turns::default();
    let [busy, idle] = [turns.join(), turns.join()];
    for _ in 0..100 {
        turns.ask(busy);
        assert_eq!(turn(&mut turns, 10), Some(busy));
    }
    let mut row = Vec::new();
    for _ in 0..6 {
        turns.ask(busy);
        turns.ask(idle);
        row.extend(turn(&mut turns, 10));
    }
    assert_eq!(row, [idle, busy, idle, busy, idle, busy]);
}

#[test]
fn a_second_turn_stands_ready_only_while_nobody_else_asks() {
    let mut turns = Turns::default();
    let [a, b] = [turns.join(), turns.join()];
    turns.ask(a);
    turns.begin(a);
    turns.ask(a);
    assert_eq!(turns.next(), Some(a), "behind its own");
    turns.ask(b);
    assert_eq!(turns.next(), None, "the device is taken, and somebody else asks");
    turns.withdraw(b);
    turns.begin(a);
    turns.ask(a);
    assert_eq!(turns.next(), None, "one stands ready already");
    turns.withdraw(a);
    turns.ask(b);
    turns.done(a, ms(1));
    assert_eq!(turns.next(), None, "one of two is done");
    turns.done(a, ms(1));
    assert_eq!(turns.next(), Some(b));
}

#[test]
fn who_else_asks_or_has_a_turn_shares_the_device() {
    let mut turns = Turns::default();
    let [a, b, c] = [turns.join(), turns.join(), turns.join()];
    let sharers = |turns: &Turns| {
        [a, b, c].map(|member| turns.sharers(member)).map(|Sharers { asking, running }| (asking, running))
    };
    assert_eq!(sharers(&turns), [(0, false); 3], "nobody wants it");
    turns.ask(a);
    turns.begin(a);
    assert_eq!(sharers(&turns), [(0, false), (0, true), (0, true)]);
    turns.ask(a);
    assert_eq!(
        sharers(&turns),
        [(0, false), (1, false), (1, false)],
        "once, though its next one stands ready"
    );
    turns.ask(b);
    assert_eq!(sharers(&turns), [(1, false), (1, false), (2, false)]);
    turns.leave(a);
    turns.withdraw(b);
    assert_eq!([b, c].map(|member| turns.sharers(member)), [Sharers::default(); 2]);
}

#[test]
fn who_leaves_takes_its_turn_along() {
    let mut turns = Turns::default();
    let [a, b] = [turns.join(), turns.join()];
    turns.ask(a);
    turns.begin(a);
    turns.ask(b);
    turns.leave(a);
    assert_eq!(turns.next(), Some(b));
    let c = turns.join();
    turns.ask(c);
    assert_eq!(turn(&mut turns, 5), Some(b));
    assert_eq!(turn(&mut turns, 5), Some(c));
}

#[test]
fn who_has_left_is_not_taken_for_who_has_its_place() {
    let mut turns = Turns::default();
    let a = turns.join();
    turns.ask(a);
    turns.begin(a);
    turns.leave(a);
    let c = turns.join();
    turns.ask(c);
    turns.begin(c);
    turns.done(a, ms(5));
    assert!(turns.is_taken(), "by c");
    turns.leave(a);
    turns.done(c, ms(3));
    assert_eq!(turns.used(c), ms(3));
    let used = std::panic::catch_unwind(move || turns.used(a));
    assert!(used.is_err(), "a has left");
}

#[test]
#[should_panic(expected = "only the next one may begin")]
fn nobody_begins_out_of_turn() {
    let mut turns = Turns::default();
    let [a, b] = [turns.join(), turns.join()];
    turns.ask(a);
    turns.ask(b);
    turns.begin(b);
}

/// How a simulated member behaves: how long its turns take, and for how long it wants none in between.
#[derive(Clone, Debug)]
struct Habit {
    takes: Vec<u64>,
    rests: Vec<u64>,
}

fn habit(rests: std::ops::Range<u64>) -> impl Strategy<Value = Habit> {
    let takes = prop::collection::vec(1_u64..50, 1..8);
    let rests = prop_oneof![Just(0), rests];
    (takes, prop::collection::vec(rests, 1..8)).prop_map(|(takes, rests)| Habit { takes, rests })
}

/// A member in the simulation: when it asks next, when it asked, and its turns so far.
#[derive(Clone, Debug, Default)]
struct Life {
    asks_at: u64,
    asked_at: Option<u64>,
    turns: usize,
    used: u64,
    longest_wait: u64,
}

/// Simulates; returns for each member the time it used and the longest time from asking to its turn. A member that
/// never rests asks while its turn runs, so its next one stands ready behind that if it may.
fn run(habits: &[Habit], until: u64) -> Vec<(u64, u64)> {
    let mut turns = Turns::default();
    let members: Vec<Member> = habits.iter().map(|_| turns.join()).collect();
    let mut lives = vec![Life::default(); habits.len()];
    // Turns that have begun: whose, how long they take, and when they end.
    let mut begun: VecDeque<(usize, u64, u64)> = VecDeque::new();
    let mut now = 0;
    while now < until {
        for (life, &member) in lives.iter_mut().zip(&members) {
            if life.asked_at.is_none() && life.asks_at <= now {
                turns.ask(member);
                life.asked_at = Some(now);
            }
        }
        if let Some(next) = turns.next() {
            let place = members.iter().position(|&member| member == next).expect("it is one of them");
            let (habit, life) = (&habits[place], &mut lives[place]);
            turns.begin(next);
            let took = habit.takes[life.turns % habit.takes.len()];
            let rest = habit.rests[life.turns % habit.rests.len()];
            let ends = begun.back().map_or(now, |&(_, _, end)| end) + took;
            begun.push_back((place, took, ends));
            life.longest_wait = life.longest_wait.max(now - life.asked_at.take().expect("it has asked"));
            life.turns += 1;
            life.asks_at = if rest == 0 { now } else { ends + rest };
            continue;
        }
        let asks = lives.iter().filter(|life| life.asked_at.is_none()).map(|life| life.asks_at);
        let ends = begun.front().map(|&(_, _, end)| end);
        now = asks.chain(ends).min().expect("somebody asks or has a turn");
        if let Some((place, took, _)) = begun.pop_front_if(|&mut (_, _, end)| end == now) {
            turns.done(members[place], ms(took));
            lives[place].used += took;
        }
    }
    lives.into_iter().map(|life| (life.used, life.longest_wait)).collect()
}

fn longest(habit: &Habit) -> u64 {
    habit.takes.iter().copied().max().expect("no habit is empty")
}

proptest! {
    /// The times used by members that never rest differ by at most one turn of each, whatever the members do that come
    /// and go.
    #[test]
    fn time_is_shared_equally(
        busy in prop::collection::vec(habit(0..1), 2..5),
        others in prop::collection::vec(habit(0..200), 0..3),
    ) {
        let habits = [busy.clone(), others].concat();
        let used = run(&habits, 20_000);
        for (a, first) in busy.iter().enumerate() {
            for (b, second) in busy.iter().enumerate() {
                let apart = used[a].0.abs_diff(used[b].0);
                let bound = longest(first) + longest(second);
                prop_assert!(apart <= bound, "{apart} ms apart, at most {bound}: {used:?}");
            }
        }
    }

    /// A member that asks has its turn after those that run or stand ready, and then after one of each other member,
    /// and for each of them two of its own, at the latest.
    #[test]
    fn nobody_starves(habits in prop::collection::vec(habit(0..300), 2..6)) {
        for ((_, waited), own) in run(&habits, 20_000).into_iter().zip(&habits) {
            let bound = longest_wait(&habits, own);
            prop_assert!(waited <= bound, "waited {waited} ms, at most {bound}");
        }
    }
}

/// What fairness promises a member at most.
fn longest_wait(habits: &[Habit], own: &Habit) -> u64 {
    let runs = 2 * habits.iter().map(longest).max().expect("there are members");
    let others: u64 = habits.iter().map(longest).sum::<u64>() - longest(own);
    runs + others + 2 * (habits.len() as u64 - 1) * longest(own)
}

/// Two turns that began at once have the tag of the first: a member that comes back then has turns before the third
/// one, for as long as both took.
#[test]
fn two_turns_at_once_count_when_both_are_done() {
    let habits =
        [Habit { takes: vec![49], rests: vec![0] }, Habit { takes: vec![24], rests: vec![0, 0, 0, 0, 100] }];
    let waited = run(&habits, 20_000)[0].1;
    assert_eq!(waited, 2 * 49 + 5 * 24);
    assert!(waited <= longest_wait(&habits, &habits[0]));
}
