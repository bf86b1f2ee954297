//! Objects whose names count in any case, as the JSON decoder of Go reads them.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};

/// A value of type `T`, read from an object whose names may have capital letters. Those of `T` have none.
pub(super) struct AnyCase<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for AnyCase<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(SmallNames(fields)))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// The fields of an object with their names in small letters.
struct SmallNames<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SmallNames<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.0.next_key::<String>()? else { return Ok(None) };
        let small: StringDeserializer<A::Error> = name.to_ascii_lowercase().into_deserializer();
        seed.deserialize(small).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}
