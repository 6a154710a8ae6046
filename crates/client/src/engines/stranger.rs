//! Locks that another program took by the same recipe.

use sha2::{Digest, Sha256};
use tenure_table::{GrantId, Mode, OwnerId};

use crate::info::Member;

/// Returns the member for a holder in another program. It is identified only by the text that it wrote.
pub(super) fn another(text: &[u8]) -> Member {
    /// The longest part of the text that is shown, in characters.
    const SHOWN: usize = 40;
    let digest = Sha256::digest(text);
    let (halves, _) = digest.as_slice().as_chunks::<16>();
    let [grant, owner] = [halves[0], halves[1]].map(u128::from_be_bytes);
    let mut member = Member::new(GrantId::from_u128(grant), OwnerId::from_u128(owner), Mode::Ex);
    let shown: String =
        String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    member.label = Some(format!("another program, which wrote `{shown}`"));
    member
}

/// The advice about a holder in another program.
pub(super) const ASK_ANOTHER: &str =
    "another program holds it, which does not listen to us: end that program, or break the lock by force";
