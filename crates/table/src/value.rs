//! The value block: up to 1 KiB that a resource keeps from holder to holder.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The value of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The bytes that were last written. Empty if no value was written.
    pub bytes: Bytes,
    /// A holder that could write expired or was broken after the last write. It may have had another value to write. The next write clears
    /// this.
    pub in_doubt: bool,
}

impl Value {
    /// The largest size of a value in bytes: enough for a checkpoint or an address, not for a document.
    pub const MAX_BYTES: usize = 1024;
}

/// A [`Value`] as answers carry it. It is shared, because the table keeps each answer too. It allocates nothing for a resource without a
/// value, which is the common case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub struct SharedValue(Option<Arc<Value>>);

static NEVER_WRITTEN: Value = Value { bytes: Bytes::new(), in_doubt: false };

impl SharedValue {
    /// Whether no value was written.
    pub(crate) const fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// Marks the value as possibly out of date. Does nothing if there is no value.
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
