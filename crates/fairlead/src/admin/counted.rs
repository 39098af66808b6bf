//! Counters as JSON: an object with a field for each, by the table that declares them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use fairlead_base::CounterSet;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Counters that are written and read by their table. Fields that are missing are zero, others are
/// ignored, so that the two sides may differ in version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted<T>(pub T);

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Counted<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: CounterSet> Serialize for Counted<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(T::TABLE.len()))?;
        for (counter, value) in self.0.values() {
            map.serialize_entry(counter.name, &value)?;
        }
        map.end()
    }
}

impl<'de, T: CounterSet> Deserialize<'de> for Counted<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: CounterSet> Visitor<'de> for Fields<T> {
    type Value = Counted<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counters by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counted<T>, A::Error> {
        let mut counted = T::default();
        while let Some(name) = map.next_key::<String>()? {
            match counted.by_name(&name) {
                Some(value) => *value = map.next_value()?,
                None => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        Ok(Counted(counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fairlead_base::counters! {
        struct Doors {
            Counter opened: "opened", "Times that a door was opened";
            Counter closed: "closed", "Times that a door was closed";
        }
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct House {
        name: String,
        #[serde(flatten)]
        doors: Counted<Doors>,
    }

    #[test]
    fn counters_are_fields_of_the_object_around_them() {
        let house = House {
            name: "mill".to_owned(),
            doors: Counted(Doors {
                opened: 3,
                closed: u64::MAX,
            }),
        };
        let text = serde_json::to_string(&house).unwrap();
        assert_eq!(
            text,
            "{\"name\":\"mill\",\"opened\":3,\"closed\":18446744073709551615}"
        );
        assert_eq!(serde_json::from_str::<House>(&text).unwrap(), house);
        let newer = "{\"opened\":1,\"windows\":[1,{\"a\":2}]}";
        let read: House = serde_json::from_str(newer).unwrap();
        assert_eq!((read.doors.opened, read.doors.closed), (1, 0));
        assert!(serde_json::from_str::<House>("{\"opened\":-1}").is_err());
    }
}
