//! The value block: up to 1 KiB that stays with a resource from holder to holder.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What the last writer left with the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The bytes; empty if nobody ever wrote any.
    pub bytes: Bytes,
    /// A holder that could have been about to write died. The bytes are the last ones that were written, and may not
    /// be the last ones that were meant. The next write clears it.
    pub in_doubt: bool,
}

impl Value {
    /// The most bytes that a value may have: a checkpoint or an address, not a document.
    pub const MAX_BYTES: usize = 1024;
}

/// A [`Value`] as answers carry it: shared, since each answer is also kept; and nothing at all where nobody wrote one, which is
/// what most answers carry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub struct SharedValue(Option<Arc<Value>>);

static NEVER_WRITTEN: Value = Value { bytes: Bytes::new(), in_doubt: false };

impl SharedValue {
    /// Whether nobody ever wrote one.
    pub(crate) const fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// The bytes may not be the last ones that were meant.
    pub(crate) fn doubt(&mut self) {
        if let Some(value) = &mut self.0 {
            Arc::make_mut(value).in_doubt = true;
        }
    }
}

impl Deref for SharedValue {
    type Target = Value;

    fn deref(&self) -> &Value {
        self.0.as_deref().unwrap_or(&NEVER_WRITTEN)
    }
}

impl From<Value> for SharedValue {
    fn from(value: Value) -> Self {
        Self((value != NEVER_WRITTEN).then(|| Arc::new(value)))
    }
}

impl From<SharedValue> for Value {
    fn from(value: SharedValue) -> Self {
        value.0.map_or_else(Self::default, Arc::unwrap_or_clone)
    }
}
