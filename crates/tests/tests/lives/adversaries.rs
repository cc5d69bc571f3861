//! Participants of ill will: they send whatever the protocol lets them say, at any moment. Nobody else may lose anything by it.
//!
//! [`USUAL`] are in every other life. `STDCHK_ADVERSARIES` names those that are in all, or `usual`, or `all`: an adversary stays out of the usual lives as long as the pool
//! is known not to withstand it.

use stdchk_model::Maker;

use super::content::{
    self, LARGE_CHUNKS, MADE_UP_CODES, MAKERS, MadeUp, MakeUp, Number, SMALL_CHUNKS, shown,
};
use super::model::NAMES;
use super::plant::Plant;
use super::world::World;

/// As whom clients of ill will code, by their certificate.
pub const OF_ILL_WILL: Maker = Maker([66; 8]);

/// Somebody of ill will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adversary {
    /// A client stores fragments of chunks that it knows the names of. They match their encoding, which decodes to something else.
    MakesUpEncodings,
    /// A client stores an encoding of which the data fragments are good, and the parity fragments made up.
    MakesUpParity,
    /// A client stores fragments that it made up in the name of somebody else.
    MakesUpAsAnother,
    /// A benefactor registers with a moment of the manager's history that never was.
    LiesOfHistory,
    /// A benefactor registers with a term that no manager has had.
    LiesOfTerms,
    /// A benefactor asks to follow a journal that never was.
    LiesOfJournal,
    /// A benefactor lists blocks that it hasn't, of lengths that may be absurd.
    ClaimsBlocks,
    /// A benefactor says that it has absurdly much room, or absurdly many or few blocks.
    LiesOfLoad,
    /// A benefactor says that others don't take what it was to copy to them.
    LiesOfFailures,
    /// A benefactor says of encodings that they don't make their chunk, or that they do, whether it was asked or not.
    LiesOfDecodings,
    /// A benefactor gives receipts for blocks that it hasn't, and stores nothing.
    StoresNothing,
    /// A benefactor serves other bytes than it was asked for, or none.
    ServesWrongly,
    /// A client presents receipts that it forged, or that others were given, at any later moment.
    PresentsReceipts,
    /// A user has files and sessions of its own, and asks whatever it may with names of chunks, encodings and versions of others.
    Meddles,
}

impl Adversary {
    pub const ALL: [Self; 14] = [
        Self::MakesUpEncodings,
        Self::MakesUpParity,
        Self::MakesUpAsAnother,
        Self::LiesOfHistory,
        Self::LiesOfTerms,
        Self::LiesOfJournal,
        Self::ClaimsBlocks,
        Self::LiesOfLoad,
        Self::LiesOfFailures,
        Self::LiesOfDecodings,
        Self::StoresNothing,
        Self::ServesWrongly,
        Self::PresentsReceipts,
        Self::Meddles,
    ];

    /// Whether it is a benefactor, not a client.
    pub fn is_benefactor(self) -> bool {
        !matches!(
            self,
            Self::MakesUpEncodings
                | Self::MakesUpParity
                | Self::MakesUpAsAnother
                | Self::PresentsReceipts
                | Self::Meddles
        )
    }
}

/// Those that every other one of the usual lives has.
const USUAL: [Adversary; 10] = [
    Adversary::MakesUpAsAnother,
    Adversary::LiesOfHistory,
    Adversary::LiesOfTerms,
    Adversary::LiesOfJournal,
    Adversary::LiesOfLoad,
    Adversary::LiesOfFailures,
    Adversary::LiesOfDecodings,
    Adversary::ServesWrongly,
    Adversary::PresentsReceipts,
    Adversary::Meddles,
];

/// Who takes part in a life.
pub fn in_life(seed: u64, plant: Plant) -> Vec<Adversary> {
    match plant {
        Plant::MadeUpFragmentsCount => return vec![Adversary::MakesUpEncodings],
        Plant::ClaimsAreBelieved => return vec![Adversary::ClaimsBlocks],
        _ => {}
    }
    let Ok(names) = std::env::var("STDCHK_ADVERSARIES") else {
        return if seed % 2 == 1 { USUAL.to_vec() } else { Vec::new() };
    };
    let named = |adversary: &Adversary| {
        names.split(',').any(|name| match name {
            "all" => true,
            "usual" => USUAL.contains(adversary),
            name => *name == format!("{adversary:?}"),
        })
    };
    Adversary::ALL.into_iter().filter(named).collect()
}

impl World {
    /// Somebody of ill will does something.
    pub fn adversary(&mut self) {
        let which = self.below(self.adversaries.len());
        match self.adversaries[which] {
            Adversary::MakesUpEncodings => self.stores_made_up(MakeUp::Content),
            Adversary::MakesUpParity => self.stores_made_up(MakeUp::Parity),
            Adversary::MakesUpAsAnother => self.stores_as_another(),
            Adversary::PresentsReceipts => self.presents_receipts(),
            Adversary::Meddles => self.meddles(),
            lie => self.lies_of(lie),
        }
    }

    /// A client stores fragments that don't make the chunk, a chunk of which somebody else may have written or may write.
    fn stores_made_up(&mut self, what: MakeUp) {
        let number = match what {
            MakeUp::Content => self.somebodys_chunk(),
            MakeUp::Parity if self.is_coded() => {
                SMALL_CHUNKS + Number::try_from(self.below(usize::from(LARGE_CHUNKS))).unwrap()
            }
            MakeUp::Parity => return,
        };
        let code = MADE_UP_CODES[self.below(MADE_UP_CODES.len())];
        // Over the network, or as a process of the machine, where no honest client is.
        let by = if self.below(2) == 0 { Some(OF_ILL_WILL) } else { None };
        let made_up = content::made_up(number, what, code, by.unwrap_or(Maker::LOCAL));
        self.note(format!("somebody makes up an encoding of {number}, as {by:?}"));
        self.stores_all(made_up, by);
    }

    /// A client brings fragments that it made up in the name of a maker that it isn't.
    fn stores_as_another(&mut self) {
        let (number, code) = (self.somebodys_chunk(), MADE_UP_CODES[self.below(MADE_UP_CODES.len())]);
        let others = [Maker::LOCAL, MAKERS[0], MAKERS[1]];
        let made_up = content::made_up(number, MakeUp::Content, code, others[self.below(others.len())]);
        self.note(format!("somebody makes up an encoding of {number}, and says that another one did"));
        let taken = self.stores_all(made_up, Some(OF_ILL_WILL));
        assert_eq!(taken, 0, "fragments are taken in the name of somebody else");
    }

    /// A chunk of data, or the map of a file that lies in the pool.
    fn somebodys_chunk(&mut self) -> Number {
        let place = self.below(4 * NAMES);
        let maps = if place < NAMES { self.files.maps(place) } else { Vec::new() };
        match maps.last() {
            Some(map) => *map,
            None => self.any_chunk(),
        }
    }

    /// Stores each block at another benefactor, as far as there are so many; how many are taken.
    fn stores_all(&mut self, made_up: &'static MadeUp, by: Option<Maker>) -> usize {
        let mut taken = 0;
        let (first, durable) = (self.below(self.nodes.len()), self.below(2) == 0);
        for (at, (block, stored)) in (first..).zip(&made_up.blocks) {
            let at = at % self.nodes.len();
            if !self.nodes[at].is_up() {
                continue;
            }
            let encoding = made_up.encoding.clone();
            let put = self.nodes[at].put(by, (*block, encoding), stored, (durable, true), &self.runtime);
            let (id, shown, is_taken) = (self.nodes[at].id, shown(block), put.is_ok());
            self.note(format!("somebody puts {shown}, which is made up, at {id:?}: {is_taken}"));
            // Who stores nothing takes anything.
            taken += usize::from(is_taken && !self.nodes[at].lies_to_manager.stores_nothing);
        }
        taken
    }
}
