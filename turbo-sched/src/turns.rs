//! Whose turn it is on a device that several queues share.
//!
//! In: who asks, and how long each turn took. Out: who goes next. It owns no clock, no device and no thread.
//!
//! Each member has a tag, the device time that it has used; of those who ask, the one with the least tag goes next. Whoever
//! comes back from idleness is given the tag of the turn that runs: it goes soon, and has nothing to claim for the time in
//! which it wanted nothing.
//!
//! Source: Goyal, Vin and Cheng, *Start-time Fair Queuing*, SIGCOMM'96, with equal weights. Departs in one thing: what a
//! turn costs is known when it is done, and not before. What follows from it stays the same: two members that never stop
//! asking have used the same time but for one turn of each; and whoever asks waits for each other member at most as long
//! as one turn of that and one of its own take.

use std::time::Duration;

/// The members of a device, and whose turn it is.
#[derive(Debug, Default)]
pub struct Turns {
    /// Free places are `None`.
    members: Vec<Option<State>>,
    /// Whose turn it is, and how many it has at once.
    holder: Option<(Member, usize)>,
    /// Tag of the turn that began last.
    now: Duration,
    /// Questions so far.
    asked: u64,
}

/// One of those who share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member(usize);

#[derive(Debug, Default)]
struct State {
    tag: Duration,
    /// The number of its question, while it has no answer.
    asks: Option<u64>,
}

impl Turns {
    /// Adds a member, which has used nothing and wants nothing.
    pub fn join(&mut self) -> Member {
        let free = self.members.iter().position(Option::is_none);
        let place = free.unwrap_or(self.members.len());
        if place == self.members.len() {
            self.members.push(None);
        }
        self.members[place] = Some(State::default());
        Member(place)
    }

    /// Removes a member, and takes from it what it asks for and the turns that it has.
    pub fn leave(&mut self, member: Member) {
        self.members[member.0] = None;
        self.holder = self.holder.filter(|(holder, _)| *holder != member);
    }

    /// `member` wants a turn. Whoever has asked already has one question only.
    pub fn ask(&mut self, member: Member) {
        let (now, number) = (self.now, self.asked);
        let state = self.state(member);
        if state.asks.is_none() {
            state.tag = state.tag.max(now);
            state.asks = Some(number);
            self.asked += 1;
        }
    }

    /// `member` wants no turn any more.
    pub fn withdraw(&mut self, member: Member) {
        self.state(member).asks = None;
    }

    /// Who may begin now: of those who ask, the one that has used the device least; of several the one that has asked
    /// first. While somebody has a turn nobody may, but for the same member when no other asks: its next turn stands ready
    /// behind the one that runs.
    #[must_use]
    pub fn next(&self) -> Option<Member> {
        let asks = |(place, state): (usize, &Option<State>)| {
            let state = state.as_ref()?;
            Some(((state.tag, state.asks?), Member(place)))
        };
        let mut asking = self.members.iter().enumerate().filter_map(asks);
        match self.holder {
            None => asking.min_by_key(|(key, _)| *key).map(|(_, member)| member),
            Some((holder, _)) => {
                let (_, first) = asking.next()?;
                (first == holder && asking.next().is_none()).then_some(first)
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

    /// A turn of `member` is done, and has kept the device busy for `took`. One that left in the meantime had none.
    pub fn done(&mut self, member: Member, took: Duration) {
        let Some((holder, turns)) = self.holder.filter(|(holder, _)| *holder == member) else { return };
        self.state(holder).tag += took;
        self.holder = (turns > 1).then_some((holder, turns - 1));
    }

    /// Whether somebody has a turn.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.holder.is_some()
    }

    /// How long `member` has used the device, counted up to the others where it came back from idleness.
    ///
    /// # Panics
    /// If it has left.
    #[must_use]
    pub fn used(&self, member: Member) -> Duration {
        self.members[member.0].as_ref().expect("it has not left").tag
    }

    /// Members that ask for a turn.
    #[must_use]
    pub fn asking(&self) -> usize {
        self.members.iter().flatten().filter(|state| state.asks.is_some()).count()
    }

    fn state(&mut self, Member(place): Member) -> &mut State {
        let state = self.members.get_mut(place).and_then(Option::as_mut);
        state.expect("a member is passed on by whoever joined, until it leaves")
    }
}
