//! Turns on a device that several queues share.
//!
//! In: which queues ask for a turn, and how long each turn took. Out: which goes next. It owns no clock, no device and
//! no thread.
//!
//! Each queue is a member with a tag, the device time that it has used; of the members that ask, the one with the least
//! tag goes next. A member that was idle gets the tag of the turn that runs, if that is greater: it goes soon, but has
//! no claim to the time in which it asked for nothing.
//!
//! Source: Goyal, Vin and Cheng, *Start-time Fair Queuing*, SIGCOMM'96, with equal weights. One thing differs: the cost
//! of a turn is known only when it is done. The guarantees stay. The times used by two members that never stop asking
//! differ by at most one turn of each. A member that asks waits for the turn that runs, and then, for each other
//! member, at most as long as one turn of that member and two of its own take (the cost of two turns that began at once
//! is known when both are done).

use std::time::Duration;

/// The members of a device, and whose turn it is.
#[derive(Debug, Default)]
pub struct Turns {
    /// Free places are `None`.
    members: Vec<Option<State>>,
    /// The member whose turn it is, and how many turns it has at once: [`MOST_TURNS`] at most.
    holder: Option<(Member, usize)>,
    /// Tag of the turn that began last.
    now: Duration,
    /// Requests for a turn so far.
    asked: u64,
    /// Members so far.
    joined: u64,
}

/// The turn that runs, and one that stands ready behind it.
const MOST_TURNS: usize = 2;

/// One of the queues that share a device. It differs from the member that had its place before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    place: usize,
    number: u64,
}

/// The other members that use a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharers {
    /// Members that ask for a turn.
    pub asking: usize,
    /// Whether one has a turn, and asks for no other.
    pub running: bool,
}

/// The precondition of methods that take a member.
const PRESENT: &str = "a member has not left";

#[derive(Debug)]
struct State {
    member: Member,
    tag: Duration,
    /// The number of its request for a turn, while it waits.
    asks: Option<u64>,
}

impl Turns {
    /// Adds a member, which has used no time and asks for no turn.
    pub fn join(&mut self) -> Member {
        let free = self.members.iter().position(Option::is_none);
        let place = free.unwrap_or(self.members.len());
        if place == self.members.len() {
            self.members.push(None);
        }
        let member = Member { place, number: self.joined };
        self.joined += 1;
        self.members[place] = Some(State { member, tag: Duration::ZERO, asks: None });
        member
    }

    /// Removes a member, if it has not left, together with its request for a turn and the turns that it has.
    pub fn leave(&mut self, member: Member) {
        if self.find(member).is_some() {
            self.members[member.place] = None;
        }
        self.holder = self.holder.filter(|(holder, _)| *holder != member);
    }

    /// `member` asks for a turn. Without effect if it waits for one already.
    ///
    /// # Panics
    /// If it has left.
    pub fn ask(&mut self, member: Member) {
        let (now, number) = (self.now, self.asked);
        let state = self.state(member);
        if state.asks.is_none() {
            state.tag = state.tag.max(now);
            state.asks = Some(number);
            self.asked += 1;
        }
    }

    /// `member` no longer wants a turn.
    ///
    /// # Panics
    /// If it has left.
    pub fn withdraw(&mut self, member: Member) {
        self.state(member).asks = None;
    }

    /// The member that may begin now: of those that ask, the one that has used the device least, and among equals the
    /// one that asked first. While a member has a turn, no other may begin. The same member may if no other asks: its
    /// next turn, and no further one, then stands ready behind the one that runs.
    #[must_use]
    pub fn next(&self) -> Option<Member> {
        let asks = |state: &State| Some(((state.tag, state.asks?), state.member));
        let mut asking = self.members.iter().flatten().filter_map(asks);
        match self.holder {
            None => asking.min_by_key(|(key, _)| *key).map(|(_, member)| member),
            Some((holder, turns)) => {
                let (_, first) = asking.next()?;
                (first == holder && turns < MOST_TURNS && asking.next().is_none()).then_some(first)
            }
        }
    }

    /// Gives `member` its turn.
    ///
    /// # Panics
    /// If it is not [`Turns::next`].
    pub fn begin(&mut self, member: Member) {
        assert_eq!(self.next(), Some(member), "only the next one may begin");
        let state = self.state(member);
        state.asks = None;
        self.now = state.tag;
        let turns = self.holder.map_or(0, |(_, turns)| turns);
        self.holder = Some((member, turns + 1));
    }

    /// Ends a turn of `member`, which kept the device busy for `took`. Without effect if the member has left in the
    /// meantime.
    pub fn done(&mut self, member: Member, took: Duration) {
        let Some((holder, turns)) = self.holder.filter(|(holder, _)| *holder == member) else { return };
        let state = self.state(holder);
        state.tag = state.tag.saturating_add(took);
        self.holder = (turns > 1).then_some((holder, turns - 1));
    }

    /// Whether a member has a turn.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.holder.is_some()
    }

    /// How long `member` has used the device; after it was idle, raised to the level of the others.
    ///
    /// # Panics
    /// If it has left.
    #[must_use]
    pub fn used(&self, member: Member) -> Duration {
        self.find(member).expect(PRESENT).tag
    }

    /// Members that ask for a turn.
    #[must_use]
    pub fn asking(&self) -> usize {
        self.members.iter().flatten().filter(|state| state.asks.is_some()).count()
    }

    /// The members other than `member` that use the device.
    #[must_use]
    pub fn sharers(&self, member: Member) -> Sharers {
        let others = || self.members.iter().flatten().filter(|state| state.member != member);
        let has_a_turn = |other| self.holder.is_some_and(|(holder, _)| holder == other);
        Sharers {
            asking: others().filter(|state| state.asks.is_some()).count(),
            running: others().any(|state| state.asks.is_none() && has_a_turn(state.member)),
        }
    }

    /// `None` once it has left.
    fn find(&self, member: Member) -> Option<&State> {
        self.members.get(member.place)?.as_ref().filter(|state| state.member == member)
    }

    fn state(&mut self, member: Member) -> &mut State {
        let state = self.members.get_mut(member.place).and_then(Option::as_mut);
        state.filter(|state| state.member == member).expect(PRESENT)
    }
}
